"""Types of a new version that read what is stored, and read it as other values: refused, with `upgrade=` too, which nothing would ask."""

from __future__ import annotations

import enum
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypedDict, TypeVar, Union

import msgspec
import pytest
from msgspec import UNSET, UnsetType, field

from orchestrator import App
from pipeline.errors import SchemaRefused


def struct(*fields: Any, **options: Any) -> Any:
    return msgspec.defstruct("P", fields, frozen=True, **options)


def lean(*fields: Any, **options: Any) -> Any:
    return struct(*fields, omit_defaults=True, **options)


def array(*fields: Any, **options: Any) -> Any:
    return struct(*fields, array_like=True, **options)


def app_of(value: Any, key: Any = str, **options: Any) -> App:
    app = App("bank", partitions=1)
    source = app.topic("in", key=str, value=str)
    table = app.table("rows", key=key, value=value, **options)

    def work(record: Any, rows: Any) -> None: ...

    app.processor(source, table)(work)
    return app


def kept_of(value: Any, **options: Any) -> Any:
    return json.loads(json.dumps(app_of(value, **options).describe(), sort_keys=True))


def inside(type_: Any) -> Any:
    return msgspec.defstruct("Outer", [("rows", dict[str, list[type_]]), ("one", type_ | None, None)])  # type: ignore[valid-type]


LEAN = lean(("a", int), ("b", int, 0))
MAYBE = struct(("a", int | UnsetType, UNSET))
OTHER_DEFAULTS: list[tuple[Any, Any, str]] = [
    (LEAN, lean(("a", int), ("b", int, 5)), "field `b` .* was 0 and is 5 now"),
    (LEAN, struct(("a", int), ("b", int, 5)), "field `b` .* was 0 and is 5 now"),
    (inside(LEAN), inside(lean(("a", int), ("b", int, 5))), r"field `rows\[...\]\[...\].b` .* was 0 and is 5 now"),
    (lean(("s", str, "unset")), struct(("s", str | UnsetType, UNSET)), "was 'unset' and is UNSET now"),
    (MAYBE, struct(("a", int, 0)), "was UNSET and is 0 now"),
    (lean(("a", list[int], field(default_factory=list))), lean(("a", list[int], field(default_factory=lambda: [9]))), r"was \[\] and is \[9\] now"),
    (lean(("a", list[int], field(default_factory=list))), lean(("a", list[int], field(default_factory=lambda: [UNSET and 1]))), "is what a function makes now"),
]  # fmt: skip
AB = array(("a", int), ("b", int, 0))
OTHER_PLACES: list[tuple[Any, Any, str]] = [
    (AB, array(("b", int), ("a", int, 0)), "its items are stored as `a`, `b`, and would be read as `b`, `a` now"),
    (inside(AB), inside(array(("b", int), ("a", int, 0))), r"the items of field `rows\[...\]\[...\]` are"),
    (array(("a", int), ("c", int, 0), ("b", int, 0)), AB, "as `a`, `c`, `b`, and would be read as `a`, `b` now"),
    (AB, array(("a", int), ("c", int, 0), ("b", int, 0)), "as `a`, `b`, and would be read as `a`, `c`, `b` now"),
    (AB, array(("a", int)), "as `a`, `b`, and would be read as `a` now"),
    (array(("a", int), ("b", int, 0), tag=1), AB, "as its tag, `a`, `b`, and would be read as `a`, `b` now"),
    (NamedTuple("N", [("a", int), ("b", int)]), NamedTuple("N", [("b", int), ("a", int)]), "as `a`, `b`, and would"),
    (NamedTuple("N", [("a", int), ("b", int)]), array(("b", int), ("a", int)), "as `a`, `b`, and would"),
]
OTHER_TEXTS: list[tuple[Any, Any, str]] = [
    (struct(("x", bytes)), struct(("x", str)), "field `x` was bytes and is text now"),
    (struct(("x", bytes | None)), struct(("x", str | int, "")), "field `x` was bytes and is text now"),
    (struct(("x", str)), struct(("x", bytes)), "field `x` was text and is bytes now"),
    (inside(struct(("x", bytes))), inside(struct(("x", Decimal))), "`rows.*x` was bytes and is text now"),
    (tuple[bytes, int], tuple[str, int], r"field `\[0\]` was bytes"),
    (list[bytes], list[str], r"field `\[...\]` was bytes"),
    (dict[bytes, int], dict[str, int], r"field `\[key\]` was bytes"),
    (dict[str, bytes], dict[str, Annotated[str, msgspec.Meta(max_length=9)]], r"field `\[...\]` was bytes"),
]
U1, U2, SWAPPED1, SWAPPED2 = (
    msgspec.defstruct(name, [("a", int)], tag=tag, frozen=True)
    for name, tag in (("U1", "s"), ("U2", "t"), ("U1", "t"), ("U2", "s"))
)
A1, B2 = enum.IntEnum("E", {"A": 1, "B": 2}), enum.Enum("E", {"A": "a", "B": "b"})  # type: ignore[misc]
OTHER_NAMES: list[tuple[Any, Any, str]] = [
    (struct(("x", A1)), struct(("x", enum.IntEnum("E", {"A": 2, "B": 1}))), "field `x`: 1 was A and is B now"),
    (list[A1], list[enum.IntEnum("E", {"A": 2, "C": 1})], r"field `\[...\]`: 1 was A and is C now"),
    (list[A1], list[enum.IntEnum("E", {"B": 1, "C": 2, "D": 3})], r"field `\[...\]`: 1 was A and is B now"),
    (B2 | None, enum.Enum("F", {"B": "a", "A": "b"}) | None, "the value: 'a' was A and is B now"),
    (dict[A1, int], dict[enum.IntEnum("E", {"A": 2, "B": 1}), int], r"field `\[key\]`: 1 was A"),
    (U1 | U2, SWAPPED1 | SWAPPED2, "the value: 's' was U1 and is U2 now"),
    (list[U1 | U2 | None], list[SWAPPED1 | SWAPPED2 | None], r"field `\[...\]`: 's' was U1"),
    (U1, SWAPPED1 | SWAPPED2, "the value: 's' was U1 and is U2 now"),
]
MISREAD = [*OTHER_DEFAULTS, *OTHER_PLACES, *OTHER_TEXTS, *OTHER_NAMES]


@pytest.mark.parametrize(("old", "new", "match"), MISREAD)
def test_what_would_be_read_as_other_values_is_refused(old: Any, new: Any, match: str) -> None:
    kept = kept_of(old)
    for options in ({}, {"upgrade": lambda stored: stored}):
        with pytest.raises(SchemaRefused, match=f"table 'rows': .*{match}.* back.*, or give the table another name"):
            app_of(new, **options).check_schema(kept)


@pytest.mark.parametrize(("old", "new"), [(old, new) for old, new, _ in [*OTHER_DEFAULTS, *OTHER_PLACES, *OTHER_NAMES]])
def test_a_description_of_before_refuses_nothing_for_what_it_lacks(old: Any, new: Any) -> None:
    app_of(new).check_schema(without(kept_of(old), NEW_MARKS))


def test_upgrade_is_asked_where_nothing_stored_can_be_read() -> None:
    new = lean(("a", int), ("b", int, 5), ("currency", str), kw_only=True)
    app_of(new, upgrade=lambda stored: new(currency="EUR", **stored)).check_schema(kept_of(LEAN))
    app_of(Riap, upgrade=lambda stored: Riap(stored[1], stored[0])).check_schema(kept_of(Pair))
    app_of(list[date], upgrade=lambda stored: stored).check_schema(kept_of(list[bytes]))
    tagged = array(("b", int), ("a", int), tag="2")
    app_of(tagged, upgrade=lambda stored: tagged(*stored)).check_schema(kept_of(AB))


NEW_MARKS = {"leaves_out", "tag", "names", "members"}


def without(kept: Any, names: set[str]) -> Any:
    if isinstance(kept, Mapping):
        return {name: without(one, names) for name, one in kept.items() if name not in names}
    return [without(one, names) for one in kept] if isinstance(kept, list) else kept


T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    L = 2
    S = 1


class Pair(NamedTuple):
    z: int
    a: str = "x"


class Riap(NamedTuple):
    a: str
    z: int = 0


class More(NamedTuple):
    z: int
    a: str = "y"
    more: float = 1


class Maybe(TypedDict, total=False):
    z: int
    a: bytes


@dataclass
class Data:
    z: int
    a: float | UnsetType = UNSET
    parts: tuple[int, ...] = ()


class One(msgspec.Struct, tag=True):
    z: int
    a: bytes = b"x"


class Two(msgspec.Struct, tag="two", omit_defaults=True):
    z: float = float("inf")
    a: frozenset[str] = frozenset("abcdef")


class Third(msgspec.Struct, array_like=True, tag=3):
    z: int
    a: float = 1.0


class Fourth(msgspec.Struct, array_like=True, tag=4):
    a: datetime
    z: Pair | None = None


class Parcel(msgspec.Struct, array_like=True, tag=5):
    z: str
    a: bytes = b""


class Renamed(msgspec.Struct, rename={"z": "a", "a": "z"}, omit_defaults=True, forbid_unknown_fields=True):
    z: int = 1
    a: float = float("nan")


class Tree(msgspec.Struct, omit_defaults=True):
    z: int = 0
    child: Optional[Tree] = None  # noqa: UP045 - a class that names itself
    more: list[Tree] = []


class Boxed(msgspec.Struct, Generic[T], omit_defaults=True):
    z: T
    a: list[T] = field(default_factory=list)


class Crate(msgspec.Struct, Generic[T], tag="crate", omit_defaults=True):
    z: T
    a: bytes = b""


class Sack(msgspec.Struct, Generic[T], tag="sack", omit_defaults=True):
    z: T
    a: str = "s"


class Letter(msgspec.Struct, tag=True, omit_defaults=True):
    a: str = "l"


class All(msgspec.Struct, omit_defaults=True):
    z: datetime
    y: date = date(2026, 1, 1)
    x: time = time(1)
    w: timedelta = timedelta(1)
    v: Decimal = Decimal("1.50")
    u: uuid.UUID = uuid.UUID(int=1)
    t: Color = Color.BLUE
    s: Literal["b", "a"] = "a"
    r: bytes = b"a"
    q: int | str | None = None
    p: dict[Size, Color] = field(default_factory=dict)
    o: dict[Color, Third | Fourth] = field(default_factory=dict)
    n: dict[bytes, set[str]] = field(default_factory=lambda: {b"": {"a", "b", "c"}})
    m: Annotated[int, msgspec.Meta(ge=0, title="t", description="d")] = 1
    k: One | Two | None = None
    j: Any = None
    i: Tree = field(default_factory=Tree)
    h: Boxed[int] | None = None
    g: tuple[Pair, Maybe] | None = None
    f: Annotated[Data, msgspec.Meta(title="other")] | UnsetType = UNSET
    e: None = None


def test_a_generic_class_in_a_union_is_looked_into() -> None:
    other = msgspec.defstruct("Boxed", [("z", int), ("a", list[int], field(default_factory=lambda: [1]))])
    with pytest.raises(SchemaRefused, match=r"field `a` .* was \[\] and is \[1\] now"):
        app_of(other | None).check_schema(kept_of(Boxed[int] | None))


TAKEN: list[tuple[Any, Any]] = [
    (LEAN, struct(("a", int), ("b", int, 0))),
    (LEAN, lean(("a", int), ("b", float, 0.0), ("c", int, 7))),
    (LEAN, lean(("a", int))),
    (struct(("a", int), ("b", int, 0)), lean(("a", int), ("b", int, 5))),
    (One | Letter, Letter | One | Two),
    (list[A1], list[enum.IntEnum("E", {"B": 2, "A": 1, "C": 3})]),
    (list[A1], list[enum.IntEnum("E", {"FIRST": 1, "B": 2})]),
    (list[A1], list[Literal[1, 2]]),
    (list[A1], list[int]),
    (U1, U2 | U1),
    (U1, msgspec.defstruct("Renamed", [("a", int)], tag="s") | U2),
    (MAYBE, struct(("a", int | str | UnsetType, UNSET))),
    (One | Two, Two | One | None),
    (One, One | Two),
    (struct(("x", bytes)), struct(("x", bytes | None))),
    (struct(("x", bytes)), Any),
    (AB, array(("a", int), ("b", float, 0.0), ("c", str, ""), ("d", list[int], field(default_factory=list)))),
    (AB, tuple[int, ...]),
    (tuple[int, int], AB),
    (Pair, More),
    (array(("a", int), rename="upper"), array(("a", int))),
    (lean(("a", frozenset[str], frozenset("ab"))), lean(("a", frozenset[str], frozenset("ba")), ("c", int, 7))),
    (lean(("a", frozenset[str], frozenset("ab"))), struct(("a", frozenset[str], frozenset("ba")))),
    (lean(("a", list[int], field(default_factory=list))), lean(("a", list[int], field(default_factory=lambda: [*()])))),
]


@pytest.mark.parametrize(("old", "new"), TAKEN)
def test_what_is_read_as_it_was_is_taken(old: Any, new: Any) -> None:
    app_of(new).check_schema(kept_of(old))


KEYS: list[tuple[Any, Any, str]] = [
    (AB, array(("b", int), ("a", int, 0)), "its items are stored as `a`, `b`, and would be read as `b`, `a` now"),
    (
        tuple[str, AB],
        tuple[str, array(("b", int), ("a", int, 0))],
        r"the items of field `\[1\]` are stored as `a`, `b`, and",
    ),
    (tuple[str, A1], tuple[str, enum.IntEnum("E", {"A": 2, "B": 1})], r"field `\[1\]`: 1 was A and is B now"),
    (U1 | U2, SWAPPED1 | SWAPPED2, "'s' was U1 and is U2 now"),
]


@pytest.mark.parametrize(("old", "new", "match"), KEYS)
def test_keys_that_would_be_read_as_others_are_refused(old: Any, new: Any, match: str) -> None:
    kept = kept_of(int, key=old)
    app_of(int, key=old).check_schema(kept)
    with pytest.raises(SchemaRefused, match=f"table 'rows': of its keys .*{match}.*, or give the table another name"):
        app_of(int, key=new).check_schema(kept)
    app_of(int, key=new).check_schema(without(kept, {*NEW_MARKS, "key_form"}))


def join_of(value: Any, key: Any = str) -> App:
    app = App("bank", partitions=1)
    orders, payments = app.topic("orders", key=key, value=value), app.topic("payments", key=key, value=str)
    app.join(orders, payments, within=timedelta(hours=1))(lambda order, payment: None)
    return app


JOINS: list[tuple[Any, Any, str]] = [
    (int, str, "its values are stored as int, not as str; change"),
    (int, bytes, "its values are stored as int, not as bytes; change"),
    (LEAN, int, "its values are stored as json, not as int; change"),
    (LEAN, lean(("a", int), ("b", int, 5)), "field `b` .* was 0 and is 5 now"),
    (LEAN, struct(("a", str)), "field `a` was int and is str now"),
]


@pytest.mark.parametrize(("old", "new", "match"), JOINS)
def test_what_a_join_keeps_is_read_as_it_was_stored(old: Any, new: Any, match: str) -> None:
    """Waiting rows of another type were joined as other bytes, without a word."""
    kept = json.loads(json.dumps(join_of(old).describe(), sort_keys=True))
    with pytest.raises(
        SchemaRefused, match=f"'orders' that it keeps, .*{match}.* back.*, or give the function another name"
    ):
        join_of(new).check_schema(kept)
    join_of(old).check_schema(kept)
    join_of(new).check_schema(without(kept, {"types"}))


def test_keys_of_what_a_join_keeps_are_met_again() -> None:
    kept = json.loads(json.dumps(join_of(LEAN, tuple[str, int]).describe(), sort_keys=True))
    join_of(struct(("a", int), ("b", int, 0), ("c", int, 1)), tuple[str, int]).check_schema(kept)
    for key, match in ((tuple[str, float], "had 1 where it has 1.0 now"), (int, "keys are stored as json, not as int")):
        with pytest.raises(
            SchemaRefused, match=f"'orders' that it keeps, .*{match}.*, or give the function another name"
        ):
            join_of(LEAN, key).check_schema(kept)


TYPES: list[Any] = [
    Color, Size, Pair, Maybe, Data, One, Two, One | Two, Two | One | None, Third, Third | Fourth, Fourth | Third, Renamed, Tree, Boxed[int],
    Boxed[Data], Boxed[float] | None, All, list[All], dict[str, All | None], dict[Size, int], dict[Color, Size], dict[bytes, bytes],
    dict[Any, Any], tuple[Color, Size, bytes], tuple[Pair, ...], list[Pair | int], list[Color | None], set[Size], list[bytes | None],
    Pair | Size, Literal["a", 1, None], Color | int, dict[Literal["a"], Pair], frozenset[Pair], list[Maybe], Any, list, dict, None,
    int | float, datetime | None, LEAN, MAYBE, inside(LEAN), inside(One | Two), inside(Third | Fourth), struct(array_like=True),
    struct(tag="x", array_like=True), list[dict[str, One | Two | int]],
    One | Letter, Letter | Two | One | None, Crate[int] | Sack[int], Sack[int] | Crate[str] | None, Third | Parcel, Boxed[int] | int,
]  # fmt: skip


@pytest.mark.parametrize("type_", TYPES)
def test_a_value_that_has_not_changed_is_taken(type_: Any) -> None:
    """Also where its description is not the same in each word, so that all of it is walked through; and those of versions before."""
    app, kept = app_of(type_), kept_of(type_)
    app.check_schema(kept)
    schema = kept["tables"]["rows"]["schema"]
    walked = {**schema, "description": "of another version"}
    bare = without(walked, {*NEW_MARKS, "holds", "keys"})
    for schema, marked in (
        (walked, 2),
        (without(walked, NEW_MARKS), 2),
        (without(walked, NEW_MARKS), True),
        (bare, True),
        (bare, None),
    ):
        before = with_schema(kept, schema, marked)
        app.check_schema(before)
        app_of(type_, upgrade=lambda stored: stored).check_schema(before)


def with_schema(kept: Any, schema: Any, marked: Any) -> Any:
    table = {name: fact for name, fact in kept["tables"]["rows"].items() if name != "marked"}
    return {"tables": {"rows": {**table, "schema": schema, **({} if marked is None else {"marked": marked})}}}


@pytest.mark.parametrize("more", [(), (("m", int, 0),)], ids=["unchanged", "a field more"])
def test_a_tree_of_many_classes_is_judged_at_once(more: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way through it was walked: with three classes that hold each other a start took for ever."""
    inner = [f"C{number}" for number in range(8)]
    node = f"Union[Leaf, {', '.join(inner)}]"

    def tree(*fields: Any) -> Any:
        types = {"Leaf": msgspec.defstruct("Leaf", [("n", int), *fields], tag=True)}
        for name in inner:
            types[name] = msgspec.defstruct(name, [("left", node), ("right", node)], tag=True, module=__name__)
        for name, cls in types.items():
            monkeypatch.setitem(globals(), name, cls)
        return Union[tuple(types.values())]  # noqa: UP007 - of classes that are made here

    kept = kept_of(tree())
    for before in (kept, without(kept, NEW_MARKS)):
        app_of(tree(*more)).check_schema(before)
