"""Sliding windows of a task: for each key the windows that end at one of its records, and those that begin right after one.

One rule (KIP-450): what a window holds when it comes to be is what another window of the key held, so it costs by records
and not by milliseconds. A window reaches from its start to `difference` later, both included. A record whose own window has
closed leaves no window that ends at it, so it goes, besides, into the one that is the next to close, whether there is such a
window or not: hidden, for what later ones take over. How they lie in the store: `sliding_form`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pipeline.errors import CodecError
from pipeline.tables.expiry import BEFORE_ALL_MS
from pipeline.tables.table import StoreView, TableSpec
from pipeline.time import sliding_form as form
from pipeline.time.due_index import DueIndex
from pipeline.time.position import Place, Position
from pipeline.time.tables import ClosedWindow, DueCall, HoppingTable
from pipeline.time.timed_view import TIME_BYTES, CheckOwner, read_time, time_bytes
from pipeline.time.window_form import WINDOW
from pipeline.time.window_tables import AtTimes, OneWindow
from pipeline.time.window_view import WindowsView
from pipeline.time.windows import Sliding

K = TypeVar("K")
V = TypeVar("V")
_HEAD = 1 + TIME_BYTES
_KNOWN_KEYS = 10_000

Bounds = tuple[int, int, bool]  # the start of a window, the time of the last record in it, and whether it is hidden


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a record of a key and time means for its windows: those that hold it, by start, with what they held before;
    the one that begins right after it, where that comes to be; and which of those that hold it is hidden."""

    windows: dict[int, bytes | None]
    last_ms: dict[int, int]
    after: tuple[int, int, bytes] | None  # start, time of the last record in it, value
    hidden: int | None = None


class SlidingView(WindowsView[K, V]):
    """See the module. `record_key`: of the record, or of what is due, whose call has it."""

    windows: Sliding

    def __init__(
        self,
        spec: TableSpec,
        store: StoreView,
        position: Position,
        order: int,
        check_owner: CheckOwner | None,
        **rest: Any,
    ) -> None:
        super().__init__(spec, store, position, order, check_owner, **rest)
        self._is_direct = False  # what a call holds is not what is stored
        self.record_key: Any = None
        self._by_key: dict[bytes, list[Bounds]] = {}  # of keys with windows that are not in the store yet
        self._waiting: dict[bytes, list[bytes]] = {}  # the same, after an undo
        self._kept_ms = max(self.retain_ms, self.grace_ms + self.windows.longest_ms)
        self._plans: dict[tuple[bytes, int], _Plan] = {}
        first = max(0, position.time_ms - self.grace_ms - self.windows.longest_ms)
        self.closing = DueIndex(self.scan, self._is_open_entry, form.START + time_bytes(first), form.AFTER_STARTS)
        self._old = DueIndex(self.scan, self.is_stored, form.START, form.AFTER_STARTS)

    @property
    def argument(self) -> HoppingTable[K, V]:
        return _AtRecord(self, None)

    def indexes(self) -> tuple[DueIndex, ...]:
        return self.closing, self._old

    def open_before(self, start_ms: int) -> int:
        return BEFORE_ALL_MS  # each access goes by the plan of the record

    def undone(self) -> None:
        super().undone()
        self._by_key.clear()
        self._waiting = self.waiting_by_head(form.WINDOW, TIME_BYTES)

    def is_late(self, key: Any, timestamp_ms: int) -> bool:
        try:
            data = self.keys_spec.encode_key(key)
        except CodecError:
            return not self.is_open(timestamp_ms)  # the last window that a record of this time may be in
        plan = self._planned(data, timestamp_ms)
        return not any(self.is_open(start) for start in plan.windows if start != plan.hidden)

    def starts_of_call(self) -> list[int]:
        """The open windows that hold the call's record, the earliest first, and with them the hidden one."""
        at_ms = self.time_of_call()
        plan = self._plan_of_call(at_ms)
        found = [
            start for start in (self.windows.starts(at_ms) if plan is None else plan.windows) if self.is_open(start)
        ]
        is_taken = any(plan is None or start != plan.hidden for start in found)
        return sorted(found) if is_taken else []

    def starts_at(self, timestamp_ms: int) -> list[int]:
        """The windows that would hold a record of the call's key and of another time, the earliest first. What is not retained is
        not among them, whether it is still in the store or not."""
        plan = self._plan_of_call(timestamp_ms)
        starts = self.windows.starts(timestamp_ms) if plan is None else plan.windows.keys() - {plan.hidden}
        return sorted(start for start in starts if not self.is_forgotten(start))

    def _plan_of_call(self, at_ms: int) -> _Plan | None:
        """None of a call without a record, as in a test of a function alone."""
        try:
            return self._plan(self.keys_spec.encode_key(self.record_key), at_ms)
        except CodecError:
            return None

    # the windows of a key

    def _bounds(self, data: bytes) -> list[Bounds]:
        found = self._by_key.get(data)
        if found is None:
            head = form.head(data)
            pairs = self.stored_under(head, self._waiting.get(head, ()))
            found = [(read_time(k, len(head)), form.last_ms_of(raw), form.is_hidden(raw)) for k, raw in pairs]
            self._by_key[data] = found
        return found

    def _value(self, data: bytes, start: int) -> bytes | None:
        """Of a hidden one, too."""
        raw = super()._stored(form.head(data) + time_bytes(start))
        return None if raw is None else form.value_of(raw)

    def _plan(self, data: bytes, at_ms: int) -> _Plan:
        plan = self._plans.get((data, at_ms))
        if plan is None:
            plan = self._plans[data, at_ms] = self._planned(data, at_ms)
        return plan

    def _planned(self, data: bytes, at_ms: int) -> _Plan:
        """See KIP-450: the windows around a time, in order, say which others come to be, and with what in them."""
        size = self.windows.difference_ms
        near = self._near(data, at_ms)
        holding = [one for one in near if one[0] <= at_ms <= one[0] + size]
        starts = {start for start, _, is_hidden in near if not is_hidden}
        windows = {start: self._value(data, start) for start, _, is_hidden in holding if not is_hidden}
        last_ms = {start: max(last, at_ms) for start, last, is_hidden in holding if not is_hidden}
        before = _last_before(near, at_ms)
        left = max(0, at_ms - size)
        if left not in starts:  # it ends at the record
            windows[left] = self._taken_over(data, near, at_ms, before)
            last_ms[left] = at_ms
        if before is not None and before + 1 not in starts and at_ms <= before + 1 + size and before + 1 != left:
            # It begins right after the record before, and was hidden or was not there.
            hidden = [last for start, last, _ in near if start == before + 1]
            windows[before + 1] = self._value(data, before + 1) if hidden else None
            last_ms[before + 1] = max([at_ms, *hidden])
        closes_next = self._first_open_end()
        kept = closes_next - size
        hidden_start: int | None = None
        if left < kept <= at_ms and kept not in windows:
            near_end = self._near(data, closes_next)
            last = _last_before(near_end, closes_next)
            windows[kept] = self._taken_over(data, near_end, closes_next, last)
            last_ms[kept] = max(at_ms, last or 0)
            hidden_start = kept
        return _Plan(windows, last_ms, self._after(data, at_ms, starts, holding), hidden_start)

    def _near(self, data: bytes, at_ms: int) -> list[Bounds]:
        """The windows that may say what a record of a time means. Those that have expired say nothing, whether a commit has swept
        them by now or not; no window that is open takes over what they hold."""
        all_bounds = self._bounds(data)
        reached_ms, reached_order, _ = self.position.reached
        kept_from = reached_ms - self._kept_ms - self.windows.difference_ms + (reached_order >= self.order)
        first = bisect_left(all_bounds, (max(kept_from, at_ms - 2 * self.windows.difference_ms, 0), -1, False))
        return [one for one in all_bounds[first:] if one[0] <= at_ms + 1]

    def _first_open_end(self) -> int:
        """The last millisecond of the window that is the next to close."""
        reached_ms, reached_order, _ = self.position.reached
        return reached_ms - self.grace_ms + (reached_order >= self.order)

    def _taken_over(self, data: bytes, near: list[Bounds], end_ms: int, last_ms: int | None) -> bytes | None:
        """What the window that ends at a time holds when it comes to be. `last_ms`: of the last record before that time."""
        start_ms = max(0, end_ms - self.windows.difference_ms)
        if last_ms is None or last_ms < start_ms:
            return None
        ended: int | None = None
        for start, *_ in near:
            if start == start_ms:
                return self._value(data, start)  # it was hidden
            if start < end_ms - self.windows.difference_ms:
                ended = start
        return None if ended is None else self._value(data, ended)

    def _after(self, data: bytes, at_ms: int, starts: set[int], holding: list[Bounds]) -> tuple[int, int, bytes] | None:
        """The window that begins right after a record, with what it takes over of the last that reaches further."""
        reaching = [one for one in holding if one[0] + self.windows.difference_ms > at_ms]
        if at_ms + 1 in starts or not reaching or reaching[-1][1] <= at_ms:
            return None
        value = self._value(data, reaching[-1][0])
        return None if value is None else (at_ms + 1, reaching[-1][1], value)

    # one call

    @property
    def is_touched(self) -> bool:
        """Also by a call that has only looked: its plans are of what was there then."""
        return bool(self._live or self._plans)

    def keep_alone(self, timestamp_ms: int) -> None:
        super().keep_alone(timestamp_ms)
        self._plans.clear()

    def _stored(self, k: bytes) -> bytes | None:
        if not k.startswith(WINDOW):
            return super()._stored(k)
        start, data = read_time(k), k[_HEAD:]
        if self.at_ms is not None:
            planned = self._plan(data, self.at_ms).windows
            if start in planned:
                return planned[start]
        raw = super()._stored(form.head(data) + time_bytes(start))
        return None if raw is None or form.is_hidden(raw) else form.value_of(raw)

    def _current(self, k: bytes) -> bytes | None:
        return self._stored(k)

    def _merged(self, start: bytes | None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes | None]]:
        """Of one window the keys that have something in it, as one by one: what is there by the plan of the call is not stored yet."""
        if start is None or not start.startswith(WINDOW):
            yield from super()._merged(start, stop)
            return
        head, first = start[:_HEAD], start[_HEAD:]
        last = stop[_HEAD:] if stop is not None and stop.startswith(head) else None
        around = [(read_time(start), read_time(start) + 1)]
        if self.at_ms is not None:  # a plan looks no further
            around.append((max(0, self.at_ms - 2 * self.windows.difference_ms), self.at_ms + 2))
        found = {k[_HEAD:] for k in self._live if k.startswith(head)}
        for begin, end in around:
            pairs = super()._merged(form.START + time_bytes(begin), form.START + time_bytes(end))
            found |= {k[_HEAD:] for k, raw in pairs if raw is not None}
        for data in sorted(found):
            if data >= first and (last is None or data < last):
                yield head + data, self._stored(head + data)

    def changes(self) -> dict[bytes, bytes | None]:
        result: dict[bytes, bytes | None] = {}
        at_ms = self.at_ms
        writes = super().changes()
        for k, encoded in self._set.items():  # the same value, in a window that comes to be or has another record
            if k not in writes and self._present(k):
                writes[k] = self._stored(k) if encoded is None else encoded
        call = None if at_ms is None or not writes else self._plan_of_call(at_ms)
        for k, value in writes.items():
            start, data = read_time(k), k[_HEAD:]
            plan = None if at_ms is None else self._plan(data, at_ms)
            if value is None:
                result[form.head(data) + time_bytes(start)] = result[form.START + time_bytes(start) + data] = None
                continue
            last = start if plan is None else plan.last_ms.get(start, start)
            hidden = call is not None and start == call.hidden and not self._is_shown(data, start)
            self._put(result, data, start, last, value, hidden=hidden)
            after = plan.after if plan is not None else None
            if after is not None and self.is_open(after[0]):
                self._put(result, data, *after)
        return result

    def _is_shown(self, data: bytes, start: int) -> bool:
        return any(one[0] == start and not one[2] for one in self._bounds(data))

    def _put(
        self,
        result: dict[bytes, bytes | None],
        data: bytes,
        start: int,
        last_ms: int,
        value: bytes,
        *,
        hidden: bool = False,
    ) -> None:
        result[form.head(data) + time_bytes(start)] = form.packed(last_ms, value, hidden=hidden)
        result[form.START + time_bytes(start) + data] = form.HIDDEN if hidden else form.SHOWN

    def apply(self, changes: dict[bytes, bytes | None], timestamp_ms: int) -> None:
        if changes:
            self.layers.put(changes, timestamp_ms)
        self.forget()
        for k, raw in changes.items():
            if not k.startswith(form.START):
                self._note(k, raw)
            elif raw is not None:
                if self.announces:
                    self.closing.added(k)
                self._old.added(k)

    def forget(self) -> None:
        super().forget()
        self._plans.clear()

    def _note(self, k: bytes, raw: bytes | None) -> None:
        """A stored window of a key has changed."""
        data, start = form.id_of(k)
        kept = [one for one in self._bounds(data) if one[0] != start]
        if raw is not None:
            insort(kept, (start, form.last_ms_of(raw), form.is_hidden(raw)))
        self._by_key[data] = kept

    def mark_applied(self) -> None:
        super().mark_applied()
        if len(self._by_key) > _KNOWN_KEYS:
            self._waiting = self.waiting_by_head(form.WINDOW, TIME_BYTES)
            self._by_key = {data: found for data, found in self._by_key.items() if form.head(data) in self._waiting}

    def shown(self) -> Iterator[Any]:
        decode = self.keys_spec.key_codec.decode
        for k, raw in self._merged(form.WINDOW, form.AFTER_WINDOWS):
            data, start = form.id_of(k)
            if raw is not None and not form.is_hidden(raw) and not self.is_forgotten(start):
                yield (decode(data), self.window(start)), self.spec.decode_value(form.value_of(raw))

    # what closes and expires

    def next_due(self) -> DueCall:
        found = self.closing.first()
        assert found is not None
        window, key = self.window(read_time(found)), found[_HEAD:]
        value = self._value(key, window.start_ms)
        assert value is not None
        closed = ClosedWindow(self.keys_spec.key_codec.decode(key), self.spec.decode_value(value), *window)
        return DueCall(self._closes(found), closed, window.end_ms - 1, key, value)

    def forget_expired(self) -> None:
        for index in self.forget_at_places(self._old, self._expires):
            entry = form.head(index[_HEAD:]) + index[1:_HEAD]
            self._note(entry, None)
            self.layers.remember(index, None)
            self.layers.remember(entry, None)

    def _expires(self, key: bytes) -> Place:
        """A window is kept, unseen, for as long as one that is open may still take over what it holds."""
        return self.windows.end_of(read_time(key)) - 1 + self._kept_ms, self.order, key[_HEAD:]

    def _is_open_entry(self, key: bytes) -> bool:
        place: Place = self._closes(key)
        return place > self.position.reached and self._stored(key) == form.SHOWN


def _last_before(near: list[Bounds], at_ms: int) -> int | None:
    """The last record before a time."""
    return max((last for start, last, _ in near if start <= at_ms and last < at_ms), default=None)


class _AtRecord(AtTimes[K, V]):
    """The windows that hold the record of the call, or one of its key at another time."""

    _view: SlidingView[K, V]

    def __iter__(self) -> Iterator[OneWindow[K, V]]:
        view, at_ms = self._view, self._timestamp_ms
        if at_ms is not None and at_ms < 0:
            return
        for start_ms in view.starts_of_call() if at_ms is None else view.starts_at(at_ms):
            yield OneWindow(view, start_ms)

    def at(self, timestamp_ms: int) -> HoppingTable[K, V]:
        return _AtRecord(self._view, super().at(timestamp_ms)._timestamp_ms)  # type: ignore[attr-defined]
