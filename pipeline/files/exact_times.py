"""Times and durations inside keys and values: the app sees the one that stands in the file, or the row is refused.

One rule: decoders round what is finer than a microsecond, and take the text of a number as seconds, which is a guess; so
text with more digits than the written value has, and a number where a time is wanted, are refused. In the flow: `columns`, `json_rows` and
`json_lines` write a key or value here that is not the bytes of its file.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from pipeline.errors import CodecError
from pipeline.files.shape import NotThis
from pipeline.values.codecs import JsonCodec

_FINE = re.compile(
    rb"[0-9]+:[0-9]{2}:[0-9]{2}[.,][0-9]{6}[0-9]*[1-9]|P[0-9DTHMW]*[.,][0-9]{6}[0-9]*[1-9]", re.IGNORECASE
)
_OF_TIME = ("DateTimeType(", "TimeType(", "TimeDeltaType(")  # as msgspec shows them
_SHOWN = 60
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def written(codec: JsonCodec, value: Any, source: bytes) -> bytes:
    """The bytes of a value that was read of this text. Raises NotThis where a time in it was rounded, CodecError."""
    data = codec.encode(value)
    for fine in set(_FINE.findall(source)) if has_times(codec) else ():
        # What is text stays as it is.
        if source.count(fine) > data.count(fine) and not _is_outside(codec, data, source, fine):
            raise NotThis(f"a time that ends with {fine.decode()} is finer than a microsecond, which is lost in Python")
    return data


def _is_outside(codec: JsonCodec, data: bytes, source: bytes, fine: bytes) -> bool:
    """Whether it stands in what the type has no field for: with another time there the value is the same."""
    at = max(fine.rfind(b"."), fine.rfind(b",")) + 1
    other = fine[:at] + (b"900001" if fine[at:] < b"5" else b"100001")
    try:
        return codec.encode(codec.decode(source.replace(fine, other))).replace(other, fine) == data
    except CodecError:  # of cells, or of a text that is no JSON
        return False


@lru_cache(maxsize=256)
def has_times(codec: JsonCodec) -> bool:
    """Whether a value has times of the clock or durations somewhere."""
    shown = repr(msgspec.inspect.type_info(codec.type))
    return any(name in shown for name in _OF_TIME)


def refuse_number(text: Any, column: str = "") -> None:
    """Raises NotThis where the text of a time or a duration is a number."""
    if isinstance(text, str) and _NUMBER.fullmatch(text):
        where = f"column '{column}': " if column else ""
        raise NotThis(
            f"{where}{text[:_SHOWN]} is a number without a unit; write a time as 2026-01-31T12:00:00Z, a duration as PT1.5S"
        )
