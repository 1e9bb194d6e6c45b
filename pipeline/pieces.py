"""What waits for a task that takes its records in columns: pieces of one partition, in order, cut where fewer are taken.

One rule: it is asked as a `Merger` is. No order is to be made: the records of one partition have one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pipeline.columns.raw import RawColumns, Row, from_records, in_columns
from pipeline.merge import Merger, Place
from pipeline.records import RawRecord


class Pieces(Merger):
    """Of one task; see `Merger`."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: deque[RawColumns] = deque()
        self._place: Place | None = None  # known with the first fetch
        self._position: int | None = None
        self._fetches: deque[tuple[int, int]] = deque()  # of each fetch: where it ends, and its bytes

    def add(
        self,
        topic: str,
        partition: int,
        records: Sequence[RawRecord],
        next_position: int | None = None,
        size_bytes: int = 0,
    ) -> None:
        self.add_piece(partition, from_records(topic, records), next_position, size_bytes)

    def add_piece(self, partition: int, piece: RawColumns, next_position: int | None, size_bytes: int) -> None:
        """The same of records that are in columns already."""
        self._place = (piece.topic, partition)
        if len(piece):
            self._pieces.append(piece)
        if next_position is not None:
            self._position = next_position
            if size_bytes:
                self._fetches.append((next_position, size_bytes))

    def take(self, limit: int, *, to_first_end: bool = False) -> Sequence[Row]:
        """The next records, at most `limit`: those of one piece."""
        if not self._pieces:
            return ()
        piece = self._pieces.popleft()
        if len(piece) <= limit:
            return piece
        self._pieces.appendleft(piece[limit:])
        return piece[:limit]

    def put_back(self, partition: int, records: Sequence[Row]) -> None:
        if records:
            self._pieces.appendleft(in_columns(records))

    def gaps(self) -> dict[Place, int]:
        if self._place is None or self._position is None or self._pieces:
            return {}
        return {self._place: self._position}

    def has_head(self, topic: str, partition: int) -> bool:
        return self._place == (topic, partition) and bool(self._pieces)

    def read_to(self, topic: str, partition: int) -> int | None:
        return self._position if self._place == (topic, partition) else None

    def size_bytes(self, topic: str, partition: int) -> int:
        if not self._pieces:
            self._fetches.clear()
            return 0
        first = int(self._pieces[0].offsets[0])
        while self._fetches and self._fetches[0][0] <= first:
            self._fetches.popleft()
        return sum(size for _, size in self._fetches)

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    def drop(self, topic: str, partition: int) -> None:
        if self._place == (topic, partition):
            self._place = self._position = None
            self._pieces.clear()
            self._fetches.clear()
