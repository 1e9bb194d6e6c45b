"""The windows of a task, of a fixed kind (tumbling, hopping): one stored table, which a call sees window by window.

One rule: a window is open until the task's position has passed its last millisecond and the grace period, and is
readable until it has passed its last millisecond and the retention. Stored: `w` + start of the window + key -> value, so
the keys lie in the order in which they close, and expire.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pipeline.errors import CodecError, PipelineError, WindowClosed
from pipeline.tables.table import StoreView, TableSpec, after_prefix
from pipeline.tables.view import IMMUTABLE
from pipeline.time.due_index import DueIndex
from pipeline.time.durations import LAST_MS
from pipeline.time.position import Place, Position
from pipeline.time.tables import ClosedWindow, DueCall, HoppingTable, TumblingTable, WindowTable
from pipeline.time.timed_view import TIME_BYTES, CheckOwner, TimedView, read_time, time_bytes
from pipeline.time.windows import FixedWindows, Window
from pipeline.values.codecs import Codec

K = TypeVar("K")
V = TypeVar("V")
_WINDOW, _AFTER_WINDOWS = b"w", b"x"
_HEAD = 1 + TIME_BYTES
_MET = 1_000  # windows whose ends and keys are kept at hand


class WindowKeys:
    """Keys of windows: (start, key)."""

    def __init__(self, codec: Codec[Any]) -> None:
        self._codec = codec

    def encode(self, value: tuple[int, Any]) -> bytes:
        return _WINDOW + time_bytes(value[0]) + self._codec.encode(value[1])

    def decode(self, data: bytes) -> tuple[int, Any]:
        return read_time(data), self._codec.decode(data[_HEAD:])


class WindowsView(TimedView[tuple[int, K], V]):
    """See the module. `spec` is that of the keys as the user has them; `announces`: a function is called when one closes."""

    def __init__(
        self,
        spec: TableSpec,
        store: StoreView,
        position: Position,
        order: int,
        check_owner: CheckOwner | None,
        *,
        windows: FixedWindows,
        grace_ms: int,
        retain_ms: int,
        announces: bool,
    ) -> None:
        check = None if check_owner is None else lambda pair, data: check_owner(pair[1], data[_HEAD:])
        super().__init__(_stored_spec(spec), store, position, order, check)
        self.keys_spec = spec
        self.windows = windows
        self.grace_ms = grace_ms
        self.retain_ms = retain_ms
        self._announces = announces
        first = max(0, position.time_ms - grace_ms - windows.longest_ms)  # all that begin before have closed
        start = _WINDOW + time_bytes(first)
        self._closing = DueIndex(self.scan, self._is_open_entry, start, _AFTER_WINDOWS)
        self._old = DueIndex(self.scan, self.is_stored, _WINDOW, _AFTER_WINDOWS)
        self._ends_ms: dict[int, int] = {}  # by start: the first milliseconds after windows that were met lately
        self._heads: dict[int, bytes] = {}  # by start: what their keys begin with
        self._user_key: Any = None
        self._user_bytes = b""

    def _key(self, pair: tuple[int, K]) -> bytes:
        start_ms, key = pair
        if self.closed:
            return super()._key(pair)  # which raises
        if key is not self._user_key or type(key) not in IMMUTABLE:
            data = self.spec.encode_key(pair)
            self._user_key, self._user_bytes = key, data[_HEAD:]
            return data
        head = self._heads.get(start_ms)
        if head is None:
            if len(self._heads) > _MET:
                self._heads.clear()
            head = self._heads[start_ms] = _WINDOW + time_bytes(start_ms)
        return head + self._user_bytes

    def _own(self, pair: tuple[int, K], k: bytes) -> None:
        """A key belongs to the task in all windows or in none."""
        data = k[_HEAD:]
        if self._check_owner is not None and data not in self.record_keys and data not in self._owned:
            self._check_owner(pair, k)
            self._owned[data] = None

    def indexes(self) -> tuple[DueIndex, ...]:
        return self._closing, self._old

    # open, closed, forgotten

    def end_of(self, start_ms: int) -> int:
        """The first millisecond after the window that begins there."""
        end_ms = self._ends_ms.get(start_ms)
        if end_ms is None:
            if len(self._ends_ms) > _MET:
                self._ends_ms.clear()
            end_ms = self._ends_ms[start_ms] = self.windows.end_of(start_ms)
        return end_ms

    def is_open(self, start_ms: int) -> bool:
        at_ms = self.end_of(start_ms) - 1 + self.grace_ms
        return start_ms >= 0 and not self.position.has_passed(at_ms, self.order)

    def is_forgotten(self, start_ms: int) -> bool:
        at_ms = self.end_of(start_ms) - 1 + self.retain_ms
        return start_ms < 0 or self.position.has_passed(at_ms, self.order)

    def is_late(self, key: Any, timestamp_ms: int) -> bool:
        # The last one that a time lies in closes last.
        return not self.is_open(self.windows.starts(timestamp_ms)[-1])

    def window(self, start_ms: int) -> Window:
        return Window(start_ms, self.windows.end_of(start_ms))

    def refuse_closed(self, start_ms: int) -> None:
        """Raises WindowClosed."""
        if not self.is_open(start_ms):
            window = self.window(start_ms)
            grace = f" and its grace period of {self.grace_ms} ms" if self.grace_ms else ""
            raise WindowClosed(
                f"table {self.spec.name!r}: the window from {window.start_ms} to {window.end_ms} ms{grace} has passed; "
                "it can be read while it is retained, and is not written any more"
            )

    def shown(self) -> Iterator[tuple[tuple[K, Window], V]]:
        for (start_ms, key), value in self._pairs(_WINDOW, _AFTER_WINDOWS):
            if not self.is_forgotten(start_ms):
                yield (key, self.window(start_ms)), value

    # one call

    def changes(self) -> dict[bytes, bytes | None]:
        result = super().changes()
        for start_ms in {
            read_time(key) for key in result if key not in self._set
        }:  # those were checked when they were set
            self.refuse_closed(start_ms)
        return result

    def apply(self, changes: dict[bytes, bytes | None], timestamp_ms: int) -> None:
        super().apply(changes, timestamp_ms)
        for key, value in changes.items():
            if value is not None:
                if self._announces:
                    self._closing.added(key)
                self._old.added(key)

    # what closes and expires

    def changes_before(self, timestamp_ms: int) -> bool:
        now_ms = self.position.time_ms
        for after_ms in (self.grace_ms, self.retain_ms):
            first = self.windows.starts(max(0, now_ms - after_ms))[0]  # the window that closes, or expires, next
            if now_ms <= self.windows.end_of(first) - 1 + after_ms < timestamp_ms:
                return True
        return False

    def shown_due(self, due: DueCall) -> str:
        return f"the window of {due.argument.key!r} from {due.argument.start_ms} to {due.argument.end_ms} ms of table {self.spec.name!r}"

    def next_place(self) -> Place | None:
        found = self._closing.first() if self._announces else None
        return None if found is None else self._closes(found)

    def next_due(self) -> DueCall:
        found = self._closing.first()
        assert found is not None
        raw = self._stored(found)
        assert raw is not None
        window, key = self.window(read_time(found)), found[_HEAD:]
        closed = ClosedWindow(self.keys_spec.key_codec.decode(key), self.spec.decode_value(raw), *window)
        return DueCall(self._closes(found), closed, window.end_ms - 1, key, raw)

    def forget_expired(self) -> None:
        for key in self.forget_at_places(self._old, self._expires):
            self.layers.remember(key, None)

    def _closes(self, key: bytes) -> Place:
        return self.windows.end_of(read_time(key)) - 1 + self.grace_ms, self.order, key[_HEAD:]

    def _expires(self, key: bytes) -> Place:
        return self.windows.end_of(read_time(key)) - 1 + self.retain_ms, self.order, key[_HEAD:]

    def _is_open_entry(self, key: bytes) -> bool:
        return self._closes(key) > self.position.reached and self.is_stored(key)


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


def _stored_spec(spec: TableSpec) -> TableSpec:
    return TableSpec(
        spec.name,
        WindowKeys(spec.key_codec),
        spec.value_codec,
        default=spec.default,
        upgrade=spec.upgrade,
        none_is_value=spec.none_is_value,
    )


def checked_at(view: TimedView[Any, Any], timestamp_ms: Any) -> int:
    """A time for `at(...)`; before 0 there is nothing, but a time some hours before a record's may lie there.
    Raises CodecError."""
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool) or not -LAST_MS <= timestamp_ms <= LAST_MS:
        raise CodecError(f"table {view.spec.name!r}: at({timestamp_ms!r}) is no time; give milliseconds since 1970")
    return timestamp_ms


class OneWindow(WindowTable[K, V]):
    """One window as a dict."""

    def __init__(self, view: WindowsView[K, V], start_ms: int, open_at: Place | None = None) -> None:
        self._view = view
        self._start_ms = start_ms
        self._open_at = open_at  # the position at which it was seen to be open; while it is that one, it is

    @property
    def start_ms(self) -> int:
        return self._start_ms

    @property
    def end_ms(self) -> int:
        return self._view.windows.end_of(self.start_ms)

    def __getitem__(self, key: K) -> V:
        start_ms = self.start_ms
        if self._open_at is not self._view.position.reached and self._view.is_forgotten(start_ms):
            default = self._view.spec.default
            if default is None:
                raise KeyError(key)
            return default()  # type: ignore[no-any-return]
        return self._view[start_ms, key]

    def __setitem__(self, key: K, value: V) -> None:
        start_ms, reached = self.start_ms, self._view.position.reached
        if self._open_at is not reached:
            self._view.refuse_closed(start_ms)
            self._open_at = reached
        self._view[start_ms, key] = value

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
        start_ms = self.start_ms
        return default if self._view.is_forgotten(start_ms) else self._view.get((start_ms, key), default)

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
        head = _WINDOW + time_bytes(start_ms)
        stop = after_prefix(head) if end is None else head + end
        for (_, key), value in self._view._pairs(head + first, stop, bounded):
            yield key, value


class AtTime(OneWindow[K, V], TumblingTable[K, V]):
    """The window at the time of the call."""

    def __init__(self, view: WindowsView[K, V]) -> None:
        super().__init__(view, 0)
        self._for_ms: int | None = None  # the time that the window is of

    @property
    def start_ms(self) -> int:
        at_ms = self._view.time_of_call()
        if at_ms != self._for_ms:
            self._for_ms, self._open_at = at_ms, None
            self._start_ms = self._view.windows.starts(at_ms)[0]
        return self._start_ms

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

    def __iter__(self) -> Iterator[WindowTable[K, V]]:
        view, at_ms = self._view, self._timestamp_ms
        if at_ms is not None and at_ms < 0:
            return
        for start_ms in view.windows.starts(view.time_of_call() if at_ms is None else at_ms):
            is_elsewhere = at_ms is not None and view.at_ms is not None  # a batch is at the time of each of its records
            if is_elsewhere:
                yield OneWindow(view, start_ms)
            elif view.is_open(start_ms):
                yield OneWindow(view, start_ms, view.position.reached)

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
