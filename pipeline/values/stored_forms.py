"""What a JSON schema does not say of a type, and a later version of an app has to know before it reads what is stored: of texts that they
are times without a zone, and of what the keys of a dict are.

One rule: it is marked beside what the schema says, in the description that the log keeps: descriptions without marks, of before, are
judged by what they say. Pure. Compared in `schemas.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec.inspect as kinds

from pipeline.values.key_times import Schema, Walk

HOLDS, KEYS = "holds", "keys"
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
_LIMITS = (("min_length", "minLength"), ("max_length", "maxLength"), ("pattern", "pattern"))


def with_forms(type_: Any, schema: Schema) -> dict[str, Any]:
    """The schema of a type of values or keys, with marks."""
    return _Forms(schema.get("$defs", {})).whole(type_, schema)


class _Forms(Walk):
    def time(self, kind: Any, schema: Schema) -> Schema:
        return {**schema, HOLDS: _held(kind)} if "format" not in schema else schema

    def other(self, kind: kinds.Type, schema: Schema) -> Schema:
        if not isinstance(kind, kinds.DictType) or schema.get("type") != "object":
            return schema
        values = schema.get("additionalProperties")
        marked = (
            {} if not isinstance(values, Mapping) else {"additionalProperties": self.marked(kind.value_type, values)}
        )
        return {**schema, **marked, KEYS: _form(kind.key_type)}


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
        return {"enum": sorted((one.value for one in kind.cls), key=str)}
    if isinstance(kind, kinds.LiteralType):
        return {"enum": sorted(kind.values, key=str)}
    if isinstance(kind, kinds.StrType):
        limits = {name: value for own, name in _LIMITS if (value := getattr(kind, own)) is not None}
        return {"type": "string", **limits}
    if isinstance(kind, kinds.DateTimeType | kinds.TimeType):
        aware = "time" if isinstance(kind, kinds.TimeType) else "date-time"
        return {"type": "string", **({"format": aware} if kind.tz else {HOLDS: _held(kind)})}
    return _PLAIN.get(type(kind), {})
