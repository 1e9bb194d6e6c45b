"""A reader of a SQLite log asks only for what has something, and misses nothing for that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from state.errors import PositionOutOfRange, UnknownTopic
from state.log import sqlite_reader
from state.log.group_store import MetadataKind
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.log.sqlite import SqliteLog, open_sqlite

TOPIC, PARTITIONS = "events", 32
PLACES = [Partition(TOPIC, number) for number in range(PARTITIONS)]
RECORD = [NewRecord(b"k", b"v", 1)]


async def opened(path: Path) -> tuple[SqliteLog, SqliteLog, sqlite_reader.SqliteReader]:
    """The log twice, as two processes have it, and a reader of the first that has read all there was."""
    reading, other = [await open_sqlite(path / "log.db", create=True) for _ in range(2)]
    await other.create_topic(TopicSpec(TOPIC, PARTITIONS))
    reader = sqlite_reader.SqliteReader(reading.read, reading._changes)
    for place in PLACES:
        reader.add(place, 0)
    assert await reader.poll() == []
    return reading, other, reader


async def closed(*logs: SqliteLog) -> None:
    for log in logs:
        await log.close()


async def test_only_partitions_with_something_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, other, reader = await opened(tmp_path)
    looked: list[Partition] = []
    look_at = sqlite_reader._look_at

    def noted(db: object, partition: Partition, *more: object) -> None:
        looked.append(partition)
        look_at(db, partition, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite_reader, "_look_at", noted)
    await other.append({PLACES[7]: RECORD, PLACES[3]: RECORD})
    assert [part.partition for part in await reader.poll()] == [PLACES[3], PLACES[7]], "in the order they were added"
    await other.put_metadata("app", MetadataKind("schema"), "k", b"v")
    assert await reader.poll() == []
    assert looked == [PLACES[3], PLACES[7]]
    await closed(reading, other)


async def test_what_does_not_fit_is_read_by_the_next_polls(tmp_path: Path) -> None:
    reading, other, reader = await opened(tmp_path)
    for _ in range(3):
        await other.append({PLACES[0]: [NewRecord(b"k", b"v" * 1_000, 1)]})
    found = [await reader.poll(max_bytes_per_partition=500) for _ in range(4)]
    assert [[part.next_position for part in parts] for parts in found] == [[1], [2], [3], []]
    await closed(reading, other)


async def test_what_came_and_went_between_two_polls_is_noticed(tmp_path: Path) -> None:
    reading, other, reader = await opened(tmp_path)
    await other.append({PLACES[5]: RECORD})
    await other.trim({PLACES[5]: 1})
    with pytest.raises(PositionOutOfRange):
        await reader.poll()
    await closed(reading, other)


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_topic_that_was_deleted_is_noticed(tmp_path: Path, is_made_again: bool) -> None:
    reading, other, reader = await opened(tmp_path)
    await other.append({PLACES[5]: RECORD})
    assert len(await reader.poll()) == 1
    await other.delete_topic(TOPIC)
    if is_made_again:
        await other.create_topic(TopicSpec(TOPIC, PARTITIONS))
    with pytest.raises(PositionOutOfRange if is_made_again else UnknownTopic):
        await reader.poll()
    await closed(reading, other)


async def test_more_batches_than_are_asked_for_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_reader, "_NEW_MAX", 3)
    reading, other, reader = await opened(tmp_path)
    for number in range(9):
        await other.append({PLACES[number]: RECORD})
    assert {part.partition for part in await reader.poll()} == set(PLACES[:9])
    await closed(reading, other)


async def test_a_partition_that_is_moved_back_is_read_again(tmp_path: Path) -> None:
    reading, other, reader = await opened(tmp_path)
    await other.append({PLACES[5]: RECORD})
    for _ in range(2):
        assert [part.next_position for part in await reader.poll()] == [1]
        assert await reader.poll() == []
        reader.add(PLACES[5], 0)
    await closed(reading, other)


async def test_an_answer_is_kept_for_as_long_as_the_log_is_the_same(tmp_path: Path) -> None:
    """Whoever asks for the lease several times a second reads the file once a change, and never an old answer."""
    reading, other, _ = await opened(tmp_path)
    asked: list[int] = []
    read = reading.read

    async def noted(work: object) -> object:
        asked.append(1)
        return await read(work)  # type: ignore[arg-type]

    reading.read = noted  # type: ignore[method-assign, assignment]
    kind = MetadataKind("schema")
    for number in range(3):
        await other.put_metadata("app", kind, "k", b"%d" % number)
        for _ in range(4):
            assert await reading.metadata("app", kind, "k") == b"%d" % number
            found = await reading.metadata_of("app", kind)
            assert found == {"k": b"%d" % number}
            found.clear()  # an answer is the caller's own
    assert len(asked) == 6
    await asyncio.gather(closed(reading, other))
