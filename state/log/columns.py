"""Records of fetched batches in columns: no object is made for a record. The same bytes as `batches.decode` reads.

One rule: what it gives is what `decode` gives, and where it cannot (a compressed batch) it gives nothing. A v2 record says
only how long it is, so where the next one begins is found one after the other; but records that follow each other are
mostly of one length, and a run of those is found at once. All else is read for all records together, by numpy.

Needs numpy and pyarrow: loaded where an app has a processor that takes columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from aiokafka.record.util import calc_crc32c

from state.errors import LogDamaged
from state.log.batches import ADVICE, HEADER_BYTES, Header, damage, decode, frame, headers
from state.log.protocol import StoredRecord

_RUN = 8  # a run of fewer records of one length is not worth looking for
_PATIENCE = 32  # records that are walked through before runs are looked for again; twice as many each time


class StoredColumns(NamedTuple):
    """`keys` and `values` are arrays of binary (null as there), the times and offsets of numpy's int64; `rows` gives the
    records as objects, which `decode` makes."""

    keys: pa.Array
    values: pa.Array
    timestamps: Any
    offsets: Any
    rows: Callable[[], Sequence[StoredRecord]]


def columns(data: bytes, from_position: int) -> StoredColumns | None:
    """The records of `data` from `from_position` on, in offset order; control batches are skipped. None where they can
    only be read one by one. Raises LogDamaged."""
    found: list[Header] = []
    for header in headers(data):
        attributes, crc = frame(data, header.start)[:2]
        if calc_crc32c(data[header.start + _COVERED : header.stop]) != crc:
            raise damage(header)
        if attributes & _CODEC:
            return None
        if header.next > from_position and header.records and not header.control:
            found.append(header)
    parts = [_starts(data, header) for header in found]
    starts = np.concatenate(parts) if parts else np.empty(0, np.int64)
    try:
        return _read(data, found, starts, from_position)
    except IndexError:
        raise LogDamaged(f"a record of the batches ends behind them: {ADVICE}") from None


_COVERED = 21  # the checksum is of what follows it
_CODEC = 0x07
_APPEND_TIME = 0x08


def _read(data: bytes, found: list[Header], starts: Any, from_position: int) -> StoredColumns:
    """The fields of the records that begin at `starts`."""
    text = np.frombuffer(data, np.uint8)
    counts = [header.records for header in found]
    times = [frame(data, header.start) for header in found]
    length, at = _varints(text, starts)
    ends = at + length
    time_delta, at = _varints(text, at + 1)
    offset_delta, at = _varints(text, at)
    key_length, key = _varints(text, at)
    key_end = key + np.maximum(key_length, 0)
    value_length, value = _varints(text, key_end)
    value_end = value + np.maximum(value_length, 0)
    if len(starts) and (value_end >= ends).any():
        raise LogDamaged(f"a record is shorter than its key and value: {ADVICE}")
    timestamps = time_delta + np.repeat(np.array([one[2] for one in times], np.int64), counts)
    for number, one in enumerate(times):
        if one[0] & _APPEND_TIME:
            first = sum(counts[:number])
            timestamps[first : first + counts[number]] = one[3]
    offsets = offset_delta + np.repeat(np.array([header.base for header in found], np.int64), counts)
    keys, values = _arrays(data, (key, key_end, value, value_end), key_length < 0, value_length < 0)
    rows = _Rows(data, from_position)
    if len(offsets) and offsets[0] < from_position:
        first = int(np.searchsorted(offsets, from_position))
        return StoredColumns(keys.slice(first), values.slice(first), timestamps[first:], offsets[first:], rows)
    return StoredColumns(keys, values, timestamps, offsets, rows)


class _Rows:
    """The records as objects, made once they are asked for."""

    def __init__(self, data: bytes, from_position: int) -> None:
        self._data = data
        self._from = from_position
        self._made: list[StoredRecord] | None = None

    def __call__(self) -> list[StoredRecord]:
        if self._made is None:
            self._made = decode(self._data, self._from)
        return self._made


def _starts(data: bytes, header: Header) -> Any:
    """Where each record of a batch begins."""
    at, left = header.start + HEADER_BYTES, header.records
    parts: list[Any] = []
    patience = _PATIENCE
    try:
        while left:
            size, width = _size(data, at)
            run = _run(data, at, size, width, min(left, (header.stop - at) // size))
            if run >= _RUN:
                parts.append(np.arange(at, at + run * size, size))
                at, left, patience = at + run * size, left - run, _PATIENCE
                continue
            listed: list[int] = []
            append = listed.append
            walk = min(left, patience)
            for _ in range(walk):
                append(at)
                first = data[at]
                if first < 128:
                    at += 1 + (first >> 1)
                    continue
                second = data[at + 1]
                at += 2 + ((first & 127 | second << 7) >> 1) if second < 128 else _size(data, at)[0]
            parts.append(np.array(listed, np.int64))
            left, patience = left - walk, patience * 2
    except IndexError:
        at = -1
    if at != header.stop:
        raise LogDamaged(f"the records of the batch at offset {header.base} do not end where it does: {ADVICE}")
    return np.concatenate(parts)


def _size(data: bytes, at: int) -> tuple[int, int]:
    """How many bytes a record takes, and how many of them say so."""
    value = shift = width = 0
    while True:
        byte = data[at + width]
        value |= (byte & 127) << shift
        width += 1
        shift += 7
        if byte < 128:
            break
    if value & 1 or value < 2:
        raise LogDamaged(f"a record has the length {(value >> 1) ^ -(value & 1)}: {ADVICE}")
    return width + (value >> 1), width


def _run(data: bytes, at: int, size: int, width: int, most: int) -> int:
    """How many records from here on are of this size, as far as their lengths follow each other."""
    if most < _RUN:
        return 0
    text = np.frombuffer(data, np.uint8, most * size, at)
    same = text[::size] == text[0]
    for place in range(1, width):
        same &= text[place::size] == text[place]
    return most if same.all() else int(same.argmin())


def _varints(text: Any, at: Any) -> tuple[Any, Any]:
    """The zigzag varints at these places, and the places behind them."""
    byte = text[at]
    value = (byte & 127).astype(np.int64)
    behind = at + 1
    longer = np.flatnonzero(byte & 128)
    shift = 7
    while len(longer):
        byte = text[behind[longer]]
        value[longer] |= (byte & 127).astype(np.int64) << shift
        behind[longer] += 1
        longer = longer[(byte & 128) != 0]
        shift += 7
        if shift > 63:
            raise IndexError
    return (value >> 1) ^ -(value & 1), behind


def _arrays(data: bytes, places: tuple[Any, Any, Any, Any], no_key: Any, no_value: Any) -> tuple[pa.Array, pa.Array]:
    """Keys and values out of the fetched bytes. Laid over them, an array of four elements a record (key, what is between,
    value, what is between) takes no copy, and Arrow picks the elements out of it."""
    count = len(no_key)
    borders = np.empty(4 * count + 1, np.int32)
    for number, place in enumerate(places):
        borders[number : 4 * count : 4] = place
    borders[4 * count] = places[3][-1] if count else 0
    whole = pa.Array.from_buffers(pa.binary(), 4 * count, [None, pa.py_buffer(borders), pa.py_buffer(data)])
    first = np.arange(0, 4 * count, 4, dtype=np.int32)
    return _taken(whole, first, no_key), _taken(whole, first + 2, no_value)


def _taken(whole: pa.Array, places: Any, none: Any) -> pa.Array:
    return whole.take(pa.array(places, mask=none if none.any() else None))
