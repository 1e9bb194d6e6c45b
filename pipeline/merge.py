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
        self._read_to: dict[Place, int] = {}
        self._fetched: dict[Place, deque[tuple[int, int]]] = {}  # of each fetch: where it ends, and its bytes

    def add(
        self,
        topic: str,
        partition: int,
        records: Sequence[RawRecord],
        next_position: int | None = None,
        size_bytes: int = 0,
    ) -> None:
        """Records of a partition, after those added before. `next_position` is where reading goes on after them:
        offsets are not dense, so it can lie beyond the last record."""
        place = (topic, partition)
        self._waiting.setdefault(place, deque()).extend(records)
        if next_position is not None:
            self._read_to[place] = next_position
            if size_bytes:
                self._fetched.setdefault(place, deque()).append((next_position, size_bytes))

    def take(self, limit: int, *, to_first_end: bool = False) -> Sequence[tuple[str, RawRecord]]:
        """The next records, at most `limit`, with the topic of each. `to_first_end`: none behind the last one that waits of a
        partition, of which earlier ones may be on their way."""
        heads = [(records[0].timestamp_ms, *place) for place, records in self._waiting.items() if records]
        if len(heads) == 1:
            _, topic, partition = heads[0]
            alone = self._waiting[topic, partition]
            return [(topic, alone.popleft()) for _ in range(min(limit, len(alone)))]
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
            if records:
                heapreplace(heads, (records[0].timestamp_ms, topic, partition))
            elif to_first_end:
                break
            else:
                heappop(heads)
        return taken

    def put_back(self, partition: int, records: Sequence[tuple[str, RawRecord]]) -> None:
        """The last records of the latest take, which was of this partition of each topic, wait again."""
        for topic, record in reversed(records):
            self._waiting[topic, partition].appendleft(record)

    def gaps(self) -> dict[Place, int]:
        """Where reading goes on in the partitions of which nothing waits: what lies before holds no record."""
        return {place: offset for place, offset in self._read_to.items() if not self._waiting[place]}

    def has_head(self, topic: str, partition: int) -> bool:
        """Whether a record of a partition waits."""
        return bool(self._waiting.get((topic, partition)))

    def read_to(self, topic: str, partition: int) -> int | None:
        """Where reading goes on; None where nothing was added with a position yet."""
        return self._read_to.get((topic, partition))

    def size_bytes(self, topic: str, partition: int) -> int:
        """The bytes of the fetches of which records wait here: what a reader holds back by."""
        place = (topic, partition)
        fetched, waiting = self._fetched.get(place), self._waiting.get(place)
        if not fetched:
            return 0
        if not waiting:
            fetched.clear()
            return 0
        while fetched[0][0] <= waiting[0].offset:
            fetched.popleft()
        return sum(size for _, size in fetched)

    def __len__(self) -> int:
        return sum(len(records) for records in self._waiting.values())

    def drop(self, topic: str, partition: int) -> None:
        """Forget a partition, its buffer and its position."""
        for known in (self._waiting, self._read_to, self._fetched):
            known.pop((topic, partition), None)
