"""Transactions that are over for their coordinator and open in a partition, as a broker leaves them that is killed behind an answer:
each is ended as it had ended, by whoever initialises its id, or by the writer itself.

The broker here does not look whether a partition was added to a transaction, so a record behind its end makes the same.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.protocol.transaction import InitProducerIdRequest_v0

from state.log.group_store import AppMetadata, Lease, MetadataKind
from state.log.kafka import broker, facts
from state.log.kafka.broker import Broker
from state.log.kafka.building import build
from state.log.kafka.codes import Unreachable
from state.log.kafka.facts import EVERYBODYS, UNDER_LEASE
from state.log.kafka.log import KafkaLog
from state.log.kafka.producer import Producer
from state.log.kafka.unbuilt import Built
from state.log.protocol import Partition
from tests import brokers
from tests.contracts.logs import records, until, values
from tests.kafka.place import APP, CHANGES, IN, OUT, ROUNDS, Place, child, count, is_open, leave_open, owner

pytestmark = [pytest.mark.kafka]
NOTE = MetadataKind("note")
TWO = {OUT: records("2"), CHANGES: records("2")}


@pytest.fixture(scope="module")
def unchecked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    brokers.shared()  # skips the test where none can be had
    settings = {"transaction.partition.verification.enable": "false"}
    made = broker.prepare(tmp_path_factory.mktemp("unchecked"), settings=settings, version=brokers.VERSION)
    made.launch()
    yield made
    made.stop(kill=True)


@pytest.fixture
async def place(unchecked: Broker) -> AsyncIterator[Place]:
    made = Place(port=unchecked.port)
    yield made
    await made.close()


async def worker(log: KafkaLog) -> tuple[Lease, Producer]:
    """Of one record that is committed, to its last marker."""
    lease = await log.acquire(APP, "c", "a:1", None)
    assert lease is not None
    await log.record_owners(lease, [owner(1, lease)])
    await log.open_writer(APP, "w")
    await log.commit(APP, "w", [count(1)])
    assert await log.positions(APP, [IN]) == {IN: 1}
    return lease, log._writers._opened[APP, "w"]


async def holds(log: KafkaLog, *numbers: str) -> None:
    await log.ends([OUT, CHANGES], settled=True)
    assert await values(log, OUT) == await values(log, CHANGES) == list(numbers)
    assert await log.positions(APP, [IN]) == {IN: len(numbers)}


async def coordinator(place: Place) -> KafkaLog:
    """Another process, which knows the application's topics."""
    log = await place.open()
    await log.topics(["in", "out", "t-changelog"])
    return log


async def test_a_fence_commits_what_was_committed(place: Place) -> None:
    gone, other = await place.topics(), await coordinator(place)
    _, producer = await worker(gone)
    await leave_open(gone, producer, TWO, position=2)
    lease = await other.acquire(APP, "d", "a:2", await other.lease(APP))
    assert lease is not None
    assert await other.fence(lease, ["w"]) == {"w": frozenset({"0_0"})}
    await holds(other, "1", "2")


async def test_a_fence_whose_first_answer_is_lost_commits_it_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator of the id has forgotten how its transaction ended by the time that it is asked again."""
    gone, other = await place.topics(), await coordinator(place)
    lease, producer = await worker(gone)
    await leave_open(gone, producer, TWO, position=2)
    send, lost = gone._cluster.connections.send, []

    async def losing(node: int, request: Any, *given: Any) -> Any:
        answer = await send(node, request, *given)
        if isinstance(request, InitProducerIdRequest_v0) and not lost:
            lost.append(answer.error_code)
            raise Unreachable("the answer is lost")
        return answer

    monkeypatch.setattr(gone._cluster.connections, "send", losing)
    await gone.fence(lease, ["w"])
    assert lost == [0]
    await holds(other, "1", "2")


async def test_a_fence_aborts_what_was_aborted(place: Place) -> None:
    gone, other = await place.topics(), await coordinator(place)
    lease, producer = await worker(gone)
    before = (await gone.written([OUT]))[OUT]
    await producer._open({OUT: []}, APP)
    await producer._end(committed=False)

    async def is_marked() -> bool:
        return (await gone.written([OUT]))[OUT] > before

    await until(
        "the marker of the abort", is_marked
    )  # it is written behind the answer, and would end what comes before it
    await leave_open(gone, producer, TWO, position=2)
    await gone.fence(lease, ["w"])
    await holds(other, "1")


async def test_positions_alone(place: Place) -> None:
    gone, other = await place.topics(), await coordinator(place)
    lease, producer = await worker(gone)
    await leave_open(gone, producer, {}, position=2)
    await other.topics(["in"])
    await gone.fence(lease, ["w"])
    assert await other.positions(APP, [IN]) == {IN: 2}


async def test_a_candidate_ends_what_the_old_coordinator_wrote(place: Place) -> None:
    gone, other = await place.topics(), await place.open()
    lease, _ = await worker(gone)
    noted = facts.owner_record(owner(2, lease))
    await leave_open(gone, gone.leases._held[APP][1], {Partition(facts.topic_of(APP), UNDER_LEASE): [noted]})
    assert await other.acquire(APP, "d", "a:2", await other.lease(APP)) is not None
    assert (await other.owners(APP))["0_0"].epoch == 2


async def test_the_next_note_commits_the_one_before(place: Place) -> None:
    gone, other = await place.topics(), await place.open()
    await gone.put_metadata(APP, NOTE, "a", b"1")
    topic = await gone._made_facts(APP)
    noted = facts.metadata_record(NOTE, "a", b"2")
    await leave_open(gone, topic._mutex, {topic.partition(EVERYBODYS): [noted]})
    await other.put_metadata(APP, NOTE, "b", b"3")
    assert await other.metadata_of(APP, NOTE) == {"a": b"2", "b": b"3"}


async def test_the_next_run_of_a_producer_commits_what_the_one_before_wrote(place: Place) -> None:
    gone, other = await place.topics(), await coordinator(place)
    progress = AppMetadata(APP, NOTE, "file", b"1")
    await gone.append({OUT: records("1")}, metadata=progress)
    await leave_open(gone, gone._appender._keyed[APP, NOTE.name, "file"], {OUT: records("2")})
    await other.append({CHANGES: records("3")}, metadata=progress._replace(value=b"2"), seen=b"1")
    await other.ends([OUT], settled=True)
    assert await values(other, OUT) == ["1", "2"]


async def test_a_writer_ends_it_itself_behind_a_broker_that_started_again(place: Place, unchecked: Broker) -> None:
    """Though it commits nothing more."""
    log, other = await place.topics(), await place.open()
    _, producer = await worker(log)
    await leave_open(log, producer, TWO, position=2)
    unchecked.stop(kill=True)
    unchecked.launch()

    async def is_over() -> bool:
        return not await is_open(other, OUT)

    await until("the end of what was open", is_over)
    await holds(other, "1", "2")
    await log.commit(APP, "w", [count(3)])
    await holds(other, "1", "2", "3")


async def test_an_abort_behind_it_takes_nothing_back(place: Place, unchecked: Broker) -> None:
    log = await place.topics()
    _, producer = await worker(log)
    await leave_open(log, producer, TWO, position=2)
    unchecked.stop(kill=True)
    unchecked.launch()
    three = await build(log._cluster.topics, {OUT: records("3"), CHANGES: records("3")})

    async def failing() -> AsyncIterator[Built]:
        yield three
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        await producer.transact(three, APP, {IN: 3}, parts=failing())
    await holds(log, "1", "2")


async def test_a_broker_that_is_killed_with_its_only_writer(tmp_path: Path) -> None:
    """Whatever was answered is there, in all topics and the positions alike, once the writer is fenced."""
    brokers.shared()  # skips the test where none can be had
    made = broker.prepare(tmp_path / "broker", version=brokers.VERSION)
    made.launch()
    left = 0
    try:
        for _ in range(ROUNDS):
            place = Place(port=made.port)
            log = await place.topics()
            lease = await log.acquire(APP, "c", "a:1", None)
            assert lease is not None
            await log.record_owners(lease, [owner(1, lease)])
            async with child(place, "commit") as writer:
                answered = [await writer.line() for _ in range(random.randrange(20, 60))]
                made.stop(kill=True)
                writer.end()
            await place.close()
            made.launch()
            other = await coordinator(place)
            lease = await other.acquire(APP, "d", "a:2", await other.lease(APP))
            assert lease is not None
            left += await is_open(other, OUT) or await is_open(other, CHANGES)
            await other.fence(lease, ["w"])
            await other.ends([OUT, CHANGES], settled=True)
            found = await values(other, OUT)
            assert found == [str(number + 1) for number in range(len(found))] and len(found) >= answered[-1]
            assert await other.positions(APP, [IN]) == {IN: len(found)}
            assert (await values(other, CHANGES))[-1] == found[-1]
            await place.close()
    finally:
        made.stop(kill=True)
        print(f"{left} of {ROUNDS} left a transaction open")


async def test_what_was_interrupted_is_not_committed_when_a_broker_is_back(place: Place, unchecked: Broker) -> None:
    """Of what a writer has open then, only an answered commit may be ended as one."""
    log, other = await place.topics(), await coordinator(place)
    lease, producer = await worker(log)
    two = await build(log._cluster.topics, TWO)
    written = asyncio.Event()

    async def for_ever() -> AsyncIterator[Built]:
        written.set()
        await asyncio.Event().wait()
        yield two

    transacting = asyncio.create_task(producer.transact(two, APP, {IN: 2}, parts=for_ever()))
    await written.wait()
    transacting.cancel()
    await asyncio.wait({transacting})
    anew = log._cluster.connections.made_anew
    unchecked.stop(kill=True)
    unchecked.launch()

    async def is_connected_anew() -> bool:
        await log.ends([OUT])
        return log._cluster.connections.made_anew > anew

    await until("a connection that is made anew", is_connected_anew)
    async with producer.turn:  # behind a look, if there is one
        assert await is_open(other, OUT)
    await log.fence(lease, ["w"])
    await holds(other, "1")
