"""What a JSON schema does not say of a type, and a later version of an app has to know before it reads what is stored: of texts that they
are times without a zone, of what the keys of a dict are, of an enum how its values are called, and of a class which fields it leaves out of what it writes and which it writes without their names.

One rule: it is marked beside what the schema says, in the description that the log keeps: descriptions without marks, of before, are
judged by what they say. Pure. Compared in `schemas.py` and `misread.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_origin

import msgspec
import msgspec.inspect as kinds

from pipeline.values.key_times import Schema, Walk

# Of a description. That of the version before (True) lacks the marks of classes with tags inside a larger union.
MARKED = 2
HOLDS, KEYS = "holds", "keys"
LEAVES = "leaves_out"  # the fields that are not written where they have their default, each with it: [value], or [] for UNSET
MEMBERS = "members"  # of an enum: each with its value
NAMES = "names"  # of the fields of a class that is written as an array, in order; None for its tag
TAG = "tag"  # of a class, by which it is known in a union
ANY_TIME, NAIVE_TIME, TIME_OF_DAY = "date-time of any zone or none", "date-time without a zone", "time"
_PLAIN: dict[type, Mapping[str, Any]] = {
    kinds.IntType: {"type": "integer"},
    kinds.FloatType: {"type": "number"},
    kinds.BoolType: {"type": "boolean"},
    kinds.DateType: {"type": "string", "format": "date"},
    kinds.TimeDeltaType: {"type": "string", "format": "duration"},
    kinds.UUIDType: {"type": "string", "format": "uuid"},
    kinds.DecimalType: {"type": "string", "format": "decimal"},
    kinds.BytesType: {"type": "string", "contentEncoding": "base64"},
}
_EMPTY = (list, dict, set)  # what they make is left out, as other defaults are
_LIMITS = (("min_length", "minLength"), ("max_length", "maxLength"), ("pattern", "pattern"))


def with_forms(type_: Any, schema: Schema) -> dict[str, Any]:
    """The schema of a type of values or keys, with marks."""
    return _Forms(schema.get("$defs", {})).whole(type_, schema)


class _Forms(Walk):
    def time(self, kind: Any, schema: Schema) -> Schema:
        return {**schema, HOLDS: _held(kind)} if "format" not in schema else schema

    def other(self, kind: kinds.Type, schema: Schema) -> Schema:
        if isinstance(kind, kinds.EnumType):
            return {**schema, MEMBERS: {one.name: one.value for one in kind.cls}}
        if not isinstance(kind, kinds.DictType) or schema.get("type") != "object":
            return schema
        values = schema.get("additionalProperties")
        marked = (
            {} if not isinstance(values, Mapping) else {"additionalProperties": self.marked(kind.value_type, values)}
        )
        return {**schema, **marked, KEYS: _form(kind.key_type)}

    def _object(self, kind: Any, schema: Schema) -> Schema:
        is_array = schema.get("type") == "array"
        tag = [None] * (len(schema.get("prefixItems", ())) - len(kind.fields))
        names = [*tag, *(one.name for one in kind.fields)] if is_array else None
        marks = {
            NAMES: names,
            LEAVES: _leaves(kind) if "properties" in schema else None,
            TAG: getattr(kind, "tag", None),
        }
        return {
            **super()._object(kind, schema),
            **{name: mark for name, mark in marks.items() if mark not in (None, {})},
        }


def as_json(value: Any) -> Any:
    """What JSON has of a value, the same at each start (sets in order); None of what it has none of."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value, order="deterministic"))
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return None


def in_order(value: Any, schema: Schema) -> Any:
    """A default of that schema; a set of which came in any order."""
    return sorted(value, key=msgspec.json.encode) if schema.get("uniqueItems") and isinstance(value, list) else value


def _leaves(kind: Any) -> dict[str, list[Any]]:
    if not isinstance(kind, kinds.StructType | kinds.DataclassType):
        return {}
    omits = isinstance(kind, kinds.StructType) and (get_origin(kind.cls) or kind.cls).__struct_config__.omit_defaults
    found: dict[str, list[Any]] = {}
    for one in kind.fields:
        if omits and one.default is not msgspec.NODEFAULT:
            found[one.encode_name] = [as_json(one.default)]
        elif omits and one.default_factory in _EMPTY:
            found[one.encode_name] = [as_json(one.default_factory())]
        elif not one.required and one.default is msgspec.NODEFAULT and one.default_factory is msgspec.NODEFAULT:
            found[one.encode_name] = []  # its default is UNSET
    return found


def _held(kind: Any) -> str:
    if isinstance(kind, kinds.TimeType):
        return TIME_OF_DAY
    return NAIVE_TIME if kind.tz is False else ANY_TIME


def _form(kind: kinds.Type) -> Schema:
    """Of a key, by its type; {} for anything."""
    if isinstance(kind, kinds.Metadata):
        return _form(kind.type)
    if isinstance(kind, kinds.UnionType):
        return {"anyOf": [_form(one) for one in kind.types]}
    if isinstance(kind, kinds.EnumType):
        members = {one.name: one.value for one in kind.cls}
        return {"enum": sorted(members.values(), key=str), MEMBERS: members}
    if isinstance(kind, kinds.LiteralType):
        return {"enum": sorted(kind.values, key=str)}
    if isinstance(kind, kinds.StrType):
        limits = {name: value for own, name in _LIMITS if (value := getattr(kind, own)) is not None}
        return {"type": "string", **limits}
    if isinstance(kind, kinds.DateTimeType | kinds.TimeType):
        aware = "time" if isinstance(kind, kinds.TimeType) else "date-time"
        return {"type": "string", **({"format": aware} if kind.tz else {HOLDS: _held(kind)})}
    return _PLAIN.get(type(kind), {})
