"""Rows of Parquet whose columns are keys, values and times as they are: no object is made for a row or a cell.

One rule: what it gives is what `pipeline.files.columns` makes of the same rows; wherever it might not be (a null time, a key
that is written anew, a value that its type cannot read), it gives nothing, and rows are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.columns.numbers import to_numpy
from pipeline.errors import CodecError
from pipeline.files import parquet
from pipeline.files.columns import Columns
from pipeline.files.parts import Part
from pipeline.files.shape import ORDER, UNITS, BadFile, BadRow, FileRecord, OnBad, Reading, Shape
from pipeline.values.codecs import BytesCodec, Codec, IntCodec, JsonCodec, StrCodec

_LONGEST, _SHORT_BYTES = 1 << 62, 1 << 30
LAST_MS = 253_402_300_799_999  # of the year 9999


class Cells(NamedTuple):
    """Of some rows that follow each other: arrays of binary, and numpy's int64."""

    keys: pa.Array
    values: pa.Array
    times: Any


class Plan(NamedTuple):
    """Which columns are read as what. `key` "": there are none."""

    key: str
    value: str
    time: str
    unit: str

    @property
    def columns(self) -> list[str]:
        return [name for name in (self.key, self.value, self.time) if name]


def plan(names: Sequence[str], shape: Shape) -> Plan | None:
    """For a file with these columns; None where a row says more than key, value and time, or its value is in several columns."""
    if shape.headers or shape.partition or (shape.flat and not shape.value) or len(set(names)) != len(names):
        return None
    if not shape.flat and {"headers", "offset", ORDER} & set(names):
        return None
    key = shape.key or ("key" if "key" in names else "")
    found = Plan(key, shape.value or "value", shape.timestamp or "timestamp_ms", shape.unit)
    return found if set(found.columns) <= set(names) else None


def read(
    part: Part, reading: Reading, shape: Shape, bad: OnBad | None
) -> Iterator[tuple[int, Cells | Iterator[FileRecord]]]:
    """(rows before these in the file, these) in the order of a row group. Raises BadRow and BadFile as `parts.read` does."""
    try:
        with parquet.opened(part.file) as file:
            names = file.schema_arrow.names
            columns = Columns(reading, shape, names, text=False, file=part.file)
            found = plan(names, shape)
            chosen = found.columns if found and bad is None else None  # a row that is set aside is set aside whole
            before = parquet.rows_before(file, part.start)
            for batch in file.iter_batches(parquet.ROWS, row_groups=[part.start], columns=chosen):
                cells = _cells(batch, found, reading) if found else None
                yield before, cells or _placed(part, parquet.records_of(batch, before, columns, shape, part.file, bad))
                before += batch.num_rows
    except (OSError, pa.ArrowException) as error:
        raise BadFile(f"cannot read {part.file}: {error}") from None


def _placed(part: Part, found: Iterator[FileRecord]) -> Iterator[FileRecord]:
    """Records whose errors name their file."""
    try:
        yield from found
    except BadRow as error:
        raise BadRow(f"{part.file}, {error.where}", error.why) from None


def _cells(batch: pa.RecordBatch, found: Plan, reading: Reading) -> Cells | None:
    times = _times(batch.column(found.time), found.unit)
    if times is None:
        return None
    if found.key:
        keys = _bytes(reading.key, batch.column(found.key), is_key=True)
    else:
        keys = pa.nulls(batch.num_rows, pa.binary())
    values = None if keys is None else _bytes(reading.value, batch.column(found.value), is_key=False)
    return None if keys is None or values is None else Cells(keys, values, times)


def _times(column: pa.Array, unit: str) -> Any:
    """Milliseconds since 1970 of a column without nulls; None where a row must say what is wrong."""
    if column.null_count or not len(column):
        return None
    is_stamp = pa.types.is_timestamp(column.type)
    if is_stamp:
        unit, column = column.type.unit, column.cast(pa.int64())
    elif not pa.types.is_signed_integer(column.type):
        return None
    given = to_numpy(column).astype(np.int64)
    times, parts = UNITS[unit]
    most = (LAST_MS + 1) * parts // times - 1 if is_stamp else _LONGEST // times  # Python's times end there
    if given.min() < 0 or given.max() > most:
        return None
    return given * times // parts


def _bytes(codec: Codec[Any], column: pa.Array, *, is_key: bool) -> pa.Array | None:
    """The cells as the codec writes them."""
    column = _short(column)
    kind, type_ = column.type, type(codec)
    if pa.types.is_signed_integer(kind):
        return _longs(column) if type_ is IntCodec and not column.null_count else None
    is_text, is_binary = pa.types.is_string(kind), pa.types.is_binary(kind)
    if not (is_text or is_binary):
        return None
    if is_text and not _is_utf8(column):  # Parquet says text and checks none
        return None
    if type_ is BytesCodec or (type_ is StrCodec and is_text):
        return column.cast(pa.binary())
    if type_ is StrCodec:
        return column if _is_utf8(column) else None
    if type_ is JsonCodec and (is_binary or not is_key):
        data = column.cast(pa.binary())
        return data if _all_read(codec, data) else None
    return None


def _short(column: pa.Array) -> pa.Array:
    """Text and bytes as pandas and polars write them, with offsets of 64 bits, with those of 32 where they do."""
    short = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(column.type)
    return column if short is None or column.nbytes > _SHORT_BYTES else column.cast(short)


def _longs(column: pa.Array) -> pa.Array:
    data = to_numpy(column).astype(">i8").tobytes()
    ends = np.arange(len(column) + 1, dtype=np.int32) * 8
    return pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)])


def _is_utf8(column: pa.Array) -> bool:
    try:
        column.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _all_read(codec: Codec[Any], data: pa.Array) -> bool:
    read = codec.decode
    try:
        for one in pc.drop_null(data).to_pylist() if data.null_count else data.to_pylist():
            read(one)
    except (CodecError, RecursionError):
        return False
    return True
