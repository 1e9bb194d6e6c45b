"""A key that was typed as JSON, by the schema of its type that the description of an app has.

One rule: a key of another type is refused, and one of its type becomes the bytes that the app has for it (1 for a float is
1.0, a time has one form); what a schema does not say is left as it was typed. Pure; no code of the app is needed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

import msgspec

from pipeline.errors import CodecError
from pipeline.values.key_forms import KeyForms
from pipeline.values.key_times import MARK

Schema = Mapping[str, Any]
_FORMATS: dict[str, Any] = {
    "date-time": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "uuid": uuid.UUID,
    "decimal": Decimal,
}
_PLAIN: dict[str, Any] = {"boolean": bool, "null": None, "number": float, "integer": int}
_LIMITS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "pattern": "pattern",
    "minLength": "min_length",
    "maxLength": "max_length",
}


class _Unsaid(Exception):
    """A schema of which no type follows."""


def key_schema(facts: Mapping[str, Any]) -> Schema | None:
    """Of the keys of a table, by its description; with the fields in the order in which they are written, where that is known."""
    form = facts.get("key_form")
    found: Schema | None = facts.get("key_schema") if form is None else json.loads(form)  # which has Infinity, too
    return found


def key_bytes(schema: Schema, text: str) -> bytes:
    """The bytes of a key of that type. Raises CodecError."""
    try:
        type_ = _type(schema, schema.get("$defs", {}), 0)
        decoder, forms = msgspec.json.Decoder(type_), KeyForms(type_)
    except (
        _Unsaid,
        TypeError,
        ValueError,
        RuntimeError,
    ):  # also what msgspec makes no decoder of: unions of like types
        decoder, forms = msgspec.json.Decoder(Any), None
    try:
        key = decoder.decode(text)
        return msgspec.json.encode(key, order="deterministic") if forms is None else forms.encode(key)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CodecError(
            f"'{text}' is no key of this table: {error}; write it as JSON of the type of its keys"
        ) from None


def _type(schema: Schema, parts: Mapping[str, Schema], depth: int) -> Any:
    if depth > 20:  # one that contains itself
        raise _Unsaid
    if "$ref" in schema:
        return _type(parts[schema["$ref"].rpartition("/")[2]], parts, depth + 1)
    if "anyOf" in schema:
        return reduce(or_, [_type(one, parts, depth + 1) for one in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return Literal[tuple(schema["enum"] if "enum" in schema else [schema["const"]])]
    if not schema:
        return Any
    kind = schema.get("type")
    if kind == "array":
        return _array(schema, parts, depth)
    if kind == "object":
        return _object(schema, parts, depth)
    if kind == "string":
        if "contentEncoding" in schema or schema.get("format", "date") not in _FORMATS:
            raise _Unsaid
        return _limited(_FORMATS.get(schema.get("format", schema.get(MARK, "")), str), schema)
    if kind not in _PLAIN:
        raise _Unsaid
    return _limited(_PLAIN[kind], schema)


def _limited(type_: Any, schema: Schema) -> Any:
    limits = {_LIMITS[name]: limit for name, limit in schema.items() if name in _LIMITS}
    return Annotated[type_, msgspec.Meta(**limits)] if limits else type_


def _array(schema: Schema, parts: Mapping[str, Schema], depth: int) -> Any:
    first = schema.get("prefixItems")
    if first is None:
        items = schema.get("items")
        return list[_type(items, parts, depth + 1)] if isinstance(items, Mapping) else list  # type: ignore[misc]
    if schema.get("minItems") != len(first) or schema.get("maxItems", len(first)) != len(first):
        raise _Unsaid
    return tuple[tuple(_type(one, parts, depth + 1) for one in first)]  # type: ignore[misc]


def _object(schema: Schema, parts: Mapping[str, Schema], depth: int) -> Any:
    """A field with a default may be left out: whether the app writes it then is not said, so it stays out."""
    if not isinstance(schema.get("properties"), Mapping):
        raise _Unsaid
    needed = schema.get("required", ())
    fields: list[Any] = []
    for number, (name, one) in enumerate(schema["properties"].items()):
        type_ = _type(one, parts, depth + 1)
        optional = type_ if name in needed else type_ | msgspec.UnsetType
        default = {} if name in needed else {"default": msgspec.UNSET}
        fields.append((f"field_{number}", optional, msgspec.field(name=name, **default)))
    return msgspec.defstruct(schema.get("title", "Key"), fields, kw_only=True, forbid_unknown_fields=True)
