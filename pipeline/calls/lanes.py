"""What one of several calls at once has in its hands: its tables, its sinks, and what came of it so far.

One rule: what a record's calls do is the lane's own until the record is completed; then later calls of its key see it,
and it counts when all records before it are completed. A call has the key of its record and no other, so what it reads
and writes is what it would without the others. Filled and emptied by `pipeline.calls.overlap`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.calls.effects import LeftOut
from pipeline.calls.steps import Step
from pipeline.calls.task_tables import Routed
from pipeline.errors import OtherKey
from pipeline.records import OutputRecord
from pipeline.tables.view import K, TableView, V
from pipeline.tables.write_layers import WriteLayers, Writes

Ahead = dict[bytes, tuple[int, bytes | None]]  # by key: the record whose write it is, and the value
Outputs = dict[tuple[str, int], list[OutputRecord]]


@dataclass(frozen=True, slots=True)
class Draft:
    """What the calls of a completed record did, until it counts."""

    outputs: Outputs
    writes: list[tuple[LaneTable[Any, Any], Writes, int]]
    left_out: list[LeftOut]


class LaneTable(TableView[K, V]):
    """A table of the task as one record's calls have it. `ahead` has what completed records wrote that does not count
    yet, because one before them is under way; all lanes share it."""

    def __init__(self, shared: TableView[K, V], routed: Routed, ahead: Ahead, limits: str) -> None:
        super().__init__(shared.spec, shared._store)
        self.layers: WriteLayers = shared.layers
        self._known = shared.layers.known
        self._is_direct = False
        self.closed = True
        self.ahead = ahead
        self.mine: Writes = {}
        self.written_ms = -1
        self.record_key: bytes | None = None
        self._routed = routed
        self._limits = limits
        self._allowed: bytes | None = None

    def begin(self, record_key: bytes | None) -> None:
        """For the calls of one record."""
        self.record_key, self._allowed = record_key, None
        self.mine.clear()

    def apply(self, changes: dict[bytes, bytes | None], timestamp_ms: int) -> None:
        self.mine.update(changes)
        self.written_ms = timestamp_ms
        self.forget()

    def _key(self, key: Any) -> bytes:
        k = super()._key(key)
        if k != self._allowed:
            if self.record_key is None or self._routed(key, k) != self.record_key:
                raise OtherKey(
                    f"table {self.spec.name!r}: key {key!r} is not the record's, and calls of several keys are under way at "
                    f"once ({self._limits}); rekey first, or leave concurrency= out"
                )
            self._allowed = k
        return k

    def _stored(self, k: bytes) -> bytes | None:
        if k in self.mine:
            return self.mine[k]
        found = self.ahead.get(k)
        return super()._stored(k) if found is None else found[1]

    def _current(self, k: bytes) -> bytes | None:
        raw = self._stored(k)
        return raw if self._forever else self.spec.live_value(raw, self.stream_ms)

    def _present_pairs(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        raise OtherKey(
            f"table {self.spec.name!r} cannot be iterated or counted while calls of several keys are under way at once "
            f"({self._limits}); leave concurrency= out"
        )


class Lane:
    """The steps of one call at a time, with tables and sinks of their own. `make(tables, outputs)` gives them."""

    def __init__(
        self,
        tables: Mapping[str, LaneTable[Any, Any]],
        make: Callable[[Mapping[str, TableView[Any, Any]], Outputs], dict[str, Step]],
    ) -> None:
        self.tables = list(tables.values())
        self.outputs: Outputs = {}
        self.left_out: list[LeftOut] = []
        self.steps = make(tables, self.outputs)

    def begin(self, record_key: bytes | None) -> None:
        """For the calls of one record."""
        self.outputs.clear()
        self.left_out.clear()
        for table in self.tables:
            table.begin(record_key)

    def end(self, index: int) -> Draft:
        """The record is completed: returns what its calls did, which the next call of its key sees."""
        writes = [(table, dict(table.mine), table.written_ms) for table in self.tables if table.mine]
        for table, changes, _ in writes:
            table.ahead.update((k, (index, value)) for k, value in changes.items())
        return Draft(dict(self.outputs), writes, list(self.left_out))


def count(draft: Draft, index: int) -> None:
    """The writes of a draft count: they are the table's pending ones from now on."""
    for table, writes, timestamp_ms in draft.writes:
        table.layers.put(writes, timestamp_ms)
        for k in writes:
            if table.ahead.get(k, (-1, None))[0] == index:
                del table.ahead[k]
