"""Parquet files: a row group at a time, each cell with its type.

One rule: nothing is cast but times: the column of the timestamp is cut to milliseconds, and any other column that is
finer than a microsecond must be whole microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.errors import DefinitionError
from pipeline.files.columns import Columns
from pipeline.files.shape import BadFile, BadRow, FileRecord, OnBad, Reading, Shape

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

ROWS = 4_096


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
    held = {field.name: _cells(batch.column(field.name), field.name, shape, name) for field in batch.schema}
    for row, cells in enumerate(zip(*held.values(), strict=True), before + 1):
        values = dict(zip(held, cells, strict=True))
        try:
            record = columns.record(f"row {row}", row, values)
        except BadRow as error:
            if bad is None:
                raise
            bad(error, values)
        else:
            yield record


def _cells(column: pa.Array, name: str, shape: Shape, file: str) -> list[object]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        cut = name == (shape.timestamp or "timestamp_ms")
        try:
            column = column.cast(pa.timestamp("us", column.type.tz), safe=not cut)
        except pa.ArrowInvalid as error:
            raise BadFile(
                f"{file}, column '{name}': finer than a microsecond, which is lost in Python: {error}"
            ) from None
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:  # Parquet says text and checks none: a row without it says so
        return [_text(cell) for cell in column.cast(pa.binary()).to_pylist()]


def _text(cell: bytes | None) -> object:
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError:
        return cell


def opened(name: str) -> pq.ParquetFile:
    """The file. Raises BadFile, DefinitionError."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DefinitionError(f"{name}: Parquet needs pyarrow; pip install 'stream-orchestrator[spark]'") from None
    try:
        return pq.ParquetFile(name)
    except (OSError, pa.ArrowException) as error:
        raise BadFile(f"{name} is no Parquet file ({error}); correct or leave it out") from None
