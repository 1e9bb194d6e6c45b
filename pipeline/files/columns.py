"""A row of columns (CSV, Parquet, flat JSON) to a record.

One rule: a column means what its name says, and the type decides: a Struct takes the columns it has fields for, a dict
all that are neither key nor time, a plain type the one that `--value` names. An empty cell of text is null, unless a
string is wanted; null where the type has a default and does not know null is the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, get_args, get_origin

import msgspec

from pipeline.errors import CodecError
from pipeline.files import cells
from pipeline.files.exact_times import has_times, refuse_number, written
from pipeline.files.json_lines import json_headers
from pipeline.files.names_once import names_once
from pipeline.files.shape import ORDER, BadFile, BadRow, FileRecord, NoText, NotThis, Reading, Shape
from pipeline.records import Headers
from pipeline.values.codecs import Codec, JsonCodec, codec_name, type_name

Row = Mapping[str, Any]
NAMES_SHOWN = 30
OWN = ("key", "value", "timestamp_ms")
# ValueError: also a text of more digits than Python makes a number of.
REFUSED = (NotThis, CodecError, msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
_packed_headers = msgspec.msgpack.Decoder(Headers)


class Columns:
    """Reads the rows of one file. `text`: its cells are text. Raises BadFile where its columns do not do."""

    def __init__(self, reading: Reading, shape: Shape, names: Sequence[str], *, text: bool, file: str) -> None:
        twice = sorted({name for name in names if list(names).count(name) > 1})
        if twice:
            raise BadFile(f"{file} has two columns '{twice[0]}'; rename one")
        self._reading = reading
        self._text = text
        self._names = set(names) - {ORDER}
        self._unit = shape.unit
        self._file = file
        self._key = self._column(shape.key or "key", needed=not shape.flat or bool(shape.key))
        self._time = self._column(shape.timestamp or "timestamp_ms", needed=bool(shape.timestamp))
        self._headers = self._column(shape.headers, needed=True) if shape.headers else self._own("headers", shape)
        self._partition = self._column(shape.partition, needed=True) if shape.partition else ""
        self._offset = self._own("offset", shape)
        self._order = ORDER if ORDER in names and not shape.flat else ""
        built = shape.flat and not shape.value
        self._value = "" if built else self._column(shape.value or "value", needed=True)
        self._fields = self._value_fields() if built else None
        self._build = None if self._fields is None else self._built(self._fields)

    def record(self, where: str, line: int, row: Row) -> FileRecord:
        """Raises BadRow naming `where`."""
        try:
            return FileRecord(
                line,
                self._read_key(row),
                self._read_value(row),
                self._read_time(row),
                self._read_headers(row),
                self._read_number(row, self._offset),
                self._read_partition(row),
                self._read_number(row, self._order),
            )
        except REFUSED as error:
            raise BadRow(where, str(error)) from None

    @property
    def used(self) -> set[str]:
        """The columns that a record is made of."""
        own = {self._key, self._time, self._headers, self._partition, self._offset, self._order, self._value}
        return own | set(self._fields or ())

    def _own(self, name: str, shape: Shape) -> str:
        return name if name in self._names and not shape.flat else ""

    def _column(self, name: str, *, needed: bool) -> str:
        if name in self._names:
            return name
        if needed:
            raise BadFile(
                f"{self._file} has no column '{name}' for topic '{self._reading.topic}', it has "
                f"{_listed(self._names)}; name columns with --key, --value and --timestamp"
            )
        return ""

    def _read_key(self, row: Row) -> bytes | None:
        codec = self._reading.key
        cell = row[self._key] if self._key else None
        data = self._cell(codec, cell)
        # Equal keys have equal bytes, whatever the spaces in a file; bytes of a binary column are what was asked for.
        if data is None or isinstance(cell, bytes) or not isinstance(codec, JsonCodec):
            return data
        return written(codec, codec.decode(data), data)

    def _read_value(self, row: Row) -> bytes | None:
        if self._build is not None:
            return self._build(row)
        return self._cell(self._reading.value, row[self._value])

    def _cell(self, codec: Codec[Any], cell: Any) -> bytes | None:
        if cell is None or (self._text and cell == "" and codec_name(codec) not in ("str", "bytes")):
            return None
        return cells.from_text(codec, cell) if self._text else cells.from_cell(codec, cell)

    def _read_time(self, row: Row) -> int | None:
        cell = row[self._time] if self._time else None
        is_there = cell is not None and not (self._text and cell == "")
        return self._reading.timed(cells.time_of_cell(cell, self._unit) if is_there else None)

    def _read_headers(self, row: Row) -> Headers:
        cell = row[self._headers] if self._headers else None
        if not cell:
            return ()
        if isinstance(cell, bytes):  # of the data source `orchestrator.log`
            return _packed_headers.decode(cell)
        if isinstance(cell, list):
            return tuple(map(_header, cell))
        if not isinstance(cell, str):
            return json_headers(cell)
        try:
            found = msgspec.json.decode(cell)
        except msgspec.DecodeError as error:
            raise NotThis(f"headers: {error}") from None
        names_once(cell.encode(), found)
        return json_headers(found)

    def _read_number(self, row: Row, name: str) -> int | None:
        cell = row[name] if name else None
        if cell is None or cell == "":
            return None
        number = cells.whole(cell)
        if number is None:
            raise NotThis(f"{name} {cells.shown(cell)} is not an int")
        return number

    def _read_partition(self, row: Row) -> int | None:
        number, count = self._read_number(row, self._partition), self._reading.partitions
        if number is not None and not 0 <= number < count:
            raise NotThis(f"partition {number}: topic '{self._reading.topic}' has {count}, from 0 to {count - 1}")
        return number

    # ---- values of several columns

    def _value_fields(self) -> dict[str, Field]:
        """Of the columns that the value is built from. Raises BadFile."""
        codec = self._reading.value
        others = sorted(self._names - {self._key, self._time, self._headers, self._partition})
        if not isinstance(codec, JsonCodec):
            raise BadFile(
                f"topic '{self._reading.topic}' has values of one {codec_name(codec)}, and {self._file} has the columns "
                f"{_listed(others)}; name one with --value"
            )
        fields = fields_of(codec.type)
        if fields is None:
            inner = _inner_type(codec.type)
            if inner is _NO_DICT:
                raise BadFile(
                    f"values of topic '{self._reading.topic}' ({type_name(codec.type)}) have no fields that columns "
                    "could be; name the column that holds them with --value"
                )
            fields = {name: Field(inner, required=True) for name in others}
        kept = {name: field for name, field in fields.items() if name in self._names}
        missing = sorted(name for name, field in fields.items() if field.required and name not in kept)
        if missing:
            raise BadFile(
                f"{self._file} has no column '{missing[0]}', which values of topic '{self._reading.topic}' "
                f"({type_name(codec.type)}) need; it has {_listed(self._names)}"
            )
        return kept

    @property
    def _is_any(self) -> bool:
        """Whether the type of values leaves open what a field is."""
        codec = self._reading.value
        return isinstance(codec, JsonCodec) and _inner_type(codec.type) is Any

    def _built(self, fields: Mapping[str, Field]) -> Callable[[Row], bytes]:
        codec = self._reading.value
        assert isinstance(codec, JsonCodec)
        empty = {name: field.empty for name, field in fields.items()}
        text, strict, type_ = self._text, not self._text, codec.type
        absent = {name for name, field in fields.items() if not field.required and not field.takes_null}
        whole = [name for name, field in fields.items() if field.is_whole]
        moments = [name for name, field in fields.items() if field.is_moment] if text else []
        are_times = has_times(codec)

        def build(row: Row) -> bytes:
            found = {name: row[name] for name in fields}
            if text:
                found = {name: empty[name] if cell == "" else cell for name, cell in found.items()}
            for name in whole:
                found[name] = cells.without_scale(found[name])
            for name in absent:
                if found[name] is None:
                    del found[name]
            for name in moments:
                refuse_number(found.get(name), name)
            if NoText in map(type, found.values()):
                _refuse_no_text(found)
            value = msgspec.convert(found, type_, strict=strict)
            return written(codec, value, _texts(found.values())) if are_times else codec.encode(value)

        return build


class Field:
    """What a column of a value may hold."""

    def __init__(self, type_: Any, *, required: bool) -> None:
        self.required = required
        self.takes_null = _takes(None, type_)
        self.is_number = any(_takes(one, type_) for one in (1, 0.5, True)) and not _takes("1", type_)
        self.is_whole = _takes(1, type_) and not _takes(Decimal(1), type_)
        is_time = any(_takes(one, type_) for one in (datetime.min, datetime.max.replace(tzinfo=UTC), timedelta()))
        self.is_moment = is_time and not _takes(1, type_) and not _takes("1", type_)
        self.empty = "" if _takes("", type_) and not self.takes_null else None


_NO_DICT = object()


def _listed(names: Iterable[str]) -> str:
    """Names of columns; with quotes around those that a reader could not see as they are. Of many the first."""
    shown = [name if name.isprintable() and name and name == name.strip() else repr(name) for name in sorted(names)]
    more = f" and {len(shown) - NAMES_SHOWN} more" if len(shown) > NAMES_SHOWN else ""
    return ", ".join(shown[:NAMES_SHOWN]) + more


def fields_of(type_: Any) -> dict[str, Field] | None:
    """The fields of a type by their names in JSON; None where it has none."""
    info: Any = msgspec.inspect.type_info(type_)
    if not hasattr(info, "fields") or getattr(info, "array_like", False):
        return None
    hints = _hints(type_)
    return {field.encode_name: Field(hints[field.name], required=field.required) for field in info.fields}


def _hints(type_: Any) -> dict[str, Any]:
    from typing import get_type_hints

    return get_type_hints(get_origin(type_) or type_)


def _refuse_no_text(found: Row) -> None:
    name, cell = next((name, cell) for name, cell in found.items() if type(cell) is NoText)
    raise NotThis(f"column '{name}': {cells.shown(bytes(cell))} is not UTF-8; correct it, or make it a column of bytes")


def _texts(found: Iterable[Any]) -> bytes:
    return b"\n".join(cell.encode() for cell in found if isinstance(cell, str))


def _header(one: Any) -> tuple[str, bytes]:
    """A name with its value: a struct of `key` and `value`, as Spark reads headers of Kafka, or a pair. Raises NotThis."""
    if isinstance(one, dict) and one.keys() == {"key", "value"}:
        one = (one["key"], one["value"])
    name, data = one if isinstance(one, list | tuple) and len(one) == 2 else (None, None)
    data = data.encode() if isinstance(data, str) else b"" if data is None else data  # null as in records of a log
    if not isinstance(name, str) or not isinstance(data, bytes):
        raise NotThis("headers is neither an object of strings nor a list of names with values")
    return name, data


def _inner_type(type_: Any) -> Any:
    if type_ is Any or type_ is dict:
        return Any
    if get_origin(type_) is dict:
        return get_args(type_)[1]
    return _NO_DICT


def _takes(value: Any, type_: Any) -> bool:
    try:
        msgspec.convert(value, type_)
    except (msgspec.MsgspecError, TypeError):
        return False
    return True
