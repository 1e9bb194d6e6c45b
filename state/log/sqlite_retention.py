"""What is past its retention in a SQLite log, by time and by bytes.

One rule: each batch is looked at a few times in its life, however much is kept. By time a look ends at the first young batch; by
bytes it counts what came since the look before, and what goes: the whole is counted once in a process. Asked for by
`Log.expired`, in the reading thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from state.log.protocol import FOR_EVER, Partition, Retention
from state.log.sqlite_reader import snapshot
from state.log.sqlite_writer import PartRow, find_part, find_topic

_SINCE = "select next, length(data) from batches where part = ? and base >= ? order by base"
_BETWEEN = "select next, length(data) from batches where part = ? and base >= ? and base < ? order by base"


@dataclass(slots=True)
class _Counted:
    """The batches of a partition between two offsets, and their bytes; by which retention, and what was too old by then."""

    retention: Retention
    position: int
    first: int
    through: int
    size: int = 0

    def holds(self, part: PartRow, retention: Retention, position: int) -> bool:
        """Whether it may be counted on from: nothing that was counted was removed by others, nothing stays that was to go."""
        return self.retention == retention and self.position <= position and part.start <= self.first


class Expiry:
    """Of the log of one file. Not for several threads."""

    def __init__(self) -> None:
        self._counted: dict[int, _Counted] = {}  # by number of the partition

    def expired(self, db: sqlite3.Connection, partitions: Collection[Partition], now_ms: int) -> dict[Partition, int]:
        """See `Log.expired`."""
        found: dict[Partition, int] = {}
        with snapshot(db):
            for partition in partitions:
                topic, part = find_topic(db, partition.topic), find_part(db, partition)
                if topic is None or topic.retention == FOR_EVER:
                    continue
                position = part.start
                if topic.retention.ms is not None:
                    position = max(position, _behind_oldest(db, part.id, now_ms - topic.retention.ms))
                if topic.retention.bytes is not None:
                    position = self._behind_newest(db, part, topic.retention, position)
                found[partition] = position
        return found

    def _behind_newest(self, db: sqlite3.Connection, part: PartRow, retention: Retention, position: int) -> int:
        """Where the newest batches of at most so many bytes begin, of those from `position` on; the newest of all stays."""
        assert retention.bytes is not None
        counted = self._counted.get(part.id)
        if counted is None or not counted.holds(part, retention, position):
            counted = self._counted[part.id] = _Counted(retention, position, part.start, part.start)
        for end, length in db.execute(_SINCE, (part.id, counted.through)):
            counted.through, counted.size = end, counted.size + length
        newest = db.execute("select max(base) from batches where part = ?", (part.id,)).fetchone()[0]
        for end, length in db.execute(_BETWEEN, (part.id, counted.first, newest or 0)):
            if counted.size <= retention.bytes and end > position:
                break
            counted.first, counted.size = end, counted.size - length
        counted.position = position
        return max(position, counted.first)


def _behind_oldest(db: sqlite3.Connection, part: int, until_ms: int) -> int:
    """Where the first batches that were written before `until_ms` end. What is young is not looked at: it may be many times as
    much."""
    position = 0
    for end, time_ms in db.execute("select next, time_ms from batches where part = ? order by base", (part,)):
        if time_ms >= until_ms:
            break
        position = end
    return int(position)
