"""What every log does with records: append, read, the incremental reader."""

from __future__ import annotations

import asyncio
import time

import pytest

from state.errors import InvalidRecord, MetadataChanged, PositionOutOfRange, RecordTooLarge, UnknownTopic
from state.log.batches import decode
from state.log.group_store import AppMetadata, MetadataKind
from state.log.protocol import GroupLog, NewRecord, Partition
from tests.contracts.logs import (
    APP,
    C0,
    MAX_MESSAGE_BYTES,
    P0,
    P1,
    P2,
    arrived,
    keyed,
    lease_of,
    read_all,
    records,
    until,
    values,
)

PROGRESS = MetadataKind("producer")


def progress(value: bytes) -> AppMetadata:
    return AppMetadata(APP, PROGRESS, "file-1", value)


async def test_what_was_appended_is_read_back_whole(log: GroupLog) -> None:
    first = [
        NewRecord(b"a", b"1", 17, (("h", b"x"), ("h", b""))),
        NewRecord(None, b"no key", 18),
        NewRecord(b"gone", None, -1),
        NewRecord(b"", b"", 0),
    ]
    behind = await log.append({P0: first})
    assert behind == {P0: 4}
    found = await read_all(log, P0)
    assert [NewRecord(one.key, one.value, one.timestamp_ms, one.headers) for one in found] == first
    assert [one.offset for one in found] == [0, 1, 2, 3]


async def test_an_append_answers_the_offset_after_its_last_record(log: GroupLog) -> None:
    """Markers are not counted: what it answers lies at the settled end or before it."""
    assert await log.ends([P0, P1]) == await log.ends([P0, P1], settled=True) == {P0: 0, P1: 0}
    assert await log.known_ends([P0, P1]) == {P0: 0, P1: 0}
    first = await log.append({P0: records("a", "b")})
    assert first == {P0: 2}
    second = await log.append({P0: records("c"), P1: records("x")})
    assert second.keys() == {P0, P1} and second[P0] >= 3 and second[P1] == 1
    ends = await log.ends([P0, P1], settled=True)
    assert all(second[one] <= ends[one] for one in second)
    assert [one.offset for one in await read_all(log, P0)][-1] == second[P0] - 1
    assert await values(log, P0) == ["a", "b", "c"]
    assert await values(log, P0, first[P0]) == ["c"]
    assert await values(log, P0, second[P0]) == []
    assert await values(log, P1) == ["x"]
    assert await log.append({}) == {}
    assert await log.append({P2: []}) == {}


async def test_reading_may_begin_in_the_middle_of_a_batch(log: GroupLog) -> None:
    await log.append({P0: records(*map(str, range(100)))})
    assert await values(log, P0, 37) == [str(number) for number in range(37, 100)]


async def test_a_reader_is_given_at_least_one_batch(log: GroupLog) -> None:
    for number in range(20):
        await log.append({P0: records("x" * 1000, str(number))})
    await log.ends([P0], settled=True)
    reader = log.reader()
    reader.add(P0, 0)
    got = await reader.poll(max_bytes_per_partition=3000, wait_ms=1_000)
    assert len(got) == 1
    assert 1000 <= len(got[0].data) < 5500
    assert len(await read_all(log, P0, max_bytes=1)) == 40


async def test_large_appends_are_read_back_in_order(log: GroupLog) -> None:
    await log.append({P0: [NewRecord(b"k%d" % number, b"v" * 50, number) for number in range(20_000)]})
    found = await read_all(log, P0)
    assert [one.timestamp_ms for one in found] == list(range(20_000))
    assert [one.offset for one in found] == sorted({one.offset for one in found})


async def test_a_record_as_large_as_the_log_takes_gets_through(log: GroupLog) -> None:
    big = "x" * (MAX_MESSAGE_BYTES - 1_000)
    await log.append({P0: records("a", big, "b")})
    assert await values(log, P0) == ["a", big, "b"]


async def test_a_larger_record_is_refused_and_named(log: GroupLog) -> None:
    with pytest.raises(RecordTooLarge, match=f"too large for payments-0, which takes {MAX_MESSAGE_BYTES}") as caught:
        await log.append({P1: records("fine"), P0: records("a", "x" * MAX_MESSAGE_BYTES, "b")}, metadata=progress(b"1"))
    assert (caught.value.partition, caught.value.index, caught.value.scope) == (P0, 1, None)
    assert await values(log, P0) == await values(log, P1) == []
    assert await log.metadata(APP, PROGRESS, "file-1") is None
    await log.append({P0: records("after")})
    assert await values(log, P0) == ["after"]


async def test_a_changelog_takes_no_record_without_a_key(log: GroupLog) -> None:
    with pytest.raises(InvalidRecord, match="without a key cannot go into counts-changelog-0"):
        await log.append({P0: records("a"), C0: [*keyed(a="1"), NewRecord(None, b"2", 1)]})
    assert await values(log, P0) == await values(log, C0) == []


async def test_an_append_is_all_or_nothing(log: GroupLog) -> None:
    with pytest.raises(UnknownTopic):
        await log.append({P0: records("a"), Partition("nowhere", 0): records("b")}, metadata=progress(b"7"))
    assert await values(log, P0) == []
    assert await log.metadata(APP, PROGRESS, "file-1") is None


async def test_an_append_carries_the_progress_of_its_producer(log: GroupLog) -> None:
    await log.append({P0: records("a")}, metadata=progress(b"line 7"))
    assert await log.metadata(APP, PROGRESS, "file-1") == b"line 7"
    await log.append({P0: records("b")}, metadata=progress(b"line 8"), seen=b"line 7")
    assert await log.metadata(APP, PROGRESS, "file-1") == b"line 8"


async def test_of_two_producers_that_go_on_from_one_place_one_is_refused(log: GroupLog) -> None:
    await log.append({P0: records("a")}, metadata=progress(b"1"))
    for seen in (None, b"0"):
        with pytest.raises(MetadataChanged, match="'file-1' of payments-app was written by another process"):
            await log.append({P0: records("twin")}, metadata=progress(b"2"), seen=seen)
    await log.append({P0: records("b")}, metadata=progress(b"2"), seen=b"1")
    assert await values(log, P0) == ["a", "b"]


async def test_a_position_past_the_end_is_an_error_not_a_wait(log: GroupLog) -> None:
    reader = log.reader()
    reader.add(P0, 99)
    with pytest.raises(PositionOutOfRange, match="payments-0") as caught:
        await reader.poll(wait_ms=10_000)
    assert (caught.value.partition, caught.value.start, caught.value.end) == (P0, 0, 0)


# ---------------------------------------------------------------------- the incremental reader


async def test_adding_and_dropping_leaves_the_others_where_they_are(log: GroupLog) -> None:
    await log.append({P0: records("a"), P1: records("x"), P2: records("q")})
    reader = log.reader()
    reader.add(P0, 0)
    reader.add(P1, 0)
    assert await arrived(reader, [P0, P1]) == {P0: [b"a"], P1: [b"x"]}
    reader.add(P2, 0)
    assert await arrived(reader, [P2]) == {P2: [b"q"]}
    await log.append({P2: records("r"), P1: records("y"), P0: records("b")})
    reader.drop(P1)
    reader.drop(Partition("nowhere", 7))
    assert await arrived(reader, [P0, P2]) == {P0: [b"b"], P2: [b"r"]}
    await log.ends([P1], settled=True)
    reader.add(P1, 0)
    found = await arrived(reader, [P1])
    while len(found[P1]) < 2:
        found[P1] += (await arrived(reader, [P1]))[P1]
    assert found == {P1: [b"x", b"y"]}


async def test_one_poll_answers_in_the_order_of_adding(log: GroupLog) -> None:
    await log.append({P0: records("a"), P1: records("x"), P2: records("q")})
    await log.ends([P0, P1, P2], settled=True)
    added = [P2, P0, P1]
    reader = log.reader()
    for partition in added:
        reader.add(partition, 0)
    got = [one.partition for one in await reader.poll(wait_ms=1_000)]
    assert got == [partition for partition in added if partition in got]


async def test_adding_again_moves_the_position(log: GroupLog) -> None:
    behind = (await log.append({P0: records("a")}))[P0]
    await log.append({P0: records("b")})
    reader = log.reader()
    reader.add(P0, 0)
    await arrived(reader, [P0])
    reader.add(P0, behind)
    assert await arrived(reader, [P0]) == {P0: [b"b"]}


async def test_a_position_moved_while_a_poll_is_under_way_counts(log: GroupLog) -> None:
    """The poll that was under way hands out nothing of what was dropped, and moves nobody's new position."""
    behind = (await log.append({P0: records("a"), P1: records("x")}))[P0]
    await log.append({P0: records("b")})
    await log.ends([P0, P1], settled=True)
    reader = log.reader()
    reader.add(P0, 0)
    reader.add(P1, 0)
    polling = asyncio.create_task(reader.poll())
    await asyncio.sleep(0)
    moved = not polling.done()  # the memory log may have answered at once
    reader.add(P0, behind)
    reader.drop(P1)
    first = await polling
    if moved:
        assert all((one.partition, one.position) == (P0, behind) for one in first)
    found = [one.value for got in (first if moved else []) for one in decode(got.data, got.position)]
    if not found:
        found = (await arrived(reader, [P0]))[P0]
    assert found == [b"b"]


async def test_two_readers_do_not_disturb_each_other(log: GroupLog) -> None:
    await log.append({P0: records("a")})
    one, two = log.reader(), log.reader()
    one.add(P0, 0)
    two.add(P0, 0)
    assert await arrived(one, [P0]) == await arrived(two, [P0]) == {P0: [b"a"]}


async def test_a_waiting_reader_wakes_up(log: GroupLog) -> None:
    reader = log.reader()
    reader.add(P0, 0)
    waiting = asyncio.create_task(reader.poll(wait_ms=30_000))
    await asyncio.sleep(0)
    await log.append({P0: records("a")})
    (got,) = await asyncio.wait_for(waiting, 10)
    assert got.partition == P0


async def test_a_waiting_reader_sees_a_partition_added_meanwhile(log: GroupLog) -> None:
    await log.append({P1: records("x")})
    reader = log.reader()
    reader.add(P0, 0)
    waiting = asyncio.create_task(reader.poll(wait_ms=30_000))
    for _ in range(100):
        await asyncio.sleep(0.001)
    reader.add(P1, 0)
    (got,) = await asyncio.wait_for(waiting, 10)
    assert got.partition == P1


async def test_a_wait_in_vain_ends_with_nothing(log: GroupLog) -> None:
    reader = log.reader()
    reader.add(P0, 0)
    before = time.monotonic()
    assert await reader.poll(wait_ms=50) == []
    assert time.monotonic() - before >= 0.045


async def test_without_an_election_nothing_is_lost(log: GroupLog) -> None:
    """Epochs are the log's own; what was written lies within the one under way."""
    await log.append({P0: records("a", "b"), P1: records("x")})
    ends = await log.ends([P0, P1], settled=True)
    epochs = {one: epoch for one in (P0, P1) if (epoch := log.epoch(one)) >= 0}
    for one, end in (await log.epoch_ends(epochs)).items():
        assert end == ends[one]
    reader = log.reader()
    reader.add(P0, 0)
    read: list[int] = []

    async def some() -> bool:
        read.extend(part.epoch for part in await reader.poll(wait_ms=100))
        return bool(read)

    await until("the records", some)
    assert set(read) == {epochs.get(P0, -1)}
    await reader.close()
    assert await log.lost(APP, [P0, P1]) == {}
    assert await log.seed_positions(await lease_of(log), {P0: 2, P1: 0}, {})
    assert await log.lost(APP, [P0, P1]) == {}
