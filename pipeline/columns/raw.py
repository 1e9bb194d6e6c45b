"""Records of one topic as they came, in columns: what a log fetched, or rows of Spark, on the way to one call.

One rule: it is a sequence of (topic, record), so whoever works record by record may have it; only that makes the objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, overload

import numpy as np
import pyarrow as pa

from pipeline.records import RawRecord

Row = tuple[str, RawRecord]


class RawColumns(Sequence[Row]):
    """`keys` and `values` are arrays of binary, `timestamps` and `offsets` of numpy; `rows` gives the records themselves, of
    which those from `start` on are these."""

    __slots__ = ("_made", "_rows", "keys", "offsets", "start", "timestamps", "topic", "values")

    def __init__(
        self,
        topic: str,
        keys: pa.Array,
        values: pa.Array,
        timestamps: Any,
        offsets: Any,
        rows: Callable[[], Sequence[RawRecord]],
        start: int = 0,
    ) -> None:
        self.topic, self.keys, self.values = topic, keys, values
        self.timestamps, self.offsets = timestamps, offsets
        self.start = start
        self._rows = rows
        self._made: Sequence[RawRecord] | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> RawColumns: ...
    def __getitem__(self, index: int | slice) -> Row | RawColumns:
        if not isinstance(index, slice):
            return self.topic, self._records()[range(len(self))[index]]
        first, stop, step = index.indices(len(self))
        if step != 1:
            raise ValueError("columns are cut into pieces that follow each other")
        count = max(0, stop - first)
        return RawColumns(
            self.topic,
            self.keys.slice(first, count),
            self.values.slice(first, count),
            self.timestamps[first : first + count],
            self.offsets[first : first + count],
            self._rows,
            self.start + first,
        )

    def __iter__(self) -> Iterator[Row]:
        return zip(repeat(self.topic, len(self)), self._records(), strict=True) if len(self) else iter(())

    def _records(self) -> Sequence[RawRecord]:
        if self._made is None:
            self._made = self._rows()[self.start : self.start + len(self)]
        return self._made


def from_records(topic: str, records: Sequence[RawRecord]) -> RawColumns:
    """Records that are objects already, in columns."""
    count = len(records)
    return RawColumns(
        topic,
        pa.array([one.key for one in records], pa.binary()),
        pa.array([one.value for one in records], pa.binary()),
        np.fromiter((one.timestamp_ms for one in records), np.int64, count),
        np.fromiter((one.offset for one in records), np.int64, count),
        lambda: records,
    )


def in_columns(records: Sequence[Row]) -> RawColumns:
    """Some records of one topic, which may be in columns already."""
    if isinstance(records, RawColumns):
        return records
    return from_records(records[0][0], [raw for _, raw in records])
