"""Can today's type read what yesterday's wrote? Judged from the schemas, and held against msgspec itself."""

from __future__ import annotations

import itertools
import json
import re
from datetime import date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import App
from pipeline.errors import SchemaRefused
from pipeline.values.schemas import unreadable


def struct(*fields: Any, **options: Any) -> Any:
    return msgspec.defstruct(f"Account{next(_numbers)}", fields, **options)


_numbers = itertools.count()


def app_of(value: Any, key: Any = str, **options: Any) -> App:
    app = App("bank")
    source = app.topic("in", key=str, value=str)
    table = app.table("accounts", key=key, value=value, **options)

    def work(record: Any, accounts: Any) -> None: ...

    app.processor(source, table)(work)
    return app


def check(old: Any, new: Any, **options: Any) -> None:
    kept = json.loads(json.dumps(app_of(old).describe()))
    app_of(new, **options).check_schema(kept)


BASE = struct(("amount", int), ("note", str, ""))

READABLE: list[tuple[Any, Any]] = [
    (BASE, BASE),
    (BASE, struct(("amount", int), ("note", str, ""), ("currency", str, "EUR"))),
    (BASE, struct(("amount", int))),
    (BASE, struct(("amount", float))),
    (BASE, struct(("amount", int | None))),
    (BASE, Any),
    (BASE, dict[str, Any]),
    (struct(("amount", int)), dict[str, int]),
    (list[int], list[int | str]),
    (int | None, int | str | None),
    (Literal["a"], Literal["a", "b"]),
    (Literal["a"], str | None),
    (dict[str, list[BASE]], dict[str, list[struct(("amount", int))]]),  # type: ignore[valid-type,misc]
    (list[datetime], list[str]),
    (tuple[int, str], list[int | str]),
    (list[datetime], list[datetime | None]),
    (list[Annotated[datetime, msgspec.Meta(tz=False)]], list[datetime]),
    (list[Annotated[datetime, msgspec.Meta(tz=True)]], list[datetime]),
    (list[time], list[str]),
    (dict[int, int], dict[str, float]),
    (dict[int, int], dict[float, int]),
    (dict[Literal["a"], int], dict[Literal["a", "b"], int]),
    (dict[date, int], dict[date, int] | None),
    (dict[str, Any], dict),
]
UNREADABLE: list[tuple[Any, Any, str]] = [
    (BASE, struct(("amount", int), ("currency", str)), "give `currency` a default"),
    (BASE, struct(("amount", int), ("note", str)), "give `note` a default"),
    (BASE, struct(("amount", str)), "field `amount` was int and is str now"),
    (BASE, struct(("amount", int), forbid_unknown_fields=True), "field `note` is stored and unknown fields"),
    (struct(("inner", list[BASE])), struct(("inner", list[struct(("amount", str))])), r"field `inner\[...\].amount`"),  # type: ignore[misc]
    (int | None, list[int], "the value was int"),
    (Literal["a", "b"], Literal["a"], "could be 'b' and cannot now"),
    (list[str], list[date], "format"),
    (list[int], tuple[int, int], "needs 2 items"),
    (tuple[int, str], tuple[int, int], r"field `\[1\]` was str and is int"),
    (list, list[int], "any type"),
    (dict, dict[str, int], "values of any type and has int now"),
    (dict[str, Any], dict[str, int], "values of any type"),
    (struct(("at", str)), struct(("at", datetime)), "field `at` is a date-time of any zone or none now and was any text"),
    (struct(("at", date)), struct(("at", datetime)), "field `at` is a date-time of any zone or none now and was date;"),
    (struct(("at", datetime)), struct(("at", time)), "field `at` is a time now and was date-time of any zone"),
    (struct(("at", Decimal)), struct(("at", time | None)), "is a time now and was decimal"),
    (list[bytes], list[datetime], "was any text"),
    (list[datetime], list[Annotated[datetime, msgspec.Meta(tz=False)]], "date-time without a zone now"),
    (dict[str, int], dict[int, int], r"field `\[key\]` was str and is int now"),
    (struct(("by", dict[date, int])), struct(("by", dict[datetime, int])), r"`by\[key\]` is a date-time of any zone or none now and was date"),
    (dict[Literal["a", "b"], int], dict[Literal["a"], int], r"`\[key\]` could be 'b'"),
    (dict[int, int] | None, dict[date, int], "was int and is str"),
    (dict, dict[int, Any], "could be anything and is int now"),
    (struct(("amount", int)), dict[int, int], "was str and is int"),
    (BASE, list[int], r"the value was Account\d+ and is list now"),
    (int, str, "stored as int, not as str"),
    (BASE, str, "stored as json, not as str"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), READABLE)
def test_readable(old: Any, new: Any) -> None:
    check(old, new)


@pytest.mark.parametrize(("old", "new", "match"), UNREADABLE)
def test_refused_with_the_field_named(old: Any, new: Any, match: str) -> None:
    with pytest.raises(SchemaRefused, match=rf"table 'accounts': .*{match}"):
        check(old, new)
    if new is not str:
        check(old, new, upgrade=lambda old: old)


CODECS = (int, float, str, bytes, BASE)


@pytest.mark.parametrize("new", CODECS)
@pytest.mark.parametrize("old", CODECS)
def test_upgrade_is_refused_where_it_would_not_be_asked(old: Any, new: Any) -> None:
    """Bytes of the one type are values of the other, too: every total was another number, without a line."""
    if old is new or new is BASE or (old, new) in ((BASE, int), (BASE, float), (str, int)):
        check(old, new, upgrade=lambda old: old)
    else:
        with pytest.raises(SchemaRefused, match="so that upgrade= would not be asked; give the table another name"):
            check(old, new, upgrade=lambda old: old)


def test_the_message_says_both_ways_out() -> None:
    with pytest.raises(SchemaRefused) as raised:
        check(BASE, struct(("amount", int), ("currency", str)))
    assert str(raised.value).endswith("give `currency` a default, or app.table(..., upgrade=function)")
    assert re.match(r"app '\S+', table 'accounts': ", str(raised.value))


def test_keys_and_expire_cannot_change() -> None:
    kept = app_of(int).describe()
    with pytest.raises(SchemaRefused, match="keys are stored as str, not as int"):
        app_of(int, key=int).check_schema(kept)
    from datetime import timedelta

    with pytest.raises(SchemaRefused, match="expire="):
        app_of(int, expire=timedelta(days=1)).check_schema(kept)


def test_a_type_that_contains_itself() -> None:
    class Tree(msgspec.Struct):
        children: list[Tree]

    schema = {
        "$ref": "#/$defs/Tree",
        "$defs": {
            "Tree": {
                "title": "Tree",
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
                "required": ["children"],
            }
        },
    }
    other = json.loads(json.dumps(schema).replace('"title": "Tree"', '"title": "Wood"'))
    assert unreadable(schema, other) is None


TYPES = st.recursive(
    st.sampled_from([int, float, str, bool, None, Literal["a"], Literal["a", "b"], Literal[1]]),
    lambda inner: st.one_of(
        inner.map(lambda t: list[t]),  # type: ignore[valid-type]
        st.tuples(inner, inner).map(lambda ts: tuple[ts[0], ts[1]]),  # type: ignore[valid-type]
        inner.map(lambda t: dict[str, t]),  # type: ignore[valid-type]
        st.lists(st.tuples(st.sampled_from("abc"), inner, st.booleans()), max_size=3, unique_by=lambda f: f[0]).map(
            lambda fields: struct(
                *[(n, t) for n, t, optional in fields if not optional],
                *[(n, t, value_of(t)) for n, t, optional in fields if optional and is_plain(t)],
            )
        ),
    ),
    max_leaves=4,
)


def is_plain(type_: Any) -> bool:
    return type_ in (int, float, str, bool, None)


def value_of(type_: Any) -> Any:
    """One value of a type."""
    if is_plain(type_):
        return {int: 7, float: 0.5, str: "x", bool: True, None: None}[type_]
    info = msgspec.inspect.type_info(type_)
    if isinstance(info, msgspec.inspect.LiteralType):
        return info.values[-1]
    arguments = getattr(type_, "__args__", ())
    if arguments and type_.__origin__ is list:
        return [value_of(arguments[0])]
    if arguments and type_.__origin__ is tuple:
        return tuple(map(value_of, arguments))
    if arguments:
        return {"k": value_of(arguments[1])}
    return type_(**{field.name: value_of(type_.__annotations__[field.name]) for field in msgspec.structs.fields(type_)})


@given(TYPES, TYPES)
def test_what_is_allowed_can_be_read(old: Any, new: Any) -> None:
    """The law: if the schemas say yes, msgspec reads it."""
    if unreadable(msgspec.json.schema(old), msgspec.json.schema(new)) is None:
        msgspec.json.decode(msgspec.json.encode(value_of(old)), type=new)


@given(TYPES)
def test_no_change_is_always_allowed(type_: Any) -> None:
    assert unreadable(msgspec.json.schema(type_), json.loads(json.dumps(msgspec.json.schema(type_)))) is None


def test_a_version_without_the_table_does_not_make_its_type_forgotten() -> None:
    """A table of one version, none in the next, and the same name with another type in the third."""
    between = App("bank")
    source = between.topic("other", key=str, value=str)

    @between.processor(source)
    def work(record: Any) -> None: ...

    kept = json.loads(json.dumps(between.describe(kept=app_of(int).describe())))
    assert kept["topics"].keys() == {"in", "other"} and kept["tables"].keys() == {"accounts"}
    with pytest.raises(SchemaRefused, match="accounts"):
        app_of(list[str]).check_schema(kept)


class Made(msgspec.Struct):
    tags: list[str] = msgspec.field(default_factory=lambda: ["a"])
    other: str = msgspec.field(default_factory=lambda: date.today().isoformat())
    since: date = msgspec.field(default_factory=date.today)
    days: list[str] = msgspec.field(default_factory=lambda: [date.today().isoformat() for _ in "ab"])
    later: str = msgspec.field(default_factory=lambda: (lambda: date.today().isoformat())())
    money: Decimal = msgspec.field(default_factory=Decimal)


@pytest.mark.parametrize("type_", [Made, Made | None])
def test_a_made_default_is_told_where_every_call_gives_the_same(type_: Any) -> None:
    app = app_of(type_)
    described = app.describe()["tables"]["accounts"]["schema"]["$defs"]["Made"]["properties"]
    made = {name: one["default"] for name, one in described.items() if "default" in one}
    assert made == {"tags": ["a"], "money": "0"}
    app.check_schema(json.loads(json.dumps(app.describe())))


def test_a_description_of_before_is_judged_by_what_it_says() -> None:
    """It has no marks: what may be a time is taken for one, and keys of a dict are not looked at."""
    old = json.loads(json.dumps(app_of(struct(("at", datetime), ("by", dict[int, int]))).describe()))
    table = old["tables"]["accounts"]
    del table["marked"]
    [part] = table["schema"]["$defs"].values()
    part["properties"] = {
        "at": {"type": "string"},
        "by": {"type": "object", "additionalProperties": {"type": "integer"}},
    }
    app_of(struct(("at", datetime), ("by", dict[int, int]))).check_schema(old)
    app_of(struct(("at", time), ("by", dict[date, int]))).check_schema(old)
    part["properties"]["at"]["format"] = "uuid"
    with pytest.raises(SchemaRefused, match="field `at` is a date-time of any zone or none now and was uuid"):
        app_of(struct(("at", datetime), ("by", dict[int, int]))).check_schema(old)


def test_describe_is_json_and_needs_no_code() -> None:
    app = app_of(BASE, key=tuple[str, str], route=lambda key: key[0])
    told = json.loads(json.dumps(app.describe()))
    assert told["id"] == "bank"
    assert told["topics"]["in"] == {
        "partitions": 1, "kind": "plain", "written": False, "key_codec": "str", "value_codec": "str",
    }  # fmt: skip
    table = told["tables"]["accounts"]
    assert json.loads(table.pop("key_form")) == table["key_schema"]
    assert table.pop("key_schema")["prefixItems"] == [{"type": "string"}] * 2
    assert table.pop("schema")["$defs"][BASE.__name__]["required"] == ["amount"]
    assert table == {
        "key_codec": "json",
        "value_codec": "json",
        "routed": True,
        "local": False,
        "changelog_topic": "bank-accounts-changelog",
        "subtopology": 0,
        "partitions": 1,
        "expire_ms": None,
        "marked": 2,
    }
    assert told["processors"]["work"]["sources"] == ["in"] and told["processors"]["work"]["resources"] == []
