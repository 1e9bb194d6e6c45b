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


def no_number(value: Any) -> float | None:
    """A NaN or infinity in a value; None where it has none."""
    if isinstance(value, float):
        return value if not math.isfinite(value) else None
    if isinstance(value, dict):
        inside: Iterable[Any] = chain(value, value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    elif isinstance(value, msgspec.Struct):
        inside = (getattr(value, name) for name in value.__struct_fields__)
    elif is_dataclass(value):
        inside = (getattr(value, field.name) for field in fields(value))
    else:
        return None
    return next((found for one in inside if (found := no_number(one)) is not None), None)


_INSIDE = {"object": {"properties", "additionalProperties"}, "array": {"items", "prefixItems"}}  # else anything is


def has_numbers(schema: Any) -> bool:
    """Whether a value of a JSON schema may hold a number with a fraction: one says so, or anything may stand somewhere."""
    if isinstance(schema, dict):
        inside = _INSIDE.get(schema.get("type", ""))
        if not schema or schema.get("type") == "number" or (inside is not None and not inside & schema.keys()):
            return True
        return any(has_numbers(part) for name, part in schema.items() if name not in ("default", "examples"))
    return isinstance(schema, list) and any(map(has_numbers, schema))
