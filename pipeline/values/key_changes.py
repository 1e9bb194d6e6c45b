"""Whether a new version writes the keys of a table as they are stored: a key is found by its bytes.

One rule: what can be read is not enough for a key. One that has another text, by a field more, by another order of its fields, 1.0 where
it was 1, is another key: its row begins anew, and the stored one is never met again. `check_schema` asks this behind `unreadable`.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.values.schemas import Schema, Verdicts, choices, field, is_constrained
from pipeline.values.stored_forms import LEAVES, in_order

_NUMBERS = ("integer", "number")
_ANY = frozenset(_NUMBERS)


def rewritten(old: Schema | None, new: Schema | None, *, is_ordered: bool) -> str | None:
    """Why a stored key of the form `old` would be written otherwise by a type of the form `new`, naming the field and what to do; None
    where it would not. Both have the marks of `stored_forms`. `is_ordered`: `old` has its fields in the order in which they are written."""
    if old is None or new is None or (old == new and not is_ordered):  # dicts are equal in any order
        return None
    return _Comparison(old, new, is_ordered=is_ordered).problem(old, new, "")


class _Comparison:
    def __init__(self, old: Schema, new: Schema, *, is_ordered: bool) -> None:
        self._old_parts, self._new_parts = old.get("$defs", {}), new.get("$defs", {})
        self._is_ordered = is_ordered
        self._verdicts = Verdicts()

    def problem(self, old: Schema, new: Schema, path: str) -> str | None:
        before, now = choices(old, self._old_parts), choices(new, self._new_parts)
        if (why := _scalars([one for _, one in before], [one for _, one in now], path)) is not None:
            return why
        for of, one in before:
            found: list[str | None] = []
            for to, other in now:
                if other.get("type") == one.get("type"):
                    found.append(self._verdicts.of((of, to), partial(self._same, one, other, path)))
                    if found[-1] is None:
                        break
            if found and None not in found:
                return found[0]
        return None

    def _same(self, old: Schema, new: Schema, path: str) -> str | None:
        if old.get("type") == "array":
            return self._array(old, new, path)
        return self._object(old, new, path) if old.get("type") == "object" else None

    def _both(self, old: Any, new: Any, path: str) -> str | None:
        are_given = isinstance(old, Mapping) and isinstance(new, Mapping)
        return self.problem(old, new, f"{path}[...]") if are_given else None

    def _object(self, old: Schema, new: Schema, path: str) -> str | None:
        before, now = old.get("properties"), new.get("properties")
        if before is None or now is None:
            return self._both(old.get("additionalProperties"), new.get("additionalProperties"), path)
        were, are = old.get(LEAVES, {}), new.get(LEAVES, {})
        for name in before:
            if name not in now:
                return f"{field(_inside(path, name))} is stored with each and is gone now, so none of them is found again; keep it"
            if (why := self.problem(before[name], now[name], _inside(path, name))) is not None:
                return why
            if self._is_ordered and _default(were, name, now[name]) != _default(are, name, now[name]):
                return (
                    f"{field(_inside(path, name))} is left out of {_where(are, name)}, and was of {_where(were, name)}, so those are not found "
                    "again; change it back"
                )
        for name in now:
            if name not in before and name not in are:
                return f"{field(_inside(path, name))} is new, and those that are stored lack it, so none of them is found again; take it away"
        shared = [name for name in now if name in before]
        if self._is_ordered and shared != list(before):
            where = f" of {field(path)}" if path else ""
            return (
                f"the fields{where} are stored in the order {', '.join(before)}, and are written as {', '.join(shared)} now, so none of them "
                "is found again; put them back"
            )
        return None

    def _array(self, old: Schema, new: Schema, path: str) -> str | None:
        before, now = old.get("prefixItems"), new.get("prefixItems")
        if old.get("uniqueItems") != new.get("uniqueItems"):
            return f"{field(path) if path else 'each'} was {_collection(old)} and is {_collection(new)} now, which are written in another order; change it back"
        if before is None or now is None:
            return self._both(old.get("items"), new.get("items"), path)
        if len(before) != len(now):
            where = field(path) if path else "each"
            return f"{where} was stored with {_items(before)} and has {_items(now)} now, so none of them is found again; change it back"
        parts = [self.problem(*pair, f"{path}[{place}]") for place, pair in enumerate(zip(before, now, strict=True))]
        return next((why for why in parts if why is not None), None)


def _scalars(before: Sequence[Schema], now: Sequence[Schema], path: str) -> str | None:
    """A whole number is 1 where it may be an int, and 1.0 where it can only be a float; bytes are base64."""
    held, holds = ({kind for one in side for kind in _numbers(one)} for side in (before, now))
    if held and holds and ("integer" in held) != ("integer" in holds):
        was, is_now = ("1", "1.0") if "integer" in held else ("1.0", "1")
        return f"{field(path)} had {was} where it has {is_now} now, so those are not found again; change its type back"
    texts, are_texts = (
        {"contentEncoding" in one for one in side if one.get("type") == "string"} for side in (before, now)
    )
    if texts and are_texts and texts != are_texts:
        was, is_now = ("bytes", "text") if True in texts else ("text", "bytes")
        return f"{field(path)} was {was} and is {is_now} now, which are written in another way; change its type back"
    return None


def _numbers(schema: Schema) -> frozenset[str]:
    """The kinds of numbers that a value may be."""
    if "type" in schema:
        return frozenset({schema["type"]} & _ANY)
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    if values is None:
        return _ANY if not is_constrained(schema) else frozenset()
    return frozenset({"integer"} if any(type(value) is int for value in values) else ())


def _default(left: Mapping[str, Any], name: str, schema: Schema) -> Any:
    """What a field has where it is left out, as a list; sets were described in any order."""
    return [in_order(one, schema) for one in left[name]] if name in left else None


def _where(left: Mapping[str, Any], name: str) -> str:
    if name not in left:
        return "none"
    return f"those where it is {left[name][0]!r}" if left[name] else "those that have none"


def _collection(schema: Schema) -> str:
    return "a set" if schema.get("uniqueItems") else "a list"


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _items(found: Sequence[Any]) -> str:
    return "1 item" if len(found) == 1 else f"{len(found)} items"
