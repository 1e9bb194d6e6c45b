"""What a call sees of the windows of a table: one of them as a dict, or all that a time lies in, a dict each.

One rule: what these say is what the view (`window_view`) says of a window, the whole of it; where stream time has not come
near the end of a window, one comparison of times is all that is asked before each read and write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pipeline.errors import CodecError, PipelineError
from pipeline.records import LAST_MS
from pipeline.tables.table import after_prefix
from pipeline.tables.view import IMMUTABLE, MISSING
from pipeline.time.tables import HoppingTable, TumblingTable, WindowTable
from pipeline.time.timed_view import TIME_BYTES, TimedView, time_bytes
from pipeline.time.window_view import WINDOW, WindowsView

K = TypeVar("K")
V = TypeVar("V")
_HEAD = 1 + TIME_BYTES
_LEAST, _MOST = -1 << 63, (1 << 63) - 1


def checked_at(view: TimedView[Any, Any], timestamp_ms: Any) -> int:
    """A time for `at(...)`; before 0 there is nothing, but a time some hours before a record's may lie there.
    Raises CodecError."""
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool) or not -LAST_MS <= timestamp_ms <= LAST_MS:
        raise CodecError(f"table {view.spec.name!r}: at({timestamp_ms!r}) is no time; give milliseconds since 1970")
    return timestamp_ms


class OneWindow(WindowTable[K, V]):
    """One window as a dict."""

    def __init__(self, view: WindowsView[K, V], start_ms: int) -> None:
        self._view = view
        self._at(start_ms)

    def _at(self, start_ms: int) -> None:
        self._start_ms = start_ms
        self._open_ms = self._view.open_before(start_ms)
        self._head = WINDOW + time_bytes(start_ms) if start_ms >= 0 else b""

    @property
    def start_ms(self) -> int:
        return self._start_ms

    @property
    def end_ms(self) -> int:
        return self._view.windows.end_of(self.start_ms)

    def __getitem__(self, key: K) -> V:
        view = self._view
        if view.position.reached[0] >= self._open_ms or view.closed:
            return self._get_slowly(key)
        k = self._head + (view.user_bytes if key is view.user_key else view.bytes_of(key))
        if view.number is not None and (value := view.waits.get(k)) is not None:
            view.got = self._head, key, k, value
            return value  # type: ignore[no-any-return]
        if view._live and k in view._live:
            return view[self._start_ms, key]
        data = view._known.get(k, MISSING)
        if data is MISSING:
            if self._start_ms >= view.whole_from:
                data = view._known[k] = None
                view.expiring.add(self._start_ms, k)
            else:
                data = view._read(k)
        if data is None:
            value = view._constant
            if value is MISSING:
                if view.spec.default is None:
                    raise KeyError(key)
                value = view._default((self._start_ms, key), k)
            view.got = self._head, key, k, None
            return value
        try:
            value = view._decode(data)
        except CodecError:
            return view._hand_out(k, data)  # which says of which table
        if type(value) not in IMMUTABLE:
            view._live[k] = value
        else:
            view.got = self._head, key, k, value
        return value  # type: ignore[no-any-return]

    def _get_slowly(self, key: K) -> V:
        view, start_ms = self._view, self.start_ms
        return view.default_of_none(start_ms, key) if view.is_forgotten(start_ms) else view[start_ms, key]

    def __setitem__(self, key: K, value: V) -> None:
        view = self._view
        if view.position.reached[0] >= self._open_ms or view.closed or view._iterating or view._defaults:
            view.refuse_closed(self.start_ms)
            view[self.start_ms, key] = value
            return
        data = view.user_bytes if key is view.user_key else view.bytes_of(key)
        if type(value) is view.number and not view._live:
            head, read_key, k, before = view.got
            is_own = view._check_owner is None or data in view.record_keys
            if head is self._head and read_key is key is view.user_key and is_own:
                if value == before:
                    return
                if _LEAST <= value <= _MOST:  # type: ignore[operator]
                    view.noted.append((k, view.waits.get(k)))
                    view.waits[k] = value
                    view.got = self._head, key, k, value
                    if view.announces:
                        view.closing.added(k)
                    return
        k = self._head + data
        if k in view.waits:
            view.spill()
        encoded = view._encoded(value) if type(value) in IMMUTABLE else None
        if view._check_owner is not None and data not in view.record_keys:
            view._own((self._start_ms, key), k)
        view._live[k] = value
        view._set[k] = encoded

    def __delitem__(self, key: K) -> None:
        start_ms = self.start_ms
        self._view.refuse_closed(start_ms)
        try:
            del self._view[start_ms, key]
        except KeyError:
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        start_ms = self.start_ms
        return not self._view.is_forgotten(start_ms) and (start_ms, key) in self._view

    def get(self, key: K, default: Any = None, /) -> Any:
        start_ms, view = self.start_ms, self._view
        if view.is_forgotten(start_ms):
            return default
        if view.waits and not view.closed and (value := view.waits.get(self._head + view.bytes_of(key))) is not None:
            return value
        return view.get((start_ms, key), default)

    def __iter__(self) -> Iterator[K]:
        for key, _ in self.range():
            yield key

    def __len__(self) -> int:
        return sum(1 for _ in self.range())

    def __bool__(self) -> bool:
        return any(True for _ in self.range())

    def popitem(self) -> tuple[K, V]:
        """Removes the last pair in key-byte order. Raises KeyError."""
        keys = list(self)
        if not keys:
            raise KeyError(f"table {self._view.spec.name!r} has nothing in this window in this task")
        return keys[-1], self.pop(keys[-1])

    def range(self, start: K | None = None, stop: K | None = None) -> Iterator[tuple[K, V]]:
        encode = self._view.keys_spec.encode_key
        return self._pairs(b"" if start is None else encode(start), None if stop is None else encode(stop))

    def prefix(self, start: Any) -> Iterator[tuple[K, V]]:
        first, end, bounded = self._view.keys_spec.prefix_bounds(start)
        return self._pairs(first, end, len(first) + _HEAD if bounded else None)

    def _pairs(self, first: bytes, end: bytes | None, bounded: int | None = None) -> Iterator[tuple[K, V]]:
        start_ms = self.start_ms
        if self._view.is_forgotten(start_ms):
            return
        head = WINDOW + time_bytes(start_ms)
        stop = after_prefix(head) if end is None else head + end
        for (_, key), value in self._view._pairs(head + first, stop, bounded):
            yield key, value


_get, _set = OneWindow.__getitem__, OneWindow.__setitem__  # for each record: looking them up costs what they do


class AtTime(OneWindow[K, V], TumblingTable[K, V]):
    """The window at the time of the call."""

    def __init__(self, view: WindowsView[K, V]) -> None:
        super().__init__(view, 0)
        self._for_ms: int | None = -1  # the time that the window is of
        self._from_ms = self._until_ms = 0  # for these times it stays the same

    @property
    def start_ms(self) -> int:
        if self._view.at_ms is not self._for_ms:
            self._move()
        return self._start_ms

    def _move(self) -> None:
        at_ms = self._view.at_ms
        if at_ms is None or not self._from_ms <= at_ms < self._until_ms:
            at_ms = self._view.time_of_call()
            self._from_ms, self._until_ms = self._view.windows.span(at_ms)
            self._at(self._view.windows.starts(at_ms)[0])
        self._for_ms = at_ms

    def __getitem__(self, key: K) -> V:
        if self._view.at_ms is not self._for_ms:
            self._move()
        return _get(self, key)

    def __setitem__(self, key: K, value: V) -> None:
        if self._view.at_ms is not self._for_ms:
            self._move()
        _set(self, key, value)

    def at(self, timestamp_ms: int) -> WindowTable[K, V]:
        windows = self._view.windows
        if checked_at(self._view, timestamp_ms) < 0:  # no window begins there
            return OneWindow(self._view, timestamp_ms // windows.longest_ms * windows.longest_ms)
        return OneWindow(self._view, windows.starts(timestamp_ms)[0])


class AtTimes(HoppingTable[K, V]):
    """The windows at the time of the call, or at another."""

    def __init__(self, view: WindowsView[K, V], timestamp_ms: int | None) -> None:
        self._view = view
        self._timestamp_ms = timestamp_ms
        self._from_ms = self._until_ms = 0  # for these times the windows of the call stay the same
        self._windows: list[OneWindow[K, V]] = []

    def __iter__(self) -> Iterator[WindowTable[K, V]]:
        view, at_ms = self._view, self._timestamp_ms
        if at_ms is None:
            return iter(self._of_call(view.time_of_call()))
        if at_ms < 0:
            return iter(())
        windows = [OneWindow(view, start_ms) for start_ms in view.windows.starts(at_ms)]
        if view.at_ms is None:  # a batch is at the time of each of its records
            windows = [window for window in windows if view.is_open(window.start_ms)]
        return iter(windows)

    def _of_call(self, at_ms: int) -> list[OneWindow[K, V]]:
        """Those that are open."""
        view = self._view
        if not self._from_ms <= at_ms < self._until_ms:
            self._from_ms, self._until_ms = view.windows.span(at_ms)
            self._windows = [OneWindow(view, start_ms) for start_ms in view.windows.starts(at_ms)]
        if view.position.reached[0] < self._windows[0]._open_ms:
            return self._windows  # with the one that closes first all are open
        return [window for window in self._windows if view.is_open(window.start_ms)]

    def at(self, timestamp_ms: int) -> HoppingTable[K, V]:
        return AtTimes(self._view, checked_at(self._view, timestamp_ms))

    def __getitem__(self, key: Any) -> Any:
        raise self._refused("read")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self._refused("written")

    def __contains__(self, key: object) -> bool:
        raise self._refused("read")

    def _refused(self, what: str) -> PipelineError:
        name = self._view.spec.name
        return PipelineError(
            f"table {name!r} has several windows at a time, and is {what} window by window: for window in {name}: ..."
        )


class TumblingView(WindowsView[K, V]):
    """Windows that do not overlap: a call sees one of them."""

    @property
    def argument(self) -> TumblingTable[K, V]:
        return AtTime(self)


class HoppingView(WindowsView[K, V]):
    """Windows that overlap: a call sees all that are open."""

    @property
    def argument(self) -> HoppingTable[K, V]:
        return AtTimes(self, None)
