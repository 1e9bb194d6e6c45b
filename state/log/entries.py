"""What a commit writes to a changelog, as the writes of a table: a sequence of records that are made only for who asks.

One rule: `batches.build` makes the same bytes of it as of its records. All of them have one time and no headers, so what
stands before and between a key and its value follows from their lengths and the place in the batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import getitem
from typing import Any, overload

from aiokafka.record.util import calc_crc32c

from state.log.protocol import NewRecord

_HEAD = struct.Struct(">qiibIhiqqqhii")  # base, length, leader epoch, magic, checksum, attributes, ..., count
_COVERED = struct.Struct(">hiqqqhii")
_BEFORE_LENGTH_ENDS = 12
_NONE = b"\x01"  # the length -1
_NO_HEADERS = b"\x00"
_DELETED = -1  # the length of no value
_MOST_KINDS = 8  # lengths of keys and values in a batch whose heads are looked up
_EACH = 4  # entries for each of them, or making the heads would cost more than it saves
_MOST_HEADS = 64
_HEADS: dict[tuple[int, int], tuple[bytes, ...]] = {}  # by the lengths of key and value


class Entries(Sequence[NewRecord]):
    """`writes`: the value of each key, None to delete it."""

    __slots__ = ("_keys", "timestamp_ms", "writes")

    def __init__(self, writes: Mapping[bytes, bytes | None], timestamp_ms: int) -> None:
        self.writes = writes
        self.timestamp_ms = timestamp_ms
        self._keys: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.writes)

    def __iter__(self) -> Iterator[NewRecord]:
        at_ms = self.timestamp_ms
        return (NewRecord(key, value, at_ms) for key, value in self.writes.items())

    @overload
    def __getitem__(self, index: int) -> NewRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[NewRecord]: ...
    def __getitem__(self, index: int | slice) -> NewRecord | list[NewRecord]:
        if self._keys is None:
            self._keys = list(self.writes)
        if isinstance(index, slice):
            return [NewRecord(key, self.writes[key], self.timestamp_ms) for key in self._keys[index]]
        key = self._keys[index]
        return NewRecord(key, self.writes[key], self.timestamp_ms)


def batches_of(entries: Entries, max_bytes: int, most: int) -> Iterator[tuple[bytes, int]] | None:
    """Batches of at most so many records, uncompressed, and how many each has; None where one would be larger than
    `max_bytes`, or has a time that the head of a batch has no form for."""
    keys, values = list(entries.writes), list(entries.writes.values())
    if entries.timestamp_ms < 0:
        return None
    bodies = [(_body(keys[at : at + most], values[at : at + most]), at) for at in range(0, len(keys), most)]
    if any(_HEAD.size + len(body) > max_bytes for body, _ in bodies):
        return None
    return (
        (_batch(body, min(most, len(keys) - at), entries.timestamp_ms), min(most, len(keys) - at))
        for body, at in bodies
    )


def _body(keys: Sequence[bytes], values: Sequence[bytes | None]) -> bytes:
    """The records of a batch. A commit has many entries and few lengths of them, so what stands before a key is looked up."""
    count, sizes = len(keys), set(map(len, keys))
    lengths: list[int] = (
        [_DELETED if value is None else len(value) for value in values] if None in values else list(map(len, values))  # type: ignore[arg-type]
    )
    found = set(lengths)
    kinds_most = len(sizes) * len(found)
    if kinds_most > _MOST_KINDS or (kinds_most > 1 and count < _EACH * kinds_most):
        return _body_of_many_kinds(keys, values)
    heads = {(size, length): _heads(size, length, count) for size in sizes for length in found}
    pieces: list[Any] = [_NONE if lengths[0] == _DELETED else _varint(lengths[0])] * (4 * count)
    if len(heads) == 1:
        pieces[0::4] = heads[len(keys[0]), lengths[0]][:count]
    else:
        kinds = zip(map(len, keys) if len(sizes) > 1 else repeat(len(keys[0])), lengths, strict=False)
        pieces[0::4] = map(getitem, map(heads.__getitem__, kinds), range(count))
    if len(found) > 1:
        ends = {length: _NONE if length == _DELETED else _varint(length) for length in found}
        pieces[2::4] = map(ends.__getitem__, lengths)
    pieces[1::4] = keys
    pieces[3::4] = [value or b"" for value in values] if _DELETED in found else values
    pieces.append(_NO_HEADERS)
    return b"".join(pieces)[len(_NO_HEADERS) :]


def _body_of_many_kinds(keys: Sequence[bytes], values: Sequence[bytes | None]) -> bytes:
    pieces: list[bytes] = []
    for place, (key, value) in enumerate(zip(keys, values, strict=True)):
        if value is None:
            pieces += (_head(place, len(key), 0), key, _NONE, _NO_HEADERS)
        else:
            pieces += (_head(place, len(key), len(value)), key, _varint(len(value)), value, _NO_HEADERS)
    return b"".join(pieces)


def _head(place: int, key_length: int, value_length: int) -> bytes:
    """What stands before a key: how long the record is, its attributes, its time and its place as differences."""
    rest = b"\x00\x00" + _varint(place) + _varint(key_length)
    size = len(rest) + key_length + len(_varint(value_length)) + value_length + len(_NO_HEADERS)
    return _varint(size) + rest


def _heads(key_length: int, value_length: int, count: int) -> tuple[bytes, ...]:
    """The same for so many places in a batch, or some more, with what ends the record before."""
    found = _HEADS.get((key_length, value_length), ())
    if len(found) < count:
        if len(_HEADS) >= _MOST_HEADS:
            _HEADS.clear()
        places = range(1 << (count - 1).bit_length())
        found = tuple(_NO_HEADERS + _head(place, key_length, max(value_length, 0)) for place in places)
        _HEADS[key_length, value_length] = found
    return found


@lru_cache(maxsize=4_096)
def _varint(value: int) -> bytes:
    """A number from 0 on as Kafka's zigzag varint."""
    left, found = value << 1, bytearray()
    while left > 127:
        found.append(left & 127 | 128)
        left >>= 7
    found.append(left)
    return bytes(found)


def _batch(body: bytes, count: int, at_ms: int) -> bytes:
    covered = _COVERED.pack(0, count - 1, at_ms, at_ms, -1, -1, -1, count)
    crc = calc_crc32c(covered + body)
    length = _HEAD.size - _BEFORE_LENGTH_ENDS + len(body)
    return _HEAD.pack(0, length, _LEADER_EPOCH, 2, crc, 0, count - 1, at_ms, at_ms, -1, -1, -1, count) + body


_LEADER_EPOCH = -1
