"""Durations and points of time as a user gives them, in whole milliseconds. One rule: what is wrong is refused by name
where it is declared."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.errors import DefinitionError
from pipeline.records import LAST_MS

_MS = timedelta(milliseconds=1)
_UNITS = {
    "ms": _MS,
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_TEXT = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def duration_ms(what: str, option: str, given: Any, *, least_ms: int) -> int:
    """A timedelta in milliseconds. Raises DefinitionError where it is none, or shorter than `least_ms`."""
    if not isinstance(given, timedelta):
        raise DefinitionError(f"{what}: {option}={given!r} is not a timedelta; write {option}=timedelta(minutes=5)")
    found = given // _MS
    if found * _MS != given:
        raise DefinitionError(f"{what}: {option}={given} is not a whole number of milliseconds")
    if found < least_ms:
        shortest = "a millisecond" if least_ms == 1 else "nothing: it is negative"
        raise DefinitionError(f"{what}: {option}={given} is shorter than {shortest}; give a longer one")
    return found


def idle_ms(what: str, given: Any) -> int:
    """`idle=` in milliseconds: a timedelta, or text such as "30s". Raises DefinitionError."""
    if isinstance(given, str):
        found = _TEXT.fullmatch(given.strip())
        if found is None:
            raise DefinitionError(f'{what}: idle={given!r} is no duration; write "30s", "5m" or timedelta(seconds=30)')
        given = int(found[1]) * _UNITS[found[2]]
    return duration_ms(what, "idle", given, least_ms=1)


def checked_time(what: str, given: Any) -> int:
    """A time in milliseconds since 1970. Raises DefinitionError where it is none."""
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= LAST_MS:
        raise DefinitionError(f"{what}: {given!r} is no time; give whole milliseconds since 1970, 0 or later")
    return given


def time_of_text(text: str) -> int:
    """A time as typed: milliseconds since 1970, or a date and time, in UTC where no offset is given. Raises ValueError."""
    if text.isdecimal():
        if len(text.lstrip("0")) > len(str(LAST_MS)) or int(text) > LAST_MS:
            raise ValueError(f"that is no time; the last one is {LAST_MS}, in milliseconds since 1970")
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("it is neither milliseconds since 1970 nor a time such as 2026-01-31T12:00Z") from None
    return (found.replace(tzinfo=found.tzinfo or UTC) - _EPOCH) // _MS
