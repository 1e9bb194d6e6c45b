"""Can a type read what another type wrote? One rule: when in doubt no, and the field is named.

Compares two JSON schemas as msgspec makes them. What is refused here would fail record by record later, in the middle
of the night; what is allowed here every stored value passes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pipeline.values.stored_forms import ANY_TIME, HOLDS, KEYS, NAIVE_TIME, TIME_OF_DAY

Schema = Mapping[str, Any]
_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_EXACT = ("pattern", "multipleOf", "format", "contentEncoding")
_OF_TEXT = (*_LOWER, *_UPPER, *_EXACT, "enum", "const")  # what no time has that is written as plain text
_READ_AS = {
    ANY_TIME: (ANY_TIME, NAIVE_TIME, "date-time"),
    NAIVE_TIME: (NAIVE_TIME,),
    TIME_OF_DAY: (TIME_OF_DAY, "time"),
}
_KINDS = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "null": "None", "array": "list"}


def unreadable(old: Schema | None, new: Schema | None, *, is_marked: bool = False) -> str | None:
    """Why values written as `old` cannot be read as `new`, naming the field and what to do; None where they can. `is_marked`: `old` has
    the marks of `stored_forms`; else it is of a version before, and says less."""
    if old is None or new is None or old == new:
        return None
    return _Comparison(old, new, is_marked=is_marked).problem(old, new, "")


class Verdicts:
    """Of pairs of named parts in one comparison, each judged once: a type may contain itself, in many ways."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], str | None] = {}

    def of(self, pair: tuple[str, str], judge: Callable[[], str | None]) -> str | None:
        """What `judge` says of two parts, the first time; of a pair that is being judged, that it is right. "" names none."""
        if not all(pair):
            return judge()
        if pair not in self._found:
            self._found[pair] = None
            self._found[pair] = judge()
        return self._found[pair]


class _Comparison:
    def __init__(self, old: Schema, new: Schema, *, is_marked: bool) -> None:
        self._old_parts = old.get("$defs", {})
        self._new_parts = new.get("$defs", {})
        self._is_marked = is_marked
        self._verdicts = Verdicts()

    def problem(self, old: Schema, new: Schema, path: str) -> str | None:
        pair = (str(old.get("$ref", "")), str(new.get("$ref", "")))
        return self._verdicts.of(pair, partial(self._judged, old, new, path))

    def _judged(self, old: Schema, new: Schema, path: str) -> str | None:
        named = old
        old, new = resolved(old, self._old_parts), resolved(new, self._new_parts)
        if not is_constrained(new):
            return None
        if "anyOf" in old:
            problems = [self.problem(choice, new, path) for choice in old["anyOf"]]
            return next((problem for problem in problems if problem is not None), None)
        if "anyOf" in new:
            return self._any_of(named, new["anyOf"], path)
        if "enum" in new or "const" in new:
            return self._enum(old, new, path)
        old_kind, new_kind = json_type(old), new.get("type")
        if old_kind != new_kind and (old_kind, new_kind) != ("integer", "number"):
            back = f"change it back to {_kind(old)}"
            return f"{field(path)} was {_kind(old)} and is {_kind(new)} now, so what is stored cannot be read; {back}"
        return self._times(old, new, path) or self._limits(old, new, path) or self._members(old, new, path)

    def _times(self, old: Schema, new: Schema, path: str) -> str | None:
        now = new.get(HOLDS)
        if now is None:
            return None
        before = old.get(HOLDS) or old.get("format")
        may_be_one = not self._is_marked and not any(name in old for name in _OF_TEXT)
        if before in _READ_AS[now] or (before is None and may_be_one):
            return None
        return f"{field(path)} is a {now} now and was {before or 'any text'}; {_EASE}"

    def _keys(self, old: Schema, new: Schema, path: str) -> str | None:
        now = new.get(KEYS)
        if not now or now == {"type": "string"}:  # which each key is in JSON
            return None
        before = {"type": "string", "enum": sorted(old["properties"])} if "properties" in old else old.get(KEYS)
        if before is None:
            return None
        where = f"{path}[key]" if path else "[key]"
        if not before:
            return f"{field(where)} could be anything and is {_kind(now)} now; {_EASE}"
        return self.problem(before, now, where)

    def _any_of(self, old: Schema, choices: list[Schema], path: str) -> str | None:
        problems: list[str] = []
        for choice in choices:
            if (problem := self.problem(old, choice, path)) is None:
                return None
            problems.append(problem)
        # The choice of the same kind is the one that was meant: it names the field.
        for choice, problem in zip(choices, problems, strict=True):
            if resolved(choice, self._new_parts).get("type") == resolved(old, self._old_parts).get("type"):
                return problem
        return problems[0]

    def _enum(self, old: Schema, new: Schema, path: str) -> str | None:
        allowed = new["enum"] if "enum" in new else [new["const"]]
        given = old["enum"] if "enum" in old else [old["const"]] if "const" in old else None
        if given is None:
            return f"{field(path)} had any {_kind(old)} and has only {_shown(allowed)} now; allow what is stored"
        gone = [value for value in given if value not in allowed]
        return f"{field(path)} could be {_shown(gone)} and cannot now; allow what is stored" if gone else None

    def _limits(self, old: Schema, new: Schema, path: str) -> str | None:
        for name in (*_LOWER, *_UPPER, *_EXACT):
            if name not in new or (name in ("minItems", "maxItems") and "prefixItems" in new):
                continue
            before, now = old.get(name), new[name]
            looser = before is not None and (
                before == now or (name in _LOWER and before >= now) or (name in _UPPER and before <= now)
            )
            if not looser:
                was = "no such limit" if before is None else f"{before!r}"
                return f"{field(path)}: {name} is {now!r} now and was {was}; allow what is stored"
        return None

    def _members(self, old: Schema, new: Schema, path: str) -> str | None:
        kind = new.get("type")
        if kind == "array":
            return self._array(old, new, path)
        return self._object(old, new, path) if kind == "object" else None

    def _object(self, old: Schema, new: Schema, path: str) -> str | None:
        before, now = old.get("properties", {}), new.get("properties", {})
        required = new.get("required", ())
        for name, schema in now.items():
            place = f"{path}.{name}" if path else name
            if name in required and name not in old.get("required", ()):
                what = "had a default" if name in before else "is new"
                why = f"{field(place)} {what} and has no default now, so what is stored cannot be read"
                return f"{why}; give `{place}` a default"
            if name in before:
                problem = self.problem(before[name], schema, place)
                if problem is not None:
                    return problem
        rest = new.get("additionalProperties", True)
        if rest is False:
            gone = [name for name in before if name not in now]
            if gone:
                return f"{field(gone[0])} is stored and unknown fields are forbidden; keep it or allow unknown fields"
        if (problem := self._keys(old, new, path)) is not None:
            return problem
        if isinstance(rest, Mapping):
            if not before and "properties" not in old and "additionalProperties" not in old and is_constrained(rest):
                return f"{field(path)} had values of any type and has {_kind(rest)} now; {_EASE}"
            values = [*before.values(), *_mappings(old.get("additionalProperties"))]
            for schema in values:
                problem = self.problem(schema, rest, f"{path}[...]")
                if problem is not None:
                    return problem
        return None

    def _array(self, old: Schema, new: Schema, path: str) -> str | None:
        old_fixed, new_fixed = list(old.get("prefixItems", ())), list(new.get("prefixItems", ()))
        if new.get("minItems", 0) > old.get("minItems", 0):
            return f"{field(path)} needs {new['minItems']} items now and could have {old.get('minItems', 0)}; {_EASE}"
        if new.get("items") is False and (old.get("items") is not False or len(old_fixed) > len(new_fixed)):
            return f"{field(path)} has only {len(new_fixed)} items now and could have more; {_EASE}"
        for position in range(max(len(old_fixed), len(new_fixed), 1)):
            before = old_fixed[position] if position < len(old_fixed) else old.get("items")
            now = new_fixed[position] if position < len(new_fixed) else new.get("items")
            if isinstance(before, Mapping) and isinstance(now, Mapping):
                place = f"[{position}]" if new_fixed else "[...]"
                problem = self.problem(before, now, path + place)
                if problem is not None:
                    return problem
            elif isinstance(now, Mapping) and before is None and "prefixItems" not in old and is_constrained(now):
                return f"{field(path)} had items of any type and has {_kind(now)} now; {_EASE}"
        return None


_EASE = "allow what is stored"


def resolved(schema: Schema, parts: Schema) -> Schema:
    """A schema itself, where it stands for one of `parts`."""
    while "$ref" in schema:
        schema = parts[str(schema["$ref"]).rsplit("/", 1)[-1]]
    return schema


def choices(schema: Schema, parts: Schema) -> list[tuple[str, Schema]]:
    """What a value may be, each with its name among the parts, or ""."""
    name, schema = str(schema.get("$ref", "")), resolved(schema, parts)
    return [one for choice in schema.get("anyOf", ()) for one in choices(choice, parts)] or [(name, schema)]


def json_type(schema: Schema) -> str | None:
    """The JSON type; an enumeration has that of its values."""
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    if values is None:
        return schema.get("type")
    kinds = {"integer" if isinstance(value, int) else "string" for value in values}
    return kinds.pop() if len(kinds) == 1 else None


def is_constrained(schema: Schema) -> bool:
    """Whether not everything fits it."""
    return any(name not in ("title", "description", "default", "examples", "$defs") for name in schema)


def _mappings(value: Any) -> list[Schema]:
    return [value] if isinstance(value, Mapping) else []


def field(path: str) -> str:
    """How a message names what lies at `path` of a value."""
    return f"field `{path}`" if path else "the value"


def _kind(schema: Schema) -> str:
    kind = str(schema.get("type", "anything"))
    return str(schema.get("title", "")) or _KINDS.get(kind, kind)


def _shown(values: list[Any]) -> str:
    return ", ".join(repr(value) for value in values)
