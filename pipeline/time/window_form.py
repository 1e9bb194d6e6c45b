"""How windows of a fixed kind are stored: `w` + start of the window + key -> value.

One rule: the bytes of the keys lie in the order in which windows close, and expire. `window_view` reads and writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.tables.table import TableSpec
from pipeline.time.timed_view import TIME_BYTES, read_time, time_bytes
from pipeline.values.codecs import PACKED_INT, Codec, FloatCodec, IntCodec

WINDOW, AFTER_WINDOWS = b"w", b"x"
HEAD_BYTES = 1 + TIME_BYTES


class WindowKeys:
    """Keys of windows: (start, key)."""

    def __init__(self, codec: Codec[Any]) -> None:
        self._codec = codec

    def encode(self, value: tuple[int, Any]) -> bytes:
        return WINDOW + time_bytes(value[0]) + self._codec.encode(value[1])

    def decode(self, data: bytes) -> tuple[int, Any]:
        return read_time(data), self._codec.decode(data[HEAD_BYTES:])


def number_of(codec: Codec[Any]) -> tuple[type | None, Callable[[Any], bytes]]:
    """The type of the values where they are numbers, which cannot change in place, and what makes bytes of one that fits."""
    if type(codec) is IntCodec:
        return int, PACKED_INT
    return float if type(codec) is FloatCodec else None, codec.encode


def stored_spec(spec: TableSpec) -> TableSpec:
    return TableSpec(
        spec.name,
        WindowKeys(spec.key_codec),
        spec.value_codec,
        default=spec.default,
        upgrade=spec.upgrade,
        none_is_value=spec.none_is_value,
    )
