"""Codecs: Java's bytes for the plain types, JSON for the rest, round trips, and what is refused."""

from __future__ import annotations

import dataclasses
import math
import struct
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, NewType, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import App
from pipeline.errors import CodecError, DefinitionError
from pipeline.values.codecs import FloatCodec, JsonCodec, codec_for, codec_name, encode_natural
from pipeline.values.json_values import from_text, to_bytes
from pipeline.values.key_forms import KeyForms


class Point(msgspec.Struct, frozen=True):
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Place:
    name: str
    seen: datetime


class Shape(TypedDict):
    name: str


class Reversed:
    def encode(self, value: str) -> bytes:
        return value[::-1].encode()

    def decode(self, data: bytes) -> str:
        return data.decode()[::-1]


def codec(spec: Any, key: bool = False) -> Any:
    return codec_for(spec, what="it", key=key)


def test_plain_types_are_written_as_java_does() -> None:
    assert codec(bytes).encode(b"\x00\xff") == b"\x00\xff"
    assert codec(str).encode("Grüße") == "Grüße".encode()
    assert codec(int).encode(-2) == b"\xff" * 7 + b"\xfe"
    assert codec(int).encode(258) == b"\0\0\0\0\0\0\x01\x02"
    assert codec(float).encode(1.5) == struct.pack(">d", 1.5)
    assert codec(NewType("Account", str)).encode("a") == b"a"


@given(st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(st.characters(codec="utf-8")), st.binary())
def test_plain_types_round_trip(number: int, real: float, text: str, data: bytes) -> None:
    for type_, value in ((int, number), (str, text), (bytes, data)):
        assert codec(type_).decode(codec(type_).encode(value)) == value
    again = codec(float).decode(codec(float).encode(real))
    assert again == real or (math.isnan(again) and math.isnan(real))


@given(st.dictionaries(st.text(), st.lists(st.integers(-(2**53), 2**53)), max_size=4))
def test_json_round_trips_and_keeps_the_order_of_dicts(value: dict[str, list[int]]) -> None:
    again = codec(dict[str, list[int]]).decode(codec(dict[str, list[int]]).encode(value))
    assert again == value and list(again) == list(value)


def test_json_of_structs_dataclasses_unions_and_dates() -> None:
    place = Place("EDDF", datetime(2013, 1, 1, tzinfo=UTC))
    for type_, value in (
        (Point, Point(1, 2.5)),
        (Place, place),
        (int | None, None),
        (Point | str, "x"),
        (list[int], [1]),
    ):
        assert codec(type_).decode(codec(type_).encode(value)) == value
    assert codec(Shape).encode({"name": "a"}) == b'{"name":"a"}'
    assert codec(tuple[str, int], key=True).encode(("ann", 1)) == b'["ann",1]'


@given(st.sets(st.text(max_size=3)))
def test_a_set_has_one_text(value: set[str]) -> None:
    data = codec(set[str]).encode(value)
    assert data == codec(set[str]).encode({*list(value)[::-1]})
    assert msgspec.json.decode(data) == sorted(value)


def test_equal_keys_of_a_dict_are_equal_bytes() -> None:
    assert codec(float, key=True).encode(-0.0) == codec(float, key=True).encode(0.0)
    assert codec(int, key=True).encode(True) == codec(int, key=True).encode(1)


class Spot(msgspec.Struct, frozen=True):
    y: float
    price: Decimal = Decimal(0)


@pytest.mark.parametrize(
    ("type_", "given", "read"),
    [
        (tuple[float, str], (1, "a"), (1.0, "a")),
        (tuple[tuple[float, ...], int], ((1, 2), 3), ((1.0, 2.0), 3)),
        (Spot, Spot(1, 2), Spot(1.0, Decimal(2))),  # type: ignore[arg-type]
        (float | None, 1, 1.0),
    ],
)
def test_a_key_has_the_bytes_that_it_has_once_it_was_read(type_: Any, given: Any, read: Any) -> None:
    assert given == read
    keys = codec(type_, key=True)
    assert keys.encode(given) == keys.encode(read) == keys.encode(keys.decode(keys.encode(given)))


class Deal(msgspec.Struct, frozen=True, array_like=True):
    price: Decimal
    at: datetime | None = None


HERE, THERE = timezone(timedelta(hours=2)), timezone(timedelta(hours=-5))
MOST = "123456789012345678901234567890.5"


@pytest.mark.parametrize(
    ("type_", "one", "other"),
    [
        (Decimal, Decimal("1"), Decimal("1.00")),
        (Decimal, Decimal("100"), Decimal("1E+2")),
        (Decimal, Decimal("0"), Decimal("-0.00")),
        (Decimal, Decimal(MOST), Decimal(f"{MOST}0")),
        (tuple[Decimal, ...], (Decimal("1"), Decimal("2.50")), (Decimal("1.0"), Decimal("2.5"))),
        (Deal, Deal(Decimal("1.50")), Deal(Decimal("1.5"))),
        (datetime, datetime(2026, 1, 1, 12, tzinfo=HERE), datetime(2026, 1, 1, 5, tzinfo=THERE)),
        (datetime, datetime(2026, 1, 1, 12, tzinfo=HERE), datetime(2026, 1, 1, 10, tzinfo=UTC)),
        (time, time(12, 30, tzinfo=HERE), time(10, 30, tzinfo=UTC)),
        (time, time(0, 30, tzinfo=HERE), time(1, 30, tzinfo=timezone(timedelta(hours=3)))),
        (tuple[float, str], (0.0, "a"), (-0.0, "a")),
        (int | float, 1, 1.0),
        (int | float, 2**60, 2.0**60),
        (tuple[int | float | None, str], (1, "a"), (1.0, "a")),
        (Any, 1, 1.0),
    ],
)
def test_equal_keys_of_several_forms_are_one_key(type_: Any, one: Any, other: Any) -> None:
    """They would be one in a dict; of two, in different tasks maybe, each had a part of what is the key's."""
    assert one == other
    keys = codec(type_, key=True)
    data = keys.encode(one)
    assert data == keys.encode(other) == keys.encode(keys.decode(data))
    assert keys.decode(data) == one


zones = st.sampled_from([None, UTC, HERE, THERE, timezone(timedelta(hours=5, minutes=30))])
parts_of_keys = st.tuples(
    st.decimals(allow_nan=False) | st.decimals(places=2, allow_nan=False, min_value=-1000, max_value=1000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.datetimes(timezones=zones),
    st.times(timezones=zones),
    st.text(max_size=5) | st.sampled_from(["-0.0", '"1.0"', "12:00+02:00"]),
)


@given(parts_of_keys)
def test_what_shows_that_it_has_its_form_is_as_it_would_be_made(parts: Any) -> None:
    type_ = tuple[Decimal, float, datetime, time, str]
    forms, made = KeyForms(type_), KeyForms(tuple[type_, frozenset[str]])  # type: ignore[valid-type]
    read = msgspec.json.decode(msgspec.json.encode(parts), type=type_)
    assert b"[%s,[]]" % forms.encode(read) == made.encode((read, frozenset()))


@pytest.mark.parametrize(
    "key", [Decimal("12.34"), datetime(2026, 1, 1, tzinfo=UTC), time(1), ("a", 1.5), Deal(Decimal(7))]
)
def test_a_key_in_its_form_is_not_made_anew(key: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record and each look-up comes by here: it took three to six times as long."""
    keys, seen = codec(tuple[str, float] if isinstance(key, tuple) else type(key), key=True), []
    monkeypatch.setattr(KeyForms, "_form", lambda _, value: seen.append(value))
    assert keys.decode(keys.encode(key)) == key and not seen


@pytest.mark.parametrize(
    ("type_", "one", "other"),
    [
        (Decimal, Decimal(MOST), Decimal("123456789012345678901234567890.6")),
        (datetime, datetime(2026, 1, 1, 10), datetime(2026, 1, 1, 10, tzinfo=UTC)),
        (time, time(0, 30, tzinfo=HERE), time(22, 30, tzinfo=UTC)),  # of the day before, to Python
        (datetime, datetime(1, 1, 1, tzinfo=HERE), datetime(1, 1, 1, tzinfo=UTC)),
        (int | float, 1, 1.5),
    ],
)
def test_other_keys_are_others(type_: Any, one: Any, other: Any) -> None:
    assert one != other
    keys = codec(type_, key=True)
    assert keys.encode(one) != keys.encode(other)
    assert (keys.decode(keys.encode(one)), keys.decode(keys.encode(other))) == (one, other)


@pytest.mark.parametrize("type_", [tuple[Decimal, str], tuple[Decimal, ...], Deal])
def test_a_part_of_a_key_has_its_form(type_: Any) -> None:
    keys = codec(type_, key=True)
    assert isinstance(keys, JsonCodec)
    assert keys.encode_parts([Decimal("1.50")]) == b'["1.5"]'
    assert encode_natural(datetime(2026, 1, 1, 12, tzinfo=HERE)) == b'"2026-01-01T10:00:00Z"'
    assert encode_natural(Decimal("1.50")) == codec(Decimal, key=True).encode(Decimal("1.5"))


def test_another_name_of_a_type_is_that_type() -> None:
    class TypeAliasType:  # as `type Account = str` makes one, from Python 3.12 on
        def __init__(self, value: Any) -> None:
            self.__value__ = value

    assert codec_name(codec(TypeAliasType(NewType("Account", str)))) == "str"
    assert codec_name(codec(TypeAliasType(TypeAliasType(int)))) == "int"


def test_an_annotated_type_is_that_type() -> None:
    """What is annotated is no reason for JSON text where Java has 8 bytes."""
    limited = msgspec.Meta(ge=0, title="A count")
    for type_, name in (
        (Annotated[str, "of a customer"], "str"),
        (NewType("Account", Annotated[int, msgspec.Meta(title="An account")]), "int"),  # type: ignore[valid-newtype]
        (Annotated[tuple[str, int], "of a customer"], "json"),
        (tuple[Annotated[int, limited], str], "json"),
        (Annotated[list[int], msgspec.Meta(min_length=1)], "json"),
    ):
        assert codec_name(codec(type_)) == name
    for wrong in (Annotated[int, limited], NewType("Count", Annotated[int, limited])):  # type: ignore[valid-newtype]
        with pytest.raises(DefinitionError, match=r"topic 'a', value: the limits of Annotated.*; declare int"):
            App("x").topic("a", key=str, value=wrong)


def test_a_type_that_is_not_there_yet_is_named() -> None:
    class Node(msgspec.Struct):
        next: Later  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DefinitionError, match=r"topic 'a', value: Node: name 'Later' is not defined; a type"):
        App("x").topic("a", key=str, value=Node)


@pytest.mark.parametrize("type_", [dict, dict[str, int], Shape, tuple[str, dict[str, int]], dict[str, int] | None])
def test_a_dict_is_no_key(type_: Any) -> None:
    with pytest.raises(DefinitionError, match="topic 'a', key: a dict cannot be a key"):
        App("x").topic("a", key=type_, value=str)
    with pytest.raises(DefinitionError, match="table 't', key: a dict cannot be a key"):
        App("x").table("t", key=type_, value=str)


def test_keys_of_tables_must_be_keys_of_dicts() -> None:
    class Loose(msgspec.Struct):
        x: int

    App("x").table("points", key=Point, value=str)
    for type_ in (Loose, list[int], tuple[str, list[int]]):
        with pytest.raises(DefinitionError, match="frozen"):
            App("x").table("t", key=type_, value=str)


class Steps(msgspec.Struct, frozen=True):
    at: list[int]


class Chosen(msgspec.Struct, frozen=True):
    at: list[int]

    def __hash__(self) -> int:
        return hash(tuple(self.at))


class Path(msgspec.Struct, frozen=True):
    at: tuple[int, ...]
    rest: Path | None = None


@pytest.mark.parametrize("type_", [Steps, tuple[Steps, int], Steps | None])
def test_what_a_key_has_inside_must_be_hashable_too(type_: Any) -> None:
    with pytest.raises(
        DefinitionError, match=r"Steps.* cannot be the key of a dict; use frozen=True or a tuple, also inside"
    ):
        App("x").table("t", key=type_, value=str)
    with pytest.raises(DefinitionError, match="also inside"):
        App("x").timers("t", key=type_)


@pytest.mark.parametrize("type_", [Chosen, Path])
def test_what_is_hashable_inside_is_a_key(type_: Any) -> None:
    App("x").table("t", key=type_, value=str)


class Plain:
    pass


@pytest.mark.parametrize("spec", [Plain, "str", 5, list[Plain]])
def test_what_cannot_be_encoded_is_refused_at_once(spec: Any) -> None:
    with pytest.raises(DefinitionError, match=r"topic 'a', value: .*Codec with encode and decode"):
        App("x").topic("a", key=str, value=spec)


def test_a_codec_class_instead_of_an_instance() -> None:
    with pytest.raises(DefinitionError, match=r"give an instance of the codec: Reversed\(\)"):
        App("x").topic("a", key=str, value=Reversed)


@pytest.mark.parametrize(
    ("type_", "value"),
    [(int, "5"), (int, 2**63), (int, 1.0), (str, b"x"), (str, "\ud800"), (bytes, "x"), (float, "1"), (Point, {"x": 1}),
     (list[int], ["a"]), (int | None, "a"), (float, 10**400)],
)  # fmt: skip
def test_values_of_other_types_are_refused(type_: Any, value: Any) -> None:
    with pytest.raises(CodecError):
        codec(type_).encode(value)


@pytest.mark.parametrize(
    ("type_", "data"),
    [(int, b"123"), (float, b""), (str, b"\xff"), (Point, b"{}"), (Point, b"\xff"), (list[int], b"1")],
)
def test_bytes_that_cannot_be_read_are_told(type_: Any, data: bytes) -> None:
    with pytest.raises(CodecError):
        codec(type_).decode(data)


class Gives:
    def __init__(self, data: Any) -> None:
        self.data = data

    def encode(self, value: Any) -> Any:
        return self.data

    def decode(self, data: bytes) -> Any:
        return data


@pytest.mark.parametrize("data", ["text", None, 5])
def test_a_codec_of_the_users_gives_bytes(data: Any) -> None:
    for mine in (codec(Gives(data)), codec(Gives(data), key=True)):
        with pytest.raises(CodecError, match=f"encode.. of Gives gave {data!r} for 'a'; it must give bytes"):
            mine.encode("a")
    assert codec(Gives(bytearray(b"x"))).encode("a") == codec(Gives(memoryview(b"x"))).encode("a") == b"x"
    assert type(codec(Gives(bytearray(b"x"))).encode("a")) is bytes


def test_what_is_made_of_one_codec_is_equal() -> None:
    mine = Reversed()
    assert codec(mine) == codec(mine) != codec(Reversed()) and codec(codec(mine)) == codec(mine)
    assert hash(codec(mine)) == hash(codec(mine))


def test_names_let_tools_encode_without_code() -> None:
    for type_, name, value in ((bytes, "bytes", b"a"), (str, "str", "a"), (int, "int", 7), (float, "float", 0.5)):
        assert codec_name(codec(type_)) == name
        given = value.decode() if isinstance(value, bytes) else value
        assert to_bytes(name, given) == codec(type_).encode(value)
    key = codec(tuple[str, int], key=True)
    assert codec_name(key) == "json"
    assert to_bytes("json", ["ann", 1]) == key.encode(("ann", 1))
    assert codec_name(codec(Reversed())) == "custom"
    assert to_bytes("custom", {"base64": "AP8="}) == to_bytes("bytes", {"base64": "AP8="}) == b"\0\xff"
    with pytest.raises(CodecError, match="write its bytes as they are shown"):
        to_bytes("custom", 1)


def test_a_part_of_a_key_has_the_bytes_of_a_key() -> None:
    for type_, value in ((str, "ann"), (int, 7), (float, 0.5), (bytes, b"x"), (tuple[str, int], ("a", 1))):
        assert encode_natural(value) == codec(type_, key=True).encode(value)


class Mean(msgspec.Struct):
    mean: float
    of: str | None = None


class Tree(msgspec.Struct):
    value: float | None = None
    parts: list[Tree] = []


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Mean, Mean(math.nan)),
        (Tree, Tree(None, [Tree(math.inf)])),
        (dict[str, Any], {"a": [1, -math.inf]}),
        (dict, {"a": math.nan}),
        (list, [math.nan]),
        (list[float | None], [math.nan]),
        (Any, math.nan),
    ],
    ids=str,
)
def test_a_number_that_json_has_none_of_is_refused(type_: Any, value: Any) -> None:
    """It was written as null: another value, or one that could not be read."""
    with pytest.raises(CodecError, match=r"(nan|inf) is a number that JSON has none of"):
        JsonCodec(type_).encode(value)


@pytest.mark.parametrize("type_", [Any, dict, Mean])
def test_text_that_is_not_utf8_is_no_value(type_: Any) -> None:
    """It raised UnicodeDecodeError: what looks for a value that its type cannot read did not take it for one."""
    with pytest.raises(CodecError, match=r"cannot be read as .*: 'utf-8' codec"):
        JsonCodec(type_).decode(b'{"mean":1.0,"of":"\xff"}')


class Named(msgspec.Struct):
    """With fields that are called as parts of a schema are."""

    type: str
    default: float
    items: str | None = None


def test_where_null_is_meant_it_is_written() -> None:
    assert JsonCodec(Named).encode(Named("a", 1.0)) == b'{"type":"a","default":1.0,"items":null}'
    with pytest.raises(CodecError, match="has none of"):
        JsonCodec(Named).encode(Named("a", math.nan))
    assert JsonCodec(Mean).encode(Mean(1.5)) == b'{"mean":1.5,"of":null}'
    assert JsonCodec(Tree).encode(Tree()) == b'{"value":null,"parts":[]}'
    assert JsonCodec(dict[str, Any]).encode({"null": None}) == b'{"null":null}'


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        ("str", "caf\udce9"),
        ("bytes", "caf\udce9"),
        ("bytes", '{"base64":"\udce9"}'),
        ("json", '"caf\udce9"'),
        ("float", "1" + "0" * 400),
        ("float", "-1" + "0" * 400),
    ],
)
def test_a_typed_key_that_no_bytes_are_of_is_named(codec: str, text: str) -> None:
    """What a terminal gives for bytes that are no UTF-8, and a number that no float is: commands name them, with no traceback."""
    with pytest.raises(CodecError, match=r"is no text in UTF-8; bytes are written as|does not fit into the 8 bytes"):
        from_text(codec, text)


def test_a_value_with_text_that_is_no_utf_8_is_named() -> None:
    with pytest.raises(CodecError, match=r"'caf\\udce9' is no text in UTF-8"):
        to_bytes("str", "caf\udce9")
    with pytest.raises(CodecError, match="has text that is no UTF-8"):
        to_bytes("json", {"name": "caf\udce9"})


@pytest.mark.parametrize("text", ["-0.0", "-0", "0"])
def test_a_typed_zero_is_the_key_that_the_app_has(text: str) -> None:
    assert from_text("float", text) == FloatCodec().encode(-0.0) == FloatCodec().encode(0.0)
