"""The coordinator's lease on a real broker: races, stops before each step, a hidden claim, a stopped coordinator."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from aiokafka.protocol.transaction import EndTxnRequest_v0

from state.errors import LeaseLost, LogBusy, LogUnavailable
from state.log.group_store import Lease, MetadataKind
from state.log.kafka import facts
from state.log.kafka.building import build
from state.log.kafka.facts import EVERYBODYS, UNDER_LEASE
from state.log.kafka.log import KafkaLog
from state.log.kafka.unbuilt import Built
from state.log.protocol import Partition
from tests.contracts.logs import read_all, until
from tests.kafka.place import APP, ROUNDS, Child, Place, child, owner

pytestmark = pytest.mark.kafka
AT_ONCE = 20
STOPPED_S = 1  # the transaction of who is stopped may take this
FACTS = Partition(facts.topic_of(APP), UNDER_LEASE)


async def terms(log: KafkaLog) -> list[int]:
    """The terms of all lease and owner records, in the order of the log."""
    view = facts.View(APP)
    found = []
    for record in await read_all(log, FACTS):
        view.apply(UNDER_LEASE, record.offset, record.key, record.value)
        key = (record.key or b"").decode()
        if key == facts.LEASE:
            lease = view.lease()
            assert lease is not None
            found.append(lease.term)
        elif key.startswith("owner/"):
            found.append(view.owners()[key.removeprefix("owner/")].term)
    return found


async def test_eight_race_and_the_winner_is_not_disturbed(place: Place) -> None:
    """One winner a round; four that go on trying with what they saw change nothing of what it writes."""
    logs = [await place.topics(), *[await place.open() for _ in range(7)]]
    for number in range(max(3, ROUNDS)):
        seen = await logs[0].acquire(APP, "first", "a:1", await logs[0].lease(APP))

        async def one(log: KafkaLog, seen: Lease | None = seen) -> Lease | None:
            await asyncio.sleep(random.random() * 0.02)
            return await log.acquire(APP, "c", "a:1", seen)

        won = await asyncio.gather(*map(one, logs))
        winners = [(log, lease) for log, lease in zip(logs, won, strict=True) if lease is not None]
        assert len(winners) == 1, f"round {number}: {len(winners)} winners"
        ((winner, lease),) = winners
        stop = asyncio.Event()

        async def again(log: KafkaLog, stop: asyncio.Event = stop, seen: Lease | None = seen) -> None:
            while not stop.is_set():
                assert await log.acquire(APP, "late", "a:1", seen) is None

        late = [asyncio.create_task(again(log)) for log in [log for log in logs if log is not winner][:4]]
        for turn in range(10):
            await winner.record_owners(lease, [owner(turn, lease)])
        stop.set()
        await asyncio.gather(*late)
    found = await terms(logs[0])
    assert found == sorted(found), "records of a term behind those of a later one"


@pytest.mark.parametrize("step", range(1, 7))
async def test_a_candidate_that_is_stopped_before_a_step_cannot_write(place: Place, step: int) -> None:
    """Another takes the lease meanwhile; then the first goes on: its claim, or its first write, is refused."""
    first, one, other = await place.topics(), await place.open(), await place.open()
    seen = await first.acquire(APP, "first", "a:1", None)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def wait(number: int) -> None:
        if number == step:
            reached.set()
            await go_on.wait()

    one.leases.before_step = wait
    claiming = asyncio.create_task(one.acquire(APP, "one", "a:1", seen))
    await reached.wait()
    taken = await other.acquire(APP, "other", "a:2", await other.lease(APP))
    assert taken is not None
    await other.record_owners(taken, [owner(1, taken)])
    go_on.set()
    claimed = await claiming
    if claimed is not None:
        with pytest.raises(LeaseLost):
            await one.record_owners(claimed, [owner(9, claimed)])
    await other.record_owners(taken, [owner(2, taken)])
    found = await terms(other)
    assert found == sorted(found) and (await other.owners(APP))["0_0"] == owner(2, taken)


@pytest.mark.parametrize("step", range(1, 7))
async def test_a_candidate_that_the_kernel_stops_before_a_step_cannot_write(step: int) -> None:
    """The same with processes: what was stopped goes on when another has written under the lease for some time."""
    for _ in range(-(-ROUNDS // 5)):
        await _stopped_before(Place(), step)


async def _stopped_before(place: Place, step: int) -> None:
    log = await place.topics()
    assert await log.acquire(APP, "first", "a:1", None) is not None
    async with child(place, f"claim-{step}") as candidate:
        assert await candidate.line() == "stopped"
        await candidate.is_stopped()
        taken = await log.acquire(APP, "other", "a:2", await log.lease(APP))
        assert taken is not None
        for turn in range(5):
            await log.record_owners(taken, [owner(turn, taken)])
        assert (await candidate.rest())[0] in ("not taken", "lost")
        await log.record_owners(taken, [owner(7, taken)])
        found = await terms(log)
        assert found == sorted(found) and (await log.owners(APP))["0_0"] == owner(7, taken)
    await place.close()


@pytest.mark.parametrize("partition", [EVERYBODYS, UNDER_LEASE])
async def test_a_claim_behind_an_open_transaction_hides_from_nobody(partition: int) -> None:
    """Somebody was stopped within a transaction on the facts: plain reads end before it, and a rival's claim lies behind.
    At most one coordinator of a term writes owner records. Several at once: each waits until the broker looks, once in ten
    seconds, whose transaction has lasted too long."""
    for done in range(0, ROUNDS, AT_ONCE):
        await asyncio.gather(*(_hidden(Place(), partition) for _ in range(min(AT_ONCE, ROUNDS - done))))


async def _hidden(place: Place, partition: int) -> None:
    first, one, other = await place.topics(), await place.open(), await place.open()
    seen = await first.acquire(APP, "first", "a:1", None)
    assert seen is not None

    async def is_seen() -> bool:
        """What was answered is read a moment later: its markers are written then."""
        return await one.lease(APP) == seen and await other.lease(APP) == seen

    await until("the lease to be read", is_seen)
    cluster = (await place.open())._cluster
    stopped = cluster.producer("stopped", STOPPED_S)
    await stopped.initialise()
    where = Partition(FACTS.topic, partition)
    note = facts.metadata_record(MetadataKind("note"), "k", b"v")
    built = await build(cluster.topics, {where: [note]})
    await stopped._open(built, None)
    await stopped._write(built, transactional=True)
    writers = []
    for log in (one, other):
        try:
            taken = await log.acquire(APP, "c", "a:1", seen)
            if taken is not None:
                await log.record_owners(taken, [owner(1, taken)])
                writers.append(taken)
        except (LeaseLost, LogBusy):
            continue
    assert len({lease.term for lease in writers}) == len(writers), f"two coordinators of one term: {writers}"
    if partition == EVERYBODYS:
        assert len(writers) == 1
    found = await terms(one)
    assert found == sorted(found)
    await place.close()


async def test_a_coordinator_that_was_stopped_writes_nothing_when_it_goes_on(place: Place) -> None:
    for _ in range(ROUNDS):
        await _stopped(Place())


async def _stopped(place: Place) -> None:
    log = await place.topics()
    async with child(place, "coordinate") as old:
        acknowledged = [await old.line() for _ in range(5)]
        await _stop_somewhere(old)
        taken = await log.acquire(APP, "new", "b:2", await log.lease(APP))
        assert taken is not None and taken.term == 2
        before = (await log.owners(APP))["0_0"].epoch
        await log.record_owners(taken, [owner(0, taken)])
        *more, last = await old.rest()
        assert last == "lost"
        acknowledged += more
        assert max(acknowledged) <= before, "a record was acknowledged that the next coordinator did not see"
        assert (await log.owners(APP))["0_0"] == owner(0, taken)
        found = await terms(log)
        assert found == sorted(found)
    await place.close()


async def _stop_somewhere(one: Child) -> None:
    await asyncio.sleep(random.random() * 0.02)  # anywhere within a write: that is what is tried
    one.stop()


async def test_what_is_kept_survives_the_holder(place: Place) -> None:
    """A new process reads from the topic's start what the last one left."""
    log = await place.topics()
    lease = await log.acquire(APP, "first", "a:1", None)
    assert lease is not None
    await log.put_metadata(APP, MetadataKind("op", under_lease=True), "k", b"v", lease=lease)
    await log.record_owners(lease, [owner(3, lease)])
    other = await place.open()
    assert (await other.owners(APP))["0_0"] == owner(3, lease)
    assert await other.metadata(APP, MetadataKind("op", under_lease=True), "k") == b"v"


async def test_a_write_that_is_cancelled_is_ended_and_the_next_one_is_made(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that ended in order within a beat could not give its lease back, and left a transaction open: the start behind it
    took six seconds more."""
    log, other = await place.topics(), await place.open()
    lease = await log.acquire(APP, "one", "a:1", await log.lease(APP))
    assert lease is not None
    send, begun = log._cluster.connections.send, asyncio.Event()

    async def seen(node: int, request: Any, *given: Any) -> Any:
        if isinstance(request, EndTxnRequest_v0):
            begun.set()
            await asyncio.sleep(0)  # the call is cancelled here
        return await send(node, request, *given)

    monkeypatch.setattr(log._cluster.connections, "send", seen)
    beat = asyncio.create_task(log.renew(lease))
    await begun.wait()
    beat.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beat
    kind = MetadataKind("lease", under_lease=True)
    await log.put_metadata(APP, kind, "given back", b"1", lease=lease)
    assert await other.metadata(APP, kind, "given back") == b"1"
    found = await other.lease(APP)
    assert found is not None and found.beat == lease.beat + 1


async def test_writes_that_wait_behind_the_one_that_lost_the_lease_have_lost_it_too(place: Place) -> None:
    log, other = await place.topics(), await place.open()
    lease = await log.acquire(APP, "one", "a:1", await log.lease(APP))
    assert lease is not None
    assert await other.acquire(APP, "two", "a:2", await other.lease(APP)) is not None
    kind = MetadataKind("settings", under_lease=True)
    writes = (log.put_metadata(APP, kind, "settings", b"1", lease=lease), log.renew(lease), log.renew(lease))
    found = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(error) for error in found] == [LeaseLost] * 3


async def test_a_beat_beside_a_fence_that_gives_the_lease_up_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a KeyError, an internal error that ended the instance's coordinator."""
    log = await place.topics()
    lease = await log.acquire(APP, "c", "a:1", None)
    assert lease is not None
    _, producer = log.leases._held[APP]
    transact = producer.transact

    async def beside_a_fence(built: Built) -> dict[Partition, int]:
        behind = await transact(built)
        log.leases.given_up(lease, LogUnavailable("the coordinator of an id is away"))
        return behind

    monkeypatch.setattr(producer, "transact", beside_a_fence)
    with pytest.raises(LeaseLost):
        await log.renew(lease)
