"""A broker that lagged is elected, and the records that it never had are lost (`unclean.leader.election.enable`). On real
brokers: a store, a reader that follows and a committed position notice, though the partition is longer again than they had read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from orchestrator.model import TaskId
from state.changelog import LEADER_EPOCH, apply
from state.directory import StateDirectory
from state.errors import PositionOutOfRange, RecordsLost
from state.log.kafka.broker import Broker
from state.log.kafka.log import KafkaLog
from state.log.kafka.requests import CreateTopicsRequest_v4
from state.log.protocol import NewRecord, Partition, Reader, TaskCommit
from tests.contracts import logs
from tests.kafka.place import Place, owner
from tests.workers.test_restores_at_once import app_of
from workers.prepare import prepare
from workers.tasks.stores import Opened, StoreOpener

pytestmark = [pytest.mark.kafka, pytest.mark.processes]
TASK, CHANGES = TaskId(0, 0), Partition("restored-last-changelog", 0)
SETTINGS = {"cleanup.policy": "compact", "min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
DEADLINE_S = 90.0  # brokers that start on a busy machine


async def until(what: str, there: Callable[[], Awaitable[bool]]) -> None:
    await logs.until(what, there, DEADLINE_S)


def inside(log: KafkaLog) -> str:
    return log._cluster.topics.names.inside(CHANGES.topic)


async def created(log: KafkaLog, partitions: int = 1) -> None:
    """The changelog with two replicas, so that the third broker keeps the controllers' majority."""
    placed = [(number, [1, 2]) for number in range(partitions)]
    request = CreateTopicsRequest_v4([(inside(log), -1, -1, placed, list(SETTINGS.items()))], 10_000, False)
    answer = await log._cluster.connections.ask_any(request)
    assert answer.topic_errors[0][1] == 0, answer


async def leader(log: KafkaLog) -> tuple[int, list[int]]:
    """Who leads, and who is in sync."""
    connections = log._cluster.connections
    answer = await connections.retried("metadata", lambda: connections.metadata([inside(log)]))
    partition = answer.topics[0][4][0]
    return partition[2], sorted(partition[5])


async def write(log: KafkaLog, keys: range, value: bytes) -> int:
    for n in keys:
        await log.append({CHANGES: [NewRecord(b"%d" % n, value, n)]})
    return (await log.ends([CHANGES], settled=True))[CHANGES]


async def follow(reader: Reader, found: Opened, end: int) -> None:
    async def level() -> bool:
        for part in await reader.poll(wait_ms=100):
            apply(found.store, part)
        return found.store.offset >= end

    await until("the store to be level", level)


async def test_what_an_election_loses_is_noticed(
    three: list[Broker], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = three
    await asyncio.gather(*(asyncio.to_thread(one.launch) for one in three))
    place = Place("", third.port)
    log = await place.open()
    try:
        await created(log)
        prepared = await prepare(log, app_of(1))
        assert prepared.changelog(TASK, "last") == CHANGES
        opener = StoreOpener(log, prepared, StateDirectory(tmp_path, "restored", "i1"), "")
        await write(log, range(10), b"before")

        async def is_led(by: int, in_sync: list[int]) -> bool:
            return await leader(log) == (by, in_sync)

        await until("two replicas in sync", lambda: is_led(1, [1, 2]))
        await asyncio.to_thread(second.stop, kill=True)
        await until("one replica in sync", lambda: is_led(1, [1]))
        end = await write(log, range(10, 20), b"lost")
        found, reader = (await opener.open(TASK))["last"], log.reader()
        reader.add(CHANGES, 0)
        await follow(reader, found, end)
        assert int(found.store.stamp()[LEADER_EPOCH]) == log.epoch(CHANGES)
        found.store.close()
        await log._cluster.offsets.commit("restored", {CHANGES: end}, {})
        assert await log.lost("restored", [CHANGES]) == {}

        await asyncio.to_thread(first.stop, kill=True)
        await asyncio.to_thread(second.launch)
        await until("the replica that lagged to lead", lambda: is_led(2, [2]))
        await asyncio.to_thread(first.launch)
        assert await write(log, range(100, 130), b"after") > end
        assert await log.lost("restored", [CHANGES]) == {CHANGES: 10}
        await log._cluster.offsets.commit(
            "restored", {CHANGES: end}, {}
        )  # of what was read before, by one that has not noticed yet
        assert await log.lost("restored", [CHANGES]) == {CHANGES: 10}

        async def is_refused() -> bool:
            try:
                await reader.poll(wait_ms=100)
            except PositionOutOfRange as error:
                assert error.end == 10
                return True
            return False

        await until("the reader to notice", is_refused)
        await reader.close()
        with caplog.at_level(logging.WARNING):
            again = (await opener.open(TASK))["last"]
        again.store.close()
        assert (again.source, again.position) == ("empty", 0)
        assert f"it stands at {end}, and its changelog has kept 10" in caplog.text
    finally:
        await place.close()


@pytest.mark.long
async def test_a_writer_names_all_that_an_election_lost_of_it(three: list[Broker]) -> None:
    """Also where it writes nothing at that moment: by another id it would never be refused there."""
    first, second, third = three
    await asyncio.gather(*(asyncio.to_thread(one.launch) for one in three))
    place = Place("", third.port)
    log = await place.open()
    both = [Partition(CHANGES.topic, number) for number in range(2)]

    async def commit(writer: str, epoch: int, partitions: list[Partition], value: bytes) -> None:
        written = {one: [NewRecord(b"k", value, 1)] for one in partitions}
        await log.commit("restored", writer, [TaskCommit("0_0", epoch, written, {})])

    try:
        await created(log, 2)
        lease = await log.acquire("restored", "c", "a:1", None)
        assert lease is not None
        await log.open_writer("restored", "w")
        await log.record_owners(lease, [owner(1, lease)])

        async def is_led(by: int, in_sync: list[int]) -> bool:
            return await leader(log) == (by, in_sync)

        await until("two replicas in sync", lambda: is_led(1, [1, 2]))
        await commit("w", 1, both, b"before")
        await asyncio.to_thread(second.stop, kill=True)
        await until("one replica in sync", lambda: is_led(1, [1]))
        await commit("w", 1, both, b"lost")
        await asyncio.to_thread(first.stop, kill=True)
        await asyncio.to_thread(second.launch)
        await until("the replica that lagged to lead", lambda: is_led(2, [2]))
        with pytest.raises(RecordsLost, match=f"the brokers of {both[0]}, {both[1]} lost records"):
            await commit("w", 1, both[1:], b"refused")
    finally:
        await place.close()
