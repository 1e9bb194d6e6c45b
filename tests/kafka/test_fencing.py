"""Workers on a real broker: stopped anywhere in a commit, fenced, taken over, and let go on; and a broker that is killed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from state.errors import Fenced, Refused
from state.log.group_store import OwnerRecord
from state.log.kafka import broker, facts
from state.log.kafka.building import build
from state.log.kafka.facts import UNDER_LEASE
from state.log.kafka.facts_topic import WRITER_TIMEOUT_S
from state.log.kafka.log import KafkaLog
from state.log.protocol import Partition, TaskCommit, TopicSpec
from tests import brokers
from tests.contracts.logs import read_all, until, values
from tests.kafka.place import APP, CHANGES, IN, OUT, ROUNDS, Place, child, count

pytestmark = pytest.mark.kafka
STOPPED_S = 3  # what the transaction of who is stopped may take


async def agreed(log: KafkaLog) -> int:
    """How far outputs, changelog and positions got: all three as far, each number once."""
    got = [await values(log, partition) for partition in (OUT, CHANGES)]
    position = (await log.positions(APP, [IN])).get(IN, 0)
    wanted = [str(number) for number in range(1, position + 1)]
    assert got[0] == got[1] == wanted, (position, got[0][-3:], got[1][-3:])
    return position


async def test_a_worker_that_was_stopped_in_a_commit_is_fenced(place: Place) -> None:
    for _ in range(ROUNDS):
        await _stopped(Place())


async def _stopped(place: Place) -> None:
    log = await place.topics()
    lease = await log.acquire(APP, "c", "a:1", None)
    assert lease is not None
    await log.record_owners(lease, [OwnerRecord("0_0", 1, "m", "w", 1)])
    async with child(place, "commit") as worker:
        acknowledged = [await worker.line() for _ in range(5)]
        await asyncio.sleep(random.random() * 0.02)  # anywhere within a commit: that is what is tried
        worker.stop()
        assert await log.fence(lease, ["w"]) == {"w": {"0_0"}}
        reached = await agreed(log)
        await log.open_writer(APP, "next")
        await log.record_owners(lease, [OwnerRecord("0_0", 1, "m", "next", 1)])
        await log.commit(APP, "next", [count(reached + 1)])
        *more, last = await worker.rest()
        assert last == "fenced"
        assert max([*acknowledged, *more]) <= reached, "a commit was acknowledged that the next owner did not see"
        await log.commit(APP, "next", [count(reached + 2)])
        assert await agreed(log) == reached + 2
    await place.close()


async def test_one_commit_that_stays_open_holds_up_no_other_task(place: Place) -> None:
    """Each task asks for its own positions when it begins: where a worker was stopped within a commit, the tasks beside it begin
    meanwhile, and this one once that commit has had its time."""
    log, stopped = await place.topics(), (await place.open())._cluster.producer("stopped", STOPPED_S)
    await log.create_topic(TopicSpec("more", 8))
    others = [Partition("more", number) for number in range(8)]
    await log.open_writer(APP, "w")
    lease = await log.acquire(APP, "c", "a:1", None)
    assert lease is not None
    await log.record_owners(lease, [OwnerRecord("0_0", 1, "m", "w", 1)])
    await log.commit(APP, "w", [TaskCommit("0_0", 1, {}, {IN: 1, **dict.fromkeys(others, 1)})])
    await stopped.initialise()
    await stopped._open({}, APP)
    await stopped._add_positions(APP, {IN: 2}, {})
    waiting = asyncio.create_task(log.positions(APP, [IN]))
    for one in others:
        assert await log.positions(APP, [one]) == {one: 1}
    assert not waiting.done(), "it did not see the open commit"
    assert await waiting == {IN: 1}


async def test_a_first_commit_waits_for_its_owner_record_and_no_longer(place: Place) -> None:
    """A coordinator that is killed, or stands still, within the transaction of the next owner records leaves it open."""
    log, other = await place.topics(), await place.open()
    lease = await log.acquire(APP, "c", "a:1", None)
    assert lease is not None
    await other.open_writer(APP, "w")
    topic = await other._facts_of(APP)
    assert topic is not None and topic._tail is not None
    topic._tail.cancel()  # it has not come to what follows when the commit begins
    await asyncio.gather(topic._tail, return_exceptions=True)
    await log.record_owners(lease, [OwnerRecord("0_0", 1, "m", "w", 1)])
    held, coordinator = log.leases._held[APP]
    written = {topic.partition(UNDER_LEASE): [facts.lease_record(held)]}
    await coordinator._begin(written, None)
    await coordinator._write(await build(log._cluster.topics, written), transactional=True)
    committing = asyncio.create_task(other.commit(APP, "w", [count(1)]))
    await until("the commit", lambda: asyncio.sleep(0, other._writers._opened[APP, "w"].turn.locked()))
    topic._tail = asyncio.create_task(topic._follow())
    async with asyncio.timeout(WRITER_TIMEOUT_S / 2):
        await committing
    assert await agreed(log) == 1


async def test_a_first_commit_is_refused_where_its_owner_record_stays_open(place: Place) -> None:
    """Nothing else of the commit is held up for as long as a broker that died keeps the marker back."""
    log, other = await place.topics(), await place.open()
    lease = await log.acquire(APP, "c", "a:1", None)
    assert lease is not None
    await other.open_writer(APP, "w")
    topic = await other._facts_of(APP)
    assert topic is not None
    _, coordinator = log.leases._held[APP]
    written = {topic.partition(UNDER_LEASE): [facts.owner_record(OwnerRecord("0_0", 1, "m", "w", 1))]}
    await coordinator._begin(written, None)
    await coordinator._write(await build(log._cluster.topics, written), transactional=True)
    async with asyncio.timeout(WRITER_TIMEOUT_S / 2):
        with pytest.raises(Refused):
            await other.commit(APP, "w", [count(1)])


async def test_a_broker_that_is_killed_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """Commits, appends and a long poll go on when it is back: each commit once, no error."""
    made = broker.prepare(tmp_path / "broker", version=brokers.VERSION)
    await asyncio.to_thread(made.launch)
    place = Place(port=made.port)
    try:
        log = await place.topics(timeout_s=60)  # a broker that starts on a busy machine
        await log.create_topic(TopicSpec("other", 1))
        lease = await log.acquire(APP, "c", "a:1", None)
        assert lease is not None
        await log.open_writer(APP, "w")
        await log.record_owners(lease, [OwnerRecord("0_0", 1, "m", "w", 1)])
        reader = log.reader()
        reader.add(OUT, 0)
        for number in range(1, 21):
            if number in (5, 12):
                await asyncio.to_thread(made.stop, kill=True)
                starting = asyncio.create_task(asyncio.to_thread(made.launch))
            await log.commit(APP, "w", [count(number)])
            await log.append({Partition("other", 0): count(number).records[OUT]})
            if number in (5, 12):
                await starting
        assert await agreed(log) == 20
        assert await values(log, Partition("other", 0)) == [str(number) for number in range(1, 21)]
        seen = 0
        while seen < (await log.ends([OUT], settled=True))[OUT]:
            for one in await reader.poll(wait_ms=1_000):
                seen = one.next_position
        assert (await log.renew(lease)).term == 1
    finally:
        await place.close()
        made.stop(kill=True)


async def test_what_was_fenced_long_ago_is_forgotten(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fence of each worker that crashed lay in the facts for ever."""
    log = await place.topics()
    lease = await log.acquire(APP, "first", "a:1", await log.lease(APP))
    assert lease is not None
    await log.fence(lease, ["w-1", "w-2"])
    await log.fence(lease, ["w-3"])
    monkeypatch.setattr(facts, "FENCED_KEPT_MS", -60_000)
    await log.fence(lease, ["w-4"])
    other = await place.open()
    assert await fenced_of(other) == {"w-4"}
    with pytest.raises(Fenced):
        await other.open_writer(APP, "w-4")
    await log.fence(lease, ["w-4"])  # again: what removes its old mark lay behind its new one
    assert await fenced_of(other) == {"w-4"}


async def test_who_ended_a_writer_is_named(place: Place) -> None:
    """A fence of the group is no fault; another program that uses the id is one, which its user has to find."""
    log = await place.topics()
    lease = await log.acquire(APP, "first", "a:1", await log.lease(APP))
    assert lease is not None
    for epoch, name in enumerate(("fenced", "taken"), 1):  # a grant that is not seen yet is known by its epoch
        worker = await place.open()
        await worker.open_writer(APP, name)
        await log.record_owners(lease, [OwnerRecord("0_0", epoch, "m", name, 1)])
        await worker.commit(APP, name, [count(epoch, epoch)])
        if name == "taken":
            id_ = f"{place.prefix}{APP}.worker.{name}"
            stranger = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{place.port}", transactional_id=id_)
            await stranger.start()
            await stranger.stop()
            with pytest.raises(
                Fenced, match=f"^another program has initialised transactional id {id_}, or its transaction"
            ):
                await worker.commit(APP, name, [count(3, epoch)])
        else:
            assert await log.fence(lease, [name]) == {name: {"0_0"}}
            with pytest.raises(Fenced, match=f"^transactional id {name} was fenced"):
                await worker.commit(APP, name, [count(2, epoch)])
        with pytest.raises(Fenced):
            await worker.commit(APP, name, [count(9, epoch)])
    assert await agreed(log) == 2


async def fenced_of(log: KafkaLog) -> set[str]:
    found: dict[str, bytes | None] = {}
    for record in await read_all(log, Partition(facts.topic_of(APP), facts.UNDER_LEASE)):
        found[(record.key or b"").decode()] = record.value
    return {name.removeprefix("fenced/") for name, value in found.items() if value and name.startswith("fenced/")}
