"""One cell of a file to the bytes of a key or a value, and to a time.

One rule: a cell is what it is: text stays text, a number is never made of a bool, a fraction is never cut off, and a
value that its type cannot read is not written. Raises NotThis with the reason; who knows the row says where.
"""

from __future__ import annotations

import contextlib
import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from pipeline.errors import CodecError, text_of
from pipeline.files.exact_times import refuse_number, written
from pipeline.files.shape import TIME_MAX_MS, NotThis, whole_ms
from pipeline.values.codecs import Codec, JsonCodec, codec_name, own_name
from pipeline.values.json_values import of_base64, to_bytes
from pipeline.values.no_numbers import NULL, no_number

_WHOLE = re.compile(r"[+-]?[0-9]{1,400}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
SHOWN = 60
LONG_MAX = (1 << 63) - 1


def encoded(codec: Codec[Any], value: Any) -> bytes | None:
    """A JSON value as the topic's codec writes it; it is read back once, so that nothing unreadable gets in."""
    if value is None:
        return None
    name = codec_name(codec)
    if name == "custom":
        return _custom(codec, value)
    return codec.encode(codec.decode(to_bytes(name, value)))


def from_text(codec: Codec[Any], text: str) -> bytes:
    """The text of a cell (CSV): itself where the type is text, a number where it is a number, JSON otherwise.
    Raises NotThis."""
    name = codec_name(codec)
    if name in ("str", "bytes"):
        return text.encode()
    if name == "int":
        if not _WHOLE.fullmatch(text):
            raise NotThis(f"{shown(text)} is not an int")
        return codec.encode(int(text))
    if name == "float":
        if not _NUMBER.fullmatch(text):
            raise NotThis(f"{shown(text)} is not a number")
        if math.isinf(number := float(text)):
            raise NotThis(f"the number {shown(text)} is too large")
        return codec.encode(number)
    if name == "custom":
        return _custom(codec, text)
    try:
        data = text.encode()
        codec.decode(data)
        return data
    except CodecError as error:
        return _lax(codec, text, error)


def from_cell(codec: Codec[Any], value: Any) -> bytes | None:
    """A cell with a type (Parquet): bytes as they are, text as text or JSON, the rest by its type."""
    if value is None:
        return None
    name = codec_name(codec)
    if isinstance(value, bytes):
        codec.decode(value)
        return value
    if name == "custom":
        return _custom(codec, value)
    if isinstance(value, str) and name != "str":
        return from_text(codec, value)
    if name == "int":
        value = without_scale(value)
    if name == "json":
        data = numbers_kept(msgspec.json.encode(value), value)
        codec.decode(data)
        return data
    return codec.encode(codec.decode(to_bytes(name, value)))


def numbers_kept(data: bytes, value: Any) -> bytes:
    """The JSON of a value, which would have null in the place of a number that JSON has none of. Raises NotThis."""
    if NULL in data and (found := no_number(value)) is not None:
        raise NotThis(f"{found} is a number that JSON has none of; write null, or a column of texts")
    return data


def without_scale(cell: Any) -> Any:
    """A decimal of a column without digits behind the point as an int, which it is: Spark has whole numbers without a sign so."""
    return int(cell) if isinstance(cell, Decimal) and cell.is_finite() and cell.as_tuple().exponent == 0 else cell


def whole(cell: Any) -> int | None:
    """A whole number of 64 bits, or its digits; None for anything else."""
    cell = int(cell) if isinstance(cell, str) and _WHOLE.fullmatch(cell) else without_scale(cell)
    is_whole = isinstance(cell, int) and not isinstance(cell, bool)
    return cell if is_whole and -LONG_MAX - 1 <= cell <= LONG_MAX else None


def time_of_text(text: str, unit: str) -> int:
    """A whole number of the unit, or a date and time as ISO 8601 has it (UTC where it names no zone), in ms.
    Raises NotThis."""
    if _WHOLE.fullmatch(text):
        return whole_ms(int(text), unit)
    try:
        return time_of_cell(datetime.fromisoformat(text), unit)
    except ValueError:
        raise NotThis(f"{shown(text)} is no time: write whole {unit} since 1970, or 2026-01-31T12:00:00Z") from None


def time_of_cell(value: Any, unit: str) -> int:
    """A whole number of the unit, or a date with or without a time (UTC where it names no zone), in ms, cut off.
    Raises NotThis."""
    if isinstance(value, datetime):
        placed = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        found = (placed - _EPOCH) // _MS
        if not 0 <= found <= TIME_MAX_MS:
            raise NotThis(f"{value} is before 1970")
        return found
    if isinstance(value, date):
        return time_of_cell(datetime(value.year, value.month, value.day, tzinfo=UTC), unit)
    if isinstance(value, str):
        return time_of_text(value, unit)
    value = without_scale(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return whole_ms(value, unit)
    raise NotThis(f"{shown(value)} is no time: a timestamp, a date, or whole {unit} since 1970 are")


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _custom(codec: Codec[Any], value: Any) -> bytes:
    if (data := of_base64(value)) is not None:  # as `consume` shows what it has no code for
        with contextlib.suppress(Exception):
            codec.decode(data)
            return data
    try:
        return codec.encode(value)
    except Exception as error:  # the user's own code
        raise NotThis(f"{own_name(codec)} cannot write it: {type(error).__name__}: {text_of(error)}") from error


def _lax(codec: Codec[Any], text: str, error: CodecError) -> bytes:
    """Text that is no JSON may still be what the type says: a date, a UUID, a number."""
    if isinstance(codec, JsonCodec):
        with contextlib.suppress(msgspec.MsgspecError):
            found = msgspec.convert(text, codec.type, strict=False)
            if isinstance(found, datetime | timedelta):
                refuse_number(text)
            return written(codec, found, text.encode())
    raise NotThis(str(error)) from None
