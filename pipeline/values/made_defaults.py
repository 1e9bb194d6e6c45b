"""The defaults that functions make (`default_factory`), for tools that have the description of an app and none of its code.

One rule: a default is described only where every call gives the same value: for a type that is called without arguments, or for a function
that uses no name of its module and has no function inside. `date.today` gives another value each day, so it is left out. Pure but for those calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from types import CodeType, FunctionType
from typing import Any

import msgspec
import msgspec.inspect as kinds

Schema = Mapping[str, Any]
_PLAIN = (list, dict, set, frozenset, tuple, str, int, float, bool, bytes, bytearray, Decimal)
_FIELDS = (kinds.StructType, kinds.DataclassType)


def with_made_defaults(type_: Any, schema: Schema) -> dict[str, Any]:
    """The schema of a type, with the made defaults of its fields; those of types inside are as they were."""
    names = [one["$ref"].rpartition("/")[2] for one in (schema, *schema.get("anyOf", ())) if "$ref" in one]
    name = names[0] if len(names) == 1 else ""
    found, info = schema.get("$defs", {}).get(name), _without_none(kinds.type_info(type_))
    if found is None or not isinstance(info, _FIELDS):
        return dict(schema)
    properties = dict(found.get("properties", {}))
    for field in info.fields:
        if _is_made(field) and field.encode_name in properties:
            made = msgspec.to_builtins(field.default_factory(), str_keys=True)
            properties[field.encode_name] = {**properties[field.encode_name], "default": made}
    return {**schema, "$defs": {**schema["$defs"], name: {**found, "properties": properties}}}


def _without_none(kind: kinds.Type) -> kinds.Type:
    """What `X | None` is besides None."""
    if isinstance(kind, kinds.Metadata):
        return _without_none(kind.type)
    if not isinstance(kind, kinds.UnionType):
        return kind
    rest = [one for one in kind.types if not isinstance(one, kinds.NoneType)]
    return _without_none(rest[0]) if len(rest) == 1 else kind


def _is_made(field: kinds.Field) -> bool:
    return field.default_factory is not msgspec.NODEFAULT and _gives_the_same(field.default_factory)


def _gives_the_same(factory: Any) -> bool:
    if isinstance(factory, FunctionType):
        code = factory.__code__
        inside = any(isinstance(one, CodeType) for one in code.co_consts)  # also a comprehension, before Python 3.12
        return not (code.co_names or code.co_freevars or code.co_argcount or inside)
    if factory in _PLAIN:
        return True
    if not isinstance(factory, type) or hasattr(factory, "__post_init__"):
        return False
    info = kinds.type_info(factory)
    return isinstance(info, _FIELDS) and not any(field.required or _is_unknown(field) for field in info.fields)


def _is_unknown(field: kinds.Field) -> bool:
    return field.default_factory is not msgspec.NODEFAULT and not _is_made(field)
