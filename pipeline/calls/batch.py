"""The records of a batch, as the user's function sees them: a list. One rule: where a batch was cut changes nothing.

What is sent while a record is being looked at carries that record's time, as if records had come one by one; so a loop
over the batch gives the same output for every cut. The time of
expiring tables stands still during a call: a batch ends where it moves on (Step.cut).
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
        looked_at = self._looked_at
        for record in super().__iter__():
            looked_at(record.timestamp_ms)
            yield record

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found = super().__getitem__(index)
        if isinstance(found, Record):
            self._looked_at(found.timestamp_ms)
        return found
