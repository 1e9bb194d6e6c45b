"""The sessions of a task as they are stored: those of a key, which of them are open, what closes and what expires.

One rule: what is known of a key in memory is all that is stored of it, or nothing is known of it. Its bytes are in
`session_form`; what a call does with sessions is in `session_view`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import TypeVar

from pipeline.records import LAST_MS
from pipeline.tables.table import StoreView, TableSpec
from pipeline.time import session_form as form
from pipeline.time.due_index import DueIndex, MovingIndex
from pipeline.time.position import Place, Position
from pipeline.time.session_form import Bounds
from pipeline.time.tables import ClosedWindow, DueCall
from pipeline.time.timed_view import TIME_BYTES, CheckOwner, TimedView, read_time, time_bytes
from pipeline.time.windows import Session, Window

K = TypeVar("K")
V = TypeVar("V")
_KNOWN_KEYS = 30_000
_HEAD = 1 + TIME_BYTES


class StoredSessions(TimedView[tuple[int, K], V]):
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
        check = None if check_owner is None else lambda pair, data: check_owner(pair[1], data[form.CALL_HEAD :])
        inner = TableSpec(
            spec.name,
            form.CallKeys(spec.key_codec),
            spec.value_codec,
            default=spec.default,
            upgrade=spec.upgrade,
            none_is_value=spec.none_is_value,
        )
        super().__init__(inner, store, position, order, check)
        self.keys_spec = spec
        self.gap_ms = windows.gap_ms
        self._closes_after_ms = windows.gap_ms + grace_ms
        self._expires_after_ms = windows.gap_ms + retain_ms
        self._announces = announces
        self._outlasts = retain_ms > grace_ms
        self.layers.forgets_deleted = True
        self.layers.most_known = _KNOWN_KEYS
        self._by_key: dict[bytes, list[Bounds]] = {}  # of keys with sessions that are not in the store yet
        self._waiting: dict[bytes, list[bytes]] = {}  # the same, after an undo
        self._latest_end_ms = position.time_ms
        self._due = b""  # the index of the session that comes due
        is_empty = not any(True for _ in store.range(form.SESSION, form.AFTER_SESSIONS))
        self._asks_until_ms = (
            -1 if is_empty else LAST_MS
        )  # a key that is not in `_by_key` may have sessions in the store
        self._closing = MovingIndex(self.scan, self._closes_at, form.BEGUN, form.AFTER_BEGUN)
        self._old = DueIndex(self.scan, self.is_stored, form.BEGUN, form.AFTER_BEGUN)
        self._bucket_ms = self._expires_after_ms // 16 + 1
        self._ending: dict[int, list[bytes]] = {}  # sessions by the bucket in which they were seen to end
        self._next_ones: list[
            tuple[int, bytes]
        ] = []  # those of the bucket that expires now, by when they ended, the last first
        self._expired: list[bytes] = []  # to be forgotten
        self._old_closed = DueIndex(self.scan, self.is_stored, form.CLOSED, form.AFTER_CLOSED)

    def indexes(self) -> tuple[DueIndex, ...]:
        return self._closing, self._old, self._old_closed

    # of a key

    def is_open(self, end_ms: int) -> bool:
        at_ms, position = end_ms + self._closes_after_ms, self.position
        return position.reached[0] < at_ms or not position.has_passed(at_ms, self.order)

    def _is_forgotten(self, end_ms: int) -> bool:
        return self.position.has_passed(end_ms + self._expires_after_ms, self.order)

    def _sessions(self, data: bytes) -> list[Bounds]:
        """All sessions of a key, by their ends."""
        found = self._by_key.get(data)
        if found is None:
            if self.position.time_ms > self._asks_until_ms:
                return []
            head = form.head_of(data)
            entries = self.stored_under(head, self._waiting.get(head, ()))
            found = self._by_key[data] = sorted(form.bounds_of(k, raw) for k, raw in entries)
        return found

    def _note(self, entry: bytes, raw: bytes | None) -> None:
        """The stored sessions of a key have changed."""
        data = form.key_of(entry)
        kept = [one for one in self._sessions(data) if one[3] != entry]
        if raw is not None:
            bounds = form.bounds_of(entry, raw)
            insort(kept, bounds)
            self._latest_end_ms = max(self._latest_end_ms, bounds[0])
        if kept or self.position.time_ms <= self._asks_until_ms:
            self._by_key[data] = kept
        else:
            self._by_key.pop(data, None)

    def undone(self) -> None:
        super().undone()
        for waiting in (self._ending, self._next_ones, self._expired):
            waiting.clear()
        self._by_key.clear()
        self._waiting = self.waiting_by_head(form.SESSION, form.ID_BYTES)
        self._ask_again()

    def _ask_again(self) -> None:
        """What was known of keys is not any more; what is in the store now has expired some time after the last end."""
        self._asks_until_ms = max(self._asks_until_ms, min(LAST_MS, self._latest_end_ms + self._expires_after_ms + 1))

    def mark_applied(self) -> None:
        self.layers.forget_deleted()
        super().mark_applied()
        if len(self._by_key) > _KNOWN_KEYS:
            self._waiting = self.waiting_by_head(form.SESSION, form.ID_BYTES)
            self._by_key = {data: found for data, found in self._by_key.items() if form.head_of(data) in self._waiting}
            self._ask_again()

    def shown(self) -> Iterator[tuple[tuple[K, Window], V]]:
        decode = self.keys_spec.key_codec.decode
        for entry, raw in self._merged(form.SESSION, form.AFTER_SESSIONS):
            if raw is None:
                continue
            end_ms, (start_ms, _) = read_time(raw, 0), form.id_of(entry)
            if not self._is_forgotten(end_ms):
                key = decode(form.key_of(entry))
                yield (key, Window(start_ms, end_ms)), self.spec.decode_value(raw[TIME_BYTES:])

    # what closes and expires

    def shown_due(self, due: DueCall) -> str:
        return f"the session of {due.argument.key!r} from {due.argument.start_ms} to {due.argument.end_ms} ms of table {self.spec.name!r}"

    def due_from_ms(self) -> int | None:
        lowest = self._closing.lowest() if self._announces else None
        return None if lowest is None else read_time(lowest) + self._closes_after_ms

    def next_place(self) -> Place | None:
        found = self._closing.first() if self._announces else None
        return None if found is None else self._closes(found)

    def next_due(self) -> DueCall:
        found = self._closing.first()
        assert found is not None
        entry, key = form.entry_of_begun(found), form.begun_key(found)
        raw = super()._stored(entry)
        assert raw is not None
        end_ms, (start_ms, _) = read_time(raw, 0), form.id_of(entry)
        value = self.spec.decode_value(raw[TIME_BYTES:])
        closed = ClosedWindow(self.keys_spec.key_codec.decode(key), value, start_ms, end_ms)
        self._due = found
        return DueCall(self._closes(found), closed, end_ms, key, raw[TIME_BYTES:])

    def begin(self, due: DueCall) -> None:
        if self._outlasts:  # it is not looked at again among those that may be open
            closed = form.closed_of(due.key or b"", due.timestamp_ms)
            self.layers.put({self._due: None, closed: form.id_bytes(self._due)}, self.position.time_ms)
            self._old_closed.added(closed)

    def forget_expired(self) -> None:
        """Sessions wait by the bucket in which they were last seen to end, and are looked at when it begins to expire: those that
        have grown since wait for another one. A look costs the same however many wait."""
        before_ms = self.position.settled[0] - self._expires_after_ms
        if before_ms > 0:
            self._look(before_ms)
        most = self.most_forgotten()
        chosen = self._expired if most is None else self._expired[:most]
        for entry in chosen:
            raw = super()._stored(entry)
            if raw is not None and read_time(raw, 0) < before_ms:
                self._forget_one(entry, raw)
        del self._expired[: len(chosen)]
        self.leaves_expired = bool(self._expired)

    def _look(self, before_ms: int) -> None:
        """Finds what ended before a time."""
        before = time_bytes(before_ms)
        found: list[bytes] = []
        while (index := self._old.lowest()) is not None and index[1:_HEAD] < before:
            self._old.drop()
            found.append(form.entry_of_begun(index))
        while (closed := self._old_closed.lowest()) is not None and closed[1:_HEAD] < before:
            self._old_closed.drop()
            if (of_entry := super()._stored(closed)) is not None:
                self._expired.append(form.entry_of_closed(closed, of_entry))
        last, ending, next_ones = before_ms // self._bucket_ms, self._ending, self._next_ones
        for bucket in sorted(one for one in ending if one <= last):
            found += ending.pop(bucket)
        while next_ones and next_ones[-1][0] < before_ms:
            found.append(next_ones.pop()[1])
        stored, known, waits = super()._stored, self._known, len(next_ones)
        for entry in found:
            raw = known.get(entry) or stored(entry)
            if raw is None:
                continue
            end_ms = read_time(raw, 0)
            if end_ms < before_ms:
                self._expired.append(entry)
            elif (bucket := end_ms // self._bucket_ms) <= last:
                next_ones.append((end_ms, entry))
            else:
                ending.setdefault(bucket, []).append(entry)
        if len(next_ones) > waits:
            next_ones.sort(reverse=True)

    def _forget_one(self, entry: bytes, raw: bytes) -> None:
        begun, closed = form.begun_of_entry(entry), form.closed_of(form.key_of(entry), read_time(raw, 0))
        self._note(entry, None)
        self.layers.remember(entry, None)
        self.layers.remember(closed if self._outlasts and super()._stored(begun) is None else begun, None)

    def _closes(self, index: bytes) -> Place:
        raw = super()._stored(form.entry_of_begun(index))
        assert raw is not None
        return read_time(raw, 0) + self._closes_after_ms, self.order, form.begun_key(index)

    def _ends_at(self, index: bytes) -> bytes | None:
        """Where it would stand in the index by its end, behind all that begin then; None where there is none."""
        raw = super()._stored(form.entry_of_begun(index))
        if raw is None or (self._outlasts and not self.is_stored(index)):
            return None
        return form.BEGUN + raw[:TIME_BYTES] + form.BEHIND + form.begun_key(index)

    def _closes_at(self, index: bytes) -> bytes | None:
        """The same of one that is open."""
        at = self._ends_at(index)
        if (
            at is None
            or (read_time(at) + self._closes_after_ms, self.order, form.begun_key(index)) <= self.position.reached
        ):
            return None
        return at
