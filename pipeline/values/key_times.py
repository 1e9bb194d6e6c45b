"""Times of keys in the schema of a description: a schema says of a time that may lack a zone no more than that it is text.

One rule: a program that has the description of an app and not its code writes a key as the app does, so it has to know which texts
are times. They are marked beside what the schema says, so that descriptions with and without marks are one type. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_origin

import msgspec.inspect as kinds

Schema = Mapping[str, Any]
MARK = "text"
_OF: dict[type, str] = {kinds.DateTimeType: "date-time", kinds.TimeType: "time"}
_LISTS = (kinds.ListType, kinds.SetType, kinds.FrozenSetType, kinds.VarTupleType)
_OBJECTS = (kinds.StructType, kinds.DataclassType, kinds.TypedDictType, kinds.NamedTupleType)


def with_times(type_: Any, schema: Schema) -> dict[str, Any]:
    """The schema of a type of keys, with marks."""
    return Walk(schema.get("$defs", {})).whole(type_, schema)


class Walk:
    """A walk over a type and its schema at once. `time` and `other` say what is marked."""

    def __init__(self, parts: Mapping[str, Schema]) -> None:
        self.parts = dict(parts)
        self._done: set[str] = set()

    def whole(self, type_: Any, schema: Schema) -> dict[str, Any]:
        found = self.marked(kinds.type_info(type_), schema)
        return {**found, "$defs": self.parts} if self.parts else dict(found)

    def time(self, kind: Any, schema: Schema) -> Schema:
        return {**schema, MARK: _OF[type(kind)]}

    def other(self, kind: kinds.Type, schema: Schema) -> Schema:
        return schema

    def marked(self, kind: kinds.Type, schema: Schema) -> Schema:
        if isinstance(kind, kinds.Metadata):
            return self.marked(kind.type, schema)
        if "$ref" in schema:
            self._part(kind, schema["$ref"].rpartition("/")[2])
            return schema
        if isinstance(kind, kinds.UnionType):
            return self._union(kind, schema)
        if type(kind) in _OF:
            return self.time(kind, schema)
        if isinstance(kind, _LISTS) and isinstance(schema.get("items"), Mapping):
            return {**schema, "items": self.marked(kind.item_type, schema["items"])}
        if isinstance(kind, kinds.TupleType):
            return self._items(kind.item_types, schema)
        return self._object(kind, schema) if isinstance(kind, _OBJECTS) else self.other(kind, schema)

    def _part(self, kind: kinds.Type, name: str) -> None:
        if name not in self._done and name in self.parts:
            self._done.add(name)
            self.parts[name] = self.marked(kind, self.parts[name])

    def _union(self, kind: kinds.UnionType, schema: Schema) -> Schema:
        """Of what is written as text there is one in a union, and so of classes without a tag."""
        choices = []
        for choice in schema.get("anyOf", ()):
            if "anyOf" in choice:  # classes with tags, beside None or a number
                choices.append(self._union(kind, choice))
                continue
            fitting = [one for one in kind.types if _is_of(one, choice)]
            choices.append(self.marked(fitting[0], choice) if len(fitting) == 1 else choice)
        return {**schema, "anyOf": choices} if choices else schema

    def _items(self, types: tuple[kinds.Type, ...], schema: Schema) -> Schema:
        items = schema.get("prefixItems", ())
        if len(items) != len(types):
            return schema
        return {**schema, "prefixItems": [self.marked(one, part) for one, part in zip(types, items, strict=True)]}

    def _object(self, kind: Any, schema: Schema) -> Schema:
        items = schema.get("prefixItems", ())
        if items:  # behind a tag, where there is one
            head = len(items) - len(kind.fields)
            rest = self._items(tuple(one.type for one in kind.fields), {"prefixItems": items[head:]})
            return {**schema, "prefixItems": [*items[:head], *rest["prefixItems"]]}
        properties = dict(schema.get("properties", {}))
        for field in kind.fields:
            if field.encode_name in properties:
                properties[field.encode_name] = self.marked(field.type, properties[field.encode_name])
        return {**schema, "properties": properties} if properties else schema


def _is_of(kind: kinds.Type, choice: Schema) -> bool:
    if isinstance(kind, kinds.Metadata):
        return _is_of(kind.type, choice)
    if "$ref" in choice:
        name, cls = str(choice["$ref"]).rpartition("/")[2], getattr(kind, "cls", None)
        if (generic := get_origin(cls)) is not None:  # Box[int] is Box_int_
            return name.startswith(f"{generic.__name__}_")
        return str(getattr(cls, "__name__", "")) == name
    if choice.get("type") == "string":
        return type(kind) in _OF
    if choice.get("type") == "object":
        return isinstance(kind, kinds.DictType)
    return choice.get("type") == "array" and isinstance(kind, (*_LISTS, kinds.TupleType))
