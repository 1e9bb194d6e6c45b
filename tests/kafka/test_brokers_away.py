"""Brokers that do not answer: others are asked, and a reader looks once for each partition that it has lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import Array, Int16, Int32, Schema, String

from state.errors import LogTimedOut, LogUnavailable, OutcomeUnknown
from state.log.batches import decode
from state.log.group_store import AppMetadata, MetadataKind
from state.log.kafka import appender, broker, facts_topic, producer, reader
from state.log.kafka.access import Access
from state.log.kafka.broker import Broker
from state.log.kafka.cluster import KafkaOptions
from state.log.kafka.codes import Unreachable
from state.log.kafka.connections import Connections
from state.log.kafka.log import KafkaLog, open_kafka
from state.log.kafka.reader import KafkaReader
from state.log.kafka.requests import CreateTopicsRequest_v4, metadata
from state.log.kafka.topics import Topics
from state.log.protocol import Partition, TopicSpec
from tests import brokers
from tests.contracts.logs import records, until, values
from tests.kafka.place import Place
from workers.commands.status import sizes_of
from workers.log.patient_log import PatientLog, PatientReader

DEADLINE_S = 60.0  # brokers that elect on a busy machine
PARTITIONS = [Partition("out", number) for number in range(4)]


async def test_a_broker_that_was_away_is_asked_last() -> None:
    """Where all are, any of them."""
    nobody = broker.free_port()  # nothing listens there, nor behind it
    connections = Connections([("127.0.0.1", nobody)], Access())
    listed = [(1, "127.0.0.1", nobody, None, ""), (2, "127.0.0.1", nobody + 1, None, "")]
    connections.learn(SimpleNamespace(brokers=listed, cluster_id="c"))
    for node, asked in ((1, {2}), (2, {1, 2})):
        with pytest.raises(Unreachable):
            await connections.send(node, metadata([]), "quick")
        assert {connections.any_node() for _ in range(100)} == asked
    await connections.close()


@asynccontextmanager
async def own_broker(folder: Path) -> AsyncIterator[tuple[Broker, KafkaLog]]:
    """A broker that the test may stop, and a log on it with a topic."""
    brokers.shared()  # skips the test where none can be had
    made = broker.prepare(folder / "broker", version=brokers.VERSION)
    await asyncio.to_thread(made.launch)
    place = Place(port=made.port)
    try:
        log = await place.open()
        await log.create_topic(TopicSpec("out", len(PARTITIONS)))
        yield made, log
    finally:
        await place.close()
        made.stop(kill=True)


@pytest.mark.kafka
async def test_a_reader_looks_once_for_each_partition(tmp_path: Path) -> None:
    """While its broker is away, however often it is tried; and reads on when it is back."""
    async with own_broker(tmp_path) as (made, log):
        reader = log.reader()
        assert isinstance(reader, KafkaReader)
        for partition in PARTITIONS:
            reader.add(partition, 0)
        await log.append(dict.fromkeys(PARTITIONS, records("1")))
        seen: set[Partition] = set()

        async def all_read() -> bool:
            seen.update(found.partition for found in await reader.poll(wait_ms=100) if found.data)
            return seen == set(PARTITIONS)

        await until("the first records", all_read)
        await asyncio.to_thread(made.stop, kill=True)
        searches: list[int] = []

        async def tried() -> bool:
            await asyncio.sleep(0.02)
            searches.append(len(reader._tasks))
            return sum(count > 0 for count in searches) > 100

        await until("the searches", tried)
        assert max(searches) <= len(PARTITIONS), searches
        await asyncio.to_thread(made.launch)
        await log.append(dict.fromkeys(PARTITIONS, records("2")))
        seen.clear()
        await until("the records after it", all_read)


@pytest.mark.kafka
async def test_a_worker_waits_for_brokers_as_long_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty poll is no sign of life: workers reported twice a minute that the log can be used again, and waited for ever."""
    monkeypatch.setattr(Topics.by_leader, "__defaults__", (0.5,))  # of them in proportion, as 30 s and 1 s are
    monkeypatch.setattr(reader, "LOOK_S", 0.1)
    monkeypatch.setattr(facts_topic, "_TAIL_WAIT_MS", 100)
    async with own_broker(tmp_path) as (made, log):
        await log.put_metadata("app", MetadataKind("fact"), "key", b"1")
        patient = PatientLog(log, 2.0, asyncio.get_running_loop().time)
        inputs = patient.reader()
        inputs.add(PARTITIONS[0], 0)
        await log.append({PARTITIONS[0]: records("1")})
        await until("the record", lambda: _gives(inputs, b"1"))
        await asyncio.to_thread(made.stop, kill=True)
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(LogTimedOut):
                while True:
                    await inputs.poll(wait_ms=100)
                    await patient.lease("app")
        assert patient.waits()[0] <= 3, (
            "it waits once: for a moment the facts may be known to be away, and the inputs not"
        )
        await asyncio.to_thread(made.launch)
        await log.append({PARTITIONS[0]: records("2")})
        await until("the record after it", lambda: _gives(inputs, b"2"))
        await inputs.close()


async def _gives(reader: PatientReader, value: bytes) -> bool:
    try:
        return any(record.value == value for one in await reader.poll(wait_ms=100) for record in decode(one.data, 0))
    except LogTimedOut:
        return False


@pytest.mark.kafka
async def test_a_producer_asks_as_long_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its topics are, too: both when it has records under way, and when it begins."""
    async with own_broker(tmp_path) as (made, log):
        await log.append({PARTITIONS[0]: records("1")})
        await asyncio.to_thread(made.stop, kill=True)
        monkeypatch.setattr(appender, "ANSWER_WITHIN_S", 2.0)
        monkeypatch.setattr(producer, "_PLAIN_WITHIN_S", 2.0)
        with pytest.raises(OutcomeUnknown, match="metadata was not answered for 2 s"):
            await log.append({PARTITIONS[0]: records("2")})
        with pytest.raises(LogUnavailable, match="metadata was not answered for 2 s"):
            await log.append({PARTITIONS[0]: records("2")})


@pytest.mark.kafka
async def test_facts_are_followed_again_when_brokers_are_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that keeps its progress waits longer than one look at the facts does: it ended with brokers that were back."""
    monkeypatch.setattr(Topics.by_leader, "__defaults__", (0.5,))
    progress = AppMetadata("app", MetadataKind("produce"), "file", b"1")
    async with own_broker(tmp_path) as (made, log):
        await log.append({PARTITIONS[0]: records("1")}, metadata=progress)
        await asyncio.to_thread(made.stop, kill=True)
        next_ = log.append({PARTITIONS[0]: records("2")}, metadata=progress._replace(value=b"2"), seen=b"1")
        appending = asyncio.create_task(next_)

        async def is_away() -> bool:
            try:
                await log.lease("app")
            except LogUnavailable as error:
                return "cannot be followed" in str(error)
            return False

        await until("no answer", is_away)
        assert not appending.done()
        await asyncio.to_thread(made.launch)
        await asyncio.wait_for(appending, DEADLINE_S)
        assert await log.metadata("app", progress.kind, "file") == b"2"
        assert await values(log, PARTITIONS[0]) == ["1", "2"]


class ElectLeadersResponse_v0(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 43, 0
    SCHEMA: ClassVar[Any] = Schema(
        ("throttle", Int32),
        (
            "results",
            Array(
                ("topic", String("utf-8")),
                ("partitions", Array(("partition", Int32), ("error", Int16), ("message", String("utf-8")))),
            ),
        ),
    )


class ElectLeadersRequest_v0(RequestStruct):  # type: ignore[misc]
    """The preferred replicas of partitions become their leaders again."""

    API_KEY, API_VERSION = 43, 0
    RESPONSE_TYPE = ElectLeadersResponse_v0
    SCHEMA: ClassVar[Any] = Schema(
        ("topics", Array(("topic", String("utf-8")), ("partitions", Array(Int32)))), ("timeout", Int32)
    )


@pytest.mark.kafka
async def test_a_leader_that_moves_is_followed_whoever_learns_of_it_first(three: list[Broker]) -> None:
    """The reader cannot see it: the broker that led answers on as a replica, and another user of the same layouts has asked."""
    await asyncio.gather(*(asyncio.to_thread(one.launch) for one in three))
    log = await open_kafka(KafkaOptions([("127.0.0.1", one.port) for one in three]))
    out = Partition("out", 0)
    try:
        await log.create_topic(TopicSpec("out", 1))
        topics, connections = log._cluster.topics, log._cluster.connections

        async def leader() -> tuple[int, bool]:
            """And whether all replicas are in sync."""
            answer = await connections.retried("metadata", lambda: connections.metadata(["out"]))
            if not answer.topics[0][4]:  # of a broker that has just started
                return -1, False
            (partition,) = answer.topics[0][4]
            return partition[2], len(partition[5]) == 3

        async def is_led(by: int, *, away: bool = False) -> bool:
            now, _ = await leader()
            return (now != by if away else now == by) and now >= 0

        async def is_whole() -> bool:
            now, whole = await leader()
            return whole and now >= 0

        preferred, _ = await leader()
        while (await leader())[0] == preferred:  # again, where a busy machine made the brokers elect once more
            await asyncio.to_thread(three[preferred - 1].stop, kill=True)
            await until("another leader", lambda: is_led(preferred, away=True), DEADLINE_S)
            await asyncio.to_thread(three[preferred - 1].launch)
            await until("all replicas to be in sync", is_whole, DEADLINE_S)
        await topics.refresh(["out"])
        reader, seen = log.reader(), list[str | None]()
        reader.add(out, 0)

        async def all_read() -> bool:
            for found in await reader.poll(wait_ms=100):
                seen.extend((one.value or b"").decode() for one in decode(found.data, found.position))
            return seen == written

        written = ["1"]
        await log.append({out: records("1")})
        await until("the first record", all_read)

        async def elected() -> bool:
            await connections.ask_any(ElectLeadersRequest_v0([("out", [0])], 10_000))
            return await is_led(preferred) and await is_whole()

        await until("the preferred leader", elected, 2 * DEADLINE_S)
        await topics.refresh(["out"])
        for number in range(2, 7):  # each after the one before it was read
            written.append(str(number))
            await log.append({out: records(str(number))})
            await until(f"record {number}", all_read)
        await what_has_no_leader_hides_nothing(log, three[preferred - 1], preferred, preferred % 3 + 1)
    finally:
        await log.close()


async def what_has_no_leader_hides_nothing(log: KafkaLog, killed: Broker, gone: int, other: int) -> None:
    """`status` and a worker's measures waited for one partition of many, and the first one ended with an error."""
    request = CreateTopicsRequest_v4([("single", -1, -1, [(0, [gone]), (1, [other])], [])], 10_000, False)
    await log._cluster.connections.ask_any(request)
    lost, kept = Partition("single", 0), Partition("single", 1)

    async def written() -> bool:
        return "single" in await log.topics(["single"]) and bool(
            await log.append({lost: records("1"), kept: records("1")})
        )

    await until("the topic", written)

    async def both_known() -> bool:
        # Of a topic that is new, leaders and followers have what was written a little later.
        return await log.known_ends([lost, kept]) == await log.ends([lost, kept])

    await until("the ends of both", both_known)
    await asyncio.to_thread(killed.stop, kill=True)

    async def known() -> bool:  # while the brokers do not notice yet, it waits
        return set(await log.known_ends([lost, kept])) == {kept}

    await until("one without a leader", known, DEADLINE_S)
    assert (await sizes_of(log, [lost, kept])).keys() == {kept}
    # A worker's upkeep: it waited for the partition without a leader.
    await log.trim({lost: 1, kept: 1})
    assert await log.starts([kept]) == {kept: 1}


@pytest.mark.kafka
async def test_a_broker_that_the_others_do_not_know_any_more_is_not_waited_for(
    three: list[Broker], tmp_path: Path
) -> None:
    """It stands still and ends no connection, as a machine that is gone. One request may take a quarter of an hour here."""
    await asyncio.gather(*(asyncio.to_thread(one.launch) for one in three))
    config = tmp_path / "client.properties"
    config.write_text("request.timeout.ms=900000\n")
    where = [("127.0.0.1", one.port) for one in three]
    log = await open_kafka(KafkaOptions(where, config=str(config)))
    try:
        await log.create_topic(TopicSpec("out", len(PARTITIONS)))
        await log.append(dict.fromkeys(PARTITIONS, records("1")))
        stopped = three[log._cluster.topics.known_leader(PARTITIONS[0]) - 1]  # type: ignore[operator]
        assert stopped.pid is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        for partition in PARTITIONS:
            async with asyncio.timeout(DEADLINE_S):
                await log.append({partition: records("2")})
        os.kill(stopped.pid, signal.SIGCONT)
        for partition in PARTITIONS:
            assert await values(log, partition) == ["1", "2"]
    finally:
        await log.close()
