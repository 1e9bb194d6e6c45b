"""What a call sees of the sessions of a table, as a dict. One rule: it says what the view (`session_view`) says of the sessions
that its time meets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pipeline.time.session_view import SessionsView
from pipeline.time.tables import SessionTable
from pipeline.time.window_tables import checked_at
from pipeline.time.windows import Window

K = TypeVar("K")
V = TypeVar("V")


class Sessions(SessionTable[K, V]):
    """The sessions at the time of the call, or at another, as a dict."""

    def __init__(self, view: SessionsView[K, V], timestamp_ms: int | None) -> None:
        self._view = view
        self._timestamp_ms = timestamp_ms

    def _pair(self, key: Any) -> tuple[int, Any]:
        return self._view.time_of_call() if self._timestamp_ms is None else self._timestamp_ms, key

    def window(self, key: K) -> Window | None:
        return self._view.bounds(self._pair(key))

    def at(self, timestamp_ms: int) -> SessionTable[K, V]:
        return Sessions(self._view, checked_at(self._view, timestamp_ms))

    def __getitem__(self, key: K) -> V:
        try:
            return self._view.get_here(key) if self._timestamp_ms is None else self._view[self._timestamp_ms, key]
        except KeyError as error:
            raise KeyError(key) from error.__cause__

    def __setitem__(self, key: K, value: V) -> None:
        if self._timestamp_ms is None:
            self._view.set_here(key, value)
        else:
            self._view[self._timestamp_ms, key] = value

    def __delitem__(self, key: K) -> None:
        try:
            del self._view[self._pair(key)]
        except KeyError:
            raise KeyError(key) from None

    def _handed_out(self) -> list[K]:
        at_ms, _ = self._pair(None)
        return [key for time_ms, key in self._view._handed_out() if time_ms == at_ms]

    def _let_go(self, key: K) -> None:
        self._view._let_go(self._pair(key))

    def __contains__(self, key: object) -> bool:
        return self._pair(key) in self._view

    def get(self, key: K, default: Any = None, /) -> Any:
        return self._view.get(self._pair(key), default)

    def _keys(self) -> list[tuple[bytes, K]]:
        return self._view.keys_met(self._pair(None)[0])

    def __iter__(self) -> Iterator[K]:
        return iter([key for _, key in self._keys()])

    def __len__(self) -> int:
        return len(self._keys())

    def popitem(self) -> tuple[K, V]:
        """Removes the last pair in key-byte order. Raises KeyError."""
        keys = list(self)
        if not keys:
            raise KeyError(f"table {self._view.spec.name!r} has no session here in this task")
        return keys[-1], self.pop(keys[-1])

    def range(self, start: K | None = None, stop: K | None = None) -> Iterator[tuple[K, V]]:
        encode = self._view.keys_spec.encode_key
        first, end = b"" if start is None else encode(start), None if stop is None else encode(stop)
        for data, key in self._keys():
            if data >= first and (end is None or data < end):
                yield key, self[key]

    def prefix(self, start: Any) -> Iterator[tuple[K, V]]:
        first, end, bounded = self._view.keys_spec.prefix_bounds(start)
        for data, key in self._keys():
            if data < first or (end is not None and data >= end):
                continue
            if not bounded or data[len(first) : len(first) + 1] in (b",", b"]"):
                yield key, self[key]


class CalledSessionsView(SessionsView[K, V]):
    """Sessions that a function is given."""

    @property
    def argument(self) -> SessionTable[K, V]:
        return Sessions(self, None)
