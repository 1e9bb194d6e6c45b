"""Timers of a task: a mapping from key to due time. One rule: a timer is out of the mapping when its call begins.

Stored: `t` + key -> due time, and for the order `d` + due time + key -> nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pipeline.errors import PipelineError
from pipeline.records import LAST_MS
from pipeline.tables.table import StoreView, TableSpec
from pipeline.time.due_index import DueIndex
from pipeline.time.position import Place, Position
from pipeline.time.tables import Due, DueCall, Timers
from pipeline.time.timed_view import TIME_BYTES, CheckOwner, Prefixed, TimedView, read_time, time_bytes
from pipeline.values.codecs import IntCodec

K = TypeVar("K")
_TIMER, _AFTER_TIMERS = b"t", b"u"
_DUE, _AFTER_DUE = b"d", b"e"


class TimersView(TimedView[K, int], Timers[K]):
    """See the module. `spec` is that of the keys as the user has them."""

    def __init__(
        self,
        spec: TableSpec,
        store: StoreView,
        position: Position,
        order: int,
        check_owner: CheckOwner | None,
    ) -> None:
        inner = TableSpec(spec.name, Prefixed(_TIMER, spec.key_codec), IntCodec())
        check = None if check_owner is None else lambda key, data: check_owner(key, data[len(_TIMER) :])
        super().__init__(inner, store, position, order, check)
        self._keys = spec
        self._due = DueIndex(self.scan, self.is_stored, _DUE, _AFTER_DUE)
        self._chained: set[bytes] = set()  # made due in the past, by calls of this stream time
        self._called: tuple[bytes, int] | None = None  # the timer whose call this is

    def indexes(self) -> tuple[DueIndex, ...]:
        return (self._due,)

    def __setitem__(self, key: K, value: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LAST_MS:
            raise PipelineError(
                f"timer {self.spec.name!r} of {key!r}: {value!r} is no time; give whole milliseconds since 1970"
            )
        called = self._called
        if called is not None and value <= called[1] and self._key(key) == called[0]:
            raise PipelineError(
                f"timer {self.spec.name!r} of {key!r} is set to {value} in its own call at {called[1]}; "
                "set it to a later time, or it would be due for ever"
            )
        super().__setitem__(key, value)

    def prefix(self, start: Any) -> Iterator[tuple[K, int]]:
        first, end, bounded = self._keys.prefix_bounds(start)
        last = _AFTER_TIMERS if end is None else _TIMER + end
        return self._pairs(_TIMER + first, last, len(first) + 1 if bounded else None)

    def _present_pairs(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        return super()._present_pairs(start or _TIMER, stop or _AFTER_TIMERS)

    def shown(self) -> Iterator[tuple[K, int]]:
        return self.range()

    def changes(self) -> dict[bytes, bytes | None]:
        result = super().changes()
        for timer, new in list(result.items()):
            old = self._stored(timer)
            if old is not None:
                result[_index(timer, old)] = None
            if new is not None:
                result[_index(timer, new)] = b""
        return result

    def apply(self, changes: dict[bytes, bytes | None], timestamp_ms: int) -> None:
        super().apply(changes, timestamp_ms)
        self._added(changes)

    def _added(self, changes: dict[bytes, bytes | None]) -> None:
        target_ms = self.position.target_ms
        for key, value in changes.items():
            if value is not None and key.startswith(_DUE):
                self._due.added(key)
                if read_time(key) < target_ms:
                    self._chained.add(key)

    # what is due

    def due_from_ms(self) -> int | None:
        lowest = self._due.lowest()
        return None if lowest is None else read_time(lowest)

    def next_place(self) -> Place | None:
        found = self._due.first()
        return None if found is None else (read_time(found), self.order, found[1 + TIME_BYTES :])

    def next_due(self) -> DueCall:
        found = self._due.first()
        assert found is not None
        at_ms, key = read_time(found), found[1 + TIME_BYTES :]
        due = Due(self._keys.key_codec.decode(key), at_ms)
        return DueCall((at_ms, self.order, key), due, at_ms, key, None)

    def is_chained(self, due: DueCall) -> bool:
        index = _DUE + time_bytes(due.timestamp_ms) + (due.key or b"")
        is_chained = index in self._chained
        self._chained.discard(index)
        return is_chained

    def shown_due(self, due: DueCall) -> str:
        return f"the timer of {due.argument.key!r} due at {due.timestamp_ms} ms of {self.spec.name!r}"

    def begin(self, due: DueCall) -> None:
        timer, at_ms = _TIMER + (due.key or b""), due.timestamp_ms
        self.layers.put({timer: None, _DUE + time_bytes(at_ms) + timer[1:]: None}, at_ms)

    def call_of(self, due: DueCall | None) -> None:
        self._called = None if due is None else (_TIMER + (due.key or b""), due.timestamp_ms)


def _index(timer: bytes, at: bytes) -> bytes:
    return _DUE + at + timer[1:]
