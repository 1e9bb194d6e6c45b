"""One partition of the log in memory: rows in offset order, with the gaps that a Kafka log has.

One rule: `rows` hold only what readers of committed data may see (control batches included, as a broker sends them);
aborted records and open transactions are offsets without a row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from state.log import batches, checks, compaction
from state.log.batches import Batch
from state.log.compaction import Pass, Row
from state.log.group_store import OwnerRecord
from state.log.protocol import Compacted, Fetched, Partition, Retention, TaskCommit


@dataclass(slots=True)
class Entries:
    """See the module text. `open` holds the first offset of each transaction that is not finished; `elections` where each
    epoch of a leader ended, the one under way left out."""

    rows: list[Row] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    forgotten: int = 0  # deletions below that are gone
    start: int = 0
    end: int = 0
    open: list[int] = field(default_factory=list)
    elections: list[int] = field(default_factory=list)

    @property
    def readable_end(self) -> int:
        """The end for readers of committed data: before the first record of any open transaction."""
        return min(self.open, default=self.end)

    def fetch(self, partition: Partition, position: int, max_bytes: int) -> Fetched | None:
        """What a reader gets from `position` on; None where there is nothing yet. Raises PositionOutOfRange."""
        end = self.readable_end
        if not self.start <= position <= self.end:
            raise checks.out_of_range(partition, position, self.start, self.end)
        if position >= end:
            return None
        pieces: list[bytes] = []
        size = 0
        for row in self.rows[bisect_right(self.rows, position, key=lambda row: row.next) :]:
            if row.base >= end:
                break
            pieces.append(row.data)
            size += len(row.data)
            if size >= max_bytes:
                return Fetched(partition, position, b"".join(pieces), row.next)
        return Fetched(partition, position, b"".join(pieces), end)

    # ------------------------------------------------------------------ elections

    def epoch_end(self, epoch: int) -> int:
        """Where the records of this epoch and those before end; 0 for one that has not come."""
        return min([*self.elections[epoch:], self.end]) if epoch <= len(self.elections) else 0

    def epoch_at(self, position: int) -> int:
        """The epoch of the last record before `position`."""
        ends = [self.epoch_end(epoch) for epoch in range(len(self.elections))]
        return bisect_right(ends, position - 1)

    def elect(self, end: int) -> None:
        """A replica that has the records up to `end` becomes the leader."""
        self.rows = [row for row in self.rows if row.next <= end]
        self.open = [first for first in self.open if first < end]
        self.end = min(self.end, end)
        self.elections.append(self.end)

    # ------------------------------------------------------------------ writing

    def take(self, listed: Sequence[Batch]) -> int:
        """Take offsets for these batches at the end; returns the first."""
        base = self.end
        self.end += sum(batch.span for batch in listed)
        return base

    def show(self, listed: Sequence[Batch], base: int, now_ms: int) -> None:
        """Let readers see batches whose offsets were taken at `base`."""
        self.rows.extend(_placed(listed, base, now_ms))

    def mark(self, committed: bool, now_ms: int) -> None:
        """The control batch at the end of a transaction."""
        base = self.take([Batch(b"", 0, 1)])
        self.rows.append(Row(base, base, base + 1, now_ms, batches.build_control(base, committed, now_ms)))

    # ------------------------------------------------------------------ upkeep

    def compact(self, now_ms: int, delete_retention_ms: int, *, stands_on_base: bool) -> Compacted:
        """One pass; deletions of a changelog that stands on a base stay for ever."""
        end = self.readable_end
        rows = [row for row in self.rows if row.base < end]
        horizon_ms = now_ms - delete_retention_ms
        forgotten = 0 if stands_on_base else compaction.forgotten_below(self.passes, horizon_ms)
        merge_ms = max(delete_retention_ms // 8, 1)
        last, count = compaction.survey(rows), compaction.count(rows)
        todo = list(compaction.rewrites(rows, last, forgotten, merge_ms))
        self.passes = compaction.with_pass(self.passes, compaction.Pass(end, now_ms), delete_retention_ms)
        gone = {identity for rewrite in todo for identity in rewrite.replaced}
        made = [
            Row(rewrite.base, rewrite.base, rewrite.next, rewrite.time_ms, rewrite.batch.data)
            for rewrite in todo
            if rewrite.batch is not None
        ]
        self.rows = [row for row in self.rows if row.identity not in gone] + made
        self.sort()
        self.forgotten = max(self.forgotten, forgotten)
        removed = sum(rewrite.removed for rewrite in todo)
        return Compacted(removed, count - removed)

    def expired(self, now_ms: int, retention: Retention) -> int:
        """Where it would begin if all went that is past its retention."""
        position, kept = self.start, 0
        for number, row in enumerate(sorted(self.rows, key=lambda row: -row.base)):
            kept += len(row.data)
            is_old = retention.ms is not None and row.time_ms < now_ms - retention.ms
            if is_old or (number and retention.bytes is not None and kept > retention.bytes):
                return max(position, row.next)
        return position

    def trim(self, position: int) -> int:
        position = min(position, self.readable_end)
        removed = sum(_records(row) for row in self.rows if row.next <= position)
        self.rows = [row for row in self.rows if row.next > position]
        first = self.rows[0].base if self.rows else position
        self.start = max(self.start, min(first, position))
        return removed

    def sort(self) -> None:
        self.rows.sort(key=lambda row: row.base)


def _placed(listed: Sequence[Batch], base: int, now_ms: int) -> Iterator[Row]:
    for batch in listed:
        yield Row(base, base, base + batch.span, now_ms, batches.place(batch.data, base))
        base += batch.span


def _records(row: Row) -> int:
    return sum(header.records for header in batches.headers(row.data) if not header.control)


def owns(record: OwnerRecord | None, task: TaskCommit, transactional_id: str) -> bool:
    return record is not None and (record.epoch, record.transactional_id) == (task.epoch, transactional_id)
