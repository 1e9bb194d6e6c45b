"""The records of a join that are not over: one stored table for both sides, which the join alone sees.

One rule: a record matches while it is not over, is announced once where nothing matched, and is forgotten when the task's
position has passed its end. Stored: side + key with its length + time + offset -> value and headers, and for the order
in which they end side's index + end + key + offset -> whether it has matched.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pipeline.records import Headers, RawRecord, Record
from pipeline.tables.table import StoreView, TableSpec
from pipeline.time.due_index import DueIndex
from pipeline.time.position import Place, Position
from pipeline.time.tables import DueCall
from pipeline.time.timed_view import TIME_BYTES, TimedView, read_time, time_bytes
from pipeline.values.codecs import BytesCodec, Codec

LEFT, RIGHT = 0, 1
_RECORDS = (b"l", b"r")
_ENDS = (b"d", b"e")
_AFTER = {b"d": b"e", b"e": b"f"}
_LENGTH_BYTES = 4
_TAIL = 2 * TIME_BYTES
_ALONE, _MATCHED = b"\x00", b"\x01"
_KNOWN_KEYS = 10_000
_CODEC: Codec[bytes] = BytesCodec()

Pair = tuple[Record[Any, Any] | None, Record[Any, Any] | None]
Entry = tuple[int, int]  # time and offset of a record


class _Kept(msgspec.Struct, array_like=True):
    """What is stored of a record beside its place."""

    value: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a join: its topic, how long after its time a record matches, and whether one is announced alone."""

    topic: str
    key_codec: Codec[Any]
    value_codec: Codec[Any]
    reach_ms: int
    announced_alone: bool


def pair_facts(pair: Pair) -> dict[str, object]:
    """The places and times of a pair's records, for a dead letter."""
    found: dict[str, object] = {}
    for side, record in zip(("left", "right"), pair, strict=True):
        if record is not None:
            found[side] = f"{record.topic}-{record.partition}@{record.offset}"
            found[f"{side}-ms"] = record.timestamp_ms
    return found


class JoinView(TimedView[bytes, bytes]):
    """See the module. A record of the right side matches one of the left from `left - before` to `left + after`, so a left
    one reaches `after` ahead and a right one `before`."""

    def __init__(
        self,
        name: str,
        store: StoreView,
        position: Position,
        order: int,
        *,
        sides: tuple[Side, Side],
        grace_ms: int,
    ) -> None:
        super().__init__(TableSpec(name, _CODEC, _CODEC), store, position, order, None)
        self.sides = sides
        self.grace_ms = grace_ms
        self.partition = 0  # of the task: where its records are from
        self._known_entries: dict[bytes, list[Entry]] = {}  # of keys with entries that are not in the store yet
        self._waiting: dict[bytes, list[bytes]] = {}  # the same, after an undo
        self._ends = tuple(DueIndex(self.scan, self._is_alone, head, _AFTER[head]) for head in _ENDS)
        self._old = tuple(DueIndex(self.scan, self.is_stored, head, _AFTER[head]) for head in _ENDS)

    def indexes(self) -> tuple[DueIndex, ...]:
        return *self._ends, *self._old

    def undone(self) -> None:
        super().undone()
        self._known_entries.clear()
        self._waiting = self.waiting_by_head(b"lr", _TAIL)

    # a record comes

    def is_over(self, side: int, timestamp_ms: int) -> bool:
        return self.position.has_passed(self._end(side, timestamp_ms), self.order + side)

    def matches(self, side: int, key: bytes, timestamp_ms: int) -> list[Entry]:
        """The records of the other side that one of this side matches, by time, then arrival."""
        other = 1 - side
        ahead, back = self.sides[side].reach_ms, self.sides[other].reach_ms
        found = self._entries(_head(other, key))
        near: list[Entry] = []
        for entry in found[bisect_left(found, (timestamp_ms - back, -1)) :]:
            if entry[0] > timestamp_ms + ahead:
                break
            if not self.is_over(other, entry[0]):
                near.append(entry)
        return near

    def keep(self, side: int, raw: RawRecord) -> None:
        """A record of a side is kept until it is over."""
        key = raw.key or b""
        known = self._entries(_head(side, key))
        entry = _head(side, key) + time_bytes(raw.timestamp_ms) + time_bytes(raw.offset)
        index = self._index(side, key, raw.timestamp_ms, raw.offset)
        kept = msgspec.msgpack.encode(_Kept(raw.value or b"", raw.headers))
        self.layers.put({entry: kept, index: _ALONE}, self.position.time_ms)
        insort(known, (raw.timestamp_ms, raw.offset))
        self._old[side].added(index)
        if self.sides[side].announced_alone:
            self._ends[side].added(index)

    def mark_matched(self, side: int, key: bytes, entry: Entry) -> None:
        """Notes that a record has matched: it is not announced alone."""
        index = self._index(side, key, *entry)
        if self._stored(index) == _ALONE:
            self.layers.put({index: _MATCHED}, self.position.time_ms)

    def record(self, side: int, key: bytes, entry: Entry) -> Record[Any, Any]:
        """A record that is kept, decoded."""
        kept, of = self._kept_of(side, key, entry), self.sides[side]
        return Record(
            of.key_codec.decode(key),
            of.value_codec.decode(kept.value),
            entry[0],
            kept.headers,
            of.topic,
            self.partition,
            entry[1],
        )

    def _kept_of(self, side: int, key: bytes, entry: Entry) -> _Kept:
        raw = self._stored(_head(side, key) + time_bytes(entry[0]) + time_bytes(entry[1]))
        assert raw is not None
        return msgspec.msgpack.decode(raw, type=_Kept)

    def _entries(self, head: bytes) -> list[Entry]:
        found = self._known_entries.get(head)
        if found is None:
            at = len(head)
            pairs = self.stored_under(head, self._waiting.get(head, ()))
            found = [(read_time(k, at), read_time(k, at + TIME_BYTES)) for k, _ in pairs]
            self._known_entries[head] = found
        return found

    def mark_applied(self) -> None:
        super().mark_applied()
        if len(self._known_entries) > _KNOWN_KEYS:
            self._waiting = self.waiting_by_head(b"lr", _TAIL)
            self._known_entries = {head: found for head, found in self._known_entries.items() if head in self._waiting}

    # what ends

    def next_place(self) -> Place | None:
        first = self._first()
        return None if first is None else first[0]

    def _first(self) -> tuple[Place, bytes, int] | None:
        """Returns the record that is over first, of those that are announced alone: its place, index and side."""
        best: tuple[Place, bytes, int] | None = None
        for side in (LEFT, RIGHT):
            index = self._ends[side].first() if self.sides[side].announced_alone else None
            if index is not None:
                place = self._place(index)
                if best is None or place < best[0]:
                    best = (place, index, side)
        return best

    def next_due(self) -> DueCall:
        first = self._first()
        assert first is not None
        place, index, side = first
        key, offset = _key_of(index)
        entry = (place[0] - self.sides[side].reach_ms - self.grace_ms, offset)
        record = self.record(side, key, entry)
        pair: Pair = (record, None) if side == LEFT else (None, record)
        return DueCall(place, pair, record.timestamp_ms, key, self._kept_of(side, key, entry).value)

    def due_facts(self, due: DueCall) -> Mapping[str, object]:
        return pair_facts(due.argument)

    def begin(self, due: DueCall) -> None:
        """Notes that it is announced: never again, whatever else lies at its place."""
        side = due.place[1] - self.order
        self.layers.put({_ENDS[side] + time_bytes(due.place[0]) + due.place[2]: _MATCHED}, self.position.time_ms)

    def forget_expired(self) -> None:
        for side in (LEFT, RIGHT):
            for index in self.forget_at_places(self._old[side], self._place):
                key, offset = _key_of(index)
                head = _head(side, key)
                entry = (read_time(index) - self.sides[side].reach_ms - self.grace_ms, offset)
                known = self._known_entries.get(head)
                if known is not None:
                    known.remove(entry)
                    if not known:
                        del self._known_entries[head]
                self.layers.remember(index, None)
                self.layers.remember(head + time_bytes(entry[0]) + time_bytes(offset), None)

    def _end(self, side: int, timestamp_ms: int) -> int:
        return timestamp_ms + self.sides[side].reach_ms + self.grace_ms

    def _index(self, side: int, key: bytes, timestamp_ms: int, offset: int) -> bytes:
        return _ENDS[side] + time_bytes(self._end(side, timestamp_ms)) + _ordered(key) + time_bytes(offset)

    def _place(self, index: bytes) -> Place:
        return read_time(index), self.order + _ENDS.index(index[:1]), index[1 + TIME_BYTES :]

    def _is_alone(self, index: bytes) -> bool:
        return self._stored(index) == _ALONE and self._place(index) > self.position.reached


def _head(side: int, key: bytes) -> bytes:
    """What all records of a side and key begin with."""
    return _RECORDS[side] + len(key).to_bytes(_LENGTH_BYTES, "big") + key


def _ordered(key: bytes) -> bytes:
    """A key that something follows: in the order of the keys, also where one begins with another."""
    return key.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def _key_of(index: bytes) -> tuple[bytes, int]:
    """Key and offset out of an index."""
    key = index[1 + TIME_BYTES : -TIME_BYTES - 2].replace(b"\x00\xff", b"\x00")
    return key, read_time(index, len(index) - TIME_BYTES)
