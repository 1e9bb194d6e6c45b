"""What an expiring table stores: values behind the time of their last write, and the task's stream time beside them.

One rule: no other module knows this form; what shows, queries or compares stored bytes reads them here.
"""

from __future__ import annotations

import struct

# Where an expiring table keeps the task's stream time: in the table itself, so that it moves, restores and commits
# with it. No str, int, float or JSON key can be these bytes, and a bytes key that is gets refused.
STREAM_TIME_KEY = b"\xff\x00stream-time"
_TIME = struct.Struct(">q")
_TIME_BYTES, _packed, _unpacked = _TIME.size, _TIME.pack, _TIME.unpack_from
BEFORE_ALL_MS = -1  # the stream time before any record


def stored(value: bytes, written_ms: int) -> bytes:
    """A value as it is stored."""
    return _packed(written_ms) + value


def value_of(raw: bytes) -> bytes:
    """The value's bytes, expired or not."""
    return raw[_TIME_BYTES:]


def live_value(raw: bytes, expire_ms: int, stream_ms: int) -> bytes | None:
    """The value's bytes, or None where it has expired at that stream time."""
    return None if stream_ms >= _unpacked(raw)[0] + expire_ms else raw[_TIME_BYTES:]


def written_ms(raw: bytes) -> int:
    """The stream time of the write."""
    found: int = _unpacked(raw)[0]
    return found


def stored_time(stream_ms: int) -> bytes:
    """The stream time as it is stored under STREAM_TIME_KEY."""
    return _packed(stream_ms)


def stream_time(raw: bytes | None) -> int:
    """The stream time that is stored, or the one before any record."""
    return BEFORE_ALL_MS if raw is None else int.from_bytes(raw, "big", signed=True)
