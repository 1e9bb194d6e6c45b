"""The Arrow type of each declared type. One rule: it follows from the declaration alone, so every batch has the same columns.

None where there is none (a codec of the user's, Any, unions): then Arrow takes the type from the values of the batch.
"""

from __future__ import annotations

from typing import Any

import msgspec.inspect as kinds
import pyarrow as pa

from pipeline.columns.declared import without_none
from pipeline.values.codecs import BytesCodec, Codec, FloatCodec, IntCodec, JsonCodec, StrCodec

_NATIVE: dict[type, Any] = {
    BytesCodec: pa.binary(),
    StrCodec: pa.string(),
    IntCodec: pa.int64(),
    FloatCodec: pa.float64(),
}
_SCALARS: dict[type, Any] = {
    kinds.IntType: pa.int64(),
    kinds.FloatType: pa.float64(),
    kinds.BoolType: pa.bool_(),
    kinds.StrType: pa.string(),
    kinds.BytesType: pa.binary(),
    kinds.DateTimeType: pa.timestamp("us", "UTC"),
    kinds.DateType: pa.date32(),
    kinds.TimeType: pa.time64("us"),
    kinds.TimeDeltaType: pa.duration("us"),
    kinds.DecimalType: pa.string(),  # as in JSON: a column of decimals has one scale, and values have their own
    kinds.UUIDType: pa.string(),
    kinds.NoneType: pa.null(),
}
_LISTS = (kinds.ListType, kinds.SetType, kinds.FrozenSetType, kinds.VarTupleType)


def codec_type(codec: Codec[Any]) -> Any:
    """The type of a codec's values, None where it is not known."""
    if isinstance(codec, JsonCodec):
        return kind_type(kinds.type_info(codec.type))
    return _NATIVE.get(type(codec))


def kind_type(kind: kinds.Type, inside: tuple[Any, ...] = ()) -> Any:
    """The same of a declared type. `inside`: the classes around it; one that holds itself has no type in Arrow."""
    kind = without_none(kind)
    if (scalar := _SCALARS.get(type(kind))) is not None:
        return scalar
    if isinstance(kind, kinds.UnionType):
        found = {kind_type(one, inside) for one in kind.types if not isinstance(one, kinds.NoneType)}
        return pa.float64() if found == {pa.int64(), pa.float64()} else None
    if isinstance(kind, kinds.EnumType):
        return _of_values([one.value for one in kind.cls])
    if isinstance(kind, kinds.LiteralType):
        return _of_values([one for one in kind.values if one is not None])
    if isinstance(kind, _LISTS):
        item = kind_type(kind.item_type, inside)
        return None if item is None else pa.list_(item)
    if isinstance(kind, kinds.DictType):
        parts = kind_type(kind.key_type, inside), kind_type(kind.value_type, inside)
        return None if None in parts else pa.map_(*parts)
    if isinstance(kind, kinds.StructType | kinds.DataclassType | kinds.TypedDictType):
        if kind.cls in inside or (isinstance(kind, kinds.StructType) and (kind.array_like or kind.tag is not None)):
            return None
        found_fields = [(one.encode_name, kind_type(one.type, (*inside, kind.cls))) for one in kind.fields]
        return None if any(type_ is None for _, type_ in found_fields) else pa.struct(found_fields)
    return None


def _of_values(values: list[Any]) -> Any:
    if all(isinstance(one, str) for one in values):
        return pa.string()
    return pa.int64() if all(type(one) is int for one in values) else None
