"""Objects of Python to what Arrow takes, and back. One rule: nothing of a value is left out on the way.

Arrow takes dicts for structs and maps, and gives a map as pairs. In the flow: between a codec, which reads and writes
objects, and the arrays of `arrays.py`. Raises CodecError for a value that a column would change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import date, datetime, time, timedelta
from functools import cache
from typing import Any

import msgspec
import msgspec.inspect as kinds
import pyarrow as pa

from pipeline.columns.declared import parts_of
from pipeline.errors import CodecError
from pipeline.values.codecs import Codec, JsonCodec

KEPT = (bytes, datetime, date, time, timedelta)  # what Arrow takes as it is
# Of these none is looked at further; a time is, since it may have a zone.
AS_THEY_ARE = frozenset({*KEPT, int, float, bool, str, type(None)} - {time})
Take = Callable[[Any], Any]


def plain(value: Any) -> Any:
    """Structs and the like as dicts, whose maps Arrow takes as pairs."""
    return msgspec.to_builtins(value, builtin_types=KEPT)


def taker(codec: Codec[Any]) -> Take:
    """Returns what makes a codec's values what Arrow takes."""
    return taker_of(kinds.type_info(codec.type)) if isinstance(codec, JsonCodec) else whole


def taker_of(kind: kinds.Type) -> Take:
    """The same of a declared type: `plain`, which is quick, where that leaves nothing out."""
    return whole if _has_more(kind) else plain


def _has_more(kind: kinds.Type, inside: tuple[Any, ...] = ()) -> bool:
    """Whether a value may have what `plain` leaves out, or a column. `inside`: the classes around it."""
    if isinstance(kind, kinds.TimeType) or (
        isinstance(kind, kinds.StructType) and kind.cls.__struct_config__.omit_defaults
    ):
        return True
    cls = getattr(kind, "cls", None)
    return cls not in inside and any(_has_more(part, (*inside, cls) if cls else inside) for part in parts_of(kind))


def whole(value: Any) -> Any:
    """The same as `plain`, with the fields that JSON leaves out since they have their defaults. Raises CodecError."""
    if type(value) in AS_THEY_ARE:
        return value
    if isinstance(value, time):
        if value.tzinfo is not None:
            raise CodecError(f"{value} has a zone, which a time of day in a column has not; use a datetime, or a str")
        return value
    if isinstance(value, dict):
        return {whole(key): whole(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [whole(one) for one in value]
    names = _names(value.__class__)
    if names is None:
        return plain(value)
    found: dict[str, Any] = {}
    for name, encoded in names:
        one = getattr(value, name)
        if one is not msgspec.UNSET:
            found[encoded] = one if type(one) in AS_THEY_ARE else whole(one)
    return found | _tag(value)


@cache
def _names(cls: Any) -> tuple[tuple[str, str], ...] | None:
    """The fields of a class by their names and those in JSON; None where its values are no objects there. What a codec of the user's
    decodes may have types that only a type checker knows, so they are not asked for."""
    if issubclass(cls, msgspec.Struct):
        is_array = cls.__struct_config__.array_like
        return None if is_array else tuple(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
    if hasattr(cls, "__dataclass_fields__"):
        return tuple((field.name, field.name) for field in fields(cls))
    if hasattr(cls, "__attrs_attrs__"):
        return tuple((field.name, field.name) for field in cls.__attrs_attrs__ if not field.name.startswith("_"))
    return None


def _tag(value: Any) -> dict[str, Any]:
    if not isinstance(value, msgspec.Struct):
        return {}
    config = value.__struct_config__
    return {} if config.tag_field is None else {config.tag_field: config.tag}


def dicts_in(given: Any) -> Take | None:
    """Returns what makes dicts of the pairs in a value of an Arrow type; None where it has no map."""
    if pa.types.is_map(given):
        inner = dicts_in(given.item_type)
        return _unless_none(dict if inner is None else lambda pairs: {key: inner(one) for key, one in pairs})
    if pa.types.is_struct(given):
        found = {field.name: take for field in given if (take := dicts_in(field.type)) is not None}
        made: Take = lambda one: {**one, **{name: take(one[name]) for name, take in found.items()}}  # noqa: E731
        return _unless_none(made) if found else None
    if isinstance(given, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        of_item = dicts_in(given.value_type)
        return None if of_item is None else _unless_none(lambda one: [of_item(item) for item in one])
    return None


def _unless_none(take: Take) -> Take:
    return lambda value: None if value is None else take(value)
