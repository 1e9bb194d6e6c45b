"""JSON objects to columns through Arrow's own reader: no object is made for a record or a field.

One rule: it answers only where Arrow and msgspec read the same. Wherever they might differ (a field that is not there, a
number in another form, text that is not quite JSON) there is no answer, and the codec reads value by value.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import msgspec.inspect as kinds
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from pipeline.columns.declared import Field, RecordKind, without_none

_READ_BY_BOTH: dict[type, Any] = {
    kinds.IntType: pa.int64(),
    kinds.FloatType: pa.float64(),
    kinds.BoolType: pa.bool_(),
    kinds.StrType: pa.string(),
}
_UNCHECKED = {  # a type that also checks its values is msgspec's to read
    kinds.IntType: kinds.IntType(),
    kinds.FloatType: kinds.FloatType(),
    kinds.BoolType: kinds.BoolType(),
    kinds.StrType: kinds.StrType(),
}
_DIFFER = (b"NaN", b"Inf")  # Arrow reads them as numbers
_MINUS_NOTHING = re.compile(rb"-0(?![.\deE])")  # a float with a sign to Arrow, none to msgspec
_MOST_BYTES = 1 << 30


class JsonRecords:
    """Of one type of values. `can_read`: whether all of its fields are of types that both read alike."""

    def __init__(self, record: RecordKind) -> None:
        self._fields = record.fields
        found = [
            _READ_BY_BOTH.get(type(kind)) if kind == _UNCHECKED.get(type(kind)) else None for kind in _kinds(record)
        ]
        self.can_read = record.is_plain and bool(found) and None not in found
        self._has_floats = pa.float64() in found
        if self.can_read:
            names = [field.encoded for field in self._fields]
            self._options = pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(list(zip(names, found, strict=True))), unexpected_field_behavior="ignore"
            )

    def read(self, values: pa.Array) -> list[pa.Array] | None:
        """The columns of its fields, in order; `values` are bytes without nulls. None where the codec must read them."""
        count = len(values)
        if not self.can_read or not count:
            return None
        lines = _lines(values)
        if lines is None:
            return None
        text = lines.to_pybytes()
        if any(one in text for one in _DIFFER) or not _is_utf8(text):
            return None
        if self._has_floats and _MINUS_NOTHING.search(text):
            return None
        size = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        try:
            table = pyarrow.json.read_json(pa.BufferReader(lines), read_options=size, parse_options=self._options)
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        if table.num_rows != count:
            return None
        has_null = b"null" in text
        columns: list[pa.Array] = []
        for field in self._fields:
            column = _filled(field, table.column(field.encoded).combine_chunks(), has_null)
            if column is None or _has_overflowed(column):
                return None
            columns.append(column)
        return columns


def _kinds(record: RecordKind) -> list[kinds.Type]:
    return [without_none(field.kind) for field in record.fields]


def _lines(values: pa.Array) -> Any:
    """The values as lines, each of which is one JSON object if it is JSON at all: it begins and ends with braces, and the
    reader knows no line break inside."""
    is_object = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
    if not pc.all(is_object).as_py():
        return None
    if values.nbytes > _MOST_BYTES:
        return None
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pc.binary_join(lists, b"\n")[0].as_buffer()


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _has_overflowed(column: pa.Array) -> bool:
    """Whether a number has no place in a float: Arrow makes it infinite, and msgspec refuses it."""
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_inf(column)).as_py())


def _filled(field: Field, column: pa.Array, has_null: bool) -> pa.Array | None:
    """The column with the default where a field is not there; None where it cannot be known what null stands for."""
    if not column.null_count:
        return column
    if field.is_required or field.default is msgspec.NODEFAULT:
        return None
    if field.default is None:
        return column
    return None if has_null else column.fill_null(field.default)  # else written as null, or not there
