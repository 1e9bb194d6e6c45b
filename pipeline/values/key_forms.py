"""Equal keys in one form: 1 and 1.0 where a key may be either, 1.0 and 1.00 of a Decimal, one time in two zones, -0.0 and 0.0.

One rule: keys that Python calls equal are one key, as they are in a dict; so they have the same text, which decodes to a key that
is equal to them. Values come as they were read by the type of the key. Most of them have that text as they are, which their text shows:
each record of a topic and each look-up comes by here. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

import msgspec
from msgspec import inspect

_KEPT = (Decimal, datetime, time)  # as they are, where all else becomes plain data
_FORMS = (inspect.FloatType, inspect.DecimalType, inspect.DateTimeType, inspect.TimeType, inspect.AnyType)
_PLAIN_DIGITS = 40  # whole numbers of no more digits have no exponent
_DAY_MINUTES = 24 * 60
_encoder = msgspec.json.Encoder()  # plain data comes in order
_as_read = msgspec.json.Encoder(order="deterministic")
_ZONE = rb'[+-][0-9]{2}:[0-9]{2}"'
_ANOTHER: dict[type, bytes] = {
    inspect.FloatType: rb"-0\.0",
    inspect.DateTimeType: _ZONE,
    inspect.TimeType: _ZONE,
    inspect.DecimalType: rb'"(?:-0"|-?[0-9]*\.[0-9]*0"|-?[0-9.]+E|-?[0-9]{40})',
}  # what a text has that may not be the one form
_UNORDERED = (inspect.SetType, inspect.FrozenSetType, inspect.DictType, inspect.AnyType)


class KeyForms:
    """What is equal and has several texts, in keys of one type."""

    def __init__(self, type_: Any) -> None:
        kinds = list(_kinds(msgspec.inspect.type_info(type_), set()))
        self.are_several = any(isinstance(kind, _FORMS) for kind in kinds)
        self._mixes = any(map(_mixes_numbers, kinds))  # a number may be an int or a float
        is_plain = not self._mixes and not any(isinstance(kind, _UNORDERED) for kind in kinds)
        found = sorted({_ANOTHER[type(kind)] for kind in kinds if type(kind) in _ANOTHER})
        self._another = re.compile(b"|".join(found)).search if is_plain and found else None

    def encode(self, read: Any) -> bytes:
        """The text of a key that was read by its type."""
        if self._another is not None:
            data = _as_read.encode(read)
            if self._another(data) is None:
                return data
        plain = msgspec.to_builtins(read, builtin_types=_KEPT, str_keys=True, order="deterministic")
        return _encoder.encode(self._form(plain))

    def _form(self, value: Any) -> Any:
        kind = type(value)
        if kind is float:
            return int(value) if self._mixes and value.is_integer() else value + 0.0
        if kind is Decimal:
            return _decimal(value)
        if kind is datetime:
            return _datetime(value)
        if kind is time:
            return _time(value)
        if kind is dict:
            return {name: self._form(one) for name, one in value.items()}
        return [self._form(one) for one in value] if kind in (list, tuple) else value


def _decimal(value: Decimal) -> Decimal:
    if not value.is_finite():
        return value
    if not value:
        return Decimal(0)
    text = str(value)
    if len(text) <= _PLAIN_DIGITS and "E" not in text:
        return Decimal(text.rstrip("0").rstrip(".")) if "." in text else value
    exact = Context(prec=len(value.as_tuple().digits), Emin=MIN_EMIN, Emax=MAX_EMAX)
    found = value.normalize(exact)
    return Decimal(int(found)) if found.adjusted() < _PLAIN_DIGITS and found == found.to_integral_value() else found


def _datetime(value: datetime) -> datetime:
    try:
        return value if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:  # in the first hours of the year 1, or the last of 9999
        return value


def _time(value: time) -> time:
    """Python compares times of zones by their minutes of the day in UTC, which may be less than none, or more than a day has."""
    offset = value.utcoffset()
    if offset is None:
        return value
    minutes = value.hour * 60 + value.minute - round(offset.total_seconds() / 60)
    shown = min(max(minutes, 0), _DAY_MINUTES - 1)
    zone = timezone(timedelta(minutes=shown - minutes)) if shown != minutes else UTC
    return value.replace(hour=shown // 60, minute=shown % 60, tzinfo=zone)


def _kinds(of: Any, seen: set[Any]) -> Iterator[inspect.Type]:
    """A type and all inside it, each class once."""
    if isinstance(of, inspect.Type):
        cls = getattr(of, "cls", None)
        if cls is not None and cls in seen:
            return
        seen.add(cls)
        yield of
    elif not isinstance(of, inspect.Field | tuple):
        return
    parts = of if isinstance(of, tuple) else [getattr(of, name) for name in of.__struct_fields__]
    for part in parts:
        yield from _kinds(part, seen)


def _mixes_numbers(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        found = [type(one) for one in kind.types]
        return inspect.IntType in found and inspect.FloatType in found
    return isinstance(kind, inspect.AnyType)
