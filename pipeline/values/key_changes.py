"""Whether a new version writes the keys of a table as they are stored: a key is found by its bytes.

One rule: what can be read is not enough for a key. One that has another text, by a field more, by another order of its fields, 1.0 where
it was 1, is another key: its row begins anew, and the stored one is never met again. `check_schema` asks this behind `unreadable`.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import inspect

from pipeline.values.key_forms import kinds_within
from pipeline.values.schemas import Schema, field, resolved

_NUMBERS = ("integer", "number")


def rewritten(old: Schema | None, new: Schema | None, type_: Any, *, is_ordered: bool) -> str | None:
    """Why a stored key of the form `old` would be written otherwise by `type_`, whose schema is `new`, naming the field and what to do;
    None where it would not. `is_ordered`: `old` has its fields in the order in which they are written."""
    if old is None or new is None or (is_ordered and old == new):
        return None
    return _Comparison(old, new, type_, is_ordered=is_ordered).problem(old, new, "", frozenset())


class _Comparison:
    def __init__(self, old: Schema, new: Schema, type_: Any, *, is_ordered: bool) -> None:
        self._old_parts, self._new_parts = old.get("$defs", {}), new.get("$defs", {})
        self._is_ordered = is_ordered
        self._omits = dict(_classes(type_))

    def problem(self, old: Schema, new: Schema, path: str, seen: frozenset[tuple[str, str]]) -> str | None:
        pair = (str(old.get("$ref", "")), str(new.get("$ref", "")))
        if all(pair):
            if pair in seen:  # a type that contains itself: judged where it was met first
                return None
            seen = seen | {pair}
        before, now = self._choices(old, self._old_parts), self._choices(new, self._new_parts)
        if (why := _numbers(before, now, path)) is not None:
            return why
        for one in before:
            found = [self._same(one, other, path, seen) for other in now if other.get("type") == one.get("type")]
            if found and None not in found:
                return found[0]
        return None

    def _choices(self, schema: Schema, parts: Schema) -> list[Schema]:
        schema = resolved(schema, parts)
        return [one for choice in schema.get("anyOf", ()) for one in self._choices(choice, parts)] or [schema]

    def _same(self, old: Schema, new: Schema, path: str, seen: frozenset[tuple[str, str]]) -> str | None:
        if old.get("type") == "array":
            return self._array(old, new, path, seen)
        return self._object(old, new, path, seen) if old.get("type") == "object" else None

    def _both(self, old: Any, new: Any, path: str, seen: frozenset[tuple[str, str]]) -> str | None:
        are_given = isinstance(old, Mapping) and isinstance(new, Mapping)
        return self.problem(old, new, f"{path}[...]", seen) if are_given else None

    def _object(self, old: Schema, new: Schema, path: str, seen: frozenset[tuple[str, str]]) -> str | None:
        before, now = old.get("properties"), new.get("properties")
        if before is None or now is None:
            return self._both(old.get("additionalProperties"), new.get("additionalProperties"), path, seen)
        omits = self._omits.get(str(new.get("title")), False)
        for name in before:
            if name not in now:
                return f"{field(_inside(path, name))} is stored with each and is gone now, so none of them is found again; keep it"
            if (why := self.problem(before[name], now[name], _inside(path, name), seen)) is not None:
                return why
        for name in now:
            if name not in before and not omits:
                return f"{field(_inside(path, name))} is new, and those that are stored lack it, so none of them is found again; take it away"
        shared = [name for name in now if name in before]
        if self._is_ordered and shared != list(before):
            where = f" of {field(path)}" if path else ""
            return (
                f"the fields{where} are stored in the order {', '.join(before)}, and are written as {', '.join(shared)} now, so none of them "
                "is found again; put them back"
            )
        return None

    def _array(self, old: Schema, new: Schema, path: str, seen: frozenset[tuple[str, str]]) -> str | None:
        before, now = old.get("prefixItems"), new.get("prefixItems")
        if before is None or now is None:
            return self._both(old.get("items"), new.get("items"), path, seen)
        if len(before) != len(now):
            where = field(path) if path else "each"
            return f"{where} was stored with {_items(before)} and has {_items(now)} now, so none of them is found again; change it back"
        parts = [
            self.problem(*pair, f"{path}[{place}]", seen) for place, pair in enumerate(zip(before, now, strict=True))
        ]
        return next((why for why in parts if why is not None), None)


def _numbers(before: Sequence[Schema], now: Sequence[Schema], path: str) -> str | None:
    """A whole number is 1 where it may be an int, and 1.0 where it can only be a float."""
    held, holds = ({one.get("type") for one in choices if one.get("type") in _NUMBERS} for choices in (before, now))
    if not held or not holds or ("integer" in held) == ("integer" in holds):
        return None
    was, is_now = ("1", "1.0") if "integer" in held else ("1.0", "1")
    return f"{field(path)} had {was} where it has {is_now} now, so those are not found again; change its type back"


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _items(found: Sequence[Any]) -> str:
    return "1 item" if len(found) == 1 else f"{len(found)} items"


def _classes(type_: Any) -> Iterator[tuple[str, bool]]:
    """What is written field by field in the order of the class, by its name in schemas; whether it leaves defaults out."""
    for kind in kinds_within(type_):
        if isinstance(kind, inspect.StructType):
            yield kind.cls.__name__, kind.cls.__struct_config__.omit_defaults
        elif isinstance(kind, inspect.DataclassType):
            yield kind.cls.__name__, False
