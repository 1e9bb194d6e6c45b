"""What a call sees of the windows of a table: one of them as a dict, or all that a time lies in, a dict each.

One rule: what these say is what the view (`window_view`) says of a window, the whole of it; where stream time has not come
near the end of a window, one comparison of times is all that is asked before each read and write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pipeline.errors import CodecError, PipelineError
from pipeline.records import LAST_MS
from pipeline.tables.call_number import is_of
from pipeline.tables.table import IMMUTABLE, after_prefix
from pipeline.tables.view import MISSING
from pipeline.time.numbers_at_hand import Numbers
from pipeline.time.tables import HoppingTable, TumblingTable, WindowTable
from pipeline.time.timed_view import TimedView, time_bytes
from pipeline.time.window_form import HEAD_BYTES, WINDOW
from pipeline.time.window_view import WindowsView

K = TypeVar("K")
V = TypeVar("V")
_LEAST, _MOST = -1 << 63, (1 << 63) - 1


def checked_at(view: TimedView[Any, Any], timestamp_ms: Any) -> int:
    """A time for `at(...)`; before 0 there is nothing, but a time some hours before a record's may lie there.
    Raises CodecError."""
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool) or not -LAST_MS <= timestamp_ms <= LAST_MS:
        raise CodecError(f"table {view.spec.name!r}: at({timestamp_ms!r}) is no time; give milliseconds since 1970")
    return timestamp_ms


class OneWindow(WindowTable[K, V]):
    """One window as a dict. `is_of_call`: of the time of calls, whose numbers are at hand."""

    def __init__(self, view: WindowsView[K, V], start_ms: int, *, is_of_call: bool = False) -> None:
        self._view, self._position = view, view.position
        self._hand, self._noted = view.at_hand, view.at_hand.noted
        self._numbers: Numbers | None = None
        self._at(start_ms)
        if is_of_call:
            self._numbers = view.numbers_in(start_ms)

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
        if self._position.reached[0] >= self._open_ms or (view.closed and not is_of(view.call)):
            return self._get_slowly(key)
        data = view.user_bytes if key is view.user_key else view.bytes_of(key)
        if self._hand.of_calls is not None:
            numbers = self._numbers
            if numbers is not None:
                number = numbers.get(data)
                if number is not None:
                    return number  # type: ignore[no-any-return]
                if numbers.is_whole and view._constant is not MISSING:
                    return view._constant  # type: ignore[no-any-return]
            elif self._hand.windows:
                view.give_way(self._start_ms, data)
        k = self._head + data
        if view._live and k in view._live:
            return view[self._start_ms, key]
        raw = view._known.get(k, MISSING)
        if raw is MISSING:
            raw = view._read(k)
        if raw is None:
            if view._constant is not MISSING:
                return view._constant  # type: ignore[no-any-return]
            if view.spec.default is None:
                raise KeyError(key)
            return view._default((self._start_ms, key), k)
        try:
            value = view._decode(raw)
        except CodecError:
            return view._hand_out(k, raw)  # which says of which table
        if type(value) not in IMMUTABLE:
            view._live[k] = value
        elif self._numbers is not None and type(value) is self._hand.of_calls:
            numbers, _ = self._at_hand_again(data)
            numbers[data] = value
        return value  # type: ignore[no-any-return]

    def _get_slowly(self, key: K) -> V:
        view, start_ms = self._view, self.start_ms
        return view.default_of_none(start_ms, key) if view.is_forgotten(start_ms) else view[start_ms, key]

    def __setitem__(self, key: K, value: V) -> None:
        view = self._view
        if (
            self._position.reached[0] >= self._open_ms
            or (view.closed and not is_of(view.call))
            or view._iterating
            or view._defaults
        ):
            view.refuse_closed(self.start_ms)
            view[self.start_ms, key] = value
            return
        data = view.user_bytes if key is view.user_key else view.bytes_of(key)
        numbers = self._numbers
        if (
            numbers is not None
            and type(value) is self._hand.of_calls
            and not view._live
            and (view._check_owner is None or data in view.record_keys)
            and _LEAST <= value <= _MOST  # type: ignore[operator]
        ):
            before = numbers.get(data)
            if before is None and not numbers.is_whole:
                try:
                    numbers, before = self._at_hand_again(data)
                except CodecError:  # it cannot be read, and may be overwritten
                    self._set_entry(key, data, value)
                    return
            if value != before:
                numbers[data] = value
                self._noted.append((numbers, data, before))
                if before is None and view.announces:
                    view.closing.added(numbers.head + data)
            return
        self._set_entry(key, data, value)

    def _set_entry(self, key: K, data: bytes, value: V) -> None:
        """In the hands of the call, as any other value."""
        view = self._view
        if self._hand.windows:
            view.give_way(self._start_ms, data)
        k = self._head + data
        encoded = view._encoded(value) if type(value) in IMMUTABLE else None
        if view._check_owner is not None and data not in view.record_keys:
            view._own((self._start_ms, key), k)
        view._live[k] = value
        view._set[k] = encoded

    def _at_hand_again(self, data: bytes) -> tuple[Numbers, Any]:
        """The numbers of this window, which may be others by now, and the one of a key that may not be among them.
        Raises CodecError."""
        numbers = self._view.numbers_in(self._start_ms)
        assert numbers is not None
        self._numbers = numbers
        number = numbers.get(data)
        return numbers, self._view.number_stored(self._head + data) if number is None else number

    def __delitem__(self, key: K) -> None:
        start_ms = self.start_ms
        self._view.refuse_closed(start_ms)
        try:
            del self._view[start_ms, key]
        except KeyError:
            raise KeyError(key) from None

    def _handed_out(self) -> list[K]:
        return [key for start_ms, key in self._view._handed_out() if start_ms == self.start_ms]

    def _let_go(self, key: K) -> None:
        self._view._let_go((self.start_ms, key))

    def __contains__(self, key: object) -> bool:
        start_ms, view = self.start_ms, self._view
        if view.is_forgotten(start_ms):
            return False
        numbers = self._numbers
        if (
            self._hand.of_calls is not None
            and numbers is not None
            and numbers.is_whole
            and not (view.closed and not is_of(view.call))
        ):
            return view.bytes_of(key) in numbers
        return (start_ms, key) in view

    def get(self, key: K, default: Any = None, /) -> Any:
        start_ms, view = self.start_ms, self._view
        if view.is_forgotten(start_ms):
            return default
        numbers = self._numbers
        if self._hand.of_calls is not None and numbers is not None and not (view.closed and not is_of(view.call)):
            value = numbers.get(view.bytes_of(key))
            if value is not None or numbers.is_whole:
                return default if value is None else value
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
        return self._pairs(first, end, len(first) + HEAD_BYTES if bounded else None)

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
            self._numbers = self._view.numbers_in(self._start_ms)
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
        if view.at_ms is None:  # a batch is at the times of its records, each of which has an open window
            windows = [window for window in windows if view.is_open(window.start_ms)] or windows
        return iter(windows)

    def _of_call(self, at_ms: int) -> list[OneWindow[K, V]]:
        """Those that are open."""
        view = self._view
        if not self._from_ms <= at_ms < self._until_ms:
            self._from_ms, self._until_ms = view.windows.span(at_ms)
            self._windows = [OneWindow(view, start_ms, is_of_call=True) for start_ms in view.windows.starts(at_ms)]
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
