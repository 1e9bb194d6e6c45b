"""Partitions, and positions, of one broker among several: it is killed behind an answered commit, before its marker is written, and the
coordinator of the transaction goes on. What was committed is there when that broker is back, whatever the writer does next."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import pytest

from state.log.kafka.building import build
from state.log.kafka.connections import GROUP, TRANSACTION
from state.log.kafka.left_open import Written
from state.log.kafka.log import KafkaLog
from state.log.kafka.producer import Producer
from state.log.kafka.requests import DescribeTransactionsRequest_v0
from state.log.kafka.unbuilt import Built
from state.log.protocol import FOR_EVER, Partition, TopicSpec
from tests import brokers
from tests.contracts.logs import records, until, values
from tests.kafka.late_markers import Late
from tests.kafka.place import Place, is_open

pytestmark = [pytest.mark.kafka]
FIRST, SECOND = 1, 2


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Late]:
    brokers.shared()  # skips the test where none can be had
    made = Late(tmp_path_factory.mktemp("alone"), brokers.VERSION, second_votes=False)
    try:
        made.launch()
        yield made
    finally:
        made.close()


@pytest.fixture
async def place(late: Late) -> AsyncIterator[Place]:
    made = Place(port=late.nodes[0].port)
    yield made
    await made.close()


async def led_by(log: KafkaLog, node: int) -> Partition:
    await log.create_topic(TopicSpec("out", 2))
    await log.set_retention("out", FOR_EVER)  # the times of these records are long past: a broker would delete them
    [found, *_] = (await log._cluster.topics.by_leader([Partition("out", 0), Partition("out", 1)]))[node]
    return found


async def coordinated_by(log: KafkaLog, node: int, group: str) -> tuple[str, Producer]:
    """By its id, with the prefix; it writes positions of the group."""
    cluster = log._cluster
    for number in range(100):
        inside = cluster.topics.names.inside(f"w{number}")
        made = cluster.producer(f"w{number}", 60.0, writes=Written(None, group))
        await made.initialise()
        if await cluster.connections.coordinator(TRANSACTION, inside) == node:
            return inside, made
    raise AssertionError(f"no id of a hundred is coordinated by {node}")


async def state_of(log: KafkaLog, inside: str) -> str:
    request = DescribeTransactionsRequest_v0([inside], {})
    answer = await log._cluster.connections.coordinated(TRANSACTION, inside, request, "quick")
    return str(answer.states[0][2])


async def marker_is_lost(late: Late, log: KafkaLog, inside: str, state: str) -> None:
    """While markers are held: the broker of the second partition is killed, and the coordinator counts the end as complete."""
    await asyncio.to_thread(late.are_held)
    late.nodes[1].stop(kill=True)

    async def is_complete() -> bool:
        return await state_of(log, inside) == state

    await until(f"the coordinator to say {state}", is_complete)


async def group_of(log: KafkaLog, node: int) -> str:
    connections, names = log._cluster.connections, log._cluster.topics.names
    for number in range(100):
        inside = names.inside(f"g{number}")
        found = await connections.retried("group", lambda inside=inside: connections.coordinator(GROUP, inside))
        if found == node:
            return f"g{number}"
    raise AssertionError(f"no group of a hundred is coordinated by {node}")


async def write(log: KafkaLog, producer: Producer, where: Partition, what: str, group: str | None = None) -> None:
    built = await build(log._cluster.topics, {where: records(what)})
    async with producer.turn:
        await producer.transact(built, group, {where: int(what)} if group else {})


async def write_and_fail(log: KafkaLog, producer: Producer, where: Partition, group: str) -> None:
    built = await build(log._cluster.topics, {where: records("aborted")})

    async def failing() -> AsyncIterator[Built]:
        yield built
        raise OSError("away")

    async with producer.turn:
        await producer.transact(built, group, {where: 99}, parts=failing())


@pytest.mark.parametrize("by", ["the writer", "another process"])
async def test_what_was_aborted_is_not_committed_by_the_next_one(place: Place, late: Late, by: str) -> None:
    """The marker of an abort is not written either: the next commit there ended both as committed, and where the writer was fenced
    nothing did, so that no reader got past it. The process that fenced it knows how it ended, and tries again, also where its producer is dropped."""
    log = await place.open()
    where = await led_by(log, SECOND)
    group = await group_of(log, SECOND)
    inside, producer = await coordinated_by(log, FIRST, group)
    await write(log, producer, where, "1", group)
    await log.ends([where], settled=True)
    with late.held(SECOND):
        with pytest.raises(OSError, match="away"):
            await write_and_fail(log, producer, where, group)
        await marker_is_lost(late, log, inside, "CompleteAbort")
    if by == "the writer":
        async with producer.turn:
            await producer.initialise()
    else:
        other = await place.open()
        await other.topics(["out"])
        name = log._cluster.topics.names.outside(inside)
        await other._cluster.producer(name, 60.0, writes=Written(None, group)).initialise()
        gc.collect()
    await asyncio.to_thread(late.nodes[1].launch)
    if by == "the writer":
        await write(log, producer, where, "2", group)

    async def is_over() -> bool:
        return not await is_open(log, where)

    await until("its end", is_over)
    found = ["1", "2"] if by == "the writer" else ["1"]
    assert await values(log, where) == found and await log.positions(group, [where]) == {where: len(found)}


async def commits_without_marker(place: Place, late: Late) -> tuple[KafkaLog, Producer, Partition, str]:
    """Two records, the second of a commit that its coordinator counts as complete; the broker of its partition is away."""
    log = await place.open()
    where = await led_by(log, SECOND)
    group = await group_of(log, SECOND)
    inside, producer = await coordinated_by(log, FIRST, group)
    await write(log, producer, where, "1", group)
    await log.ends([where], settled=True)
    with late.held(SECOND):
        await write(log, producer, where, "2", group)
        await marker_is_lost(late, log, inside, "CompleteCommit")
    return log, producer, where, group


@pytest.mark.parametrize("between", [False, True], ids=["at once", "behind others of another partition"])
async def test_the_next_transaction_takes_nothing_back(place: Place, late: Late, between: bool) -> None:
    """Though it is aborted, and was begun when the coordinator had counted the one before as complete. Others go on meanwhile, and do
    not make it forgotten, committed or not."""
    log, producer, where, group = await commits_without_marker(place, late)
    if between:
        other = Partition(where.topic, 1 - where.number)
        await write(log, producer, other, "a")
        async with producer.turn:
            await producer._open([other], None)
            await producer._end(committed=False)
            await producer.initialise()
        assert await values(log, other) == ["a"]
    transacting = asyncio.create_task(write_and_fail(log, producer, where, group))
    await asyncio.to_thread(late.nodes[1].launch)
    with pytest.raises(OSError, match="away"):
        await transacting
    await log.ends([where], settled=True)
    assert await values(log, where) == ["1", "2"] and await log.positions(group, [where]) == {where: 2}
    async with producer.turn:
        await producer.initialise()
    await write(log, producer, where, "3", group)
    await log.ends([where], settled=True)
    assert await values(log, where) == ["1", "2", "3"] and await log.positions(group, [where]) == {where: 3}


async def test_what_was_interrupted_is_not_committed_beside_it(place: Place, late: Late) -> None:
    """An end of what is left open, when the broker is back, would end the writer's own transaction, too."""
    log, producer, where, _ = await commits_without_marker(place, late)
    other, anew = Partition(where.topic, 1 - where.number), log._cluster.connections.made_anew
    async with producer.turn:
        await producer._open([other], None)
        producer._left_open.begun()
        await producer._write(await build(log._cluster.topics, {other: records("a")}), transactional=True)
        producer._interrupted = True  # as a cancellation leaves it
    await asyncio.to_thread(late.nodes[1].launch)

    async def is_connected_anew() -> bool:
        await log.written([where])
        return log._cluster.connections.made_anew > anew

    await until("a connection that is made anew", is_connected_anew)
    async with producer.turn:  # behind a look, if there is one
        assert await is_open(log, other)
        await producer.initialise()
    await log.ends([where, other], settled=True)
    assert await values(log, where) == ["1", "2"] and await values(log, other) == []
