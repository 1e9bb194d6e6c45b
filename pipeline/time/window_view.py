"""The windows of a task, of a fixed kind (tumbling, hopping): one stored table, which a call sees window by window.

One rule: a window is open until the task's position has passed its last millisecond and the grace period, and is
readable until it has passed its last millisecond and the retention. Stored: `w` + start of the window + key -> value, so
the keys lie in the order in which they close, and expire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from pipeline.errors import WindowClosed
from pipeline.records import LAST_MS
from pipeline.tables.call_number import is_of
from pipeline.tables.expiry import BEFORE_ALL_MS
from pipeline.tables.table import StoreView, TableSpec
from pipeline.time.due_index import DueIndex
from pipeline.time.expiring import Expiring
from pipeline.time.numbers_at_hand import Numbers, NumbersAtHand
from pipeline.time.position import Place, Position
from pipeline.time.tables import ClosedWindow, DueCall
from pipeline.time.timed_view import ByUserKey, CheckOwner, TimedView, read_time, time_bytes
from pipeline.time.window_form import AFTER_WINDOWS, HEAD_BYTES, WINDOW, number_of, stored_spec
from pipeline.time.windows import FixedWindows, Window

K = TypeVar("K")
V = TypeVar("V")
_NO_WINDOW, _NO_START = b"n", -1  # of what was read of a time before all windows
_MISSING: Final[Any] = object()
_KNOWN = 30_000  # entries that are kept at hand
_MET = 1_000  # windows whose ends are kept at hand


class WindowsView(TimedView[tuple[int, K], V], ByUserKey):
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
        check = None if check_owner is None else lambda pair, data: check_owner(pair[1], data[HEAD_BYTES:])
        super().__init__(stored_spec(spec), store, position, order, check)
        self.keys_spec = spec
        self.windows = windows
        self.grace_ms = grace_ms
        self.retain_ms = retain_ms
        self.announces = announces
        first = max(0, position.time_ms - grace_ms - windows.longest_ms)  # all that begin before have closed
        start = WINDOW + time_bytes(first)
        self.closing = DueIndex(self.scan, self._is_open_entry, start, AFTER_WINDOWS)
        self._kept_from = WINDOW  # what lies before is forgotten
        self._ends_ms: dict[int, int] = {}  # by start: the first milliseconds after windows that were met lately
        self._lowest: tuple[bytes | None, int | None] = None, None  # the first key to close, and when
        self._open_span = 0, 0, 0  # times that lie in the same windows, and before when the last of these is open
        self.user_key, self.user_bytes = _MISSING, b""
        self.layers.most_known = _KNOWN
        number, self._pack = number_of(spec.value_codec)
        self.layers.forgets_deleted = True
        self._last_met = b""  # a key of the last window of which anything was read or written
        self.whole_from = self._first_whole(max(0, position.time_ms))
        self.expiring = Expiring(self.whole_from)  # each key is read before it is written; some are read alone
        self.at_hand = NumbersAtHand(number, self._pack, self.layers, self.expiring)

    def _key(self, pair: tuple[int, K]) -> bytes:
        if self.closed and not is_of(self.call):
            return super()._key(pair)  # which raises
        data = self.bytes_of(pair[1])
        if self.at_hand.windows:
            self.give_way(pair[0], data)
        return WINDOW + time_bytes(pair[0]) + data

    # numbers at hand

    def gather(self, does: bool) -> None:
        """From now on calls follow each other, and nothing else reads or commits what they write: numbers that they set are at
        hand, and are written together. Or this has ended."""
        self.at_hand.gather(does)
        self.layers.forgets_deleted = not self.at_hand.is_used
        if not does and self.at_hand.noted:
            self.spill()

    def numbers_in(self, start_ms: int) -> Numbers | None:
        """The numbers at hand of a window that calls use, from now on; None where the values are none."""
        if start_ms < 0 or not self.at_hand.is_used:
            return None
        found = self.at_hand.windows.get(start_ms)
        if found is None:
            head = WINDOW + time_bytes(start_ms)
            is_whole = start_ms >= self.whole_from and head > self._last_met[:HEAD_BYTES] and not self._live
            found = self.at_hand.windows[start_ms] = Numbers(start_ms, head, is_whole=is_whole)
            self.whole_from = max(self.whole_from, start_ms + 1)  # what is set there is in the store before it is known
        return found

    def number_stored(self, k: bytes) -> Any:
        """What an entry says whose number is not at hand; None where there is none. Raises CodecError."""
        raw = self._stored(k)
        return None if raw is None else self.spec.decode_value(raw)

    def spill(self) -> None:
        """What ended calls have set is written; what the running one has set is in its hands, as anything else that it sets."""
        for k, value in self.at_hand.spill().items():
            self._live[k] = value
            self._set[k] = self._pack(value)

    def give_way(self, start_ms: int, data: bytes) -> None:
        """A key is read or written in another way."""
        if self.at_hand.noted:
            self.spill()
        numbers = self.at_hand.windows.get(start_ms)
        if numbers is not None:
            self.at_hand.let_go(numbers)
            numbers.pop(data, None)

    def _all_known(self) -> None:
        """Many entries are about to be read in another way; some may be of windows that are not at hand any more."""
        if self.at_hand.is_used:
            self.spill()
            self.at_hand.let_go_of_all()

    # windows of which all is known

    def _first_whole(self, since_ms: int) -> int:
        """What no entry is known of in windows from here on is not in the store: none was there at a time that was before them,
        and of what was written since nothing has been dropped."""
        first = self.windows.starts(since_ms)[-1] + 1
        return LAST_MS if any(True for _ in self._store.range(WINDOW + time_bytes(first), AFTER_WINDOWS)) else first

    def _read(self, k: bytes) -> bytes | None:
        if k[:1] != WINDOW:
            return super()._read(k)
        if k > self._last_met:
            self._last_met = k
        if read_time(k) >= self.whole_from:
            raw = self._known[k] = None
        else:
            raw = self._read_written(k)
        if raw is None:
            self.expiring.add(read_time(k), k)
        return raw

    def _read_written(self, k: bytes) -> bytes | None:
        if self.at_hand.is_used:
            numbers = self.at_hand.windows.get(read_time(k))
            if numbers is not None:
                self.at_hand.let_go(numbers)
            for layer in reversed(self.layers.written()):
                if k in layer:
                    raw = self._known[k] = layer[k]
                    return raw
        return super()._read(k)

    def _drop_known(self) -> None:
        """Entries of windows up to the last that was met may lie in the store, and are not known any more."""
        if self._last_met:
            self.whole_from = max(self.whole_from, read_time(self._last_met) + 1)
        self.expiring.lose(self.whole_from)

    def undone(self) -> None:
        self.at_hand.forget_call()
        super().undone()
        self._all_known()
        self._drop_known()
        self.at_hand.drop(LAST_MS)

    def mark_applied(self) -> None:
        self.layers.forget_deleted()
        if len(self._known) > self.layers.most_known:
            self._all_known()
            self._drop_known()
        if self.at_hand.is_too_much():
            self.at_hand.drop(LAST_MS)
        super().mark_applied()

    def _own(self, pair: tuple[int, K], k: bytes) -> None:
        """A key belongs to the task in all windows or in none."""
        data = k[HEAD_BYTES:]
        if self._check_owner is not None and data not in self.record_keys and data not in self._owned:
            self._check_owner(pair, k)
            self._owned[data] = None

    def indexes(self) -> tuple[DueIndex, ...]:
        return (self.closing,)

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

    def open_before(self, start_ms: int) -> int:
        """A time up to which the window that begins there is open, whatever else has happened."""
        return self.end_of(start_ms) - 1 + self.grace_ms if start_ms >= 0 else BEFORE_ALL_MS

    def is_forgotten(self, start_ms: int) -> bool:
        at_ms = self.end_of(start_ms) - 1 + self.retain_ms
        return start_ms < 0 or self.position.has_passed(at_ms, self.order)

    def is_late(self, key: Any, timestamp_ms: int) -> bool:
        # The last one that a time lies in closes last.
        first_ms, until_ms, open_ms = self._open_span
        if not first_ms <= timestamp_ms < until_ms:
            open_ms = self.open_before(self.windows.starts(timestamp_ms)[-1])
            self._open_span = *self.windows.span(timestamp_ms), open_ms
        return self.position.reached[0] >= open_ms and not self.is_open(self.windows.starts(timestamp_ms)[-1])

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
        for (start_ms, key), value in self._pairs(WINDOW, AFTER_WINDOWS):
            if not self.is_forgotten(start_ms):
                yield (key, self.window(start_ms)), value

    # one call

    @property
    def is_touched(self) -> bool:
        return bool(self._live) or self.at_hand.is_touched

    def changes(self) -> dict[bytes, bytes | None]:
        if self.at_hand.noted:
            self.spill()
        result = super().changes()
        in_place = {key for key in result if key not in self._set}  # those were checked when they were set
        for start_ms in {_NO_START if key[:1] == _NO_WINDOW else read_time(key) for key in in_place}:
            self.refuse_closed(start_ms)
        return result

    def default_of_none(self, start_ms: int, key: K) -> V:
        """The default for a window that is forgotten, or lies before 0: changed in place, it is a write to a closed window."""
        if (self.closed and not is_of(self.call)) or start_ms >= 0:
            k = self._key((start_ms, key))
        else:
            k = _NO_WINDOW + self.bytes_of(key)
        return self._live[k] if k in self._live else self._default((start_ms, key), k)

    def forget(self) -> None:
        self.at_hand.forget_call()
        super().forget()

    def keep_alone(self, timestamp_ms: int) -> None:
        if not self._live and self.fault is None:
            if self.at_hand.is_touched:
                self.at_hand.end_call(timestamp_ms)
            return
        super().keep_alone(timestamp_ms)

    def keep_one(self, timestamp_ms: int) -> bool:
        """The same for a call that has set keys of open windows to values that cannot change in place."""
        if self.at_hand.is_touched:
            if not self._live:
                self.at_hand.end_call(timestamp_ms)
                return True
            self.spill()
        set_, known = self._set, self._known
        if len(set_) != len(self._live) or self._defaults or not self._is_direct:
            return False
        if len(set_) == 1:
            return self._keep_the_one(timestamp_ms)
        changed: dict[bytes, bytes | None] = {}
        for k, data in set_.items():
            if data is None:
                return False
            stored = known.get(k, _MISSING)
            if data != (self._stored(k) if stored is _MISSING else stored):
                changed[k] = data
        if changed:
            self.layers.put(changed, timestamp_ms)
            self._note_written(changed)
        self._live.clear()
        set_.clear()
        return True

    def _keep_the_one(self, timestamp_ms: int) -> bool:
        """The same for one key, which is what most calls set."""
        ((k, data),) = self._set.items()
        if data is None:
            return False
        stored = self._known.get(k, _MISSING)
        if data != (self._stored(k) if stored is _MISSING else stored):
            self.layers.put_one(k, data, timestamp_ms)
            if self.announces:
                self.closing.added(k)
        self._live.clear()
        self._set.clear()
        return True

    def apply(self, changes: dict[bytes, bytes | None], timestamp_ms: int) -> None:
        super().apply(changes, timestamp_ms)
        if changes:
            self._note_written(changes)

    def _note_written(self, changes: Mapping[bytes, bytes | None]) -> None:
        if self.announces:
            for key, value in changes.items():
                if value is not None:
                    self.closing.added(key)

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

    def due_from_ms(self) -> int | None:
        lowest = self.closing.lowest() if self.announces else None
        if lowest is not self._lowest[0]:
            self._lowest = lowest, None if lowest is None else self._closes(lowest)[0]
        return self._lowest[1]

    def next_place(self) -> Place | None:
        found = self.closing.first() if self.announces else None
        return None if found is None else self._closes(found)

    def next_due(self) -> DueCall:
        found = self.closing.first()
        assert found is not None
        raw = self._stored(found)
        assert raw is not None
        window, key = self.window(read_time(found)), found[HEAD_BYTES:]
        closed = ClosedWindow(self.keys_spec.key_codec.decode(key), self.spec.decode_value(raw), *window)
        return DueCall(self._closes(found), closed, window.end_ms - 1, key, raw)

    def forget_expired(self) -> None:
        """Windows expire whole, in the order of their starts: nothing of them is asked for before their time."""
        first = self.windows.starts(max(0, self.position.settled[0] - self.retain_ms))[0]
        stop = WINDOW + time_bytes(first)
        self.at_hand.drop(self.windows.starts(max(0, self.position.settled[0] - self.grace_ms))[0])  # which have closed
        if stop <= self._kept_from:
            return
        most = self.most_forgotten()
        taken = self.expiring.take(read_time(self._kept_from), first, most)
        if taken is None:
            self._all_known()
            found = self.keys_between(self._kept_from, stop, most)
            self.leaves_expired = len(found) == most
            self.layers.remember_deleted(found)
        else:
            found, self.leaves_expired = taken
            self._delete_known(found)
        before, self._kept_from = self._kept_from, found[-1] + b"\x00" if self.leaves_expired else stop
        self.gone.append((before, self._kept_from))

    def _delete_known(self, found: list[bytes]) -> None:
        """Entries of which nothing is asked for any more, and some keys that were read alone or deleted before."""
        known = self._known
        if not self.at_hand.is_used:
            self.layers.remember_deleted([k for k in found if known.get(k) is not None])
            return
        gone = found
        if not known.keys().isdisjoint(found):
            gone = [k for k in found if known.get(k, _MISSING) is not None]
            for k in known.keys() & found:
                del known[k]
        self.layers.put_unknown(dict.fromkeys(gone), -1)

    def _closes(self, key: bytes) -> Place:
        return self.windows.end_of(read_time(key)) - 1 + self.grace_ms, self.order, key[HEAD_BYTES:]

    def _present_pairs(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        self._all_known()
        return super()._present_pairs(start, stop)

    def scan(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        self._all_known()
        return super().scan(start, stop)

    def _is_open_entry(self, key: bytes) -> bool:
        if self.at_hand.noted:
            self.spill()
        return self._closes(key) > self.position.reached and self.is_stored(key)
