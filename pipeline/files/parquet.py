"""Parquet files: a row group at a time, each cell with its type.

One rule: nothing is cast but times: the column of the timestamp is cut to milliseconds, and any other that is finer than a
microsecond must be whole microseconds. INT96, which old writers and Spark have for timestamps, is read as microseconds, as Spark does:
as nanoseconds a year after 2262 would be another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pipeline.errors import DefinitionError
from pipeline.files.columns import Columns
from pipeline.files.shape import BadFile, BadRow, FileRecord, NoText, OnBad, Reading, Shape

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

ROWS = 4_096
_MINUTE = timedelta(minutes=1)


def groups(name: str) -> int:
    """How many row groups the file has. Raises BadFile."""
    with opened(name) as file:
        return int(file.metadata.num_row_groups)


def rows(name: str) -> int:
    """How many rows the file has. Raises BadFile."""
    with opened(name) as file:
        return int(file.metadata.num_rows)


def names(name: str) -> list[str]:
    """Its columns. Raises BadFile."""
    with opened(name) as file:
        return list(file.schema_arrow.names)


def records(name: str, group: int, reading: Reading, shape: Shape, bad: OnBad | None = None) -> Iterator[FileRecord]:
    """The rows of a group; they count from 1 in the file. Raises BadRow, BadFile."""
    import pyarrow as pa

    with opened(name) as file:
        columns = Columns(reading, shape, file.schema_arrow.names, text=False, file=name)
        row = rows_before(file, group)
        try:
            for batch in file.iter_batches(ROWS, row_groups=[group]):
                yield from records_of(batch, row, columns, shape, name, bad)
                row += batch.num_rows
        except pa.ArrowException as error:
            raise BadFile(f"cannot read {name}: {error}") from None


def rows_before(file: pq.ParquetFile, group: int) -> int:
    """How many rows stand before a group."""
    return sum(file.metadata.row_group(at).num_rows for at in range(group))


def records_of(
    batch: pa.RecordBatch, before: int, columns: Columns, shape: Shape, name: str, bad: OnBad | None
) -> Iterator[FileRecord]:
    """The rows of a batch, before which there are so many in the file. Raises BadRow, BadFile."""
    unread: dict[int, str] = {}  # why, by row
    used = columns.used
    others = [] if bad is None else [one for one in batch.schema.names if one not in used]
    held = {one: _cells(batch.column(one), one, shape, name, unread) for one in batch.schema.names if one in used}
    held |= {one: _beside(batch.column(one), one, shape, name) for one in others}  # one set aside is set aside whole
    for at, cells in enumerate(zip(*held.values(), strict=True)):
        where, values = f"row {before + at + 1}", dict(zip(held, cells, strict=True))
        try:
            if at in unread:
                raise BadRow(where, unread[at])
            record = columns.record(where, before + at + 1, values)
        except BadRow as error:
            if bad is None:
                raise
            bad(error, values)
        else:
            yield record


def _beside(column: pa.Array, name: str, shape: Shape, file: str) -> list[object]:
    """The cells of a column that no record takes, to be shown: what Python has not is text, and no reason to refuse a row."""
    import pyarrow as pa

    try:
        return _cells(column, name, shape, file, {})
    except BadFile:
        if pa.types.is_timestamp(column.type) or pa.types.is_time(column.type):
            return list(column.cast(pa.string()).to_pylist())
        return _cells(column.cast(_in_microseconds(column.type), safe=False), name, shape, file, {})


def _cells(column: pa.Array, name: str, shape: Shape, file: str, unread: dict[int, str]) -> list[object]:
    import pyarrow as pa

    cut = name == (shape.timestamp or "timestamp_ms")
    if cut and pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = _cut(column).cast(pa.timestamp("us", column.type.tz))
    wanted = _in_microseconds(column.type)
    try:
        coarse = column if wanted == column.type else column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise BadFile(f"{file}, column '{name}': finer than a microsecond, which is lost in Python: {error}") from None
    try:
        read = list(coarse.to_pylist(maps_as_pydicts="strict"))
        return [_of_whole_minutes(cell) for cell in read] if "tz=" in str(column.type) else read
    except UnicodeDecodeError:  # Parquet says text and checks none: a row without it says so
        if _is_text(column.type):
            return [_text(cell) for cell in column.cast(pa.binary()).to_pylist()]
        return [_cell(one, name, row, unread) for row, one in enumerate(coarse)]
    except (
        OverflowError,
        ValueError,
        KeyError,
        TypeError,
    ):  # a year that Python has not, a key of a map twice, or a struct
        return [_cell(one, name, row, unread) for row, one in enumerate(coarse)]


def _cut(column: pa.Array) -> pa.Array:
    """Nanoseconds since 1970 as whole microseconds. What is before 1970 stays there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = column.cast(pa.int64())
    return pc.divide(pc.subtract(found, pc.if_else(pc.less(found, 0), 999, 0)), 1_000)


def _cell(one: pa.Scalar, name: str, row: int, unread: dict[int, str]) -> object:
    import pyarrow as pa

    try:
        return _of_whole_minutes(one.as_py(maps_as_pydicts="strict"))
    except TypeError:
        unread[row] = f"column '{name}': a map has keys that are no plain values, so it is no object of JSON"
    except (OverflowError, ValueError, KeyError) as error:
        unread[row] = f"column '{name}': {error}"
    try:
        return one.cast(pa.string()).as_py()
    except pa.ArrowException:
        return None


def _of_whole_minutes(cell: object) -> object:
    """A time in UTC where its zone's offset has seconds, as those of cities had before 1972: JSON has none, and its writer rounds them, by
    which the time would be another one."""
    if isinstance(cell, datetime):
        offset = cell.utcoffset()
        return cell if offset is None or not offset % _MINUTE else cell.astimezone(UTC)
    if isinstance(cell, list):
        return [_of_whole_minutes(one) for one in cell]
    if isinstance(cell, dict):
        return {key: _of_whole_minutes(one) for key, one in cell.items()}
    return cell


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """The type with microseconds in the place of nanoseconds, inside lists, maps and structs as well."""
    import pyarrow as pa

    types = pa.types
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if types.is_time64(kind):
        return pa.time64("us")
    if types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if types.is_struct(kind):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_in_microseconds(kind.key_type), _in_microseconds(kind.item_type))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    return kind


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _text(cell: bytes | None) -> object:
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError:
        return NoText(cell or b"")


def opened(name: str) -> pq.ParquetFile:
    """The file. Raises BadFile, DefinitionError."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DefinitionError(f"{name}: Parquet needs pyarrow; pip install 'stream-orchestrator[spark]'") from None
    try:
        return pq.ParquetFile(name, coerce_int96_timestamp_unit="us")
    except (OSError, pa.ArrowException) as error:
        raise BadFile(f"{name} is no Parquet file ({error}); correct or leave it out") from None
