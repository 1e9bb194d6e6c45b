"""What compaction keeps: the last record of each key, and tombstones for a while. Shared by every log that compacts.

One rule: a batch is replaced, never shortened in place, and replacements come in offset order, so an old value is gone
before the tombstone that deleted it. Pure: rows come in, replacements go out; the log applies them.
Small neighbouring batches are merged on the way, which is what makes a changelog of many small commits quick to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from state.errors import StateError
from state.log.batches import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, Batch, build_sparse, decode
from state.log.protocol import StoredRecord, TopicInfo

_SPAN_MAX = 1 << 31


class Row(NamedTuple):
    """A stored batch. `identity` never names another batch later; `time_ms` is when it was appended."""

    identity: int
    base: int
    next: int
    time_ms: int
    data: bytes


class Rewrite(NamedTuple):
    """Take the rows `replaced` away and put `batch` (None: nothing) in their place; `removed` records disappear."""

    replaced: tuple[int, ...]
    base: int
    next: int
    time_ms: int
    batch: Batch | None
    removed: int


def require_changelog(topic: TopicInfo) -> None:
    """Raises StateError for a topic of another kind."""
    if topic.kind != "changelog":
        raise StateError(
            f"topic {topic.name} is {topic.kind}, and only a changelog may be compacted: its old records are data"
        )


def survey(rows: Iterable[Row]) -> dict[bytes, int]:
    """The last offset of each key."""
    last: dict[bytes, int] = {}
    for row in rows:
        for record in decode(row.data, row.base):
            if record.key is not None:
                last[record.key] = record.offset
    return last


class _Group:
    """Neighbouring rows that will become one batch."""

    def __init__(self, row: Row) -> None:
        self.rows = [row]
        self.kept: list[StoredRecord] = []
        self.bytes = 0
        self.removed = 0

    def take(self, kept: list[StoredRecord], size: int, removed: int) -> None:
        self.kept += kept
        self.bytes += size
        self.removed += removed

    def finish(self) -> Rewrite | None:
        first, last = self.rows[0], self.rows[-1]
        if len(self.rows) == 1 and not self.removed:
            return None
        batch = build_sparse(self.kept, first.base, last.next) if self.kept else None
        time_ms = max(row.time_ms for row in self.rows)
        return Rewrite(tuple(row.identity for row in self.rows), first.base, last.next, time_ms, batch, self.removed)


def rewrites(rows: Iterable[Row], last: Mapping[bytes, int], horizon_ms: int, merge_ms: int) -> Iterator[Rewrite]:
    """What to replace, in offset order. Tombstones appended before `horizon_ms` go too.

    Only batches of the same slice of `merge_ms` are merged, or a tombstone would grow younger with every run.
    """
    group: _Group | None = None
    for row in rows:
        kept, before = _survivors(row, last, horizon_ms)
        size = sum(len(record.key or b"") + len(record.value or b"") + 16 for record in kept)
        if group is not None and (
            row.time_ms // merge_ms != group.rows[0].time_ms // merge_ms
            or len(group.kept) + len(kept) > BATCH_RECORDS_MAX
            or group.bytes + size > BATCH_BYTES_MAX
            or row.next - group.rows[0].base >= _SPAN_MAX
        ):
            if (done := group.finish()) is not None:
                yield done
            group = None
        if group is None:
            group = _Group(row)
        else:
            group.rows.append(row)
        group.take(kept, size, before - len(kept))
    if group is not None and (done := group.finish()) is not None:
        yield done


def _survivors(row: Row, last: Mapping[bytes, int], horizon_ms: int) -> tuple[list[StoredRecord], int]:
    """The records of a row that stay, and how many there were. A key the survey did not see is newer than it."""
    forgotten = row.time_ms < horizon_ms
    records = decode(row.data, row.base)
    kept = [
        record
        for record in records
        if record.key is None
        or (last.get(record.key, -1) <= record.offset and not (forgotten and record.value is None))
    ]
    return kept, len(records)
