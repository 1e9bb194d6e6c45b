"""Keys as they are typed, by the schema in the description: those of another type are refused, the others are the app's bytes."""

from __future__ import annotations

import enum
import json
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import pytest

from orchestrator import App
from pipeline.errors import CodecError, SchemaRefused
from pipeline.values.codecs import JsonCodec
from pipeline.values.json_values import from_text


class Place(msgspec.Struct, frozen=True):
    street: str
    number: int = 1


class Renamed(msgspec.Struct, frozen=True, rename="camel", tag="r"):
    the_name: str


T = TypeVar("T")
LOCAL = "2026-01-31T00:30:00+02:00"
Moment = Annotated[datetime, msgspec.Meta(tz=True)]

KEYS: list[tuple[Any, Any, str]] = [
    (tuple[str, int], ("bob", 2), '["bob",2]'),
    (tuple[str, float], ("bob", 2.0), '["bob", 2]'),
    (tuple[str, ...], ("a", "b"), '[ "a", "b"]'),
    (tuple[str, int | None], ("a", None), '["a",null]'),
    (tuple[Literal["x", "y"], bool], ("x", True), '["x",true]'),
    (Moment, datetime(2026, 1, 31, tzinfo=UTC), '"2026-01-31T00:00:00+00:00"'),
    (tuple[date, uuid.UUID], (date(2026, 1, 31), uuid.UUID(int=7)), f'["2026-01-31","{uuid.UUID(int=7)}"]'),
    (tuple[Decimal, str], (Decimal("1.50"), ""), '["1.50",""]'),
    (tuple[Decimal, float], (Decimal("1.5"), 0.0), '["1.50",-0.0]'),
    (tuple[int | float, str], (1, ""), '[1.0,""]'),
    (Place, Place("a", 3), '{"number": 3, "street": "a"}'),
    (tuple[Place, int], (Place("a", 3), 1), '[{"street":"a","number":3},1]'),
    (Renamed, Renamed("x"), '{"type":"r","theName":"x"}'),
    (tuple[Annotated[int, msgspec.Meta(ge=0)], str], (0, ""), '[0,""]'),
    (tuple[bytes, int], (b"x", 1), '["eA==",1]'),
]


@pytest.mark.parametrize(("type_", "value", "text"), KEYS)
def test_it_is_the_bytes_of_the_app(type_: Any, value: Any, text: str) -> None:
    codec = JsonCodec(type_, key=True)
    assert from_text("json", text, codec.schema) == codec.encode(value)


@pytest.mark.parametrize(
    ("type_", "text", "said"),
    [
        (tuple[str, int], '["bob","x"]', "Expected `int`, got `str` - at `$[1]`"),
        (tuple[str, int], '["bob"]', "length 2"),
        (tuple[str, int], '"bob"', "Expected `array`"),
        (tuple[str, int], "bob", "malformed"),
        (tuple[str, int], '["bob",2.5]', "Expected `int`"),
        (tuple[Literal["x"], bool], '["z",true]', "Invalid enum value"),
        (Moment, '"yesterday"', "Invalid RFC3339"),
        (Place, '{"number": 3}', "missing required field `street`"),
        (Place, '{"street": "a", "nubmer": 3}', "unknown field `nubmer`"),
        (tuple[Annotated[int, msgspec.Meta(ge=0)], str], '[-1,""]', ">= 0"),
    ],
)
def test_another_type_is_refused(type_: Any, text: str, said: str) -> None:
    with pytest.raises(CodecError) as caught:
        from_text("json", text, JsonCodec(type_, key=True).schema)
    assert said in str(caught.value) and "\n" not in str(caught.value), caught.value


def test_what_no_schema_says_is_taken_as_it_is_typed() -> None:
    assert from_text("json", '["bob", "x"]', None) == b'["bob","x"]', "a description of an earlier build"
    assert from_text("json", '{"street": "a"}', JsonCodec(Place, key=True).schema) == b'{"street":"a"}'
    assert from_text("json", "[[1]]", {"type": "array", "items": {"type": "other"}}) == b"[[1]]"


class Night(msgspec.Struct, frozen=True):
    at: datetime
    name: str


class Slot(msgspec.Struct, frozen=True):
    day: datetime
    note: str = ""
    after: Night | None = None


class Row(msgspec.Struct, frozen=True, array_like=True, tag=True):
    at: time
    cost: Decimal


TIMES: list[tuple[Any, str]] = [
    (datetime, f'"{LOCAL}"'),
    (datetime | None, f'"{LOCAL}"'),
    (tuple[datetime, str], f'["{LOCAL}","{LOCAL}"]'),
    (tuple[int | datetime | None, ...], f'[1,"{LOCAL}",null]'),
    (tuple[time, date], '["09:30:00+02:00","2026-01-31"]'),
    (frozenset[datetime], f'["{LOCAL}"]'),
    (Slot, f'{{"day":"{LOCAL}","note":"{LOCAL}","after":{{"at":"{LOCAL}","name":"{LOCAL}"}}}}'),
    (tuple[Slot, int], f'[{{"day":"{LOCAL}","note":"{LOCAL}","after":null}},1]'),
    (Row, '["Row","09:30:00+02:00","1.50"]'),
    (Any, "1.0"),
    (tuple[Any, float], "[1.0,2]"),
]


@pytest.mark.parametrize(("type_", "text"), TIMES)
def test_a_time_of_another_zone_is_the_key_that_the_app_has(type_: Any, text: str) -> None:
    """A schema says of such a time that it is text, so what was typed stayed as it was, and nothing was found by it."""
    made = App("a", partitions=1)
    given = made.topic("in", key=str, value=int)
    table = made.table("rows", key=type_, value=int, local=True)

    @made.processor(given, table)
    def count(record: Any, rows: Any) -> None: ...

    codec = JsonCodec(type_, key=True)
    kept = made.describe()
    schema = kept["tables"]["rows"]["key_schema"]
    assert from_text("json", text, schema) == codec.encode(codec.decode(text.encode()))
    made.check_schema(kept)
    of_before = {name: fact for name, fact in kept["tables"]["rows"].items() if name != "marked"}
    made.check_schema({"tables": {"rows": {**of_before, "key_schema": codec.schema}}})


def test_another_type_of_keys_is_refused_at_start() -> None:
    def app(key: Any) -> App:
        made = App("a", partitions=1)
        given = made.topic("in", key=str, value=int)
        pairs = made.table("pairs", key=key, value=int, local=True)

        @made.processor(given, pairs)
        def count(record: Any, pairs: Any) -> None: ...

        return made

    kept = app(tuple[str, int]).describe()
    app(tuple[str, int | None]).check_schema(kept)
    with pytest.raises(SchemaRefused, match=r"of its keys .* was int and is str now"):
        app(tuple[str, str]).check_schema(kept)
    del kept["tables"]["pairs"]["key_schema"]
    app(tuple[str, str]).check_schema(kept)


class Visit(msgspec.Struct, frozen=True):
    who: str
    day: int


class Turned(msgspec.Struct, frozen=True):
    day: int
    who: str


class More(msgspec.Struct, frozen=True):
    who: str
    day: int
    town: str = ""


class Fuller(msgspec.Struct, frozen=True, omit_defaults=True):
    who: str
    day: int
    town: str = ""


class Less(msgspec.Struct, frozen=True):
    who: str


class Listed(msgspec.Struct, frozen=True, array_like=True):
    who: str


class ListedMore(msgspec.Struct, frozen=True, array_like=True):
    who: str
    town: str = ""


class Both(msgspec.Struct, frozen=True):
    day: int = 0
    after: int = 0


class BothTurned(msgspec.Struct, frozen=True):
    after: int = 0
    day: int = 0


class Unset(msgspec.Struct, frozen=True):
    who: str
    day: int
    town: str | msgspec.UnsetType = msgspec.UNSET


class Way(msgspec.Struct, frozen=True):
    at: datetime
    name: str
    before: Way | None = None


class Pair(msgspec.Struct, Generic[T], frozen=True):
    of: T
    at: datetime


class FullerOf(msgspec.Struct, frozen=True, omit_defaults=True):
    who: str
    day: int
    town: str = "Rome"


class Grade(enum.IntEnum):
    A = 1
    B = 2


@dataclass(frozen=True)
class UnsetPlain:
    who: str
    day: int
    town: str | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class Plain:
    who: str
    day: int


@dataclass(frozen=True)
class PlainTurned:
    day: int
    who: str


def with_keys(key: Any, **place: Any) -> App:
    made = App("a", partitions=1)
    given = made.topic("in", key=str, value=int)
    pairs = made.table("pairs", key=key, value=int, **(place or {"local": True}))

    @made.processor(given, pairs)
    def count(record: Any, pairs: Any) -> None: ...

    return made


REWRITTEN = [
    (Visit, Turned, "the fields are stored in the order who, day, and are written as day, who now"),
    (tuple[str, Visit], tuple[str, Turned], r"the fields of field `\[1\]` are stored in the order who, day"),
    (Both, BothTurned, "the fields are stored in the order day, after"),
    (Fuller, FullerOf, "field `town` is left out of those where it is 'Rome', and was of those where it is ''"),
    (Fuller, More, "field `town` is left out of none, and was of those where it is ''"),
    (More, Fuller, "field `town` is left out of those where it is '', and was of none"),
    (tuple[bytes, int], tuple[str, int], r"field `\[0\]` was bytes and is text now"),
    (tuple[str, float], tuple[str, Any], r"field `\[1\]` had 1.0 where it has 1 now"),
    (tuple[Literal[1, 2], str], tuple[float, str], r"field `\[0\]` had 1 where it has 1.0 now"),
    (tuple[Grade, str], tuple[float, str], r"field `\[0\]` had 1 where it has 1.0 now"),
    (tuple[str, ...], frozenset[str], "each was a list and is a set now"),
    (Plain, PlainTurned, "the fields are stored in the order who, day"),
    (Visit, More, "field `town` is new, and those that are stored lack it"),
    (Visit | None, More | None, "field `town` is new"),
    (Visit, Less, "field `day` is stored with each and is gone now"),
    (ListedMore, Listed, "each was stored with 2 items and has 1 item now"),
    (tuple[str, int], tuple[str, float], r"field `\[1\]` had 1 where it has 1.0 now"),
    (tuple[float, ...], tuple[int | float, ...], r"field `\[\.\.\.\]` had 1.0 where it has 1 now"),
]


@pytest.mark.parametrize(("before", "now", "why"), REWRITTEN)
def test_a_key_that_is_written_otherwise_than_it_is_stored_is_refused(before: Any, now: Any, why: str) -> None:
    """Each could be read, and none was found again: its row began anew beside the stored one."""
    kept = json.loads(json.dumps(with_keys(before).describe(), sort_keys=True))
    with pytest.raises(SchemaRefused, match=f"of its keys {why}.* or give the table another name"):
        with_keys(now).check_schema(kept)
    with_keys(before).check_schema(kept)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (Visit, Fuller),
        (Visit, Unset),
        (Plain, UnsetPlain),
        (tuple[str, int], tuple[str, int | float]),
        (int | float, float | int),
        (Visit, Visit | None),
    ],
)
def test_a_key_that_is_written_as_it_is_stored_is_taken(before: Any, now: Any) -> None:
    kept = json.loads(json.dumps(with_keys(before).describe(), sort_keys=True))
    with_keys(now).check_schema(kept)


@pytest.mark.parametrize(
    "key",
    [
        Way,
        tuple[Way, int],
        Pair[int],
        Way | None,
        tuple[Pair[str], ...],
        Both,
        Unset,
        FullerOf,
        tuple[Grade, bytes],
        Any,
    ],
)
def test_a_key_that_has_not_changed_is_taken(key: Any) -> None:
    """By what the log keeps of the same code, and by what a version of this project before had written of it: types that contain
    themselves, and those of other types, ended a start as an internal error."""
    kept = json.loads(json.dumps(with_keys(key).describe(), sort_keys=True))
    with_keys(key).check_schema(kept)
    del kept["tables"]["pairs"]["key_form"]
    with_keys(key).check_schema(kept)


def test_a_description_of_before_says_nothing_of_the_order() -> None:
    kept = json.loads(json.dumps(with_keys(Visit).describe(), sort_keys=True))
    del kept["tables"]["pairs"]["key_form"]
    with_keys(Visit).check_schema(kept)
    with_keys(Turned).check_schema(kept)
    with pytest.raises(SchemaRefused, match="field `town` is new"):
        with_keys(More).check_schema(kept)


BY_FIRST: dict[str, Any] = {"route": lambda key: key[0]}
OWN: dict[str, Any] = {"local": False}
LOCAL_ONES: dict[str, Any] = {"local": True}


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (LOCAL_ONES, OWN, r"each task kept what keys it liked \(local=True\), and they lie by the whole key now"),
        (
            LOCAL_ONES,
            BY_FIRST,
            r"each task kept what keys it liked \(local=True\), and they lie by a part of the key \(route=\) now",
        ),
        (OWN, BY_FIRST, r"they lie by the whole key, and they lie by a part of the key \(route=\) now"),
        (BY_FIRST, OWN, r"they lie by a part of the key \(route=\), and they lie by the whole key now"),
    ],
)
def test_a_key_that_is_looked_for_where_it_does_not_lie_is_refused(
    before: dict[str, Any], now: dict[str, Any], why: str
) -> None:
    """Its row began anew in another task, and a query found none."""
    kept = json.loads(json.dumps(with_keys(tuple[str, str], **before).describe()))
    with pytest.raises(SchemaRefused, match=f"of its keys {why}.* or give the table another name"):
        with_keys(tuple[str, str], **now).check_schema(kept)
    for taken in (before, LOCAL_ONES):
        with_keys(tuple[str, str], **taken).check_schema(kept)


class Marked(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    marks: frozenset[tuple[str, int]] = frozenset({("a", 1), ("b", 2)})
    until: float = float("inf")


def test_a_key_whose_default_is_a_set_or_no_number_of_json_is_taken() -> None:
    """A set comes in another order at each start."""
    app = App("a", partitions=1)
    source, other = (app.topic(name, key=tuple[Marked, int], value=str) for name in ("in", "other"))
    app.join(source, other, within=timedelta(hours=1))(lambda one, other: None)
    rows = app.table("rows", key=tuple[Marked, int], value=int, local=True)
    app.processor(source, rows)(lambda record, rows: None)
    kept = json.loads(json.dumps(app.describe()))
    form = json.loads(kept["tables"]["rows"]["key_form"])
    form["$defs"]["Marked"]["leaves_out"]["marks"][0].reverse()
    form["$defs"]["Marked"]["properties"]["marks"]["default"].reverse()
    app.check_schema(kept)
    kept["tables"]["rows"]["key_form"] = json.dumps(form)
    app.check_schema(kept)
