"""The records of a batch, as the user's function sees them: a list. One rule: where a batch was cut changes nothing.

What is sent while a record is being looked at carries that record's time, as if records had come one by one; so a loop
over the batch, a part of it (`batch[1:]`) or from its end gives the same times for every cut. Where all were looked at before anything is
sent (`sorted(batch)`, `list(batch)`), it carries the time of the last one, whichever that is: `send(..., timestamp_ms=)` says
another. The time of expiring tables stands still during a call: a batch ends where it moves on (Step.cut).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, SupportsIndex

from pipeline.records import Record


class Batch(list[Record[Any, Any]]):
    """`looked_at(timestamp_ms)` is called with every record that is handed out."""

    def __init__(self, records: Sequence[Record[Any, Any]], looked_at: Callable[[int], None]) -> None:
        super().__init__(records)
        self._looked_at = looked_at

    def __iter__(self) -> Iterator[Record[Any, Any]]:
        return self._each(super().__iter__())

    def __reversed__(self) -> Iterator[Record[Any, Any]]:
        return self._each(super().__reversed__())

    def _each(self, records: Iterator[Record[Any, Any]]) -> Iterator[Record[Any, Any]]:
        looked_at = self._looked_at
        for record in records:
            looked_at(record.timestamp_ms)
            yield record

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found = super().__getitem__(index)
        if isinstance(found, list):
            return Batch(found, self._looked_at)
        self._looked_at(found.timestamp_ms)
        return found

    def copy(self) -> Batch:
        return Batch(super().copy(), self._looked_at)

    def pop(self, index: SupportsIndex = -1) -> Record[Any, Any]:
        found = super().pop(index)
        self._looked_at(found.timestamp_ms)
        return found

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """In another process, where nothing is sent, it is a plain list."""
        return list, (tuple(super().__iter__()),)
