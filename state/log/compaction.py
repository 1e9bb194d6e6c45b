"""What compaction keeps: the last record of each key, and tombstones for a while. Shared by every log that compacts.

One rule: a batch is replaced, never shortened in place, and replacements come in offset order, so an old value is gone
before the tombstone that deleted it. A tombstone stays for the time of `delete_retention_ms` after the pass that removed
what it deletes (KIP-534): who had read the old value by then has that long to read on. Pure: rows come in, replacements
go out; the log applies them.
Small neighbouring batches are merged on the way, which is what makes a changelog of many small commits quick to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from state.errors import StateError
from state.log.batches import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, Batch, build_sparse, decode, headers
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


class Pass(NamedTuple):
    """A compaction of a partition that went through to the position `through`, and ended at `at_ms`."""

    through: int
    at_ms: int


def forgotten_below(passes: Iterable[Pass], horizon_ms: int) -> int:
    """Returns the offset below which tombstones may go: what they delete was gone before `horizon_ms`."""
    return max((one.through for one in passes if one.at_ms < horizon_ms), default=0)


def with_pass(passes: Iterable[Pass], made: Pass, delete_retention_ms: int) -> list[Pass]:
    """Returns the passes to remember: the last of those that are old enough, and the younger ones, at most about eight."""
    kept = sorted(passes, key=lambda one: one.at_ms)
    horizon_ms = made.at_ms - delete_retention_ms
    while len(kept) > 1 and kept[1].at_ms < horizon_ms:
        del kept[0]
    if kept and made.at_ms - kept[-1].at_ms < delete_retention_ms // 8:
        return kept
    return [*kept, made]


def require_changelog(topic: TopicInfo) -> None:
    """Raises StateError for a topic of another kind."""
    if topic.kind != "changelog":
        raise StateError(
            f"topic {topic.name} is {topic.kind}, and only a changelog may be compacted: its old records are data"
        )


def cleaned_through(passes: Iterable[Pass]) -> int:
    """Returns the offset below which no key is twice: a survey may begin there."""
    return max((one.through for one in passes), default=0)


def survey(rows: Iterable[Row]) -> dict[bytes, int]:
    """The last offset of each key."""
    return {
        record.key: record.offset for row in rows for record in decode(row.data, row.base) if record.key is not None
    }


def count(rows: Iterable[Row]) -> int:
    """How many records there are."""
    return sum(header.records for row in rows for header in headers(row.data) if not header.control)


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


def rewrites(rows: Iterable[Row], last: Mapping[bytes, int], forgotten: int, merge_ms: int) -> Iterator[Rewrite]:
    """Returns what to replace, in offset order. Tombstones below the offset `forgotten` go too.

    Only batches of the same slice of `merge_ms` are merged, so that a batch says about when its records were appended.
    """
    group: _Group | None = None
    for row in rows:
        kept, before = _survivors(row, last, forgotten)
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


def _survivors(row: Row, last: Mapping[bytes, int], forgotten: int) -> tuple[list[StoredRecord], int]:
    """The records of a row that stay, and how many there were. A key the survey did not see is in no later row of it."""
    records = decode(row.data, row.base)
    kept = [
        record
        for record in records
        if record.key is None
        or (last.get(record.key, -1) <= record.offset and not (record.offset < forgotten and record.value is None))
    ]
    return kept, len(records)
