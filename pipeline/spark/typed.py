"""Keys and values of the app as typed columns of Spark. One rule: the types are those of the app's own definitions, as the log keeps
them; what has no type there is a binary column, and what has no one type (a union, a dict, a list) is JSON text. What JSON writes as
text (a date, a UUID, a Decimal) is that text, wherever it stands. A value that is none
of its type is refused, never rounded, cut or made null; a field that is not there has the default that the app would see.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from pipeline.errors import CodecError
from pipeline.values.json_values import shown

PLAIN = {"str": ("string", pa.string()), "int": ("bigint", pa.int64()), "float": ("double", pa.float64())}
BYTES = ("binary", pa.binary())
_OF_SCHEMA = {
    "string": PLAIN["str"],
    "integer": PLAIN["int"],
    "number": PLAIN["float"],
    "boolean": ("boolean", pa.bool_()),
}
_OF_ENUM = {str: PLAIN["str"], int: PLAIN["int"]}  # by what all its values are
_IN_JSON = {"string": (str,), "bigint": (int,), "double": (float,), "boolean": (bool,)}


class Field(NamedTuple):
    """A field of a struct: its type in Spark ("": JSON text), and what the app sees where it is not there; of one that is required
    that is an error. `is_decimal`: a number in JSON is one, too, and its digits count."""

    name: str
    kind: str
    default: Any = None
    is_required: bool = False
    is_decimal: bool = False

    @property
    def is_text(self) -> bool:
        """Whether it is made of the text of the value."""
        return self.is_decimal or not self.kind


class Column(NamedTuple):
    """A column: its type in Spark and in Arrow, the codec of its bytes, the fields of a struct, and the type in Spark of what is one plain
    value in JSON ("": none), which may be a Decimal."""

    ddl: str
    arrow: Any
    codec: str
    fields: tuple[Field, ...] = ()
    plain: str = ""
    is_decimal: bool = False

    def value(self, data: bytes | None) -> Any:
        """What stands in the column for these bytes. Raises CodecError."""
        if data is None or self.codec not in (*PLAIN, "json"):
            return data
        if self.codec != "json":
            return shown(self.codec, data)
        try:
            found = msgspec.json.decode(data)
            text = data.decode()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CodecError(f"the value is no JSON: {error}") from None
        if self.plain:
            return _cell(found, Field("it", self.plain, is_decimal=self.is_decimal), text)
        if not self.fields:
            return text
        if found is None:
            return None
        if not isinstance(found, dict):
            raise CodecError(f"the value does not fit the column in Spark: {text[:80]} is no object with fields")
        missing = next((one.name for one in self.fields if one.is_required and one.name not in found), None)
        if missing is not None:  # the app could not read it either, or makes of it what no schema says (upgrade=)
            raise CodecError(f"the value does not fit the column in Spark: {text[:80]} has no {missing}")
        texts = (
            msgspec.json.decode(data, type=dict[str, msgspec.Raw]) if any(one.is_text for one in self.fields) else {}
        )
        return {one.name: _cell(found.get(one.name, one.default), one, texts.get(one.name)) for one in self.fields}


def _cell(value: Any, field: Field, text: str | msgspec.Raw | None = None) -> Any:
    """`text`: of the value, where it has one: a number that is read as a float may lose digits."""
    if value is None:
        return None
    if isinstance(text, msgspec.Raw):
        text = bytes(text).decode()
    if not field.kind:
        return json.dumps(value) if text is None else text
    if field.is_decimal and text is not None and type(value) in (int, float):
        return str(Decimal(text.strip()))
    if field.kind == PLAIN["float"][0] and type(value) is int:
        return float(value)
    if field.kind == PLAIN["int"][0] and type(value) is float and value.is_integer():
        return int(value)
    if field.kind == BYTES[0]:
        return _binary(value, field)
    if type(value) not in _IN_JSON[field.kind]:  # of which Arrow would make another value: 1 of 1.5, 1.0 of true
        raise CodecError(
            f"the value does not fit the column in Spark: {field.name} is {json.dumps(value)[:80]}, no {field.kind}"
        )
    return value


def _binary(value: Any, field: Field) -> bytes:
    """JSON has bytes as base64."""
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        raise CodecError(
            f"the value does not fit the column in Spark: {field.name} is {json.dumps(value)[:80]}, no base64"
        ) from None


def column(codec: str, schema: Mapping[str, Any] | None = None) -> Column:
    """The column of a codec; of JSON objects with named fields a struct of them, of what is one plain value the type of that."""
    if codec != "json":
        return Column(*PLAIN.get(codec, BYTES), codec)
    parts = _without_null(schema or {}, schema or {})
    if (one := _of(parts, schema or {})) is not None:
        return Column(*one, codec, plain=one[0], is_decimal=_is_decimal(parts, schema or {}))
    properties = parts.get("properties")
    if parts.get("type") != "object" or not properties:
        return Column("string", pa.string(), codec)
    ddl, arrow, fields = [], [], []
    required = parts.get("required", ())
    for name, described in properties.items():
        found = _of(described, schema or {})
        kind = found or PLAIN["str"]
        ddl.append(f"`{name}`:{kind[0]}")
        arrow.append((name, kind[1]))
        is_tag = len(described.get("enum", ())) == 1  # which need not be there
        default = described["enum"][0] if is_tag else described.get("default")
        is_decimal = found is not None and _is_decimal(described, schema or {})
        fields.append(Field(name, found[0] if found else "", default, name in required and not is_tag, is_decimal))
    return Column(f"struct<{','.join(ddl)}>", pa.struct(arrow), codec, tuple(fields))


def _of(described: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The type of a field; None where it has no one plain type."""
    parts = _resolved(described, schema)
    if "anyOf" in parts:
        found = {_of(choice, schema) for choice in parts["anyOf"] if choice.get("type") != "null"}
        return found.pop() if len(found) == 1 else None
    if parts.get("contentEncoding") == "base64":
        return BYTES
    if "enum" not in parts:
        return _OF_SCHEMA.get(str(parts.get("type")))
    kinds = {type(value) for value in parts["enum"]}
    return _OF_ENUM.get(kinds.pop()) if len(kinds) == 1 else None


def _is_decimal(described: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether a Decimal may stand there, which apps also read of a number."""
    parts = _resolved(described, schema)
    return parts.get("format") == "decimal" or any(_is_decimal(choice, schema) for choice in parts.get("anyOf", ()))


def _without_null(described: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `X | None` is besides None."""
    parts = _resolved(described, schema)
    choices = [choice for choice in parts.get("anyOf", ()) if choice.get("type") != "null"]
    return _resolved(choices[0], schema) if len(choices) == 1 else parts


def _resolved(described: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a reference names."""
    name = str(described.get("$ref", "")).rpartition("/")[2]
    found: Mapping[str, Any] = schema.get("$defs", {}).get(name, {}) if name else described
    return found
