"""Reading a SQLite log: queries of the reading connection, and the incremental reader that workers poll.

One rule: a partition's position moves only when its bytes were handed out, and only if it was not moved meanwhile.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from state.log import checks
from state.log.compaction import Pass, Row
from state.log.group_store import MetadataKind, OwnerRecord
from state.log.protocol import FOR_EVER, Fetched, Partition, TopicInfo
from state.log.sqlite_writer import find_part, find_topic, read_positions

T = TypeVar("T")

_ROWS_MAX = 1_000
_ROWS_BYTES_MAX = 2 << 20


@contextmanager
def snapshot(db: sqlite3.Connection) -> Iterator[None]:
    """Several queries that see one state of the log."""
    db.execute("begin")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("rollback")


def fetch(db: sqlite3.Connection, wanted: Sequence[tuple[Partition, int]], max_bytes: int) -> list[Fetched]:
    """What there is from each position on, at most about `max_bytes` of each partition and at least one batch.
    Raises PositionOutOfRange."""
    found: list[Fetched] = []
    with snapshot(db):
        for partition, position in wanted:
            part, start, end = find_part(db, partition)
            if not start <= position <= end:
                raise checks.out_of_range(partition, position, start, end)
            if position < end:
                found.append(_fetch_one(db, partition, part, position, end, max_bytes))
    return found


_FETCH = (
    "select base, next, data from batches where part = ?1 and next > ?2 and base >="
    " coalesce((select max(base) from batches where part = ?1 and base <= ?2), ?2) order by base"
)


def _fetch_one(
    db: sqlite3.Connection, partition: Partition, part: int, position: int, end: int, max_bytes: int
) -> Fetched:
    pieces: list[bytes] = []
    size = 0
    for _, next_offset, data in db.execute(_FETCH, (part, position)):
        pieces.append(data)
        size += len(data)
        if size >= max_bytes:
            return Fetched(partition, position, b"".join(pieces), next_offset)
    return Fetched(partition, position, b"".join(pieces), end)


def ends(db: sqlite3.Connection, partitions: Collection[Partition]) -> dict[Partition, int]:
    with snapshot(db):
        return {partition: find_part(db, partition).end for partition in partitions}


def starts(db: sqlite3.Connection, partitions: Collection[Partition]) -> dict[Partition, int]:
    with snapshot(db):
        return {partition: find_part(db, partition).start for partition in partitions}


def topics(db: sqlite3.Connection, names: Collection[str]) -> dict[str, TopicInfo]:
    with snapshot(db):
        found = ((name, find_topic(db, name)) for name in names)
        return {name: info for name, info in found if info is not None}


def positions(db: sqlite3.Connection, application: str, partitions: Collection[Partition]) -> dict[Partition, int]:
    kept = read_positions(db, application)
    return {partition: kept[partition] for partition in partitions if partition in kept}


def committed_ms(db: sqlite3.Connection, application: str, partitions: Collection[Partition]) -> dict[Partition, int]:
    """An older version that commits to the same file writes no times: one counts for the position it was written with."""
    rows = db.execute(
        "select topic, number, at_ms from commit_times natural join positions where application = ?", (application,)
    )
    kept = {Partition(topic, number): at_ms for topic, number, at_ms in rows}
    return {partition: kept[partition] for partition in partitions if partition in kept}


def owners(db: sqlite3.Connection, application: str) -> dict[str, OwnerRecord]:
    rows = db.execute(
        "select scope, epoch, member, writer, term from owners where application = ? order by scope", (application,)
    )
    return {row[0]: OwnerRecord(*row) for row in rows}


def metadata_of(db: sqlite3.Connection, application: str, kind: MetadataKind) -> dict[str, bytes]:
    query = "select key, value from notes where application = ? and kind = ? order by key"
    return dict(db.execute(query, (application, kind.name)).fetchall())


def metadata_of_all(db: sqlite3.Connection, kind: MetadataKind, key: str) -> dict[str, bytes]:
    query = "select application, value from notes where kind = ? and key = ? order by application"
    return dict(db.execute(query, (kind.name, key)).fetchall())


def compactions(db: sqlite3.Connection, part: int) -> list[Pass]:
    """The passes over a partition that are remembered."""
    return [Pass(*row) for row in db.execute("select through, at_ms from compactions where part = ?", (part,))]


def expired(db: sqlite3.Connection, partitions: Collection[Partition], now_ms: int) -> dict[Partition, int]:
    """See `Log.expired`."""
    found: dict[Partition, int] = {}
    with snapshot(db):
        for partition in partitions:
            topic, part = find_topic(db, partition.topic), find_part(db, partition)
            if topic is None or topic.retention == FOR_EVER:
                continue
            ms, size, _ = topic.retention
            position = part.start
            if ms is not None:
                query = "select max(next) from batches where part = ? and time_ms < ?"
                position = max(position, db.execute(query, (part.id, now_ms - ms)).fetchone()[0] or 0)
            if size is not None:
                position = max(position, _behind_newest(db, part.id, size))
            found[partition] = position
    return found


def _behind_newest(db: sqlite3.Connection, part: int, size: int) -> int:
    """Where the newest batches of at most `size` bytes begin; the newest of all stays."""
    kept = 0
    for number, (end, length) in enumerate(
        db.execute("select next, length(data) from batches where part = ? order by base desc", (part,))
    ):
        kept += length
        if number and kept > size:
            return int(end)
    return 0


def rows(db: sqlite3.Connection, part: int, from_base: int) -> list[Row]:
    """Some whole batches from `from_base` on, for compaction: many small ones or a few large ones."""
    found: list[Row] = []
    size = 0
    query = "select id, base, next, time_ms, data from batches where part = ? and base >= ? order by base limit ?"
    for row in db.execute(query, (part, from_base, _ROWS_MAX)):
        found.append(Row(*row))
        size += len(row[4])
        if size >= _ROWS_BYTES_MAX:
            break
    return found


class Source(Protocol):
    """What a reader needs of its log."""

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in the reading thread."""

    def version(self) -> int:
        """Another number after every change of the log by any process."""

    def changed(self, version: int, deadline: float) -> Awaitable[None]:
        """Return when the version is another one, when `wake` was called, or at the deadline."""

    def wake(self) -> None: ...


class SqliteReader:
    """See `state.log.protocol.Reader`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._positions: dict[Partition, int] = {}
        self._added = 0
        self._nothing_at = (-1, -1)  # version of the log and number of additions where nothing was to be had

    def add(self, partition: Partition, position: int) -> None:
        self._positions[partition] = position
        self._added += 1
        self._source.wake()

    def drop(self, partition: Partition) -> None:
        self._positions.pop(partition, None)

    async def poll(self, *, max_bytes_per_partition: int = 1 << 20, wait_ms: int = 0) -> list[Fetched]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while True:
            version, added = self._source.version(), self._added
            if (version, added) == self._nothing_at:
                if loop.time() >= deadline:
                    return []
                await self._source.changed(version, deadline)
                continue
            wanted = list(self._positions.items())
            got = await self._source.read(lambda db, wanted=wanted: fetch(db, wanted, max_bytes_per_partition))  # type: ignore[misc]
            # While the thread read, a partition may have been dropped, or added again elsewhere.
            taken = [one for one in got if self._positions.get(one.partition) == one.position]
            for one in taken:
                self._positions[one.partition] = one.next_position
            if not got and version >= 0:
                self._nothing_at = (version, added)
            if taken or loop.time() >= deadline:
                return taken
            if added == self._added:  # a partition added while the thread read woke no waiter: look again at once
                await self._source.changed(version, deadline)

    async def close(self) -> None:
        self._positions.clear()
