"""Kinds of windows: which windows a time lies in, and where each of them ends. One rule: pure arithmetic of milliseconds.

Windows of a fixed kind follow from the time alone, and begin at 0 (1970) or later. A session follows from the records
of its key, see `session_view`. The views (`window_view`, `session_view`) store what is counted in them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from pipeline.errors import DefinitionError
from pipeline.time.durations import duration_ms

_OURS = __name__.partition(".")[0]
_DAY_MS = 86_400_000
_LONGEST_CHANGE_MS = _DAY_MS  # of a zone's clock: at most a day was ever left out or repeated


class Window(NamedTuple):
    """From `start_ms` up to, and without, `end_ms`. Of a session: the times of its first and its last record."""

    start_ms: int
    end_ms: int


class FixedWindows(Protocol):
    """Windows that follow from the time alone."""

    @property
    def longest_ms(self) -> int:
        """No window is longer."""

    def starts(self, timestamp_ms: int) -> list[int]:
        """The windows that a time lies in, by their starts, the earliest first."""

    def end_of(self, start_ms: int) -> int:
        """The first millisecond after the window that begins there."""

    def span(self, timestamp_ms: int) -> tuple[int, int]:
        """The times around this one, from the first up to and without the second, that lie in the same windows."""

    def described(self) -> dict[str, Any]:
        """As JSON-able data: a version whose windows differ cannot read what is stored."""


def _written(kind: str) -> str:
    """`Tumbling at bank.py:12`: windows have no name, and their table's is not known yet."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _OURS:
        frame = frame.f_back
    return f"{kind} at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _size(kind: str, size: timedelta | None, parts: dict[str, float]) -> int:
    """The size as a timedelta or by its parts, in milliseconds. Raises DefinitionError."""
    for name, value in parts.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise DefinitionError(f"{kind}: {name}={value!r} is not a number; write {name}=1, or a timedelta")
    given = {name: value for name, value in parts.items() if value}
    if size is not None and given:
        raise DefinitionError(f"{kind}: give its size once, as a timedelta or as {', '.join(given)}=")
    try:
        return duration_ms(kind, "size", timedelta(**given) if size is None else size, least_ms=1)
    except (TypeError, ValueError, OverflowError) as error:
        raise DefinitionError(f"{kind}: {given} is no size: {error}") from None


@dataclass(frozen=True, init=False)
class Tumbling:
    """Windows one after the other: `Tumbling(hours=1)`. `zone` makes them days of a place, which have 23 or 25 hours where
    its clocks change; `offset` lets them begin so much later."""

    size_ms: int
    zone: str | None
    offset_ms: int
    _zone: ZoneInfo | None = field(repr=False, compare=False)

    def __init__(
        self,
        size: timedelta | None = None,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
        zone: str | None = None,
        offset: timedelta = timedelta(0),
    ) -> None:
        parts = {"weeks": weeks, "days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
        size_ms = _size(what := _written("Tumbling"), size, {**parts, "milliseconds": milliseconds})
        offset_ms = duration_ms(what, "offset", offset, least_ms=0)
        if offset_ms >= size_ms:
            raise DefinitionError(f"{what}: offset={offset} is not shorter than a window")
        object.__setattr__(self, "size_ms", size_ms)
        object.__setattr__(self, "zone", zone)
        object.__setattr__(self, "offset_ms", offset_ms)
        object.__setattr__(self, "_zone", None if zone is None else _zone(what, zone, size_ms))

    @property
    def longest_ms(self) -> int:
        return self.size_ms if self._zone is None else self.size_ms + _LONGEST_CHANGE_MS

    def starts(self, timestamp_ms: int) -> list[int]:
        if self._zone is not None:
            return [max(0, self._local_window(timestamp_ms, self._zone)[0])]
        start = (timestamp_ms - self.offset_ms) // self.size_ms * self.size_ms + self.offset_ms
        return [max(0, start)]

    def end_of(self, start_ms: int) -> int:
        if self._zone is not None:
            return self._local_window(start_ms, self._zone)[1]
        return (start_ms - self.offset_ms) // self.size_ms * self.size_ms + self.offset_ms + self.size_ms

    def span(self, timestamp_ms: int) -> tuple[int, int]:
        start = self.starts(timestamp_ms)[0]
        return start, self.end_of(start)

    def described(self) -> dict[str, Any]:
        return {"kind": "tumbling", "size_ms": self.size_ms, "zone": self.zone, "offset_ms": self.offset_ms}

    def _local_day(self, timestamp_ms: int, zone: ZoneInfo) -> int:
        """The day, since 1970 on the zone's calendar, on which the window of a time begins."""
        local = datetime.fromtimestamp(timestamp_ms // 1000, zone).replace(tzinfo=None)
        local += timedelta(milliseconds=timestamp_ms % 1000) - timedelta(milliseconds=self.offset_ms)
        days = self.size_ms // _DAY_MS
        return (local - _EPOCH).days // days * days

    def _local_window(self, timestamp_ms: int, zone: ZoneInfo) -> tuple[int, int]:
        """Start and end. A clock that is put back or forward may show a time before the start on a window's own day, so
        the instants decide."""
        days = self.size_ms // _DAY_MS
        far_ms = self._at(_FAR_DAY // days * days, zone)
        if timestamp_ms >= far_ms:
            start = far_ms + (timestamp_ms - far_ms) // self.size_ms * self.size_ms
            return start, start + self.size_ms
        day = self._local_day(timestamp_ms, zone)
        while timestamp_ms < (start := self._at(day, zone)):
            day -= days
        while timestamp_ms >= (end := self._at(day + days, zone)):
            day, start = day + days, end
        return start, end

    def _at(self, day: int, zone: ZoneInfo) -> int:
        local = _EPOCH + timedelta(days=day, milliseconds=self.offset_ms)
        return round(local.replace(tzinfo=zone).timestamp() * 1000)


_EPOCH = datetime(1970, 1, 1)
# In the year 9909: calendars end in 9999, times of records do not, so days have 24 hours from here
_FAR_DAY = 2_900_000


def _zone(what: str, name: Any, size_ms: int) -> ZoneInfo:
    if size_ms % _DAY_MS:
        raise DefinitionError(f"{what}: zone={name!r} is for whole days; leave it out, or write days=1")
    try:
        return ZoneInfo(name)
    except (TypeError, ValueError, OSError, LookupError):
        raise DefinitionError(f"{what}: zone={name!r} is not the name of a time zone such as 'Europe/Paris'") from None


@dataclass(frozen=True, init=False)
class Hopping:
    """Windows that overlap: of one size, one begins `every` so often: `Hopping(hours=1, every=timedelta(minutes=10))`."""

    size_ms: int
    every_ms: int

    def __init__(
        self,
        size: timedelta | None = None,
        *,
        every: timedelta,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        parts = {"weeks": weeks, "days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
        size_ms = _size(what := _written("Hopping"), size, {**parts, "milliseconds": milliseconds})
        every_ms = duration_ms(what, "every", every, least_ms=1)
        if every_ms > size_ms:
            raise DefinitionError(f"{what}: every={every} is longer than a window, so records would be in none")
        object.__setattr__(self, "size_ms", size_ms)
        object.__setattr__(self, "every_ms", every_ms)

    @property
    def longest_ms(self) -> int:
        return self.size_ms

    def starts(self, timestamp_ms: int) -> list[int]:
        first = max(0, timestamp_ms - self.size_ms + self.every_ms) // self.every_ms * self.every_ms
        return list(range(first, timestamp_ms + 1, self.every_ms))

    def end_of(self, start_ms: int) -> int:
        return start_ms + self.size_ms

    def span(self, timestamp_ms: int) -> tuple[int, int]:
        starts = self.starts(timestamp_ms)
        last_end = starts[0] - self.every_ms + self.size_ms if starts[0] else 0  # of the window before the first one
        return max(starts[-1], last_end), min(starts[-1] + self.every_ms, starts[0] + self.size_ms)

    def described(self) -> dict[str, Any]:
        return {"kind": "hopping", "size_ms": self.size_ms, "every_ms": self.every_ms}


@dataclass(frozen=True, init=False)
class Sliding:
    """Windows that go with the records of a key: one that ends at each record and one that begins right after it, in which
    two records lie that are at most so far apart: `Sliding(minutes=5)`."""

    difference_ms: int

    def __init__(
        self,
        difference: timedelta | None = None,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        parts = {"weeks": weeks, "days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
        found = _size(_written("Sliding"), difference, {**parts, "milliseconds": milliseconds})
        object.__setattr__(self, "difference_ms", found)

    @property
    def longest_ms(self) -> int:
        return self.difference_ms + 1

    def starts(self, timestamp_ms: int) -> list[int]:
        """The window that ends there; which others a time lies in follows from the records of the key."""
        return [max(0, timestamp_ms - self.difference_ms)]

    def end_of(self, start_ms: int) -> int:
        return start_ms + self.difference_ms + 1

    def span(self, timestamp_ms: int) -> tuple[int, int]:
        return timestamp_ms, timestamp_ms + 1

    def described(self) -> dict[str, Any]:
        return {"kind": "sliding", "difference_ms": self.difference_ms}


@dataclass(frozen=True, init=False)
class Session:
    """Windows of activity: records of a key that are at most `gap` apart. `merge(earlier, later)` makes one value of two
    sessions that a record joins."""

    gap_ms: int
    merge: Callable[[Any, Any], Any]

    def __init__(self, *, gap: timedelta, merge: Callable[[Any, Any], Any]) -> None:
        what = _written("Session")
        object.__setattr__(self, "gap_ms", duration_ms(what, "gap", gap, least_ms=1))
        if not callable(merge):
            raise DefinitionError(f"{what}: merge={merge!r} is not a function; write merge=lambda earlier, later: ...")
        object.__setattr__(self, "merge", merge)

    def described(self) -> dict[str, Any]:
        """As JSON-able data: a version whose gap differs cannot read what is stored."""
        return {"kind": "session", "gap_ms": self.gap_ms, "stored": 2}  # how its entries lie: 1 was by their ends
