"""The sessions of a task: one stored table, of which a call sees, key by key, the session that its time meets.

One rule: what has closed is never merged again; what is open and at most `gap` away from the time is one session with
it, as soon as it is written. A call that does with its record's key what most do, to let the one session that this has grow at
its end, holds that session alone until it ends or does anything else. How they are stored: `session_store`; what a function
sees of them: `session_tables`.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Final, TypeVar, cast

from pipeline.errors import CodecError, PipelineError, WindowClosed
from pipeline.tables.call_number import is_of
from pipeline.tables.table import IMMUTABLE
from pipeline.time import session_form as form
from pipeline.time.session_form import Bounds
from pipeline.time.session_store import StoredSessions
from pipeline.time.timed_view import TIME_BYTES, ByUserKey, time_bytes
from pipeline.time.windows import Session, Window

K = TypeVar("K")
V = TypeVar("V")
_MISSING: Final[Any] = object()

Met = tuple[list[Bounds], bytes | None]  # of a key and time: the sessions that are one with it, their value together


class SessionsView(StoredSessions[K, V], ByUserKey):
    """See the module."""

    def __init__(self, *args: Any, windows: Session, **rest: Any) -> None:
        super().__init__(*args, windows=windows, **rest)
        self._merge = windows.merge
        self._is_direct = False  # what a call holds is not what is stored
        self.user_key, self.user_bytes = _MISSING, b""
        self._here: tuple[Any, int | None, bytes, bytes] = _MISSING, None, b"", b""  # see `key_of_call`
        self._met: dict[bytes, Met] = {}
        self._gathers = False
        self._only: Bounds | None = None  # the one session of the record's key, which this call lets grow
        self._grown: bytes | None = None  # its value, where the call has set it
        self._value: Any = None  # the same as it was set

    # a session that grows

    def gather(self, does: bool) -> None:
        """From now on calls follow each other, each with the key and time of its record. Or this has ended."""
        self._gathers = does
        self._only = self._grown = None

    def _find_only(self) -> Bounds | None:
        """The session that the time of the call meets, where it is the only one of the record's key, open, and not after it."""
        sessions, at_ms = self._by_key.get(self.user_bytes), self.at_ms
        if sessions is None or len(sessions) != 1 or at_ms is None or self._live:
            return None
        end_ms, start_ms, _, entry = one = sessions[0]
        if not (
            start_ms <= at_ms <= end_ms + self.gap_ms and self.position.reached[0] < end_ms + self._closes_after_ms
        ):
            return None
        if self._check_owner is not None and self.user_bytes not in self.record_keys:
            return None
        if self._known.get(entry) is None:
            return None
        self._only = one
        return one

    def _spill(self) -> None:
        """The call does more: what it has set is in its hands, as anything else that it sets."""
        grown, self._only, self._grown = self._grown, None, None
        if grown is not None:
            k = self.key_of_call(self.user_key)
            self._live[k] = self._value
            self._set[k] = grown

    def keep_alone(self, timestamp_ms: int) -> None:
        if self._grown is None or not self._keep_grown(timestamp_ms):
            self._only = None
            super().keep_alone(timestamp_ms)
            self._met.clear()

    def _keep_grown(self, timestamp_ms: int) -> bool:
        """Whether the call has done nothing else: then it counts."""
        grown, one, at_ms = self._grown, self._only, self.at_ms
        if grown is None or one is None or at_ms is None or self.fault is not None:
            return False
        end_ms, start_ms, number, entry = one
        if at_ms > end_ms:
            end_ms = at_ms
            self._by_key[self.user_bytes][0] = at_ms, start_ms, number, entry
            if at_ms > self._latest_end_ms:
                self._latest_end_ms = at_ms
        self.layers.put_one(entry, end_ms.to_bytes(TIME_BYTES, "big") + grown, timestamp_ms)
        self._only = self._grown = None
        if self._met:
            self._met.clear()
        return True

    @property
    def is_touched(self) -> bool:
        """Also by a call that has only looked: what its time met then may have closed when another has the same time."""
        return self._only is not None or bool(self._live or self._met)

    def is_late(self, key: Any, timestamp_ms: int) -> bool:
        if self.position.reached[0] < timestamp_ms + self._closes_after_ms or self.is_open(timestamp_ms):
            return False
        try:
            data = self.keys_spec.encode_key(key)
        except CodecError:
            return True  # no key of this table
        return not any(self.is_open(end) for end, *_ in self._near(data, timestamp_ms))

    def bounds(self, pair: tuple[int, K]) -> Window | None:
        """Of the open session that a time meets; with the time, once it is written in this call, and none once it is deleted."""
        k = self._key(pair)
        sessions, value = self._meeting(k)
        written = k in self._set or (k in self._live and self._has_changed(k, value))
        if written and not self._present(k):
            return None
        times = [time for session in sessions for time in session[:2]] + ([pair[0]] if written else [])
        return Window(min(times), max(times)) if times else None

    def _has_changed(self, k: bytes, value: bytes | None) -> bool:
        """Whether a value that the call was given has changed in place."""
        return self.spec.encode_value(self._live[k]) != (self._defaults[k][1] if k in self._defaults else value)

    # keys

    def _key(self, pair: tuple[int, K]) -> bytes:
        if self.closed and not is_of(self.call):
            return super()._key(pair)  # which raises
        if self._only is not None:
            self._spill()
        return form.call_head(pair[0]) + self.bytes_of(pair[1])

    def key_of_call(self, key: Any) -> bytes:
        """The key of a call at its own time. Raises CodecError."""
        at_ms, (last_key, last_ms, _, k) = self.at_ms, self._here
        if key is last_key and at_ms is last_ms:
            return k
        k = form.call_head(self.time_of_call()) + self.bytes_of(key)
        if key is self.user_key:
            self._here = key, at_ms, self.user_bytes, k
        return k

    def _parts(self, k: bytes) -> tuple[int, bytes]:
        """Time and key of a key of a call."""
        _, at_ms, data, last = self._here
        return (at_ms, data) if k is last and at_ms is not None else (form.call_time(k), k[form.CALL_HEAD :])

    def _own(self, pair: tuple[int, K], k: bytes) -> None:
        """A key belongs to the task at all times or at none."""
        data = k[form.CALL_HEAD :]
        if self._check_owner is not None and data not in self.record_keys and data not in self._owned:
            self._check_owner(pair, k)
            self._owned[data] = None

    # what a time meets

    def _near(self, data: bytes, at_ms: int) -> list[Bounds]:
        """The sessions of a key that lie at most the gap away from a time, in order."""
        first, last = at_ms - self.gap_ms, at_ms + self.gap_ms
        sessions = self._sessions(data)
        if len(sessions) == 1:
            return sessions if sessions[0][0] >= first and sessions[0][1] <= last else []
        # Not until the first that begins later: a closed one may lie within the times of a longer one that is open.
        return [session for session in sessions if session[0] >= first and session[1] <= last]

    def _meeting(self, k: bytes) -> Met:
        met = self._met.get(k)
        if met is None:
            at_ms, data = self._parts(k)
            near = self._near(data, at_ms)
            if len(near) == 1 and self.position.reached[0] < near[0][0] + self._closes_after_ms:
                raw = self._known.get(near[0][3])
                if raw is not None:  # what most records meet: one session, which is open
                    met = self._met[k] = [near[0]], raw[TIME_BYTES:]
                    return met
            sessions = [one for one in near if self.is_open(one[0])] if near else near
            if not sessions and not self.is_open(at_ms):  # nothing can be written there: what is retained is shown
                sessions = [one for one in near if not self._is_forgotten(one[0])][-1:]
            met = self._met[k] = sessions, self._value_of(sessions) if sessions else None
        return met

    def _value_of(self, sessions: list[Bounds]) -> bytes | None:
        if len(sessions) == 1:
            raw = self._known.get(sessions[0][3])
            if raw is None:
                raw = super()._stored(sessions[0][3])
            return None if raw is None else raw[TIME_BYTES:]
        raws = [super(SessionsView, self)._stored(entry) for *_, entry in sessions]
        values = [raw[TIME_BYTES:] for raw in raws if raw is not None]
        decode = self.spec.decode_value
        merged = reduce(self._merge, [decode(value) for value in values])
        return self.spec.encode_value(merged)

    # one call: what it holds is compared with what its time met

    def get_here(self, key: K) -> V:
        """The value that a call finds at its own time. Raises KeyError."""
        if key is self.user_key and self._gathers and not (self.closed and not is_of(self.call)):
            one = self._only or self._find_only()
            if one is not None:
                if self._grown is not None:
                    return cast(V, self._value)
                data = cast(bytes, self._known[one[3]])[TIME_BYTES:]
                try:
                    found = self._decode(data)
                except CodecError:
                    found = self.spec.decode_value(data)  # again, with the name of the table
                if type(found) in IMMUTABLE:
                    return cast(V, found)
                self._gathers = False  # values that can change in place are held otherwise
        if self._only is not None:
            self._spill()
        k = self.key_of_call(key)
        if not (self.closed and not is_of(self.call)) and k not in self._live:
            value = self._meeting(k)[1]
            if value is not None:
                return self._hand_out(k, value)
        return self[self.time_of_call(), key]

    def set_here(self, key: K, value: V) -> None:
        """A call sets the value at its own time."""
        is_plain = (
            key is self.user_key
            and self._gathers
            and not (self.closed and not is_of(self.call))
            and type(value) in IMMUTABLE
        )
        if is_plain and (self._only or self._find_only()) is not None:
            self._grown, self._value = self._encoded(value), value
            return
        if self._only is not None:
            self._spill()
        if (self.closed and not is_of(self.call)) or self._iterating or self._defaults:
            self[self.time_of_call(), key] = value
            return
        k = self.key_of_call(key)
        if self.position.reached[0] >= (self.at_ms or 0) + self._closes_after_ms:
            self._refuse_where_closed(self.time_of_call(), k)
        encoded = self._encoded(value) if type(value) in IMMUTABLE else None
        if self._check_owner is not None and not (k is self._here[3] and self._here[2] in self.record_keys):
            self._own((0, key), k)
        self._live[k] = value
        self._set[k] = encoded

    def __setitem__(self, pair: tuple[int, K], value: V) -> None:
        if not (self.closed and not is_of(self.call)):
            self._refuse_where_closed(pair[0], self._key(pair))
        super().__setitem__(pair, value)

    def __delitem__(self, pair: tuple[int, K]) -> None:
        if pair in self:
            self._refuse_where_closed(pair[0], self._key(pair))
        super().__delitem__(pair)

    def _refuse_where_closed(self, at_ms: int, k: bytes) -> None:
        """Raises WindowClosed."""
        if at_ms < 0 or self.position.reached[0] >= at_ms + self._closes_after_ms:
            self.refuse_closed(max([at_ms, *(one[0] for one in self._meeting(k)[0])]) if at_ms >= 0 else at_ms)

    def _stored(self, k: bytes) -> bytes | None:
        return self._meeting(k)[1] if k[:1] == form.IN_CALL else super()._stored(k)

    def _current(self, k: bytes) -> bytes | None:
        return self._stored(k)

    def keep_one(self, timestamp_ms: int) -> bool:
        """The same for a call that has written one session, which has grown at its end, as most do."""
        if self._grown is not None and self._keep_grown(timestamp_ms):
            return True
        self._only = None
        if len(self._set) != 1 or len(self._live) != 1 or self._defaults:
            return False
        ((k, value),) = self._set.items()
        sessions, _ = self._meeting(k)
        at_ms, data = self._parts(k)
        all_sessions = self._by_key.get(data)
        if value is None or len(sessions) != 1 or all_sessions is None or len(all_sessions) != 1:
            return False
        end_ms, start_ms, number, entry = sessions[0]
        if at_ms < start_ms:
            return False
        if self.position.reached[0] >= end_ms + self._closes_after_ms and not self.is_open(end_ms):
            return False
        if at_ms > end_ms:
            all_sessions[0] = at_ms, start_ms, number, entry
            self._latest_end_ms = max(self._latest_end_ms, at_ms)
        self.layers.put_one(entry, time_bytes(max(at_ms, end_ms)) + value, timestamp_ms)
        self._live.clear()
        self._set.clear()
        self._met.clear()
        return True

    def changes(self) -> dict[bytes, bytes | None]:
        if self._grown is not None:
            self._spill()
        writes = super().changes()
        for k, value in self._set.items():  # the same value, of a session that has grown
            if k not in writes and self._present(k):
                writes[k] = self._meeting(k)[1] if value is None else value
        result: dict[bytes, bytes | None] = {}
        written: dict[bytes, list[tuple[int, int]]] = {}
        for k, data in writes.items():
            self._write(k, data, result, written)
        return {k: raw for k, raw in result.items() if self._differs(k, raw)}

    def _write(
        self,
        k: bytes,
        value: bytes | None,
        result: dict[bytes, bytes | None],
        written: dict[bytes, list[tuple[int, int]]],
    ) -> None:
        """What the stored bytes become where a call writes the session that a time meets. Raises WindowClosed."""
        at_ms, key, (sessions, _) = form.call_time(k), k[form.CALL_HEAD :], self._meeting(k)
        last_ms = max([at_ms, *(one[0] for one in sessions)])
        first_ms = min([at_ms, *(one[1] for one in sessions)])
        self.refuse_closed(last_ms if at_ms >= 0 else at_ms)
        for end, start in written.get(key, ()):
            if start - self.gap_ms <= last_ms and first_ms <= end + self.gap_ms:
                shown = self.keys_spec.key_codec.decode(key)
                raise PipelineError(
                    f"table {self.spec.name!r}: one call writes the session of {shown!r} at two times; write it at one"
                )
        written.setdefault(key, []).append((last_ms, first_ms))
        for _, start, number, entry in sessions:
            result[entry] = result[form.begun_of(key, start, number)] = None
        if value is not None:
            others = {one[2] for one in self._sessions(key) if one[1] == first_ms}
            others -= {one[2] for one in sessions if one[1] == first_ms}
            free = min(set(range(len(others) + 1)) - others)
            result[form.entry_of(key, first_ms, free)] = time_bytes(last_ms) + value
            result[form.begun_of(key, first_ms, free)] = b""

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
            if k[:1] == form.SESSION:
                self._note(k, raw)
            elif raw is not None:
                if self._announces:
                    self._closing.added(k)
                self._old.added(k)

    def _differs(self, k: bytes, raw: bytes | None) -> bool:
        """Whether it is to be written: the index of a session that has grown is there."""
        return raw is None or k[:1] != form.BEGUN or super()._stored(k) is None

    def forget(self) -> None:
        super().forget()
        self._only = self._grown = None
        self._met.clear()

    def keys_met(self, at_ms: int) -> list[tuple[bytes, K]]:
        """The keys of which a time meets a session, in the order of their bytes."""
        found = {form.key_of(k) for k in self.scan(form.SESSION, form.AFTER_SESSIONS)}
        found.update(k[form.CALL_HEAD :] for k in self._live if form.call_time(k) == at_ms)
        head = form.call_head(at_ms)
        decode = self.keys_spec.key_codec.decode
        return [(data, decode(data)) for data in sorted(found) if self._present(head + data)]
