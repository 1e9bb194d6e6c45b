"""The checks of `columns=True`, made when the app's module is imported, and which columns a topic's values have.

One rule: pyarrow is looked for here, and not loaded: whether a declaration is right is known without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import msgspec.inspect as kinds

from pipeline.errors import DefinitionError
from pipeline.values.codecs import Codec, JsonCodec, own_name, type_name

OWN = ("key", "timestamp_ms", "offset")  # the columns that every batch has
SCALAR = "value"
_NEEDED = ("pyarrow", "numpy")
_FAMILIES = {
    kinds.IntType: "numbers",
    kinds.FloatType: "numbers",
    kinds.BoolType: "bool",
    kinds.StrType: "text",
    kinds.BytesType: "text",
    kinds.DecimalType: "text",
    kinds.UUIDType: "text",
}  # those of one family are of one column, also where Arrow takes the type from what comes
_PARTS = ("type", "item_type", "key_type", "value_type")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a topic's values: a column. `default` is msgspec's, NODEFAULT where there is none."""

    name: str
    encoded: str  # its name in JSON
    kind: kinds.Type
    is_required: bool
    default: Any


@dataclass(frozen=True, slots=True)
class RecordKind:
    """Values that have fields. `is_plain`: a JSON object with these fields, and nothing else is checked or made of it."""

    fields: tuple[Field, ...]
    is_mapping: bool
    is_plain: bool


def record_kind(codec: Codec[Any]) -> RecordKind | None:
    """The fields of a codec's values; None where they have none, or none that are known."""
    if not isinstance(codec, JsonCodec):
        return None
    found = without_none(kinds.type_info(codec.type))
    if isinstance(found, kinds.StructType | kinds.DataclassType | kinds.TypedDictType | kinds.NamedTupleType):
        return RecordKind(
            tuple(Field(one.name, one.encode_name, one.type, one.required, one.default) for one in found.fields),
            isinstance(found, kinds.TypedDictType),
            _is_plain(found),
        )
    return None


def without_none(kind: kinds.Type) -> kinds.Type:
    """What `X | None` is besides None."""
    if isinstance(kind, kinds.UnionType):
        rest = [one for one in kind.types if not isinstance(one, kinds.NoneType)]
        if len(rest) == 1:
            return without_none(rest[0])
    return without_none(kind.type) if isinstance(kind, kinds.Metadata) else kind


def _is_plain(found: Any) -> bool:
    if isinstance(found, kinds.StructType):
        own = found.tag is None and not found.array_like and not found.forbid_unknown_fields
        return own and not hasattr(found.cls, "__post_init__")
    return isinstance(found, kinds.TypedDictType)


def check_keys(name: str, topic: str, codec: Codec[Any]) -> None:
    """Whether a topic's keys can be a column. Raises DefinitionError."""
    _refuse_mixed(name, f"keys of topic {topic!r}", codec)


def _refuse_mixed(name: str, what: str, codec: Codec[Any]) -> None:
    """Each batch would fail for it."""
    found = mixed_tuple(kinds.type_info(codec.type)) if isinstance(codec, JsonCodec) else None
    if found is not None:
        raise DefinitionError(
            f"{name}: columns=True, and {what} have a tuple of {' and '.join(found)}, which no column of Arrow holds; make it a "
            "frozen Struct, or leave columns= out"
        )


def mixed_tuple(kind: kinds.Type, inside: tuple[Any, ...] = ()) -> list[str] | None:
    """The types of the parts of a tuple in it, where Arrow has none for all of them. `inside`: the classes around it."""
    if isinstance(kind, kinds.TupleType):
        families = dict.fromkeys(_FAMILIES.get(type(without_none(one)), "") for one in kind.item_types)
        families.pop("", None)
        if len(families) > 1:
            return list(families)
    cls = getattr(kind, "cls", None)
    if cls in inside:
        return None
    inside = (*inside, cls) if cls is not None else inside
    return next((found for part in parts_of(kind) if (found := mixed_tuple(part, inside)) is not None), None)


def parts_of(kind: kinds.Type) -> list[kinds.Type]:
    """The types that a declared type is made of."""
    if isinstance(kind, kinds.StructType | kinds.DataclassType | kinds.TypedDictType | kinds.NamedTupleType):
        return [field.type for field in kind.fields]
    parts = [*getattr(kind, "types", ()), *getattr(kind, "item_types", ())]
    return parts + [part for name in _PARTS if isinstance(part := getattr(kind, name, None), kinds.Type)]


def check_values(name: str, topic: str, codec: Codec[Any]) -> None:
    """Whether a topic's values can be columns. Raises DefinitionError."""
    _refuse_mixed(name, f"values of topic {topic!r}", codec)
    record = record_kind(codec)
    for field in record.fields if record is not None else ():
        if field.name in OWN:
            raise DefinitionError(
                f"{name}: columns=True, and field {field.name!r} of the values of topic {topic!r} would be a second column of "
                "that name; rename the field (msgspec.field(name=...) keeps its name in JSON)"
            )


def check_alike(name: str, topics: Sequence[tuple[str, Codec[Any], Codec[Any]]]) -> None:
    """Whether several sources have the same columns; given are the name, key and value codec of each.
    Raises DefinitionError."""
    first, *others = topics
    for other in others:
        for part, one, two in (("keys", first[1], other[1]), ("values", first[2], other[2])):
            is_same = type(one) is type(two) and getattr(one, "type", None) == getattr(two, "type", None)
            if not is_same or (not isinstance(one, JsonCodec) and one != two):
                raise DefinitionError(
                    f"{name}: columns=True, and the {part} of topics {first[0]!r} and {other[0]!r} have different types; give "
                    "each a processor of its own"
                )


def check_installed(name: str) -> None:
    """Raises DefinitionError where pyarrow or numpy is not installed."""
    missing = [module for module in _NEEDED if find_spec(module) is None]
    if missing:
        raise DefinitionError(
            f"{name}: columns=True needs {' and '.join(missing)}, which is not installed; install the extra 'columns': "
            "stream-orchestrator[columns]"
        )


def shown_kind(codec: Codec[Any]) -> str:
    """A codec's type in a message."""
    return type_name(codec.type) if isinstance(codec, JsonCodec) else own_name(codec).removesuffix("Codec").lower()
