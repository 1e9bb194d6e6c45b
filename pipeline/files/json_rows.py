"""A line of flat JSON, whose columns are its fields, to a record.

One rule: what the key and the value take of a line is never made a float on the way: the topic's type reads the very digits, and a
value of any fields keeps them. In the flow: `text` has the line -> here -> `columns` for key, time and headers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pipeline.errors import CodecError
from pipeline.files.columns import REFUSED, Columns, Field, fields_of
from pipeline.files.exact_times import written
from pipeline.files.json_lines import NULL, NULL_CELL, json_value
from pipeline.files.names_once import names_once
from pipeline.files.shape import BadRow, FileRecord, Reading, Shape
from pipeline.values.codecs import JsonCodec

Raws = Mapping[str, msgspec.Raw]


class JsonColumns(Columns):
    """Reads lines that have these fields. What the type has and a line leaves out is null there."""

    def __init__(self, reading: Reading, shape: Shape, names: Sequence[str]) -> None:
        fields = fields_of(reading.value.type) if isinstance(reading.value, JsonCodec) else None
        every = [*names, *(name for name in fields or () if name not in names)]
        super().__init__(reading, shape, every, text=False, file="it")
        self._plain = [name for name in (self._key, self._time, self._headers, self._partition) if name]
        codec = reading.value
        self._decoder = msgspec.json.Decoder(codec.type) if isinstance(codec, JsonCodec) else None

    def raw_record(self, line: int, row: Raws) -> FileRecord:
        """Raises BadRow."""
        try:
            cells = {name: msgspec.json.decode(row.get(name, NULL_CELL)) for name in self._plain}
            if self._headers:
                names_once(bytes(row.get(self._headers, NULL_CELL)), cells[self._headers])
            return FileRecord(
                line,
                self._raw_key(row, cells),
                self._raw_value(row),
                self._read_time(cells),
                self._read_headers(cells),
                None,
                self._read_partition(cells),
            )
        except REFUSED as error:
            raise BadRow(f"line {line}", str(error)) from None

    def _raw_key(self, row: Raws, cells: Mapping[str, Any]) -> bytes | None:
        raw = bytes(row.get(self._key, NULL_CELL)) if self._key else NULL
        codec = self._reading.key
        if raw != NULL and isinstance(codec, JsonCodec):
            try:
                return written(codec, codec.decode(raw), raw)
            except CodecError:  # a text that is what the type says in another way, as in any cell of text
                pass
        return self._read_key(cells)

    def _raw_value(self, row: Raws) -> bytes | None:
        codec = self._reading.value
        if self._decoder is None or self._fields is None:
            raw = row.get(self._value, NULL_CELL)
            return self._cell(codec, msgspec.json.decode(raw)) if self._decoder is None else json_value(codec, raw)
        data = self._assembled(self._fields, row)
        value = self._decoder.decode(data)
        return data if self._is_any or not isinstance(codec, JsonCodec) else written(codec, value, data)

    def _assembled(self, fields: Mapping[str, Field], row: Raws) -> bytes:
        """The fields as one object."""
        parts = []
        for name, field in fields.items():
            raw = bytes(row.get(name, NULL_CELL))
            if raw != NULL or field.required or field.takes_null:
                parts.append(msgspec.json.encode(name) + b":" + raw)
        return b"{" + b",".join(parts) + b"}"
