"""Reading a SQLite log: queries of the reading connection, and the incremental reader that workers poll.

One rule: a partition's position moves only when its bytes were handed out, and only if it was not moved meanwhile.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeVar

from state.log import checks
from state.log.batches import missing, stored
from state.log.compaction import Pass, Row
from state.log.group_store import MetadataKind, OwnerRecord
from state.log.protocol import Fetched, Partition, TopicInfo
from state.log.sqlite_changes import Changes
from state.log.sqlite_writer import PartRow, find_part, find_topic, read_positions

T = TypeVar("T")

_NEW_MAX = 1_000  # batches since the last look of which it is asked where they lie
_FEW = 16  # partitions that are asked for one by one
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


_FETCH = (
    "select base, next, data from batches where part = :part and (next > :at or base >= :at) and base >="
    " coalesce((select max(base) from batches where part = :part and base <= :at), :at) order by base"
)


def _fetch_one(
    db: sqlite3.Connection, partition: Partition, part: int, position: int, end: int, max_bytes: int
) -> Fetched:
    """The batches behind one another leave nothing out, but in a changelog: an index that was damaged finds some rows and others not."""
    pieces: list[bytes] = []
    size = lowest = 0
    reached, is_sparse = position, None
    for base, next_offset, row in db.execute(_FETCH, {"part": part, "at": position}):
        data = stored(row, base, next_offset, lowest)
        if data is row:  # else nobody reads beyond it
            if base > reached and not (is_sparse := _is_compacted(db, partition) if is_sparse is None else is_sparse):
                pieces.append(missing(reached, base))
            lowest, reached = base + 1, next_offset
        pieces.append(data)
        size += len(data)
        if size >= max_bytes:
            return Fetched(partition, position, b"".join(pieces), next_offset)
    if reached < end and not (_is_compacted(db, partition) if is_sparse is None else is_sparse):
        pieces.append(missing(reached, end))
    return Fetched(partition, position, b"".join(pieces), end)


def _is_compacted(db: sqlite3.Connection, partition: Partition) -> bool:
    topic = find_topic(db, partition.topic)
    return topic is None or topic.kind == "changelog"


def ends(db: sqlite3.Connection, partitions: Collection[Partition]) -> dict[Partition, int]:
    return {partition: part.end for partition, part in _parts(db, partitions).items()}


def starts(db: sqlite3.Connection, partitions: Collection[Partition]) -> dict[Partition, int]:
    return {partition: part.start for partition, part in _parts(db, partitions).items()}


def _parts(db: sqlite3.Connection, partitions: Collection[Partition]) -> dict[Partition, PartRow]:
    """One query a topic where there are many. Raises UnknownTopic."""
    with snapshot(db):
        if len(partitions) <= _FEW:
            return {partition: find_part(db, partition) for partition in partitions}
        found: dict[str, dict[int, PartRow]] = {}
        for topic in {partition.topic for partition in partitions}:
            rows = db.execute("select number, id, start, next from parts where topic = ?", (topic,))
            found[topic] = {number: PartRow(*row) for number, *row in rows}
        return {
            partition: found[partition.topic].get(partition.number) or find_part(db, partition)
            for partition in partitions
        }


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


def forgotten(db: sqlite3.Connection, partitions: Collection[Partition]) -> dict[Partition, int]:
    """See `Log.forgotten`."""
    query = "select below from forgotten where part = ?"
    found = {one: db.execute(query, (find_part(db, one).id,)).fetchone() for one in partitions}
    return {one: row[0] for one, row in found.items() if row is not None}


def newest_ms(db: sqlite3.Connection) -> int:
    """When the last batch was appended; 0 where there is none."""
    row = db.execute("select time_ms from batches order by id desc limit 1").fetchone()
    return int(row[0]) if row else 0


def rows(db: sqlite3.Connection, part: int, from_base: int) -> list[Row]:
    """Some whole batches from `from_base` on, for compaction: many small ones or a few large ones."""
    found: list[Row] = []
    size = 0
    query = "select id, base, next, time_ms, data from batches where part = ? and base >= ? order by base limit ?"
    for identity, base, next_offset, time_ms, row in db.execute(query, (part, from_base, _ROWS_MAX)):
        data = stored(row, base, next_offset)
        found.append(Row(identity, base, next_offset, time_ms, data))
        size += len(data)
        if size >= _ROWS_BYTES_MAX:
            break
    return found


def base_of(db: sqlite3.Connection, part: int, position: int) -> int:
    """Where the batch begins that holds a position, or the last one before it: a merged one may begin before what a pass went
    through, and end behind it."""
    row = db.execute("select max(base) from batches where part = ? and base <= ?", (part, position)).fetchone()
    return position if row[0] is None else int(row[0])


class Read(Protocol):
    """Runs `work` in the reading thread of a log."""

    async def __call__(self, work: Callable[[sqlite3.Connection], T]) -> T: ...


class Last(NamedTuple):
    """How far a log's tables had come: the last numbers that batches and partitions were given, and how many of these there are."""

    batch: int
    part: int
    parts: int


def last_of(db: sqlite3.Connection) -> Last:
    given = dict(db.execute("select name, seq from sqlite_sequence").fetchall())
    count = db.execute("select count(*) from parts").fetchone()[0]
    return Last(given.get("batches", 0), given.get("parts", 0), count)


def written(db: sqlite3.Connection, before: Last, now: Last) -> set[int] | None:
    """Returns the numbers of the partitions that were written to in between; None where any may have changed: there were
    too many batches to look at, one of them is gone again, or topics were made or deleted."""
    if before.part != now.part or before.parts != now.parts or now.batch - before.batch > _NEW_MAX:
        return None
    if before.batch == now.batch:
        return set()
    query = "select part, count(*) from batches where id > ? and id <= ? group by part"
    found = dict(db.execute(query, (before.batch, now.batch)).fetchall())
    return set(found) if sum(found.values()) == now.batch - before.batch else None


class _Look(NamedTuple):
    """What one look at the log has found."""

    fetched: list[Fetched]
    ends: dict[Partition, int]  # of the partitions that were looked at
    numbers: dict[int, Partition]  # of those that were looked at
    written: list[Partition] | None  # partitions with new batches; None: any may have some
    last: Last


class SqliteReader:
    """See `state.log.protocol.Reader`. It looks only at partitions that were written to since they were read
    to their ends: of hundreds that are followed, few have new batches."""

    def __init__(self, read: Read, changes: Changes) -> None:
        self._read = read
        self._changes = changes
        self._positions: dict[Partition, int] = {}
        self._unread: set[Partition] = set()  # those that may have new batches
        self._numbers: dict[int, Partition] = {}
        self._last: Last | None = None
        self._added = 0
        self._nothing_at = (-1, -1)  # version of the log and number of additions where nothing was to be had

    def add(self, partition: Partition, position: int) -> None:
        self._positions[partition] = position
        self._unread.add(partition)
        self._added += 1
        self._changes.wake()

    def drop(self, partition: Partition) -> None:
        self._positions.pop(partition, None)
        self._unread.discard(partition)

    async def poll(self, *, max_bytes_per_partition: int = 1 << 20, wait_ms: int = 0) -> list[Fetched]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while True:
            version, added = self._changes.version(), self._added
            if (version, added) == self._nothing_at:
                if loop.time() >= deadline:
                    return []
                await self._changes.changed(version, deadline)
                continue
            taken = await self._fetch(max_bytes_per_partition)
            if not self._unread and version >= 0:
                self._nothing_at = (version, added)
            if taken or loop.time() >= deadline:
                return taken
            if added == self._added:  # a partition added while the thread read woke no waiter: look again at once
                await self._changes.changed(version, deadline)

    async def _fetch(self, max_bytes: int) -> list[Fetched]:
        """What there is, without waiting for more."""
        last, positions, unread, numbers = self._last, dict(self._positions), set(self._unread), self._numbers
        found = await self._read(lambda db: _look(db, last, positions, unread, numbers, max_bytes))
        self._last = found.last
        self._numbers.update(found.numbers)
        if found.written is None:
            self._unread.update(self._positions)
        else:
            self._unread.update(one for one in found.written if one in self._positions)
        # While the thread read, a partition may have been dropped, or added again elsewhere.
        taken = [one for one in found.fetched if self._positions.get(one.partition) == one.position]
        for one in taken:
            self._positions[one.partition] = one.next_position
        for partition, end in found.ends.items():
            if self._positions.get(partition) == end:
                self._unread.discard(partition)
        return taken

    async def close(self) -> None:
        self._positions.clear()
        self._unread.clear()


def _look(
    db: sqlite3.Connection,
    before: Last | None,
    positions: Mapping[Partition, int],
    unread: Collection[Partition],
    numbers: Mapping[int, Partition],
    max_bytes: int,
) -> _Look:
    """Fetch of all that is unread, and of all that was written to since `before`. Raises PositionOutOfRange."""
    with snapshot(db):
        now = last_of(db)
        found = None if before is None else written(db, before, now)
        names = None if found is None else [numbers[one] for one in found if one in numbers]
        wanted = positions.keys() if names is None else {*unread, *names}
        look = _Look([], {}, {}, names, now)
        for partition in positions:  # in the order in which they were added
            if partition in wanted:
                _look_at(db, partition, positions[partition], max_bytes, look)
    return look


def _look_at(db: sqlite3.Connection, partition: Partition, position: int, max_bytes: int, look: _Look) -> None:
    part, start, end = find_part(db, partition)
    look.numbers[part] = partition
    if not start <= position <= end:
        raise checks.out_of_range(partition, position, start, end)
    look.ends[partition] = end
    if position < end:
        look.fetched.append(_fetch_one(db, partition, part, position, end, max_bytes))
