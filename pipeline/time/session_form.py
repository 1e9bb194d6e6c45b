"""The bytes of sessions in their table. One rule: what a session's growth changes is its value alone, not its key.

Stored: `s` + key with its length + time of the first record + number -> time of the last record + value. The number is 0, but
for one that begins where a closed one that is still kept does. For the order in which they close there is `d` + time of the
first record + number + key -> nothing, which comes up before they do; where closed ones are kept for longer, they have
`e` + time of the last record + key -> time of the first + number instead.
"""

from __future__ import annotations

from typing import Any

from pipeline.time.timed_view import TIME_BYTES, read_time, time_bytes
from pipeline.values.codecs import Codec

SESSION, AFTER_SESSIONS = b"s", b"t"
BEGUN, AFTER_BEGUN = b"d", b"e"
CLOSED, AFTER_CLOSED = b"e", b"f"
IN_CALL = b"v"  # keys that a call holds: never stored
LENGTH_BYTES = 4
_NUMBER_BYTES = 2
ID_BYTES = TIME_BYTES + _NUMBER_BYTES  # the time of the first record, and the number
BEHIND = b"\xff" * _NUMBER_BYTES  # in place of a number: behind all of them
CALL_HEAD = 1 + TIME_BYTES
_BEGUN_HEAD = 1 + ID_BYTES

Bounds = tuple[int, int, int, bytes]  # the last record's time, the first's, the number, and where it lies


class CallKeys:
    """Keys as a call has them: (the time at which it looks, key)."""

    def __init__(self, codec: Codec[Any]) -> None:
        self._codec = codec

    def encode(self, value: tuple[int, Any]) -> bytes:
        return call_head(value[0]) + self._codec.encode(value[1])

    def decode(self, data: bytes) -> tuple[int, Any]:
        return call_time(data), self._codec.decode(data[CALL_HEAD:])


def call_head(at_ms: int) -> bytes:
    """What the keys of a call that looks at a time begin with; it may lie before 0."""
    return IN_CALL + at_ms.to_bytes(TIME_BYTES, "big", signed=True)


def call_time(k: bytes) -> int:
    return int.from_bytes(k[1:CALL_HEAD], "big", signed=True)


def head_of(data: bytes) -> bytes:
    """What all sessions of a key begin with."""
    return SESSION + len(data).to_bytes(LENGTH_BYTES, "big") + data


def entry_of(data: bytes, start_ms: int, number: int) -> bytes:
    """Where a session of a key lies."""
    return head_of(data) + time_bytes(start_ms) + number.to_bytes(_NUMBER_BYTES, "big")


def key_of(entry: bytes) -> bytes:
    return entry[1 + LENGTH_BYTES : -ID_BYTES]


def id_of(entry: bytes) -> tuple[int, int]:
    """The time of the first record, and the number."""
    return read_time(entry, len(entry) - ID_BYTES), int.from_bytes(entry[-_NUMBER_BYTES:], "big")


def bounds_of(entry: bytes, raw: bytes) -> Bounds:
    return read_time(raw, 0), *id_of(entry), entry


def begun_of(data: bytes, start_ms: int, number: int) -> bytes:
    """Where it stands in the index of those that have begun."""
    return BEGUN + time_bytes(start_ms) + number.to_bytes(_NUMBER_BYTES, "big") + data


def begun_key(index: bytes) -> bytes:
    return index[_BEGUN_HEAD:]


def id_bytes(index: bytes) -> bytes:
    """What an index of a begun one holds of its entry."""
    return index[1:_BEGUN_HEAD]


def entry_of_begun(index: bytes) -> bytes:
    return head_of(index[_BEGUN_HEAD:]) + index[1:_BEGUN_HEAD]


def begun_of_entry(entry: bytes) -> bytes:
    return BEGUN + entry[-ID_BYTES:] + key_of(entry)


def closed_of(data: bytes, end_ms: int) -> bytes:
    """Where it stands in the index of the closed ones."""
    return CLOSED + time_bytes(end_ms) + data


def entry_of_closed(index: bytes, raw: bytes) -> bytes:
    return head_of(index[1 + TIME_BYTES :]) + raw
