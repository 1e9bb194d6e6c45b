"""The records of a join that are not over: one stored table for both sides, which the join alone sees.

One rule: a record matches while it is not over, is announced once where nothing matched, and is forgotten some time after the
task's position has passed its end. Stored: side + bucket of its end + key with its length + time + offset -> value and headers, so
that what is over lies together and what a key has in few places. Of a side whose records are announced alone also side's
index + end + key + offset -> nothing, for those that nothing has matched yet. A record that came while its side was not
announced, in an earlier version of the app, is not announced. Offsets below zero are of history and of what was moved here from
another partition: before all others of their time where records match, behind them where they are announced.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pipeline.records import Headers, RawRecord, Record
from pipeline.tables.table import IMMUTABLE, StoreView, TableSpec
from pipeline.time.due_index import DueIndex
from pipeline.time.expiring import Expiring
from pipeline.time.position import Place, Position
from pipeline.time.tables import DueCall
from pipeline.time.timed_view import TIME_BYTES, TimedView, read_time, time_bytes
from pipeline.values.codecs import BytesCodec, Codec

LEFT, RIGHT = 0, 1
_SIDES = (LEFT, RIGHT)
_RECORDS = (b"l", b"r")
_ENDS = (b"d", b"e")
_AFTER = {b"d": b"e", b"e": b"f", b"l": b"m", b"r": b"s"}
_LENGTH_BYTES = 4
_HEAD = 1 + TIME_BYTES + _LENGTH_BYTES  # of an entry, before the key
_LENGTH = struct.Struct(">I").pack
_OFFSET = struct.Struct(">q")
_PLACE = struct.Struct(">Qq")  # time and offset of a record, behind the key
_BARE, _WITH_HEADERS = b"\x00", b"\x01"
_KNOWN_KEYS = 30_000
_DECODED = 1_000  # records that mostly match come shortly after each other
_NONE: Final[Sequence[Any]] = ()
_CODEC: Codec[bytes] = BytesCodec()

Pair = tuple[Record[Any, Any] | None, Record[Any, Any] | None]
Entry = tuple[int, int, bytes]  # time and offset of a record, and where it lies


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
        self.layers.forgets_deleted = True
        self.sides = sides
        self.grace_ms = grace_ms
        self.partition = 0  # of the task: where its records are from
        self._reaches_ms = [side.reach_ms for side in sides]
        self.lives_ms = [side.reach_ms + grace_ms for side in sides]  # after its time a record of a side is over
        self._bucket_ms = max(self.lives_ms) // 2 + 1
        self._by_key: tuple[dict[bytes, list[Entry]], ...] = (
            {},
            {},
        )  # of keys with records that are not in the store yet
        self._waiting: dict[bytes, list[bytes]] = {}  # the same, after an undo
        self._decoded: dict[bytes, Record[Any, Any]] = {}  # of those that came last, by place
        self._most_keys = _KNOWN_KEYS
        self._asks_until_ms = -1  # a key that is not in `_by_key` may have records in the store that are not over
        self._expiring = Expiring(0), Expiring(0)
        if any(True for _ in store.range(None, _AFTER[_RECORDS[RIGHT]])):
            self._ask_again()
            self._lose_expiring()
        self._heads = [(-1, b""), (-1, b"")]  # of each side the bucket that was met last, and what its keys begin with
        self._kept_from = list(_RECORDS)  # what lies before is forgotten
        self._ends = tuple(DueIndex(self.scan, self._is_alone, head, _AFTER[head]) for head in _ENDS)

    def indexes(self) -> tuple[DueIndex, ...]:
        return self._ends

    def undone(self) -> None:
        super().undone()
        self._decoded.clear()
        for known in self._by_key:
            known.clear()
        self._waiting = self.waiting_by_head(b"lr", _PLACE.size)
        self._ask_again()
        self._lose_expiring()

    def _lose_expiring(self) -> None:
        """What the store has is not known; no record is later than the position."""
        for expiring, life_ms in zip(self._expiring, self.lives_ms, strict=True):
            expiring.lose((max(0, self.position.time_ms) + life_ms) // self._bucket_ms + 1)

    def _ask_again(self) -> None:
        """What was known of keys is not any more; no record is later than the position."""
        self._asks_until_ms = max(self._asks_until_ms, self.position.time_ms + max(self.lives_ms))

    # a record comes

    def is_over(self, side: int, timestamp_ms: int) -> bool:
        end_ms, reached = timestamp_ms + self.lives_ms[side], self.position.reached
        return end_ms < reached[0] or (end_ms == reached[0] and self.order + side <= reached[1])

    def matches(self, side: int, key: bytes, timestamp_ms: int) -> Sequence[Entry]:
        """The records of the other side that one of this side matches, by time, then arrival."""
        other = 1 - side
        found = self._by_key[other].get(key) or self._entries(other, key)
        if not found:
            return _NONE
        ahead_ms, back_ms = timestamp_ms + self._reaches_ms[side], timestamp_ms - self._reaches_ms[other]
        reached_ms, reached_order, _ = self.position.reached
        over_ms = reached_ms - self.lives_ms[other]  # what is of before, and perhaps of this time, is over
        if over_ms >= back_ms:
            back_ms = over_ms + 1 if self.order + other <= reached_order else over_ms
        if found[-1][0] < back_ms:
            return _NONE
        if back_ms <= found[0][0] and found[-1][0] <= ahead_ms:
            return list(found)
        return found[bisect_left(found, (back_ms,)) : bisect_left(found, (ahead_ms + 1,))]

    def keep(self, side: int, raw: RawRecord, record: Record[Any, Any]) -> None:
        """A record of a side is kept until it is over; as it is decoded for a while, where it cannot change in place."""
        key, known, at_ms, offset = raw.key or b"", self._by_key[side], raw.timestamp_ms, raw.offset
        now_ms, life_ms = self.position.reached[0], self.lives_ms[side]
        bucket = (at_ms + life_ms) // self._bucket_ms
        last, before = self._heads[side]
        if bucket != last:
            before = self._begin_bucket(side, bucket)
        place = b"".join((before, _LENGTH(len(key)), key, _PLACE.pack(at_ms, offset)))
        self._expiring[side].add(bucket, place)
        entry = at_ms, offset, place
        own = known.get(key)
        if own is None:
            known[key] = [*self._entries(side, key), entry]
            known[key].sort()
        elif not own or entry > own[-1]:
            if own and own[0][0] + life_ms < now_ms:
                del own[: bisect_left(own, (now_ms - life_ms,))]
            own.append(entry)
        else:
            insort(own, entry)
        value = raw.value or b""
        kept = _WITH_HEADERS + msgspec.msgpack.encode((value, raw.headers)) if raw.headers else _BARE + value
        self.layers.put_one_unknown(place, kept, now_ms)
        if type(record.value) in IMMUTABLE and type(record.key) in IMMUTABLE:
            if len(self._decoded) >= _DECODED:
                self._decoded.clear()
            self._decoded[place] = record
        if self.sides[side].announced_alone:
            index = self._index(side, key, entry)
            self.layers.put_one(index, b"", now_ms)
            self._ends[side].added(index)

    def mark_matched(self, side: int, key: bytes, entry: tuple[Any, ...]) -> None:
        """Notes that a record has matched: it is not announced alone."""
        if self.sides[side].announced_alone:
            index = self._index(side, key, entry)
            if self._stored(index) is not None:
                self.layers.put({index: None}, self.position.time_ms)

    def record(self, side: int, key: bytes, entry: Entry) -> Record[Any, Any]:
        """A record that is kept, decoded."""
        at_ms, offset, place = entry
        if (known := self._decoded.get(place)) is not None:
            return known
        (value, headers), of = self._kept_at(place), self.sides[side]
        decoded = of.value_codec.decode(value)
        return Record(of.key_codec.decode(key), decoded, at_ms, headers, of.topic, self.partition, offset)

    def _kept_at(self, place: bytes) -> tuple[bytes, Headers]:
        raw = self._stored(place)
        assert raw is not None
        return (raw[1:], ()) if raw[:1] == _BARE else msgspec.msgpack.decode(raw[1:], type=tuple[bytes, Headers])

    def _read(self, k: bytes) -> bytes | None:
        if k[:1] in _RECORDS:
            for layer in reversed(self.layers.written()):
                if k in layer:
                    return layer[k]
        return super()._read(k)

    def _entries(self, side: int, key: bytes) -> Sequence[Entry]:
        """What is kept of a key of a side, by time, then arrival."""
        found = self._by_key[side].get(key)
        if found is None:
            if self.position.reached[0] > self._asks_until_ms:
                return _NONE
            found = self._by_key[side][key] = sorted(self._asked(side, key))
        return found

    def _asked(self, side: int, key: bytes) -> Iterable[Entry]:
        first = max(0, self.position.time_ms) // self._bucket_ms
        for bucket in range(first, first + self.lives_ms[side] // self._bucket_ms + 2):
            head = self._head(side, bucket, key)
            for k, _ in self.stored_under(head, self._waiting.get(head, ())):
                at_ms, offset = _PLACE.unpack_from(k, len(head))
                yield at_ms, offset, k

    def _head(self, side: int, bucket: int, key: bytes) -> bytes:
        """What the records of a side, a bucket and a key begin with."""
        last, before = self._heads[side]
        return (before if bucket == last else self._begin_bucket(side, bucket)) + _LENGTH(len(key)) + key

    def _begin_bucket(self, side: int, bucket: int) -> bytes:
        before = _RECORDS[side] + time_bytes(bucket)
        self._heads[side] = bucket, before
        return before

    def _place_of(self, side: int, key: bytes, at_ms: int, offset: int) -> bytes:
        """Where a record lies."""
        bucket = (at_ms + self.lives_ms[side]) // self._bucket_ms
        return self._head(side, bucket, key) + _PLACE.pack(at_ms, offset)

    def mark_applied(self) -> None:
        self.layers.forget_deleted()
        super().mark_applied()
        if sum(map(len, self._by_key)) > self._most_keys:
            self._drop_known()

    def _drop_known(self) -> None:
        """First keys whose records are all over, of which there is nothing to know; if that is too little, all that lie in the
        store."""
        for side, known in enumerate(self._by_key):
            for key in [key for key, found in known.items() if not found or self.is_over(side, found[-1][0])]:
                del known[key]
        left = sum(map(len, self._by_key))
        if left > _KNOWN_KEYS:
            self._waiting = self.waiting_by_head(b"lr", _PLACE.size)
            for side, known in enumerate(self._by_key):
                keys = {head[_HEAD:] for head in self._waiting if head[:1] == _RECORDS[side]}
                for key in known.keys() - keys:
                    del known[key]
            self._ask_again()
        self._most_keys = max(_KNOWN_KEYS, 2 * left)

    # what ends

    def due_from_ms(self) -> int | None:
        found = [index for ends in self._ends if (index := ends.lowest()) is not None]
        return min(map(read_time, found)) if found else None

    def next_place(self) -> Place | None:
        first = self._first()
        return None if first is None else first[0]

    def _first(self) -> tuple[Place, bytes, int] | None:
        """Returns the record that is over first, of those that are announced alone: its place, index and side."""
        best: tuple[Place, bytes, int] | None = None
        for side in _SIDES:
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
        at_ms = read_time(index) - self.lives_ms[side]
        place_of = self._place_of(side, key, at_ms, offset)
        record = self.record(side, key, (at_ms, offset, place_of))
        pair: Pair = (record, None) if side == LEFT else (None, record)
        return DueCall(place, pair, record.timestamp_ms, key, self._kept_at(place_of)[0])

    def due_facts(self, due: DueCall) -> Mapping[str, object]:
        return pair_facts(due.argument)

    def begin(self, due: DueCall) -> None:
        """It is announced, and never again."""
        side = due.place[1] - self.order
        self.layers.put({_ENDS[side] + time_bytes(due.place[0]) + due.place[2]: None}, self.position.time_ms)

    def forget_expired(self) -> None:
        """Records are forgotten by the bucket, once the ends of all in it have passed."""
        bucket = max(0, self.position.settled[0]) // self._bucket_ms
        for side in _SIDES:
            stop = _RECORDS[side] + time_bytes(bucket)
            if stop <= self._kept_from[side]:
                continue
            most = self.most_forgotten()
            known = self._expiring[side].take(read_time(self._kept_from[side]), bucket, most)
            if known is None:
                for layer in self.layers.written():
                    self._known.update(layer)
                found = self.keys_between(self._kept_from[side], stop, most)
                leaves = len(found) == most
            else:
                found, leaves = known
            self.layers.put_unknown(dict.fromkeys(found), -1)
            for k in self._known.keys() & found:
                del self._known[k]
            self.leaves_expired |= leaves
            before, self._kept_from[side] = self._kept_from[side], found[-1] + b"\x00" if leaves else stop
            self.gone.append((before, self._kept_from[side]))

    def _index(self, side: int, key: bytes, entry: tuple[Any, ...]) -> bytes:
        return _ENDS[side] + time_bytes(entry[0] + self.lives_ms[side]) + _ordered(key) + _OFFSET.pack(entry[1])

    def _place(self, index: bytes) -> Place:
        return read_time(index), self.order + _ENDS.index(index[:1]), index[1 + TIME_BYTES :]

    def _is_alone(self, index: bytes) -> bool:
        return self._stored(index) is not None and self._place(index) > self.position.reached


def _ordered(key: bytes) -> bytes:
    """A key that something follows: in the order of the keys, also where one begins with another."""
    return key.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def _key_of(index: bytes) -> tuple[bytes, int]:
    """Key and offset out of an index."""
    key = index[1 + TIME_BYTES : -_OFFSET.size - 2].replace(b"\x00\xff", b"\x00")
    return key, _OFFSET.unpack(index[-_OFFSET.size :])[0]


def is_index(entry: bytes) -> bool:
    """Whether an entry of the store is that of a record to be announced alone, and not the record itself."""
    return entry[:1] in _ENDS


def side_of(entry: bytes) -> int:
    """The side that an entry of the store belongs to."""
    return (_ENDS if is_index(entry) else _RECORDS).index(entry[:1])


def key_of(entry: bytes) -> bytes:
    """The key of the record that an entry of the store belongs to."""
    if is_index(entry):
        return _key_of(entry)[0]
    return entry[_HEAD : _HEAD + int.from_bytes(entry[_HEAD - _LENGTH_BYTES : _HEAD], "big")]


def end_and_place(index: bytes) -> tuple[int, bytes]:
    """When the record of an index is over, and what orders it among those of that time."""
    return read_time(index), index[1 + TIME_BYTES :]


def lowered(entry: bytes, by: int) -> bytes:
    """The entry with an offset that is lower by so much: the last bytes of both forms."""
    offset = _OFFSET.unpack(entry[-_OFFSET.size :])[0]
    return entry[: -_OFFSET.size] + _OFFSET.pack(offset - by)
