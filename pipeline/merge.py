"""The order in which a task takes its records. One rule: the smallest timestamp among the heads of its partitions.

Ties go by topic name, then partition. What has not arrived cannot be waited for here: heads are those of the
partitions that hold records. The Driver, the workers and the backfill all take their order from this module. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from pipeline.records import RawRecord

Place = tuple[str, int]


class Merger:
    """Records of some partitions, buffered. Adding or dropping one touches no other."""

    def __init__(self) -> None:
        self._waiting: dict[Place, deque[RawRecord]] = {}
        self._read_to: dict[Place, int] = {}  # where reading goes on once the buffer is empty
        self._positions: dict[Place, int] = {}

    def add(self, topic: str, partition: int, records: Sequence[RawRecord], next_position: int | None = None) -> None:
        """Records of a partition, after those added before. `next_position` is where reading goes on after them:
        offsets are not dense, so it can lie beyond the last record."""
        place = (topic, partition)
        self._waiting.setdefault(place, deque()).extend(records)
        if next_position is not None:
            self._read_to[place] = next_position
            self._settle(place)

    def take(self, limit: int) -> list[tuple[str, RawRecord]]:
        """The next records, at most `limit`, with the topic of each."""
        heads = [(records[0].timestamp_ms, *place) for place, records in self._waiting.items() if records]
        heapify(heads)
        taken: list[tuple[str, RawRecord]] = []
        while heads and len(taken) < limit:
            _, topic, partition = heads[0]
            place = (topic, partition)
            records = self._waiting[place]
            rest = heads[1:3]  # the second smallest is a child of the root
            bound = min(rest) if rest else None
            while records and len(taken) < limit:
                record = records[0]
                if bound is not None and (record.timestamp_ms, topic, partition) > bound:
                    break
                records.popleft()
                taken.append((topic, record))
                self._positions[place] = record.offset + 1
            if records:
                heapreplace(heads, (records[0].timestamp_ms, topic, partition))
            else:
                heappop(heads)
                self._settle(place)
        return taken

    def positions(self) -> dict[Place, int]:
        """The next offset of each partition from which something was taken (or skipped as a gap)."""
        return dict(self._positions)

    def buffered(self, topic: str, partition: int) -> int:
        """How many records of a partition wait here: what a reader holds back by."""
        return len(self._waiting.get((topic, partition), ()))

    def __len__(self) -> int:
        return sum(len(records) for records in self._waiting.values())

    def drop(self, topic: str, partition: int) -> None:
        """Forget a partition, its buffer and its position."""
        for known in (self._waiting, self._read_to, self._positions):
            known.pop((topic, partition), None)

    def _settle(self, place: Place) -> None:
        """With nothing waiting, the position is where reading goes on."""
        if not self._waiting[place] and place in self._read_to:
            self._positions[place] = max(self._read_to[place], self._positions.get(place, 0))
