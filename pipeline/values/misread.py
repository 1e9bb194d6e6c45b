"""Would a type read what another one stored as other values, without an error?

One rule: such a change is refused, with `upgrade=` as well: that is asked for what cannot be read, and these bytes can. What cannot be
read at all `schemas.py` judges. The marks of `stored_forms.py` say what a schema does not; a description of before, which lacks
them, refuses nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from pipeline.values.schemas import Schema, Verdicts, choices, field, json_type
from pipeline.values.stored_forms import HOLDS, KEYS, LEAVES, MEMBERS, NAMES, TAG, as_json, in_order

_REST = "additionalProperties"


def misread(old: Schema | None, new: Schema | None) -> str | None:
    """Why values written as `old` would be read by `new` as others, naming the field and what to do; None where they would not. Both have
    the marks that their versions made."""
    if old is None or new is None or old == new:
        return None
    return _Comparison(old, new).problem(old, new, "")


class _Comparison:
    def __init__(self, old: Schema, new: Schema) -> None:
        self._old_parts, self._new_parts = old.get("$defs", {}), new.get("$defs", {})
        self._verdicts = Verdicts()

    def problem(self, old: Any, new: Any, path: str) -> str | None:
        if not isinstance(old, Mapping) or not isinstance(new, Mapping):
            return None
        before, now = choices(old, self._old_parts), choices(new, self._new_parts)
        if (why := _swapped(_tags(before), _tags(now), path)) is not None:
            return f"{why}; change the tags back"
        for of, one in before:
            found: list[str | None] = []
            for to, other in now:
                tags = {one.get(TAG), other.get(TAG)} - {None}
                if other.get("type") == one.get("type") and len(tags) < 2:
                    found.append(self._verdicts.of((of, to), partial(self._same, one, other, path)))
                    if found[-1] is None:
                        break
            if found and None not in found:  # of what has no marks of its tag it may be any
                return found[0]
        return None

    def _same(self, old: Schema, new: Schema, path: str) -> str | None:
        if MEMBERS in old and MEMBERS in new:
            why = _swapped(old[MEMBERS], new[MEMBERS], path)
            return None if why is None else f"{why}; change the values of the enum back"
        if old.get("type") == "string":
            return _text(old, new, path)
        if old.get("type") == "array":
            return self._array(old, new, path)
        return self._object(old, new, path) if old.get("type") == "object" else None

    def _object(self, old: Schema, new: Schema, path: str) -> str | None:
        before, now = old.get("properties"), new.get("properties")
        if before is None or now is None:
            why = self.problem(old.get(KEYS), new.get(KEYS), f"{path}[key]")
            return why or self.problem(old.get(_REST), new.get(_REST), f"{path}[...]")
        if any(name not in before for name in new.get("required", ())):
            return None  # none of them is read: schemas.py refuses it, or upgrade= is asked
        shared = {name: f"{path}.{name}" if path else name for name in now if name in before}
        for name, place in shared.items():
            if name in old.get(LEAVES, {}) and (why := _left_out(old, new, name, place)) is not None:
                return why
        found = (self.problem(before[name], now[name], place) for name, place in shared.items())
        return next((why for why in found if why is not None), None)

    def _array(self, old: Schema, new: Schema, path: str) -> str | None:
        before, now = old.get("prefixItems"), new.get("prefixItems")
        if before is None or now is None:
            return self.problem(old.get("items"), new.get("items"), f"{path}[...]")
        if new.get("minItems", 0) > len(before) or any(map(self._are_apart, before, now)):
            return None  # none of them is read
        if (why := _names(old, new, path)) is not None:
            return why
        pairs = enumerate(zip(before, now, strict=False))
        found = (self.problem(*pair, f"{path}[{place}]") for place, pair in pairs)
        return next((why for why in found if why is not None), None)

    def _are_apart(self, old: Schema, new: Schema) -> bool:
        """Whether no value of the one is read as the other."""
        were = {json_type(one) for _, one in choices(old, self._old_parts)}
        are = {json_type(one) for _, one in choices(new, self._new_parts)}
        may_be = {*are, *(["integer"] if "number" in are else [])}
        return None not in were | are and not were & may_be


def _tags(found: Iterable[tuple[str, Schema]]) -> dict[str, Any]:
    return {str(one.get("title")): one[TAG] for _, one in found if TAG in one}


def _swapped(were: Mapping[str, Any], are: Mapping[str, Any], path: str) -> str | None:
    """Of names that each stand for a value: one that both versions have, by whose value of the one the other has another name. Where both
    names are in one version alone, it may be the same under another name."""
    was, is_now = {value: name for name, value in were.items()}, {value: name for name, value in are.items()}
    for value in was:
        if value in is_now and was[value] != is_now[value] and (was[value] in are or is_now[value] in were):
            return f"{field(path)}: {value!r} was {was[value]} and is {is_now[value]} now, and would be read as that"
    return None


def _text(old: Schema, new: Schema, path: str) -> str | None:
    """Bytes are base64 in JSON, which any text may be; a date is none."""
    was, is_now = "contentEncoding" in old, "contentEncoding" in new
    if was == is_now or not _is_any_text(new if was else old):
        return None
    names = ("bytes", "text") if was else ("text", "bytes")
    how = "its base64 would be read as the text" if was else "text that is base64 would be read as other bytes"
    return f"{field(path)} was {names[0]} and is {names[1]} now, and {how}; change its type back"


def _is_any_text(schema: Schema) -> bool:
    return HOLDS not in schema and schema.get("format", "decimal") == "decimal"


def _left_out(old: Schema, new: Schema, name: str, place: str) -> str | None:
    """Of a field that is stored only where it has another value than its default; [] is one that has none."""
    if name in new.get("required", ()):
        return None  # those that lack it are not read
    was, one = old[LEAVES][name], new["properties"][name]
    now = new.get(LEAVES, {}).get(name)
    if now is None and "default" in one:
        now = [as_json(one["default"])]
    if now is not None and [in_order(value, one) for value in now] == [in_order(value, one) for value in was]:
        return None
    is_now = "what a function makes" if now is None else _default(now)
    return (
        f"{field(place)} is not stored where it has its default, which was {_default(was)} and is {is_now} now, so each of those would "
        "be read as another value; change the default back"
    )


def _names(old: Schema, new: Schema, path: str) -> str | None:
    """Of a class that is written as an array: a field is known by its place."""
    before, now = old.get(NAMES), new.get(NAMES)
    if before is None or now is None or now[: len(before)] == before:
        return None
    what = f"the items of {field(path)}" if path else "its items"
    return (
        f"{what} are stored as {_shown(before)}, and would be read as {_shown(now)} now; put them back in order (a new one, with a "
        "default, goes behind them)"
    )


def _shown(names: list[str | None]) -> str:
    return ", ".join("its tag" if name is None else f"`{name}`" for name in names) or "none"


def _default(found: list[Any]) -> str:
    return repr(found[0]) if found else "UNSET"
