"""Records to the Arrow table of a call: `Columns`. One rule: which columns it has follows from the declared types.

Values whose type has fields give a column each, others one that is called `value`. Values of a codec of the user's, or of
a type of any fields (`dict`), that are dicts in this batch give the fields that they have.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from msgspec import UNSET

from pipeline.columns import arrays
from pipeline.columns.arrow_types import codec_type, kind_type
from pipeline.columns.declared import OWN, SCALAR, record_kind
from pipeline.columns.json_records import JsonRecords
from pipeline.columns.objects import Take, taker, taker_of
from pipeline.columns.public import Columns
from pipeline.columns.raw import RawColumns
from pipeline.errors import CodecError
from pipeline.values.codecs import Codec

Named = list[tuple[str, pa.Array]]


class _Made(NamedTuple):
    """How a column is made of a field's values, where they are read one by one."""

    name: str
    type: Any
    take: Take
    may_be_unset: bool  # by its default alone


class Tables:
    """Of one topic: how its records become columns."""

    def __init__(self, key_codec: Codec[Any], value_codec: Codec[Any]) -> None:
        self._key_codec = key_codec
        self._value_codec = value_codec
        self._record = record_kind(value_codec)
        self._json = JsonRecords(self._record) if self._record is not None else None
        # Types are looked at once, not with each batch, which may be of one record.
        self._key_take, self._value_take = taker(key_codec), taker(value_codec)
        fields = self._record.fields if self._record is not None else ()
        self._made = [_Made(one.name, kind_type(one.kind), taker_of(one.kind), not one.is_required) for one in fields]
        type_ = codec_type(value_codec)
        self._may_be_dicts = self._record is None and (type_ is None or pa.types.is_map(type_))

    def of(self, raw: RawColumns) -> Columns[Any, Any]:
        """Raises CodecError, or whatever a codec of the user's raises, where a record cannot be read."""
        try:
            key = arrays.decode(self._key_codec, raw.keys, self._key_take)
        except CodecError as error:
            raise CodecError(f"column 'key' of topic {raw.topic!r}: {error}") from None
        try:
            values = self._values(raw.values)
        except CodecError as error:
            raise CodecError(f"value of topic {raw.topic!r}: {error}") from None
        columns = [("key", key), *values, ("timestamp_ms", pa.array(raw.timestamps)), ("offset", pa.array(raw.offsets))]
        names = [name for name, _ in columns]
        return Columns(pa.Table.from_arrays([array for _, array in columns], names))

    def _values(self, data: pa.Array) -> Named:
        if self._record is not None:
            return self._fields(data)
        if self._may_be_dicts:
            objects = arrays.decoded_objects(self._value_codec, data)
            there = [one for one in objects if one is not None]
            if there and all(isinstance(one, dict) for one in there):
                return _of_dicts(objects, self._value_take)
        return [(SCALAR, arrays.decode(self._value_codec, data, self._value_take))]

    def _fields(self, data: pa.Array) -> Named:
        assert self._record is not None and self._json is not None
        names = [field.name for field in self._record.fields]
        there = data.drop_null() if data.null_count else data
        found = self._json.read(there)
        if found is not None:
            if len(there) != len(data):
                found = [_spread(column, data) for column in found]
            return list(zip(names, found, strict=True))
        objects = arrays.decoded_objects(self._value_codec, data)
        columns: Named = []
        read = dict.get if self._record.is_mapping else getattr
        for name, type_, take, may_be_unset in self._made:
            values = [None if one is None else read(one, name, None) for one in objects]
            if may_be_unset:
                values = [None if one is UNSET else one for one in values]
            try:
                columns.append((name, arrays.array_of(values, type_, take)))
            except CodecError as error:
                raise CodecError(f"column {name!r}: {error}") from None
        return columns


def _spread(column: pa.Array, data: pa.Array) -> pa.Array:
    """A column of the records that have a value, with nulls for the others."""
    import pyarrow.compute as pc

    there = data.is_valid()
    places = pc.subtract(pc.cumulative_sum(there.cast(pa.int64())), 1)
    return column.take(pc.if_else(there, places, pa.scalar(None, pa.int64())))


def _of_dicts(objects: list[Any], take: Take) -> Named:
    names = list(dict.fromkeys(name for one in objects if one is not None for name in one))
    taken = [name for name in names if name in OWN or not isinstance(name, str)]
    if taken:
        raise CodecError(f"field {taken[0]!r} cannot be a column beside {', '.join(OWN)}; give it another name")
    return [
        (name, arrays.array_of([None if one is None else one.get(name) for one in objects], None, take))
        for name in names
    ]
