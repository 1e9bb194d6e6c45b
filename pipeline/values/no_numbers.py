"""NaN and infinity, of which JSON has none: written as null they would be another value, or one that cannot be read.

One rule: whoever writes JSON asks here, and only where the text has a null. Used by the JSON codec and by files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any

import msgspec

NULL = b"null"


_HOLDS_NONE = frozenset({str, int, bool, bytes, type(None)})


def no_number(value: Any) -> float | None:
    """A NaN or infinity in a value; None where it has none."""
    if isinstance(value, float):
        return value if not math.isfinite(value) else None
    for one in _inside(value):
        if type(one) not in _HOLDS_NONE and (found := no_number(one)) is not None:
            return found
    return None


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, dict):
        return chain(value, value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return value
    return [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else ()


_INSIDE = {"object": {"properties", "additionalProperties"}, "array": {"items", "prefixItems"}}  # else anything is


def has_numbers(schema: Any) -> bool:
    """Whether a value of a JSON schema may hold a number with a fraction: one says so, or anything may stand somewhere."""
    if isinstance(schema, dict):
        kind = schema.get("type")  # of the properties of a class it is the field of that name
        inside = _INSIDE.get(kind) if isinstance(kind, str) else None
        if not schema or kind == "number" or (inside is not None and not inside & schema.keys()):
            return True
        return any(map(has_numbers, schema.values()))
    return isinstance(schema, list) and any(map(has_numbers, schema))
