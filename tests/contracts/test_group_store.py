"""What every log does with the group's facts: the lease, owner records, metadata."""

from __future__ import annotations

import asyncio

import pytest

from state.errors import LeaseLost, StateError
from state.log.group_store import Lease, MetadataKind, OwnerRecord
from state.log.protocol import GroupLog, TaskCommit
from tests.contracts.logs import APP, OPERATION, P0, SCHEMA, Place, lease_of, owned, records

# ---------------------------------------------------------------------- the lease


async def test_a_lease_is_taken_only_as_it_was_seen(log: GroupLog) -> None:
    assert await log.lease(APP) is None
    first = await log.acquire(APP, "one", "a:1", None)
    assert first is not None
    assert (first.application, first.term, first.holder, first.address) == (APP, 1, "one", "a:1")
    assert await log.acquire(APP, "two", "a:2", None) is None
    second = await log.renew(first)
    assert second.beat > first.beat
    assert (second.term, second.holder) == (1, "one")
    assert await log.lease(APP) == second
    assert await log.acquire(APP, "two", "a:2", first) is None
    third = await log.acquire(APP, "two", "a:2", second)
    assert third is not None
    assert (third.term, third.holder, third.address) == (2, "two", "a:2")
    assert await log.acquire("another", "one", "a:1", None) is not None


async def test_only_one_of_many_candidates_gets_the_lease(log: GroupLog, place: Place) -> None:
    candidates = [log, *[await place.open() for _ in range(7)]]
    won = await asyncio.gather(
        *(candidate.acquire(APP, f"c-{number}", "a:1", None) for number, candidate in enumerate(candidates))
    )
    (winner,) = [one for one in won if one is not None]
    await candidates[won.index(winner)].record_owners(winner, [OwnerRecord("0_0", 1, "m", "w", winner.term)])


async def test_renewing_counts_on_from_the_log(log: GroupLog) -> None:
    """The coordinator may renew with a lease object that is some beats old; term and holder are what counts."""
    lease = await lease_of(log)
    beats = [(await log.renew(lease)).beat for _ in range(3)]
    assert beats == sorted(set(beats))
    await log.record_owners(lease, [OwnerRecord("0_0", 1, "m", "w", 1)])


async def test_a_deposed_coordinator_writes_nothing(log: GroupLog, place: Place) -> None:
    old = await owned(log, "0_0")
    other = await place.open()
    assert await other.acquire(APP, "new", "a:2", await other.lease(APP)) is not None
    for call in (
        log.renew(old),
        log.record_owners(old, [OwnerRecord("0_0", 9, "m", "w-9", 1), OwnerRecord("0_1", 9, "m", "w-9", 1)]),
        log.fence(old, ["w-1"]),
        log.put_metadata(APP, OPERATION, "key", b"late", lease=old),
    ):
        with pytest.raises(LeaseLost, match="new"):
            await call
    assert list(await other.owners(APP)) == ["0_0"]
    assert await other.metadata(APP, OPERATION, "key") is None
    await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {P0: records("still its owner")})])


async def test_a_new_coordinator_sees_every_owner_record(log: GroupLog, place: Place) -> None:
    lease = await lease_of(log)
    written = {f"0_{number}": OwnerRecord(f"0_{number}", 1, "m", "w", 1) for number in range(20)}
    for record in written.values():
        await log.record_owners(lease, [record])
    other = await place.open()
    assert await other.acquire(APP, "new", "a:2", await other.lease(APP)) is not None
    assert await other.owners(APP) == written


async def test_without_any_lease_nothing_is_recorded(log: GroupLog) -> None:
    ghost = Lease(APP, 1, "ghost", "a:1", 0)
    with pytest.raises(LeaseLost):
        await log.record_owners(ghost, [OwnerRecord("0_0", 1, "m", "w", 1)])


# ---------------------------------------------------------------------- metadata


async def test_metadata_is_kept_by_application_and_kind(log: GroupLog) -> None:
    lease = await lease_of(log)
    await log.put_metadata(APP, SCHEMA, "b", b"2")
    await log.put_metadata(APP, SCHEMA, "a", b"1")
    await log.put_metadata(APP, OPERATION, "a", b"op", lease=lease)
    await log.put_metadata("another", SCHEMA, "a", b"x")
    assert await log.metadata_of(APP, SCHEMA) == {"a": b"1", "b": b"2"}
    assert await log.metadata(APP, OPERATION, "a") == b"op"
    await log.put_metadata(APP, SCHEMA, "a", b"new")
    await log.put_metadata(APP, SCHEMA, "b", None)
    await log.put_metadata(APP, SCHEMA, "never there", None)
    assert await log.metadata_of(APP, SCHEMA) == {"a": b"new"}
    await log.put_metadata(APP, SCHEMA, "c", b"")
    assert await log.metadata(APP, SCHEMA, "c") == b""


async def test_metadata_of_every_application_is_found(log: GroupLog) -> None:
    about = MetadataKind("about")
    await log.put_metadata("b", about, "app", b"of b")
    await log.put_metadata("a", about, "app", b"of a")
    await log.put_metadata("a", about, "else", b"")
    await log.put_metadata("c", SCHEMA, "app", b"")
    assert await log.metadata_of_all(about, "app") == {"a": b"of a", "b": b"of b"}


async def test_metadata_is_replaced_only_where_it_is_as_it_was_seen(log: GroupLog) -> None:
    assert not await log.replace_metadata(APP, SCHEMA, "app", b"seen", b"mine")
    assert await log.replace_metadata(APP, SCHEMA, "app", None, b"first")
    assert not await log.replace_metadata(APP, SCHEMA, "app", None, b"second"), "somebody was there before"
    assert await log.metadata(APP, SCHEMA, "app") == b"first"
    assert await log.replace_metadata(APP, SCHEMA, "app", b"first", b"second")
    assert await log.metadata_of(APP, SCHEMA) == {"app": b"second"}
    assert not await log.replace_metadata(APP, SCHEMA, "app", b"first", None), "it is another one by now"
    assert await log.replace_metadata(APP, SCHEMA, "app", b"second", None)
    assert await log.metadata_of(APP, SCHEMA) == {}


async def test_of_many_that_replace_at_once_none_is_lost(log: GroupLog, place: Place) -> None:
    async def add(mine: GroupLog) -> None:
        for _ in range(5):
            while True:
                seen = await mine.metadata(APP, SCHEMA, "count")
                if await mine.replace_metadata(APP, SCHEMA, "count", seen, b"%d" % (int(seen or 0) + 1)):
                    break
                await asyncio.sleep(0)

    await asyncio.gather(*[add(one) for one in (log, await place.open(), await place.open())])
    assert await log.metadata(APP, SCHEMA, "count") == b"15"


async def test_what_the_coordinator_writes_nobody_else_writes(log: GroupLog) -> None:
    lease = await lease_of(log)
    for call in (
        log.put_metadata(APP, OPERATION, "a", b"1"),
        log.replace_metadata(APP, OPERATION, "a", None, b"1"),
        log.put_metadata(APP, SCHEMA, "a", b"1", lease=lease),
    ):
        with pytest.raises(StateError, match="lease"):
            await call
    assert await log.metadata_of(APP, OPERATION) == await log.metadata_of(APP, SCHEMA) == {}
