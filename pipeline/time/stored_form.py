"""How the rows of a table lie in its store and changelog, for tools that have the app's description and no code of it.

One rule: what is no row (an index, an older version, the table's own time) is None here, so tools show what the app has.
What writes these forms is `window_view`, `session_form`, `sliding_form`, `timer_view` and `topic_view`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.tables.table import after_prefix
from pipeline.time import session_form, sliding_form
from pipeline.time.timed_view import TIME_BYTES, read_time, time_bytes
from pipeline.time.windows import Hopping, Sliding, Tumbling

_LENGTH_BYTES = 4
_HEAD = 1 + TIME_BYTES
_FIRST = {"tumbling": b"w", "hopping": b"w", "sliding": b"s", "session": b"s", "timers": b"t", "topic": b"k"}
BY_TIME = ("tumbling", "hopping")  # by the window's start, then by key; the others by key first
WINDOWED = ("tumbling", "hopping", "sliding", "session")


class StoredRow(NamedTuple):
    """A row: the key's bytes, its window, where it has one, and the value's bytes; None in a changelog where it is deleted.
    A deleted session's end is not known."""

    key: bytes
    start_ms: int | None
    end_ms: int | None
    value: bytes | None


class StoredForm:
    """Of one table. `facts` is the table's entry in the description."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        form = facts.get("form", {"kind": "table"})
        self.kind: str = form["kind"]
        self._first = _FIRST.get(self.kind, b"")
        self._windows = _windows(form)
        self._gap_ms: int = form.get("gap_ms", 0)
        self._grace_ms: int | None = facts.get("grace_ms")
        self.value_codec: str = "int" if self.kind == "timers" else facts["value_codec"]

    @property
    def is_readable(self) -> bool:
        """Whether it has rows to show: the records that a join keeps are for the join alone."""
        return self.kind == "table" or self.kind in _FIRST

    @property
    def is_windowed(self) -> bool:
        return self.kind in WINDOWED

    def row(self, key: bytes, value: bytes | None) -> StoredRow | None:
        """The row of an entry of the store or the changelog; None where it is none."""
        if self.kind == "table":
            return StoredRow(key, None, None, value)
        if key[:1] != self._first or key == STREAM_TIME_KEY:
            return None
        if self.kind in BY_TIME:
            start_ms = read_time(key)
            return StoredRow(key[_HEAD:], start_ms, self._end_of(start_ms), value)
        if self.kind == "timers":
            return StoredRow(key[1:], None, None, value)
        rest = None if value is None else value[TIME_BYTES:]
        if self.kind == "topic":
            return StoredRow(key[1:], None, None, rest)
        if self.kind == "session":
            start_ms, _ = session_form.id_of(key)
            return StoredRow(session_form.key_of(key), start_ms, None if value is None else read_time(value, 0), rest)
        if value is not None and sliding_form.is_hidden(value):
            return None
        user_key, at_ms = sliding_form.id_of(key)
        return StoredRow(user_key, at_ms, self._end_of(at_ms), rest)

    def bounds(self, start: bytes, stop: bytes | None) -> tuple[bytes, bytes | None]:
        """The entries among which the rows with start <= key < stop lie; those of windows lie among all."""
        if self.kind in ("timers", "topic"):
            return self._first + start, after_prefix(self._first) if stop is None else self._first + stop
        return (self._first, after_prefix(self._first)) if self._first else (start, stop)

    def of_key(self, key: bytes) -> bytes:
        """What all entries of a key begin with, where the form is by key."""
        if self.is_windowed:
            return self._first + len(key).to_bytes(_LENGTH_BYTES, "big") + key
        return self._first + key

    def of_window(self, start_ms: int, key: bytes) -> bytes:
        """The entry of a key in the window that begins there, where the form is by time."""
        return self._first + time_bytes(start_ms) + key

    def earliest_start(self, at_ms: int) -> int:
        """No window that a time lies in begins before."""
        return 0 if self._windows is None else max(0, at_ms - self._windows.longest_ms)

    def holds(self, row: StoredRow, at_ms: int) -> bool:
        """Whether a time lies in the window of a row; in a session from its first to its last record."""
        assert row.start_ms is not None and row.end_ms is not None
        return row.start_ms <= at_ms and (at_ms <= row.end_ms if self.kind == "session" else at_ms < row.end_ms)

    def is_open(self, row: StoredRow, stream_ms: int) -> bool | None:
        """Whether records still come into the window of a row at a stream time; None where the grace period is not known."""
        assert row.end_ms is not None
        if self._grace_ms is None:
            return None
        last_ms = row.end_ms + self._gap_ms if self.kind == "session" else row.end_ms - 1
        return last_ms + self._grace_ms >= stream_ms

    def _end_of(self, start_ms: int) -> int:
        assert self._windows is not None
        return self._windows.end_of(start_ms)


def _windows(form: Mapping[str, Any]) -> Tumbling | Hopping | Sliding | None:
    def ms(name: str) -> timedelta:
        return timedelta(milliseconds=form[name])

    if form["kind"] == "tumbling":
        return Tumbling(ms("size_ms"), zone=form["zone"], offset=ms("offset_ms"))
    if form["kind"] == "hopping":
        return Hopping(ms("size_ms"), every=ms("every_ms"))
    return Sliding(ms("difference_ms")) if form["kind"] == "sliding" else None
