"""How sliding windows are stored: `s` + key with its length + start -> time of the last record in it + value, and for the order in
which they close `d` + start + key -> nothing.

One rule: a window that is kept alone for what later ones take over is marked in both entries, so that no tool shows it and nothing
announces it. `sliding_view` reads and writes them.
"""

from __future__ import annotations

from pipeline.time.timed_view import TIME_BYTES, read_time, time_bytes

WINDOW, AFTER_WINDOWS = b"s", b"t"
START, AFTER_STARTS = b"d", b"e"
SHOWN, HIDDEN = b"", b"h"  # what the index says of a window
_HIDDEN_BIT = 1 << 63  # of the time of the last record, which is no time that a record may have
_LENGTH_BYTES = 4


def head(data: bytes) -> bytes:
    """What all windows of a key begin with."""
    return WINDOW + len(data).to_bytes(_LENGTH_BYTES, "big") + data


def id_of(k: bytes) -> tuple[bytes, int]:
    """The key and the start of an entry."""
    return k[1 + _LENGTH_BYTES : -TIME_BYTES], read_time(k, len(k) - TIME_BYTES)


def packed(last_ms: int, value: bytes, *, hidden: bool) -> bytes:
    return time_bytes(last_ms | _HIDDEN_BIT if hidden else last_ms) + value


def last_ms_of(raw: bytes) -> int:
    return read_time(raw, 0) & ~_HIDDEN_BIT


def is_hidden(raw: bytes) -> bool:
    return raw[:1] >= b"\x80"


def is_shown_index(k: bytes, raw: bytes) -> bool:
    """Whether it is the entry by which a window that is not hidden closes."""
    return k[:1] == START and raw == SHOWN


def value_of(raw: bytes) -> bytes:
    return raw[TIME_BYTES:]
