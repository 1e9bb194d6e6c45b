"""A seed on a real broker: longer than the lease is held without a beat, stopped at every request, killed, without an answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from aiokafka.protocol.transaction import EndTxnRequest_v0

from state.errors import LeaseLost, LogUnavailable, OutcomeUnknown
from state.log.group_store import Lease
from state.log.kafka import seeding
from state.log.kafka.codes import Unreachable
from state.log.kafka.log import KafkaLog
from state.log.kafka.seeding import SeedTooLong
from state.log.protocol import MayWrite, NewRecord, Partition, TaskCommit, always
from tests.contracts.logs import OPERATION, records, until, values
from tests.kafka.place import APP, CHANGES, IN, OUT, Place, child, owner

pytestmark = [pytest.mark.kafka]
AT_ONCE = 3
WAIT_S = 60.0


class Slow:
    """Parts of a seed that wait in the middle until they may go on."""

    def __init__(self) -> None:
        self._go_on = threading.Event()
        self._reached = threading.Event()

    def __call__(self) -> Iterator[Mapping[Partition, Sequence[NewRecord]]]:
        yield {OUT: records("1"), CHANGES: records("1")}
        self._reached.set()
        assert self._go_on.wait(WAIT_S)
        yield {OUT: records("2")}

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, WAIT_S)

    def go_on(self) -> None:
        self._go_on.set()


async def held(log: KafkaLog, holder: str = "one") -> Lease:
    lease = await log.acquire(APP, holder, "a:1", await log.lease(APP))
    assert lease is not None
    return lease


async def readable(log: KafkaLog) -> list[list[str | None]]:
    """Outputs and changelog; an open transaction would have this wait for ever."""
    return [await values(log, one) for one in (OUT, CHANGES)]


async def test_the_lease_is_renewed_while_a_seed_is_open(place: Place) -> None:
    log, other = await place.topics(), await place.open()
    lease, slow = await held(log), Slow()
    seeding = asyncio.create_task(log.seed_positions(lease, {IN: 5}, {}, parts=slow))
    await slow.reached()
    for _ in range(3):
        lease = await log.renew(lease)

        async def is_seen(renewed: Lease = lease) -> bool:
            return await other.lease(APP) == renewed

        await until("the beat to be seen by others", is_seen)
    await log.put_metadata(APP, OPERATION, "k", b"v", lease=lease)
    assert not seeding.done()
    slow.go_on()
    assert await seeding
    assert await readable(other) == [["1", "2"], ["1"]]
    assert await other.positions(APP, [IN]) == {IN: 5}


async def test_who_takes_the_lease_ends_the_seed_of_the_holder_before(place: Place) -> None:
    """Two at once: what the first goes on to write is refused, and nothing of it is ever there."""
    log, other = await place.topics(), await place.open()
    old, slow = await held(log), Slow()
    seeding = asyncio.create_task(log.seed_positions(old, {IN: 5}, {}, parts=slow))
    await slow.reached()
    new = await held(other, "two")
    assert await readable(other) == [[], []]
    assert await other.seed_positions(new, {IN: 7}, {OUT: records("new")})
    slow.go_on()
    with pytest.raises(LeaseLost, match="two"):
        await seeding
    assert await readable(other) == [["new"], []]
    assert await other.positions(APP, [IN]) == {IN: 7}


async def test_a_seed_that_the_kernel_stops_at_any_request_is_there_whole_or_not_at_all() -> None:
    """Another takes the lease meanwhile and seeds; then the first goes on."""
    at_once = asyncio.Semaphore(AT_ONCE)
    _, requests = await _stopped_at(0, behind=False)

    async def one(number: int, behind: bool) -> str:
        async with at_once:
            return (await _stopped_at(number, behind=behind))[0]

    moments = [(number, False) for number in range(1, requests + 1)] + [(requests, True)]
    found = await asyncio.gather(*(one(number, behind) for number, behind in moments))
    assert found == ["lost"] * requests + ["seeded"], "the answer to the end comes last"


async def _stopped_at(number: int, *, behind: bool) -> tuple[str, int]:
    place = Place()
    log = await place.topics()
    try:
        async with child(place, f"seed-{'behind' if behind else 'before'}-{number}") as old:
            first = await old.line()
            if number:
                assert first == "stopped"
                await old.is_stopped()
                lease = await held(log, "new")
                seeded = await log.seed_positions(lease, {IN: 7}, {OUT: records("new"), CHANGES: records("new")})
                first = (await old.rest())[0]
                assert seeded == (first[0] == "lost")
            if first[0] == "lost":
                assert await readable(log) == [["new"], ["new"]]
            else:
                assert await readable(log) == [["old 1", "old 2"], ["old"]]
            assert await log.positions(APP, [IN]) == {IN: 7 if first[0] == "lost" else 1}
            return first[0], first[1]
    finally:
        await place.close()


async def test_what_a_killed_one_left_open_hides_nothing_once_another_has_the_lease(place: Place) -> None:
    log = await place.topics()
    async with child(place, "seed-before-5") as killed:
        assert await killed.line() == "stopped"
        killed.end()
        await log.append({OUT: records("of another")})
        lease = await held(log, "new")
        assert await log.seed_positions(lease, {IN: 7}, {OUT: records("new")})
        assert await readable(log) == [["of another", "new"], []]


async def test_a_cancelled_seed_leaves_nothing_open(place: Place) -> None:
    log = await place.topics()
    lease, slow = await held(log), Slow()
    seeding = asyncio.create_task(log.seed_positions(lease, {IN: 5}, {}, parts=slow))
    await slow.reached()
    seeding.cancel()
    slow.go_on()
    with pytest.raises(asyncio.CancelledError):
        await seeding
    assert await readable(log) == [[], []]
    assert await log.seed_positions(lease, {IN: 6}, {}, parts=slow)
    assert await readable(log) == [["1", "2"], ["1"]]


async def test_positions_that_are_committed_meanwhile_are_not_overwritten(place: Place) -> None:
    """By a worker of before: it has no coordinator, and goes on."""
    log, worker = await place.topics(), await place.open()
    lease, slow = await held(log), Slow()
    await log.record_owners(lease, [owner(1, lease)])
    await worker.open_writer(APP, "w")
    seeding = asyncio.create_task(log.seed_positions(lease, {IN: 5}, {}, parts=slow))
    await slow.reached()
    await worker.commit(APP, "w", [TaskCommit("0_0", 1, {}, {IN: 3})])
    slow.go_on()
    assert not await seeding
    assert await readable(log) == [[], []]
    assert await log.positions(APP, [IN]) == {IN: 3}


async def test_a_seed_that_takes_longer_than_brokers_let_it_says_so(place: Place) -> None:
    """They look whose transaction is too old once in ten seconds."""
    log = await place.topics()
    lease, slow = await held(log), Slow()
    log.seeds.most_s = 0.5
    seeding = asyncio.create_task(log.seed_positions(lease, {IN: 5}, {}, parts=slow))
    await slow.reached()
    await log.append({OUT: records("behind it")})

    async def is_aborted() -> bool:
        return await log.ends([OUT]) == await log.written([OUT])

    await until("the broker to abort it", is_aborted, WAIT_S)
    slow.go_on()
    with pytest.raises(SeedTooLong, match=r"one transaction and they allow 0\.5 s .* transaction\.max\.timeout\.ms"):
        await seeding
    log.seeds.most_s = WAIT_S
    lease = await log.renew(lease)
    assert await log.seed_positions(lease, {IN: 5}, {OUT: records("whole")})
    assert await readable(log) == [["behind it", "whole"], []]


class Lost:
    """The connection to the coordinator ends around the end of a transaction: before it is `sent`, or behind it; `for_good`
    nothing answers from then on."""

    def __init__(self, log: KafkaLog, *, sent: bool, for_good: bool = False) -> None:
        self._connections = log._cluster.connections
        self._send = self._connections.send
        self._sent, self._for_good, self.away = sent, for_good, False
        self._connections.send = self.send  # type: ignore[method-assign]

    async def send(self, node: int, request: Any, purpose: str, may_write: MayWrite = always) -> Any:
        ends = purpose == "seed" and isinstance(request, EndTxnRequest_v0)
        if ends and self._sent:
            await self._send(node, request, purpose, may_write)
        self.away = self.away or ends
        if ends or (self.away and self._for_good and purpose == "seed"):
            raise Unreachable("the connection ended")
        return await self._send(node, request, purpose, may_write)


@pytest.mark.parametrize("sent", [True, False])
async def test_an_end_without_an_answer_is_settled(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, sent: bool
) -> None:
    monkeypatch.setattr(seeding, "ANSWER_WITHIN_S", 0.3)
    log = await place.topics()
    lease = await held(log)
    Lost(log, sent=sent)
    if sent:
        assert await log.seed_positions(lease, {IN: 5}, {OUT: records("1")})
    else:
        with pytest.raises(LogUnavailable, match="nothing was written"):
            await log.seed_positions(lease, {IN: 5}, {OUT: records("1")})
    assert await readable(log) == [["1"] if sent else [], []]
    assert await log.positions(APP, [IN]) == ({IN: 5} if sent else {})


@pytest.mark.parametrize("sent", [True, False])
async def test_an_end_of_which_nothing_is_known_is_settled_by_the_next_holder(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, sent: bool
) -> None:
    monkeypatch.setattr(seeding, "ANSWER_WITHIN_S", 0.3)
    log, other = await place.topics(), await place.open()
    lease = await held(log)
    Lost(log, sent=sent, for_good=True)
    with pytest.raises(OutcomeUnknown, match="whole, or not at all"):
        await log.seed_positions(lease, {IN: 5}, {OUT: records("1")})
    new = await held(other, "two")
    assert await other.seed_positions(new, {IN: 7}, {OUT: records("new")}) is not sent
    assert await readable(other) == [["1"] if sent else ["new"], []]
