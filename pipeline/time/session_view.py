"""The sessions of a task: one stored table, of which a call sees, key by key, the session that its time meets.

One rule: what has closed is never merged again; what is open and at most `gap` away from the time is one session with
it, as soon as it is written. Stored: `s` + key with its length + time of the last record -> time of the first record +
value, and for the order in which they close `d` + time of the last record + key -> nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

from pipeline.errors import CodecError, PipelineError, WindowClosed
from pipeline.tables.table import StoreView, TableSpec
from pipeline.time.due_index import DueIndex
from pipeline.time.position import Place, Position
from pipeline.time.tables import ClosedWindow, DueCall, SessionTable
from pipeline.time.timed_view import TIME_BYTES, CheckOwner, TimedView, read_time, time_bytes
from pipeline.time.window_tables import checked_at
from pipeline.time.windows import Session, Window
from pipeline.values.codecs import Codec

K = TypeVar("K")
V = TypeVar("V")
_SESSION, _AFTER_SESSIONS = b"s", b"t"
_END, _AFTER_ENDS = b"d", b"e"
_IN_CALL = b"v"  # keys that a call holds: never stored
_HEAD = 1 + TIME_BYTES
_LENGTH_BYTES = 4
_KNOWN_KEYS = 10_000

Bounds = tuple[int, int]  # the last record's time, then the first's: in the order of the stored keys


class _CallKeys:
    """Keys as a call has them: (the time at which it looks, key)."""

    def __init__(self, codec: Codec[Any]) -> None:
        self._codec = codec

    def encode(self, value: tuple[int, Any]) -> bytes:
        return _IN_CALL + _call_time(value[0]) + self._codec.encode(value[1])

    def decode(self, data: bytes) -> tuple[int, Any]:
        return _read_call_time(data), self._codec.decode(data[_HEAD:])


@dataclass(frozen=True, slots=True)
class _Met:
    """What a time meets, of a key: the sessions that are one with it, and their value together."""

    sessions: tuple[Bounds, ...]
    value: bytes | None


class SessionsView(TimedView[tuple[int, K], V]):
    """See the module. `spec` is that of the keys as the user has them; `announces`: a function is called when one closes."""

    def __init__(
        self,
        spec: TableSpec,
        store: StoreView,
        position: Position,
        order: int,
        check_owner: CheckOwner | None,
        *,
        windows: Session,
        grace_ms: int,
        retain_ms: int,
        announces: bool,
    ) -> None:
        check = None if check_owner is None else lambda pair, data: check_owner(pair[1], data[_HEAD:])
        inner = TableSpec(
            spec.name,
            _CallKeys(spec.key_codec),
            spec.value_codec,
            default=spec.default,
            upgrade=spec.upgrade,
            none_is_value=spec.none_is_value,
        )
        super().__init__(inner, store, position, order, check)
        self.keys_spec = spec
        self.gap_ms = windows.gap_ms
        self._merge = windows.merge
        self._closes_after_ms = windows.gap_ms + grace_ms
        self._expires_after_ms = windows.gap_ms + retain_ms
        self._announces = announces
        self._is_direct = False  # what a call holds is not what is stored
        self._by_key: dict[bytes, list[Bounds]] = {}  # of keys with sessions that are not in the store yet
        self._waiting: dict[bytes, list[bytes]] = {}  # the same, after an undo
        self._met: dict[bytes, _Met] = {}
        first = max(0, position.time_ms - self._closes_after_ms)
        self._closing = DueIndex(self.scan, self._is_open_entry, _END + time_bytes(first), _AFTER_ENDS)
        self._old = DueIndex(self.scan, self.is_stored, _END, _AFTER_ENDS)

    @property
    def argument(self) -> SessionTable[K, V]:
        return Sessions(self, None)

    def indexes(self) -> tuple[DueIndex, ...]:
        return self._closing, self._old

    def undone(self) -> None:
        super().undone()
        self._by_key.clear()
        self._waiting = self.waiting_by_head(_SESSION, TIME_BYTES)

    # open, closed, forgotten

    def is_open(self, end_ms: int) -> bool:
        return not self.position.has_passed(end_ms + self._closes_after_ms, self.order)

    def is_late(self, key: Any, timestamp_ms: int) -> bool:
        if self.is_open(timestamp_ms):
            return False
        try:
            data = self.keys_spec.encode_key(key)
        except CodecError:
            return True  # no key of this table
        return not any(self.is_open(end) for end, _ in self._near(data, timestamp_ms))

    def bounds(self, pair: tuple[int, K]) -> Window | None:
        """Of the open session that a time meets; with the time, once it is written in this call."""
        k = self._key(pair)
        met = self._meeting(k)
        written = k in self._set and self._present(k)
        times = [time for session in met.sessions for time in session] + ([pair[0]] if written else [])
        return Window(min(times), max(times)) if times else None

    def shown(self) -> Iterator[tuple[tuple[K, Window], V]]:
        decode = self.keys_spec.key_codec.decode
        for k, raw in self._merged(_SESSION, _AFTER_SESSIONS):
            end_ms = read_time(k, len(k) - TIME_BYTES)
            if raw is not None and not self._is_forgotten(end_ms):
                window = Window(read_time(raw, 0), end_ms)
                key = decode(k[1 + _LENGTH_BYTES : -TIME_BYTES])
                yield (key, window), self.spec.decode_value(raw[TIME_BYTES:])

    # what a time meets

    def _near(self, data: bytes, at_ms: int) -> list[Bounds]:
        """The sessions of a key that lie at most the gap away from a time."""
        found = self._sessions(data)
        first = bisect_left(found, (at_ms - self.gap_ms, -1))
        # Not until the first that begins later: a closed one may lie within the times of a longer one that is open.
        return [session for session in found[first:] if session[1] <= at_ms + self.gap_ms]

    def _sessions(self, data: bytes) -> list[Bounds]:
        """All sessions of a key."""
        found = self._by_key.get(data)
        if found is None:
            head = _head(data)
            entries = self.stored_under(head, self._waiting.get(head, ()))
            found = [(read_time(k, len(head)), read_time(raw, 0)) for k, raw in entries]
            self._by_key[data] = found
        return found

    def _meeting(self, k: bytes) -> _Met:
        met = self._met.get(k)
        if met is None:
            at_ms, data = _read_call_time(k), k[_HEAD:]
            near = self._near(data, at_ms)
            sessions = [one for one in near if self.is_open(one[0])]
            if not sessions and not self.is_open(at_ms):  # nothing can be written there: what is retained is shown
                sessions = [one for one in near if not self._is_forgotten(one[0])][-1:]
            met = self._met[k] = _Met(tuple(sessions), self._value_of(data, sessions))
        return met

    def _is_forgotten(self, end_ms: int) -> bool:
        return self.position.has_passed(end_ms + self._expires_after_ms, self.order)

    def _value_of(self, data: bytes, sessions: list[Bounds]) -> bytes | None:
        values = [raw[TIME_BYTES:] for end, _ in sessions if (raw := self._stored(_head(data) + time_bytes(end)))]
        if len(values) < 2:
            return values[0] if values else None
        decode = self.spec.decode_value
        merged = reduce(self._merge, [decode(value) for value in values])
        return self.spec.encode_value(merged)

    # one call: what it holds is compared with what its time met

    def _stored(self, k: bytes) -> bytes | None:
        return self._meeting(k).value if k.startswith(_IN_CALL) else super()._stored(k)

    def _current(self, k: bytes) -> bytes | None:
        return self._stored(k)

    def changes(self) -> dict[bytes, bytes | None]:
        writes = super().changes()
        for k, value in self._set.items():  # the same value, of a session that has grown
            met = self._meeting(k)
            if k not in writes and self._present(k):
                writes[k] = met.value if value is None else value
        result: dict[bytes, bytes | None] = {}
        written: dict[bytes, list[Bounds]] = {}
        for k, data in writes.items():
            self._write(k, data, result, written)
        return result

    def _write(
        self, k: bytes, value: bytes | None, result: dict[bytes, bytes | None], written: dict[bytes, list[Bounds]]
    ) -> None:
        """What the stored bytes become where a call writes the session that a time meets. Raises WindowClosed."""
        at_ms, key, met = _read_call_time(k), k[_HEAD:], self._meeting(k)
        last_ms = max([at_ms, *(end for end, _ in met.sessions)])
        first_ms = min([at_ms, *(start for _, start in met.sessions)])
        self.refuse_closed(last_ms if at_ms >= 0 else at_ms)
        for end, start in written.get(key, ()):
            if start - self.gap_ms <= last_ms and first_ms <= end + self.gap_ms:
                shown = self.keys_spec.key_codec.decode(key)
                raise PipelineError(
                    f"table {self.spec.name!r}: one call writes the session of {shown!r} at two times; write it at one"
                )
        written.setdefault(key, []).append((last_ms, first_ms))
        for end, _ in met.sessions:
            result[_head(key) + time_bytes(end)] = result[_END + time_bytes(end) + key] = None
        if value is not None:
            result[_head(key) + time_bytes(last_ms)] = time_bytes(first_ms) + value
            result[_END + time_bytes(last_ms) + key] = b""

    def refuse_closed(self, end_ms: int) -> None:
        """Raises WindowClosed."""
        if end_ms < 0 or not self.is_open(end_ms):
            raise WindowClosed(
                f"table {self.spec.name!r}: a session with its last record at {end_ms} ms has closed; it can be read "
                "while it is retained, and is not written any more"
            )

    def apply(self, changes: dict[bytes, bytes | None], timestamp_ms: int) -> None:
        super().apply(changes, timestamp_ms)
        for k, raw in changes.items():
            if k.startswith(_END):
                if raw is not None:
                    if self._announces:
                        self._closing.added(k)
                    self._old.added(k)
            else:
                self._note(k, raw)

    def _note(self, k: bytes, raw: bytes | None) -> None:
        """The stored sessions of a key have changed."""
        data, end = k[1 + _LENGTH_BYTES : -TIME_BYTES], read_time(k, len(k) - TIME_BYTES)
        sessions = self._sessions(data)
        kept = [one for one in sessions if one[0] != end]
        if raw is not None:
            insort(kept, (end, read_time(raw, 0)))
        self._by_key[data] = kept

    def forget(self) -> None:
        super().forget()
        self._met.clear()

    def mark_applied(self) -> None:
        super().mark_applied()
        if len(self._by_key) > _KNOWN_KEYS:
            self._waiting = self.waiting_by_head(_SESSION, TIME_BYTES)
            self._by_key = {data: found for data, found in self._by_key.items() if _head(data) in self._waiting}

    def keys_met(self, at_ms: int) -> list[tuple[bytes, K]]:
        """The keys of which a time meets a session, in the order of their bytes."""
        found = {k[1 + _LENGTH_BYTES : -TIME_BYTES] for k in self.scan(_SESSION, _AFTER_SESSIONS)}
        found.update(k[_HEAD:] for k in self._live if _read_call_time(k) == at_ms)
        head = _IN_CALL + _call_time(at_ms)
        decode = self.keys_spec.key_codec.decode
        return [(data, decode(data)) for data in sorted(found) if self._present(head + data)]

    # what closes and expires

    def shown_due(self, due: DueCall) -> str:
        return f"the session of {due.argument.key!r} from {due.argument.start_ms} to {due.argument.end_ms} ms of table {self.spec.name!r}"

    def next_place(self) -> Place | None:
        found = self._closing.first() if self._announces else None
        return None if found is None else self._closes(found)

    def next_due(self) -> DueCall:
        found = self._closing.first()
        assert found is not None
        end_ms, key = read_time(found), found[_HEAD:]
        raw = super()._stored(_head(key) + time_bytes(end_ms))
        assert raw is not None
        value = self.spec.decode_value(raw[TIME_BYTES:])
        closed = ClosedWindow(self.keys_spec.key_codec.decode(key), value, read_time(raw, 0), end_ms)
        return DueCall(self._closes(found), closed, end_ms, key, raw[TIME_BYTES:])

    def forget_expired(self) -> None:
        for index in self.forget_at_places(self._old, self._expires):
            entry = _head(index[_HEAD:]) + index[1:_HEAD]
            self._note(entry, None)
            self.layers.remember(index, None)
            self.layers.remember(entry, None)

    def _closes(self, index: bytes) -> Place:
        return read_time(index) + self._closes_after_ms, self.order, index[_HEAD:]

    def _expires(self, index: bytes) -> Place:
        return read_time(index) + self._expires_after_ms, self.order, index[_HEAD:]

    def _is_open_entry(self, index: bytes) -> bool:
        return self._closes(index) > self.position.reached and self.is_stored(index)


def _call_time(at_ms: int) -> bytes:
    """A time at which a call looks, which may lie before 0."""
    return at_ms.to_bytes(TIME_BYTES, "big", signed=True)


def _read_call_time(k: bytes) -> int:
    return int.from_bytes(k[1:_HEAD], "big", signed=True)


def _head(data: bytes) -> bytes:
    """What all sessions of a key begin with."""
    return _SESSION + len(data).to_bytes(_LENGTH_BYTES, "big") + data


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
            return self._view[self._pair(key)]
        except KeyError as error:
            raise KeyError(key) from error.__cause__

    def __setitem__(self, key: K, value: V) -> None:
        self._view[self._pair(key)] = value

    def __delitem__(self, key: K) -> None:
        try:
            del self._view[self._pair(key)]
        except KeyError:
            raise KeyError(key) from None

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
