"""What every log does, whatever it is made of. One suite: SQLite, memory as Kafka is, memory without gaps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from state.errors import (
    Fenced,
    LeaseLost,
    PositionOutOfRange,
    Refused,
    StateError,
    TopicMismatch,
    UnknownTopic,
)
from state.log.batches import decode
from state.log.memory import MemoryLog
from state.log.protocol import Lease, Log, NewRecord, OwnerRecord, Part, Partition, StoredRecord, TopicSpec
from state.log.sqlite import open_sqlite

APP = "payments-app"
P0, P1, P2 = (Partition("payments", number) for number in range(3))
C0 = Partition("counts-changelog", 0)


@pytest.fixture(params=["sqlite", "memory", "memory without markers"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Log]:
    made: Any
    if request.param == "sqlite":
        made = await open_sqlite(tmp_path / "log.db", create=True)
    else:
        made = MemoryLog(markers=request.param == "memory")
    await made.create_topic(TopicSpec("payments", 3))
    await made.create_topic(TopicSpec("counts-changelog", 2, "changelog"))
    yield made
    await made.close()


def records(*values: str | None, key: str = "k") -> list[NewRecord]:
    return [NewRecord(key.encode(), None if value is None else value.encode(), 1_000) for value in values]


def keyed(**values: str | None) -> list[NewRecord]:
    return [NewRecord(key.encode(), None if value is None else value.encode(), 1_000) for key, value in values.items()]


async def read_all(log: Log, partition: Partition, position: int = 0, max_bytes: int = 1 << 20) -> list[StoredRecord]:
    reader = log.reader()
    reader.add(partition, position)
    found: list[StoredRecord] = []
    while got := await reader.poll(max_bytes_per_partition=max_bytes):
        for one in got:
            assert one.partition == partition
            assert one.position == position
            assert one.next_position > position
            found += decode(one.data, one.position)
            position = one.next_position
    assert position == (await log.ends([partition]))[partition]
    await reader.close()
    return found


async def values(log: Log, partition: Partition, position: int = 0) -> list[str | None]:
    return [None if one.value is None else one.value.decode() for one in await read_all(log, partition, position)]


async def owned(log: Log, *scopes: str, writer: str = "w-1", epoch: int = 1) -> Lease:
    """A lease, and `writer` as the owner of the scopes."""
    lease = await log.lease(APP) or await log.acquire(APP, "coordinator", "127.0.0.1:1", None)
    assert lease is not None
    await log.record_owners(lease, [OwnerRecord(scope, epoch, "member", writer, lease.term) for scope in scopes])
    return lease


# ---------------------------------------------------------------------- topics


async def test_a_topic_is_made_once_and_keeps_its_id(log: Log) -> None:
    made = await log.create_topic(TopicSpec("orders", 4, "repartition"))
    assert (made.name, made.partitions, made.kind) == ("orders", 4, "repartition")
    assert await log.create_topic(TopicSpec("orders", 4, "repartition")) == made
    assert (await log.topics())["orders"] == made
    assert set(await log.topics()) == {"orders", "payments", "counts-changelog"}


async def test_another_partition_count_is_refused(log: Log) -> None:
    with pytest.raises(TopicMismatch, match=r"payments has 3 partitions and 5 were asked for"):
        await log.create_topic(TopicSpec("payments", 5))


async def test_a_topic_grows_and_keeps_what_it_has(log: Log) -> None:
    before = (await log.topics())["payments"]
    await log.append({P0: records("a")})
    await log.seed_positions(APP, {P0: 1}, {})
    grown = await log.grow_topic("payments", 5)
    assert (grown.topic_id, grown.partitions, grown.kind) == (before.topic_id, 5, "plain")
    assert (await log.topics())["payments"] == grown
    assert await log.create_topic(TopicSpec("payments", 5)) == grown
    assert await values(log, P0) == ["a"] and await log.positions(APP) == {P0: 1}
    last = Partition("payments", 4)
    assert await log.ends([last]) == await log.starts([last]) == {last: 0}
    await log.append({last: records("b")})
    assert await values(log, last) == ["b"]
    with pytest.raises(UnknownTopic, match="payments has no partition 5"):
        await log.ends([Partition("payments", 5)])


async def test_a_topic_grows_under_its_reader(log: Log) -> None:
    reader = log.reader()
    reader.add(P0, 0)
    await log.grow_topic("payments", 4)
    reader.add(Partition("payments", 3), 0)
    await log.append({Partition("payments", 3): records("a"), P0: records("b")})
    assert {one.partition.number for one in await reader.poll(wait_ms=1000)} == {0, 3}
    await reader.close()


async def test_the_same_number_is_nothing_to_do_and_fewer_are_refused(log: Log) -> None:
    before = await log.topics()
    assert await log.grow_topic("payments", 3) == before["payments"]
    for fewer in (2, 0, -1):
        with pytest.raises(TopicMismatch, match=rf"payments has 3 partitions and cannot have {fewer}"):
            await log.grow_topic("payments", fewer)
    with pytest.raises(UnknownTopic, match="no topic nowhere"):
        await log.grow_topic("nowhere", 3)
    assert await log.topics() == before


async def test_a_note_of_every_application_is_found(log: Log) -> None:
    await log.put_note("b", "about", "app", b"of b")
    await log.put_note("a", "about", "app", b"of a")
    await log.put_note("a", "about", "else", b"")
    await log.put_note("c", "other", "app", b"")
    assert await log.notes_of_all("about", "app") == {"a": b"of a", "b": b"of b"}


@pytest.mark.parametrize("spec", [TopicSpec("x", 0), TopicSpec("", 1), TopicSpec("x", 1, "compacted")])
async def test_nonsense_is_no_topic(log: Log, spec: TopicSpec) -> None:
    with pytest.raises(StateError):
        await log.create_topic(spec)


async def test_a_topic_made_again_has_another_id_and_is_empty(log: Any) -> None:
    await log.append({P0: records("a")})
    await log.seed_positions(APP, {P0: 1, C0: 0}, {})
    before = (await log.topics())["payments"]
    await log.delete_topic("payments")
    assert "payments" not in await log.topics()
    assert await log.positions(APP) == {C0: 0}
    again = await log.create_topic(TopicSpec("payments", 3))
    assert again.topic_id != before.topic_id
    assert await log.ends([P0]) == {P0: 0}


@pytest.mark.parametrize("partition", [Partition("nowhere", 0), Partition("payments", 3)])
async def test_unknown_partitions_are_named_everywhere(log: Log, partition: Partition) -> None:
    reader = log.reader()
    reader.add(partition, 0)
    lease = await owned(log, "0_0")
    part = Part("0_0", 1, {partition: records("a")})
    for call in (
        log.ends([partition]),
        log.starts([partition]),
        log.append({partition: records("a")}),
        log.commit(APP, "w-1", [part]),
        reader.poll(),
        log.trim({partition: 0}),
    ):
        with pytest.raises(UnknownTopic, match=partition.topic):
            await call
    assert lease.term == 1


async def test_a_topic_deleted_under_a_reader_is_named(log: Any) -> None:
    reader = log.reader()
    reader.add(P0, 0)
    assert await reader.poll() == []
    await log.delete_topic("payments")
    with pytest.raises(UnknownTopic, match="payments"):
        await reader.poll(wait_ms=1000)


# ---------------------------------------------------------------------- append, read


async def test_what_was_appended_is_read_back_whole(log: Log) -> None:
    first = [
        NewRecord(b"a", b"1", 17, (("h", b"x"), ("h", b""))),
        NewRecord(None, b"no key", 18),
        NewRecord(b"gone", None, -1),
        NewRecord(b"", b"", 0),
    ]
    ends = await log.append({P0: first})
    assert ends == await log.ends([P0])
    found = await read_all(log, P0)
    assert [one[1:] for one in found] == [(one.timestamp_ms, one.key, one.value, one.headers) for one in first]
    assert [one.offset for one in found] == [0, 1, 2, 3]


async def test_ends_are_positions_to_read_on_from(log: Log) -> None:
    assert await log.ends([P0, P1]) == {P0: 0, P1: 0}
    first = (await log.append({P0: records("a", "b")}))[P0]
    assert first >= 2
    second = (await log.append({P0: records("c"), P1: records("x")}))[P0]
    assert second > first
    assert await values(log, P0) == ["a", "b", "c"]
    assert await values(log, P0, first) == ["c"]
    assert await values(log, P0, second) == []
    assert await values(log, P1) == ["x"]


async def test_reading_may_begin_in_the_middle_of_a_batch(log: Log) -> None:
    await log.append({P0: records(*map(str, range(100)))})
    assert await values(log, P0, 37) == [str(number) for number in range(37, 100)]


async def test_a_reader_is_given_about_as_much_as_it_asks_for(log: Log) -> None:
    for number in range(20):
        await log.append({P0: records("x" * 1000, str(number))})
    reader = log.reader()
    reader.add(P0, 0)
    got = await reader.poll(max_bytes_per_partition=3000)
    assert len(got) == 1
    assert 3000 <= len(got[0].data) < 5500
    assert len(await read_all(log, P0, max_bytes=1)) == 40


async def test_large_appends_are_read_back_in_order(log: Log) -> None:
    await log.append({P0: [NewRecord(b"k%d" % number, b"v" * 50, number) for number in range(20_000)]})
    found = await read_all(log, P0)
    assert [one.timestamp_ms for one in found] == list(range(20_000))
    assert [one.offset for one in found] == list(range(20_000))


async def test_a_record_larger_than_a_batch_gets_through(log: Log) -> None:
    big = "x" * 3_000_000
    await log.append({P0: records("a", big, "b")})
    assert await values(log, P0) == ["a", big, "b"]


async def test_an_append_is_all_or_nothing(log: Log) -> None:
    with pytest.raises(UnknownTopic):
        await log.append({P0: records("a"), Partition("nowhere", 0): records("b")}, note=(APP, "kind", "key", b"note"))
    assert await values(log, P0) == []
    assert await log.note(APP, "kind", "key") is None


async def test_an_append_carries_a_note(log: Log) -> None:
    await log.append({P0: records("a")}, note=(APP, "producer", "file-1", b"line 7"))
    assert await log.note(APP, "producer", "file-1") == b"line 7"
    assert await log.append({}) == {}


async def test_a_position_past_the_end_is_an_error_not_a_wait(log: Log) -> None:
    reader = log.reader()
    reader.add(P0, 99)
    with pytest.raises(PositionOutOfRange, match="payments-0"):
        await reader.poll(wait_ms=1000)


# ---------------------------------------------------------------------- the incremental reader


async def test_adding_and_dropping_leaves_the_others_where_they_are(log: Log) -> None:
    await log.append({P0: records("a"), P1: records("x"), P2: records("q")})
    reader = log.reader()
    reader.add(P0, 0)
    reader.add(P1, 0)
    assert [one.partition for one in await reader.poll()] == [P0, P1]
    reader.add(P2, 0)
    assert [one.partition for one in await reader.poll()] == [P2]
    await log.append({P2: records("r"), P1: records("y"), P0: records("b")})
    reader.drop(P1)
    reader.drop(Partition("nowhere", 7))
    got = {one.partition: [r.value for r in decode(one.data, one.position)] for one in await reader.poll()}
    assert list(got.items()) == [(P0, [b"b"]), (P2, [b"r"])]
    reader.add(P1, 0)
    (again,) = await reader.poll()
    assert [r.value for r in decode(again.data, again.position)] == [b"x", b"y"]


async def test_adding_again_moves_the_position(log: Log) -> None:
    end = (await log.append({P0: records("a")}))[P0]
    await log.append({P0: records("b")})
    reader = log.reader()
    reader.add(P0, 0)
    await reader.poll()
    reader.add(P0, end)
    (again,) = await reader.poll()
    assert [one.value for one in decode(again.data, again.position)] == [b"b"]


async def test_a_position_moved_while_a_poll_is_under_way_counts(log: Log) -> None:
    """The poll that was under way hands out nothing of what was dropped, and moves nobody's new position."""
    end = (await log.append({P0: records("a"), P1: records("x")}))[P0]
    await log.append({P0: records("b")})
    reader = log.reader()
    reader.add(P0, 0)
    reader.add(P1, 0)
    polling = asyncio.create_task(reader.poll())
    await asyncio.sleep(0)
    moved = not polling.done()  # the memory log may have answered at once
    reader.add(P0, end)
    reader.drop(P1)
    first = await polling
    if moved:
        assert all((one.partition, one.position) == (P0, end) for one in first)
    rest = [] if moved and first else await reader.poll()
    found = [one.value for got in (first if moved else []) + rest for one in decode(got.data, got.position)]
    assert found == [b"b"]


async def test_two_readers_do_not_disturb_each_other(log: Log) -> None:
    await log.append({P0: records("a")})
    one, two = log.reader(), log.reader()
    one.add(P0, 0)
    two.add(P0, 0)
    assert await one.poll()
    assert await two.poll()
    assert not await one.poll()


async def test_a_waiting_reader_wakes_up(log: Log) -> None:
    reader = log.reader()
    reader.add(P0, 0)
    waiting = asyncio.create_task(reader.poll(wait_ms=30_000))
    await asyncio.sleep(0)
    await log.append({P0: records("a")})
    (got,) = await asyncio.wait_for(waiting, 10)
    assert got.partition == P0


async def test_a_waiting_reader_sees_a_partition_added_meanwhile(log: Log) -> None:
    await log.append({P1: records("x")})
    reader = log.reader()
    reader.add(P0, 0)
    waiting = asyncio.create_task(reader.poll(wait_ms=30_000))
    for _ in range(100):
        await asyncio.sleep(0.001)
    reader.add(P1, 0)
    (got,) = await asyncio.wait_for(waiting, 10)
    assert got.partition == P1


async def test_a_wait_in_vain_ends_with_nothing(log: Log) -> None:
    reader = log.reader()
    reader.add(P0, 0)
    before = time.monotonic()
    assert await reader.poll(wait_ms=50) == []
    assert time.monotonic() - before >= 0.045


# ---------------------------------------------------------------------- commits


async def test_a_commit_writes_records_and_positions_of_all_its_parts(log: Log) -> None:
    await owned(log, "0_0", "0_1")
    ends = await log.commit(
        APP,
        "w-1",
        [
            Part("0_0", 1, {P2: records("from 0"), C0: records("c")}, {P0: 10}),
            Part("0_1", 1, {P2: records("from 1")}, {P1: 20}),
        ],
    )
    assert ends == await log.ends([P2, C0])
    assert await values(log, P2) == ["from 0", "from 1"]
    assert await values(log, C0) == ["c"]
    assert await log.positions(APP) == {P0: 10, P1: 20}
    assert await log.positions("another") == {}
    await log.commit(APP, "w-1", [Part("0_0", 1, {}, {P0: 11})])
    assert await log.positions(APP) == {P0: 11, P1: 20}
    assert await log.commit(APP, "w-1", []) == {}


async def test_a_commit_with_an_unknown_topic_writes_nothing(log: Log) -> None:
    await owned(log, "0_0")
    with pytest.raises(UnknownTopic):
        await log.commit(
            APP, "w-1", [Part("0_0", 1, {P0: records("a"), Partition("nowhere", 0): records("b")}, {P1: 5})]
        )
    assert await values(log, P0) == []
    assert await log.positions(APP) == {}


async def test_a_refused_commit_names_all_lost_scopes_and_the_others_can_go_on(log: Log) -> None:
    await owned(log, "0_0", "0_1", "0_2", "0_3")
    await owned(log, "0_1", writer="w-2", epoch=2)
    await owned(log, "0_3", epoch=7)
    await log.append({P0: records("before")})
    parts = [Part(f"0_{number}", 1, {P0: records(str(number))}, {P1: number}) for number in range(5)]
    with pytest.raises(Refused, match=r"0_1, 0_3, 0_4") as caught:
        await log.commit(APP, "w-1", parts)
    assert caught.value.scopes == {"0_1", "0_3", "0_4"}
    assert await values(log, P0) == ["before"]
    assert await log.positions(APP) == {}
    await log.commit(APP, "w-1", [part for part in parts if part.scope not in caught.value.scopes])
    assert await values(log, P0) == ["before", "0", "2"]
    assert await log.positions(APP) == {P1: 2}


async def test_nobody_writes_for_a_scope_of_nobody(log: Log) -> None:
    await owned(log, "0_0", writer="")
    for writer in ("", "w-1"):
        with pytest.raises(Refused):
            await log.commit(APP, writer, [Part("0_0", 1, {P0: records("a")})])
    assert await values(log, P0) == []


async def test_owners_of_another_application_do_not_count(log: Log) -> None:
    await owned(log, "0_0")
    with pytest.raises(Refused):
        await log.commit("another-app", "w-1", [Part("0_0", 1, {P0: records("a")})])


async def test_an_older_epoch_is_refused_after_a_new_grant(log: Log) -> None:
    await owned(log, "0_0", epoch=1)
    await log.commit(APP, "w-1", [Part("0_0", 1, {P0: records("a")})])
    await owned(log, "0_0", epoch=2)
    with pytest.raises(Refused):
        await log.commit(APP, "w-1", [Part("0_0", 1, {P0: records("b")})])
    await log.commit(APP, "w-1", [Part("0_0", 2, {P0: records("c")})])
    assert await values(log, P0) == ["a", "c"]


# ---------------------------------------------------------------------- fences


async def test_a_fenced_writer_commits_nothing_ever_again(log: Log) -> None:
    lease = await owned(log, "0_0", "0_1")
    await owned(log, "0_2", writer="w-2")
    assert await log.fence(lease, "w-1") == {"0_0", "0_1"}
    owners = await log.owners(APP)
    assert {scope: (one.epoch, one.writer, one.member) for scope, one in owners.items()} == {
        "0_0": (2, "", "member"),
        "0_1": (2, "", "member"),
        "0_2": (1, "w-2", "member"),
    }
    for epoch in (1, 2):
        with pytest.raises(Fenced):
            await log.commit(APP, "w-1", [Part("0_0", epoch, {P0: records("a")})])
    assert await values(log, P0) == []
    assert await log.fence(lease, "w-1") == frozenset()
    await owned(log, "0_0", writer="w-1", epoch=3)  # by mistake: the fence is for good
    with pytest.raises(Fenced):
        await log.commit(APP, "w-1", [Part("0_0", 3, {P0: records("a")})])
    await log.commit(APP, "w-2", [Part("0_2", 1, {P0: records("fine")})])


async def test_a_fence_holds_for_a_writer_that_owns_nothing_yet(log: Log) -> None:
    lease = await owned(log)
    assert await log.fence(lease, "w-9") == frozenset()
    await owned(log, "0_0", writer="w-9")
    with pytest.raises(Fenced):
        await log.commit(APP, "w-9", [Part("0_0", 1)])


async def test_no_name_no_fence(log: Log) -> None:
    lease = await owned(log, "0_0", writer="")
    with pytest.raises(StateError):
        await log.fence(lease, "")
    assert (await log.owners(APP))["0_0"].epoch == 1


# ---------------------------------------------------------------------- the lease


async def test_a_lease_is_taken_only_as_it_was_seen(log: Log) -> None:
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


async def test_only_one_of_many_candidates_gets_the_lease(log: Log) -> None:
    won = await asyncio.gather(*(log.acquire(APP, f"c-{number}", "a:1", None) for number in range(8)))
    assert sum(one is not None for one in won) == 1


async def test_renewing_counts_on_from_the_log(log: Log) -> None:
    """The coordinator may renew with a lease object that is some beats old; term and holder are what counts."""
    lease = await log.acquire(APP, "one", "a:1", None)
    assert lease is not None
    beats = [(await log.renew(lease)).beat for _ in range(3)]
    assert beats == sorted(set(beats))
    await log.record_owners(lease, [OwnerRecord("0_0", 1, "m", "w", 1)])


async def test_a_deposed_coordinator_writes_nothing(log: Log) -> None:
    old = await owned(log, "0_0")
    assert await log.acquire(APP, "new", "a:2", await log.lease(APP)) is not None
    for call in (
        log.renew(old),
        log.record_owners(old, [OwnerRecord("0_0", 9, "m", "w-9", 1), OwnerRecord("0_1", 9, "m", "w-9", 1)]),
        log.fence(old, "w-1"),
        log.put_note(APP, "kind", "key", b"late", lease=old),
    ):
        with pytest.raises(LeaseLost, match="new"):
            await call
    assert list(await log.owners(APP)) == ["0_0"]
    assert await log.note(APP, "kind", "key") is None
    await log.commit(APP, "w-1", [Part("0_0", 1, {P0: records("still its owner")})])


async def test_without_any_lease_nothing_is_recorded(log: Log) -> None:
    ghost = Lease(APP, 1, "ghost", "a:1", 0)
    with pytest.raises(LeaseLost):
        await log.record_owners(ghost, [OwnerRecord("0_0", 1, "m", "w", 1)])


# ---------------------------------------------------------------------- notes, seeds


async def test_notes_are_kept_by_application_and_kind(log: Log) -> None:
    await log.put_note(APP, "schema", "b", b"2")
    await log.put_note(APP, "schema", "a", b"1")
    await log.put_note(APP, "operation", "a", b"op")
    await log.put_note("another", "schema", "a", b"x")
    assert await log.notes(APP, "schema") == {"a": b"1", "b": b"2"}
    assert await log.note(APP, "operation", "a") == b"op"
    await log.put_note(APP, "schema", "a", b"new")
    await log.put_note(APP, "schema", "b", None)
    await log.put_note(APP, "schema", "never there", None)
    assert await log.notes(APP, "schema") == {"a": b"new"}
    lease = await owned(log)
    await log.put_note(APP, "schema", "c", b"", lease=lease)
    assert await log.note(APP, "schema", "c") == b""


async def test_a_note_is_replaced_only_where_it_is_as_it_was_seen(log: Log) -> None:
    assert not await log.replace_note(APP, "numbering", "app", b"seen", b"mine")
    assert await log.replace_note(APP, "numbering", "app", None, b"first")
    assert not await log.replace_note(APP, "numbering", "app", None, b"second"), "somebody was there before"
    assert await log.note(APP, "numbering", "app") == b"first"
    assert await log.replace_note(APP, "numbering", "app", b"first", b"second")
    assert await log.notes(APP, "numbering") == {"app": b"second"}


async def test_positions_are_seeded_once(log: Log) -> None:
    assert await log.seed_positions(APP, {P0: 5, P1: 6}, {C0: records("final")})
    assert not await log.seed_positions(APP, {P0: 7}, {C0: records("again")})
    assert await log.positions(APP) == {P0: 5, P1: 6}
    assert await values(log, C0) == ["final"]
    assert await log.seed_positions("another", {P0: 7}, {})


async def test_notes_are_seeded_with_positions_or_not_at_all(log: Log) -> None:
    assert await log.seed_positions(APP, {P0: 5}, {}, notes=[(APP, "kind", "a", b"1"), (APP, "kind", "b", b"2")])
    assert await log.notes(APP, "kind") == {"a": b"1", "b": b"2"}
    assert not await log.seed_positions(APP, {P0: 5}, {}, notes=[(APP, "kind", "a", b"3")])
    assert await log.notes(APP, "kind") == {"a": b"1", "b": b"2"}


async def test_positions_are_not_seeded_over_a_commit(log: Log) -> None:
    await owned(log, "0_0")
    await log.commit(APP, "w-1", [Part("0_0", 1, {}, {P0: 3})])
    assert not await log.seed_positions(APP, {P1: 6}, {C0: records("final")})
    assert await log.positions(APP) == {P0: 3}
    assert await values(log, C0) == []


# ---------------------------------------------------------------------- upkeep


def last_per_key(found: Sequence[StoredRecord]) -> dict[bytes | None, bytes | None]:
    return {one.key: one.value for one in found}


async def test_compaction_keeps_the_last_of_each_key_at_its_offset(log: Log) -> None:
    for number in range(5):
        await log.append({C0: keyed(a=f"a{number}", b=f"b{number}")})
    await log.append({C0: keyed(a=None, c="c")})
    before, end = await read_all(log, C0), await log.ends([C0])
    removed = await log.compact("counts-changelog")
    after = await read_all(log, C0)
    assert removed == len(before) - len(after) == 9
    assert after == [one for one in before if (one.key, one.value) in [(b"b", b"b4"), (b"a", None), (b"c", b"c")]]
    assert await log.ends([C0]) == end
    assert await log.compact("counts-changelog") == 0
    assert await read_all(log, C0) == after
    for position in range(end[C0] + 1):
        assert await read_all(log, C0, position) == [one for one in after if one.offset >= position]
    await log.append({C0: keyed(b="later")})
    assert last_per_key(await read_all(log, C0)) == {b"a": None, b"b": b"later", b"c": b"c"}


async def test_compaction_of_many_records(log: Log) -> None:
    for turn in range(6):
        await log.append({C0: [NewRecord(b"k%d" % (n % 700), b"%d-%d" % (turn, n), n) for n in range(2_500)]})
    before = await read_all(log, C0)
    await log.compact("counts-changelog")
    after = await read_all(log, C0)
    assert len(after) == 700
    assert last_per_key(after) == last_per_key(before)


async def test_records_without_a_key_survive_compaction(log: Log) -> None:
    await log.append({C0: [NewRecord(None, b"1", 0), NewRecord(None, b"2", 0)]})
    assert await log.compact("counts-changelog") == 0
    assert await values(log, C0) == ["1", "2"]


async def test_only_changelogs_are_compacted(log: Log) -> None:
    await log.append({P0: records("a", "b")})
    with pytest.raises(StateError, match="payments is plain"):
        await log.compact("payments")
    with pytest.raises(UnknownTopic):
        await log.compact("nowhere")
    assert await values(log, P0) == ["a", "b"]


async def test_trimming_removes_what_lies_before_and_nothing_else(log: Log) -> None:
    ends = [(await log.append({P0: records(f"{number}a", f"{number}b")}))[P0] for number in range(5)]
    assert await log.starts([P0]) == {P0: 0}
    assert await log.trim({P0: ends[1], P1: 0}) == 4
    (start,) = (await log.starts([P0])).values()
    assert 0 < start <= ends[1]
    assert await values(log, P0, ends[1]) == ["2a", "2b", "3a", "3b", "4a", "4b"]
    assert await values(log, P0, 0) == ["2a", "2b", "3a", "3b", "4a", "4b"]
    await log.trim({P0: ends[2] + 1})
    assert await values(log, P0, ends[2] + 1) == ["3b", "4a", "4b"]
    await log.trim({P0: 10_000})
    assert await values(log, P0) == []
    assert await log.ends([P0]) == {P0: ends[4]} == await log.starts([P0])
    await log.append({P0: records("new")})
    assert await values(log, P0) == ["new"]
