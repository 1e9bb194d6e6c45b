"""Processors that take columns. Laws: the answer is that of the same app written per record, wherever batches are cut;
a call counts whole or not at all; what is stored are the bytes that a plain table stores."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App, Columns, ColumnTable, PipelineError, ProcessorFailed, Record, Sink, Table
from orchestrator.testing import Driver
from pipeline.columns import arrays, batch_table, numbers, orders
from pipeline.columns.declared import record_kind
from pipeline.columns.json_records import JsonRecords
from pipeline.columns.murmur import partitions_of
from pipeline.columns.raw import from_records
from pipeline.errors import CodecError, DefinitionError, WrongTask
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from pipeline.values.codecs import codec_for
from pipeline.values.partitioner import partition_of

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 50


class Flight(msgspec.Struct):
    delay: int
    tail: str = "none"
    note: str | None = None


def by_record(app: App, on_error: Any = "stop") -> None:
    flights = app.topic("flights", key=str, value=Flight)
    delays, out = app.table("delays", key=str, value=int, default=int), app.topic("out", key=str, value=int)

    @app.processor(flights, delays, out, on_error=on_error)
    def add_up(flight: Record[str, Flight], delays: Table[str, int], out: Sink[str, int]) -> None:
        delays[flight.key] += flight.value.delay
        out.send(flight.key, flight.value.delay)
        if flight.value.delay > LIMIT:
            raise ValueError("too late")


def by_columns(app: App, on_error: Any = "stop") -> None:
    flights = app.topic("flights", key=str, value=Flight)
    delays, out = app.table("delays", key=str, value=int, default=int), app.topic("out", key=str, value=int)

    @app.processor(flights, delays, out, columns=True, on_error=on_error)
    def add_up(batch: Columns[str, Flight], delays: ColumnTable[str, int], out: Sink[str, int]) -> None:
        sums = batch.table.group_by("key").aggregate([("delay", "sum")])
        delays.put(sums["key"], pc.add(delays.get(sums["key"]), sums["delay_sum"]))
        out.send(batch.table["key"], batch.table["delay"])
        if pc.any(pc.greater(batch.table["delay"], LIMIT)).as_py():
            raise ValueError("too late")


def answer(
    declare: Callable[[App, Any], None], values: list[bytes], cuts: set[int], on_error: str, *, raw: bool
) -> tuple[Any, ...]:
    """What is stored, sent and left out, and where it stopped; a run and a commit end at each of `cuts`. `raw`: records
    come in columns, as a worker gives them."""
    app = App("x", partitions=1)
    letters = app.topic("letters", key=bytes, value=bytes)
    declare(app, letters if on_error == "letters" else on_error)
    store = DictStore()
    counts = {"flights": 1, "out": 1, "letters": 1}
    process = TaskProcess(app, app.topology().subtopologies[0], 0, {"delays": store}, counts)
    records = [SourceRecord(n, 100 - n % 7, b"k%d" % (n % 3), value) for n, value in enumerate(values)]
    sent: list[Any] = []
    left_out, position, stopped, begin = 0, 0, "", 0
    for end in sorted({*cuts, len(records)}):
        part, begin = records[begin:end], max(begin, end)
        if not part:
            continue
        try:
            process.run(from_records("flights", part) if raw else [("flights", one) for one in part])
        except ProcessorFailed as error:
            stopped = error.record
        changes = process.collect()
        store.write(changes.writes.get("delays", {}))
        process.mark_applied()
        for (topic, _), outputs in changes.outputs.items():
            sent += [(topic, one.key, one.value, one.timestamp_ms) for one in outputs]
        left_out += len(changes.left_out)
        position = changes.positions.get("flights", position)
        if stopped:
            break
    return dict(store.data), sorted(sent, key=repr), left_out, position, stopped


FLIGHTS = st.builds(Flight, st.integers(-LIMIT, LIMIT + 3), st.text(max_size=3), st.none() | st.text(max_size=2))
VALUES = st.one_of(
    FLIGHTS.map(msgspec.json.encode),
    FLIGHTS.map(msgspec.json.encode),
    st.integers(0, 9).map(lambda n: b'{"delay":%d}' % n),
    st.sampled_from(
        [b"", b"{", b'{"delay":"7"}', b'{"delay":1.5}', b'{"delay":1}{"delay":2}', b'{"delay":1,"tail":null}']
    ),
    st.sampled_from(
        [b' {"delay":4}', b'{"delay":5,"more":[1,{"delay":6}]}', b'{"delay":7,"delay":8}', b'{"tail":"x"}']
    ),
    st.sampled_from(['{"delay":3,"tail":"ü"}'.encode(), b'{"delay":3,"tail":"\xff"}', b'{"delay":3,"x":NaN}']),
)


@settings(deadline=None)
@given(
    st.lists(VALUES, max_size=14),
    st.sets(st.integers(1, 13)),
    st.sampled_from(["stop", "skip", "letters"]),
    st.booleans(),
)
def test_the_answer_is_that_of_single_records(values: list[bytes], cuts: set[int], on_error: str, raw: bool) -> None:
    expected = answer(by_record, values, set(), on_error, raw=False)
    assert answer(by_columns, values, cuts, on_error, raw=raw) == expected
    assert answer(by_columns, values, set(), on_error, raw=raw) == expected


DOUBTFUL = [
    *(
        b"",
        b" ",
        b"{",
        b"null",
        b"[1]",
        b' {"delay":4}',
        b'{"delay":4} ',
        b'{"delay":1}{"delay":2}',
        b'{"delay":1}\n{"delay":2}',
    ),
    *(
        b"{}",
        b'{"tail":"x"}',
        b'{"delay":"7"}',
        b'{"delay":1.0}',
        b'{"delay":1e3}',
        b'{"delay":true}',
        b'{"delay":null}',
    ),
    *(
        b'{"delay":1,"tail":null}',
        b'{"delay":1,"note":null}',
        b'{"delay":1,"tail":"null"}',
        b'{"delay":-0}',
        b'{"delay":01}',
    ),
    *(
        b'{"delay":9223372036854775807}',
        b'{"delay":1,"delay":2}',
        b'{"delay":1,"x":1,"x":2}',
        b'{"Delay":1}',
        b'{"delay":1,}',
    ),
    *(
        b'{"delay":3,"tail":"\xff"}',
        b'{"delay":3,"x":"\xff"}',
        b'{"delay":3,"tail":"\xc3\xbc"}',
        b'{"delay":3,"tail":"\\ud800"}',
    ),
    *(
        b'{"delay":3,"tail":"\\ud83d\\ude00\\n\\u0000"}',
        b'{"delay":3,"tail":"a\nb"}',
        b'{"delay":3,"tail":"a\tb"}',
        b"{'delay':3}",
    ),
    *(
        b'{"delay":3,"x":NaN}',
        b'{"delay":3,"x":Infinity}',
        b'{"delay":3,"x":{"delay":[{}]}}',
        b'{"delay":3,/*x*/"x":1}',
        b'{"delay":+3}',
    ),
]


@pytest.mark.parametrize("text", DOUBTFUL, ids=repr)
def test_arrows_reader_answers_only_as_the_codec_does(text: bytes) -> None:
    """Alone, between others, and twice; what makes up for it in the number of lines does not."""
    codec = codec_for(Flight, what="test")
    kind = record_kind(codec)
    assert kind is not None
    for texts in ([text], [b'{"delay":1}', text, b'{"delay":2}'], [text, text], [text, b""], [text, b"{}"]):
        found = JsonRecords(kind).read(pa.array(texts, pa.binary()))
        if found is None:
            continue
        flights = [codec.decode(one) for one in texts]  # raises nothing
        assert [column.to_pylist() for column in found] == [
            [getattr(flight, name) for flight in flights] for name in ("delay", "tail", "note")
        ]
    assert JsonRecords(kind).read(pa.array([b'{"delay":1}'] * 3, pa.binary())) is not None


@pytest.mark.parametrize(
    "number",
    "1.7976931348623157e308 1.7976931348623159e308 1.8e308 -1.8e308 1e99999 1e-400 5e-324 0.1 1 -1 0 -0 -0.0 -0e1 -0.5 "
    f"9007199254740993 123456789012345678901234567890 1{'0' * 400}".split(),
)
def test_a_number_that_has_no_place_in_a_float_is_the_codecs_to_refuse(number: str) -> None:
    """Arrow makes it infinite: the same record was skipped beside one that Arrow does not take, and a value of its own without. And -0
    has a sign to Arrow alone."""

    class Reading(msgspec.Struct):
        celsius: float

    codec = codec_for(Reading, what="test")
    kind = record_kind(codec)
    assert kind is not None
    text = f'{{"celsius":{number}}}'.encode()
    found = JsonRecords(kind).read(pa.array([b'{"celsius":1.5}', text], pa.binary()))
    try:
        value = codec.decode(text).celsius
    except CodecError:
        assert found is None
        return
    assert found is None if number == "-0" else found is not None and str(found[0].to_pylist()) == str([1.5, value])


def test_columns_are_named_as_fields() -> None:
    class Reading(TypedDict):
        celsius: float
        ok: bool

    app = App("x")
    seen: list[pa.Table] = []
    for number, (value, one) in enumerate(
        [
            (Flight, Flight(3)),
            (Reading, {"celsius": 1.5, "ok": True}),
            (int, 4),
            (float, 2.5),
            (str, "ü"),
            (bytes, b"\xff"),
            (list[int], [1, 2]),
            (dict[str, int], {"a": 1}),
        ]
    ):
        topic = app.topic(f"t{number}", key=int, value=value)
        app.processor(topic, columns=True)(lambda batch: seen.append(batch.table))
        with Driver(app) as driver:
            driver.send(topic, 7, one, timestamp_ms=5)
            driver.send(topic, None, None, timestamp_ms=6)
    types = [dict(zip(table.column_names, map(str, table.schema.types), strict=True)) for table in seen[::2]]
    own = {"key": "int64", "timestamp_ms": "int64", "offset": "int64"}
    assert [{name: type_ for name, type_ in one.items() if own.get(name) != type_} for one in types] == [
        {"delay": "int64", "tail": "string", "note": "string"},
        {"celsius": "double", "ok": "bool"},
        {"value": "int64"},
        {"value": "double"},
        {"value": "string"},
        {"value": "binary"},
        {"value": "list<item: int64>"},
        {"a": "int64"},
    ]
    assert seen[0].to_pylist() == [{"key": 7, "delay": 3, "tail": "none", "note": None, "timestamp_ms": 5, "offset": 0}]
    assert seen[1].to_pylist()[0] == dict.fromkeys(("key", "delay", "tail", "note")) | {"timestamp_ms": 6, "offset": 1}


class Own:
    """A codec of the user's own."""

    def __repr__(self) -> str:
        return "Own()"

    def encode(self, value: int) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> int:
        return int(data)


KEYS = st.sampled_from(["a", "b", "c", "ü", ""])


class Note(msgspec.Struct):
    text: str
    size: int = 0


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (int, [1, -1, 1 << 62]),
        (float, [1.5, -0.0, 3.0]),
        (str, ["x", "", "ü"]),
        (bytes, [b"x", b"", b"\xff"]),
        (list[int], [[1], [], [2, 3]]),
        (Note, [Note("a"), Note("b", 2)]),
        (int | None, [1, None, 2]),
        (Own(), [1, 2, 3]),
    ],
    ids=str,
)
@pytest.mark.parametrize("fewest", [orders.FEWEST, 0], ids=["as they come", "in their order"])
@settings(deadline=None, max_examples=40)  # of each of sixteen
@given(st.data())
def test_a_table_by_arrays_is_the_table(type_: Any, values: list[Any], fewest: int, data: st.DataObject) -> None:
    """A walk of put, get and delete over one table, by key and by arrays: the same stored bytes and changelog."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "FEWEST", fewest)
        _walk_both(type_, values, data)


def _walk_both(type_: Any, values: list[Any], data: st.DataObject) -> None:
    steps = data.draw(
        st.lists(st.tuples(st.sampled_from(["put", "delete"]), st.lists(st.tuples(KEYS, st.sampled_from(values)))))
    )
    default = values[-1]
    stores = []
    for columns in (False, True):
        app = App("x", partitions=1)
        steps_topic = app.topic("steps", key=str, value=int)
        table = app.table("t", key=str, value=type_, default=lambda: default)
        gone: list[Any] = []

        def walk(batch: Any, t: Any, columns: bool = columns, gone: list[Any] = gone) -> None:
            verb, pairs = steps[batch.table["value"][0].as_py() if columns else batch.value]
            keys = [key for key, _ in pairs]
            if columns:
                array = pa.array(keys, pa.string())
                if verb == "put":
                    plain = [msgspec.to_builtins(value, builtin_types=(bytes,)) for _, value in pairs]
                    t.put(array, pa.array(plain, None if plain else t.get(array).type))
                else:
                    t.delete(array)
                gone.append([msgspec.to_builtins(one, builtin_types=(bytes,)) for one in t.get(array).to_pylist()])
            else:
                for key, value in pairs:
                    if verb == "put":
                        t[key] = value
                    else:
                        t.pop(key, None)
                gone.append([msgspec.to_builtins(t[key], builtin_types=(bytes,)) for key in keys])

        app.processor(steps_topic, table, columns=columns)(walk)
        store = DictStore()
        process = TaskProcess(app, app.topology().subtopologies[0], 0, {"t": store}, {"steps": 1})
        written = []
        for number in range(len(steps)):
            process.run([("steps", SourceRecord(number, number, b"k", number.to_bytes(8, "big")))])
            changes = process.collect()
            written.append(changes.writes.get("t", {}))
            store.write(written[-1])
            process.mark_applied()
        stores.append((written, dict(store.data), gone))
    assert stores[0] == stores[1]


def called(function: Callable[..., None], *, partitions: int = 1, **table: Any) -> Driver:
    """One call with a batch of the keys a, b, c."""
    app = App("x", partitions=partitions)
    source = app.topic("in", key=str, value=int)
    counts, out = app.table("counts", **{"key": str, "value": int} | table), app.topic("out", key=str, value=int)
    app.processor(source, counts, out, columns=True)(function)
    driver = Driver(app)
    with driver, driver.together():
        for key in "abc":
            driver.send(source, key, 1)
    return driver


A, N = pa.array(["a", "b"]), pa.array([1, 2])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda t, out: t.put(A, N[:1]), "table 'counts': put.. was given 2 keys and 1 values"),
        (lambda t, out: t.put(pa.array(["a", None]), N), "table 'counts': keys of put.. *: 1 of them are null"),
        (lambda t, out: t.get(pa.array(["a", None])), "table 'counts': keys of get.. *: 1 of them are null"),
        (lambda t, out: t.delete(pa.array([None], pa.string())), "keys of delete"),
        (lambda t, out: t.put(N, N), "keys of put.. *: an array of int64 is none of string"),
        (lambda t, out: t.put(A, pa.array([1.0, 2.0])), "values of put.. *: an array of double is none of int64"),
        (lambda t, out: t.put(A, A), "values of put.. *: an array of string is none of int64"),
        (lambda t, out: t.put(A, pa.array([1, None])), "1 of them are null, and None is not one of its values"),
        (lambda t, out: t.put(A, pa.array([1 << 63, 2], pa.uint64())), "an array of uint64 cannot be one of int64"),
        (lambda t, out: t.put(["a", "b"], N), "takes a pyarrow Array or ChunkedArray, not list"),
        (lambda t, out: out.send(A, N[:1]), "sink 'out': send.. was given 2 keys and 1 values"),
        (lambda t, out: out.send(A, A), "sink 'out': values of send.. *: an array of string is none of int64"),
        (lambda t, out: out.send(A, N, timestamp_ms=A), "timestamp_ms of send"),
        (lambda t, out: out.send(A, N, timestamp_ms=pa.array([1, -1])), "is no time in milliseconds"),
        (lambda t, out: out.send(None, None), "neither keys nor values"),
    ],
)
def test_what_is_refused_names_the_column(wrong: Callable[[Any, Any], Any], message: str) -> None:
    def call(batch: Any, counts: Any, out: Any) -> None:
        wrong(counts, out)

    with pytest.raises(ProcessorFailed, match=message) as failed:
        called(call)
    assert isinstance(failed.value.__cause__, CodecError)


def test_of_a_key_that_comes_twice_the_last_value_wins_and_other_widths_fit() -> None:
    def call(batch: Any, counts: Any, out: Any) -> None:
        counts.put(pa.chunked_array([["a", "b"], ["a"]]), pa.array([1, 2, 3], pa.int32()))
        counts.put(pa.array(["d"], pa.large_string()).dictionary_encode(), pa.array([9], pa.uint8()))
        assert counts.get(pa.array(["a", "x", "a", "d"])).to_pylist() == [3, None, 3, 9]
        counts.delete(pa.array(["b", "nowhere"]))

    driver = called(call)
    (table,) = driver.app.tables.values()
    assert driver.table(table) == {"a": 3, "d": 9}


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=3) | st.binary(max_size=20) | st.binary(min_size=17, max_size=17)),
    st.binary(max_size=20),
)
def test_the_order_is_that_of_the_bytes_and_equal_keys_stay(keys: list[bytes], front: bytes) -> None:
    for made in (keys, [front + key for key in keys], [front + key.rjust(20) for key in keys]):
        found = order_of_any(pa.array([b"before", *made], pa.binary()).slice(1))
        assert found == sorted(range(len(made)), key=lambda place: (made[place], place))


def order_of_any(keys: Any) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "FEWEST", 0)
        found = orders.order_of(keys)
    return list(range(len(keys))) if found is None else found.tolist()


@pytest.mark.parametrize("default", [int, None, lambda: 7], ids=["int", "none", "a function"])
@pytest.mark.parametrize("name", ["key-{:08d}", "{}", "a long beginning of keys {:020d}"])
def test_many_keys_are_read_and_written_in_their_order(name: str, default: Any) -> None:
    """Each value belongs to its key, of one that comes twice the last value wins, and a commit has them in order."""
    draw, count = random.Random(7), 2 * orders.FEWEST
    expected: dict[str, int] = {}

    def call(batch: Any, t: Any) -> None:
        keys = [name.format(draw.randrange(count)) for _ in range(count)]
        values = [draw.randrange(100) for _ in keys]
        array = pa.array(keys)
        absent = None if default is None else default()
        assert t.get(array).to_pylist() == [expected.get(key, absent) for key in keys]
        t.put(array, pa.array(values))
        expected.update(zip(keys, values, strict=True))
        assert t.get(array).to_pylist() == [expected[key] for key in keys]

    app = App("x", partitions=1)
    table = app.table("t", key=str, value=int, default=default)
    app.processor(app.topic("steps", key=str, value=int), table, columns=True)(call)
    store = DictStore()
    process = TaskProcess(app, app.topology().subtopologies[0], 0, {"t": store}, {"steps": 1})
    for number in range(3):
        process.run([("steps", SourceRecord(number, number, b"k", bytes(8)))])
        writes = process.collect().writes["t"]
        assert list(writes) == sorted(writes)
        store.write(writes)
        process.mark_applied()
    assert {key.decode(): int.from_bytes(value, "big") for key, value in store.data.items()} == expected


def test_a_key_of_another_task_is_refused() -> None:
    """By its bytes, and where a route decides."""

    def call(batch: Any, counts: Any, out: Any) -> None:
        counts.put(pa.array(["a", "b", "c", "d"]), pa.array([1, 2, 3, 4]))

    for route in ({}, {"route": lambda key: key + "!"}):
        with pytest.raises(ProcessorFailed, match=r"belongs to 0_.*rekey first") as failed:
            called(call, partitions=5, **route)
        assert isinstance(failed.value.__cause__, WrongTask)
    called(call, partitions=5, local=True)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40)), st.integers(1, 12))
def test_partitions_are_those_of_single_keys(keys: list[bytes], count: int) -> None:
    found = partitions_of(pa.array([b"before", *keys], pa.binary()).slice(1), count)
    assert found.tolist() == [partition_of(key, count) for key in keys]


def test_sent_arrays_carry_times() -> None:
    def call(batch: Any, counts: Any, out: Any) -> None:
        keys = batch.table["key"]
        out.send(keys, batch.table["value"], headers=[("h", b"x")])
        out.send(A, None)
        out.send(A, N, timestamp_ms=pa.array([70, 71]))
        out.send(A, N, timestamp_ms=80)
        out.send(pa.array(["a", None]), pa.array([None, 1], pa.int64()))

    driver = called(call)
    found = driver.records(driver.app.topics["out"])
    assert [one.timestamp_ms for one in found] == [0, 1, 2, 2, 2, 70, 71, 80, 80, 2, 2]
    assert [(one.key, one.value) for one in found[-2:]] == [("a", None), (None, 1)]
    assert found[0].headers == (("h", b"x"),) and found[3].value is None


def test_a_table_is_closed_between_calls() -> None:
    kept: list[Any] = []
    called(lambda batch, counts, out: kept.extend((counts, out)))
    for late in (
        lambda: kept[0].get(A),
        lambda: kept[0].put(A, N),
        lambda: kept[0].delete(A),
        lambda: kept[1].send(A, N),
    ):
        with pytest.raises(PipelineError, match="was used after the call"):
            late()


def test_tables_that_expire_and_upgrade() -> None:
    def call(batch: Any, counts: Any, out: Any) -> None:
        keys = batch.table["key"]
        counts.put(keys, pc.add(pc.fill_null(counts.get(keys), 0), 1))

    driver = called(call, expire=timedelta(days=1), upgrade=lambda old: old)
    (table,) = driver.app.tables.values()
    assert driver.table(table) == {"a": 1, "b": 1, "c": 1}


class Price(msgspec.Struct):
    amount: int
    currency: str | None = "EUR"
    steps: list[int] = []


def test_a_field_that_a_struct_array_has_not_got_has_its_default() -> None:
    app = App("x", partitions=1)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=Price)
    prices = app.table("prices", key=str, value=Price)

    @app.processor(source, prices, out, columns=True)
    def price(batch: Any, prices: Any, out: Any) -> None:
        amounts = pa.StructArray.from_arrays([batch.table["value"].combine_chunks()], ["amount"])
        prices.put(batch.table["key"], amounts)
        out.send(batch.table["key"], amounts)

    with Driver(app) as driver:
        driver.send(source, "a", 5)
        assert driver.table(prices) == {"a": Price(5)}
        assert driver.items(out) == [("a", Price(5))]


class Bill(msgspec.Struct):
    prices: list[Price]
    by_name: dict[str, Price] = {}


@pytest.mark.parametrize("place", ["value", "list", "map"])
def test_a_field_that_its_type_has_not_is_refused(place: str) -> None:
    """Arrow's cast left it out, without a word."""
    app = App("x", partitions=1)
    source = app.topic("in", key=str, value=int)
    prices = app.table("prices", key=str, value=Price if place == "value" else Bill)
    one = {"amount": 5, "curency": "USD"}
    price = pa.struct([("amount", pa.int64()), ("curency", pa.string())])
    given = {
        "value": pa.array([one], price),
        "list": pa.array([{"prices": [one]}], pa.struct([("prices", pa.list_(price))])),
        "map": pa.array([{"by_name": [("a", one)]}], pa.struct([("by_name", pa.map_(pa.string(), price))])),
    }

    @app.processor(source, prices, columns=True)
    def put(batch: Any, prices: Any) -> None:
        prices.put(batch.table["key"], given[place])

    with Driver(app) as driver, pytest.raises(ProcessorFailed, match=r"values of put.*have a field 'curency', which"):
        driver.send(source, "a", 5)


def _one(**fields: Any) -> pa.Array:
    return pa.StructArray.from_arrays([pa.array([one]) for one in fields.values()], list(fields))


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (datetime, pa.array([1_700_000_000_000])),
        (timedelta, pa.array([5])),
        (date, pa.array([datetime(2026, 1, 2, 5)])),
        (Price, _one(amount=True, currency="EUR", steps=[1])),
        (Price, _one(amount="7", currency="EUR", steps=[1])),
        (Price, _one(amount=1, currency=5, steps=[1])),
        (Price, _one(amount=1, currency="EUR", steps=["1"])),
        (dict[str, int], pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string()))),
    ],
    ids=["time", "duration", "date", "bool", "text", "number", "list", "map"],
)
def test_what_arrow_would_make_another_value_of_is_refused(type_: Any, values: pa.Array) -> None:
    """Milliseconds were taken for microseconds, the time of a day left out, numbers made of text and of bools."""
    with pytest.raises(CodecError, match=r"values of put: an array of .* is none of .*; cast it"):
        arrays.encode(codec_for(type_, what="x"), values, "values of put")


class Amount(msgspec.Struct):
    exact: Decimal
    steps: list[Decimal] = []
    by_name: dict[str, Decimal] = {}


_EXACT = pa.array([Decimal("1.50")])
_EXACT_PARTS = [_EXACT, pa.array([[Decimal("0.1")]]), pa.array([[("a", Decimal("2.00"))]], pa.map_("str", _EXACT.type))]


@pytest.mark.parametrize(
    ("type_", "values", "value"),
    [
        (Decimal, _EXACT, Decimal("1.50")),
        (Amount, pa.StructArray.from_arrays([_EXACT], ["exact"]), Amount(Decimal("1.50"))),
        (
            Amount,
            pa.StructArray.from_arrays(_EXACT_PARTS, ["exact", "steps", "by_name"]),
            Amount(Decimal("1.50"), [Decimal("0.1")], {"a": Decimal("2.00")}),
        ),
        (str, pa.array(["x"], pa.string_view()), "x"),
        (list[str], pa.array([["x"]], pa.list_(pa.string_view())), ["x"]),
        (list[bytes], pa.array([[b"x"]], pa.list_(pa.binary_view())), [b"x"]),
    ],
    ids=["decimal", "in-a-struct", "in-all", "view", "views", "views-of-bytes"],
)
def test_what_says_the_same_in_another_type_of_arrow_fits(type_: Any, values: pa.Array, value: Any) -> None:
    codec = codec_for(type_, what="x")
    (data,) = arrays.encode(codec, values, "values of put")
    assert str(codec.decode(data)) == str(value)


def test_text_takes_no_decimals() -> None:
    with pytest.raises(CodecError, match="an array of decimal128"):
        arrays.encode(codec_for(str, what="x"), _EXACT, "values of put")
    with pytest.raises(CodecError, match="is none of list<item: string>"):
        arrays.encode(codec_for(list[str], what="x"), pa.array([[Decimal(1)]]), "values of put")


def test_values_that_arrow_takes_as_they_are_are_not_looked_at_further() -> None:
    """A call for each doubled the time of a get of text, bytes or floats."""

    def never(value: Any) -> Any:
        raise AssertionError(value)

    given = ["a", b"b", 1, 1.5, True, None]
    assert [arrays.array_of([one], None, never).to_pylist() for one in given] == [[one] for one in given]


def test_types_are_looked_at_once_and_not_with_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of one record took twice the time."""
    codecs = codec_for(Price, what="x", key=True), codec_for(Amount, what="x")
    tables = batch_table.Tables(*codecs)

    def never(of: Any) -> Any:
        raise AssertionError(of)

    for place, name in ((batch_table, "taker"), (batch_table, "taker_of"), (arrays, "taker")):
        monkeypatch.setattr(place, name, never)
    key, value = Price(1, steps=[1]), Amount(Decimal("1.50"))
    record = SourceRecord(0, 0, codecs[0].encode(key), codecs[1].encode(value))
    (row,) = tables.of(from_records("in", [record])).table.to_pylist()
    assert (row["key"]["amount"], row["exact"]) == (1, "1.50")


@dataclass
class Unknown:
    number: int
    others: OnlyForTypes  # type: ignore[name-defined]  # noqa: F821 - as one that is imported for a type checker alone


class OfDataclasses:
    def encode(self, value: Any) -> bytes:
        return str(value.number).encode()

    def decode(self, data: bytes) -> Any:
        return Unknown(int(data), [int(data)])


def test_a_codec_of_the_users_gives_dataclasses_of_any_types() -> None:
    """Their types were asked for, and one that is not there at run time stopped the batch."""
    found = arrays.decode(OfDataclasses(), pa.array([b"7"]))
    assert found.to_pylist() == [{"number": 7, "others": [7]}]


@pytest.mark.parametrize("type_", [int, float, str, bytes, int | None], ids=str)
def test_a_null_of_a_dictionary_is_a_null(type_: Any) -> None:
    """It counts as none in Arrow: an int was then the smallest there is."""
    there = {int: 5, float: 1.5, str: "x", bytes: b"x"}.get(type_, 5)
    given = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([there, None]))

    seen: list[Any] = []

    def put(batch: Any, counts: Any, out: Any) -> None:
        keys = pa.array(["a", "b", "c"])
        counts.put(keys, given)
        seen.append(counts.get(keys).to_pylist())

    if type_ == int | None:
        called(put, value=type_)
        assert seen[0] == [5, None, 5]
    else:
        with pytest.raises(ProcessorFailed, match=r"values of put.*: 1 of them are null"):
            called(put, value=type_)


class Part(msgspec.Struct, omit_defaults=True):
    name: str | None = "whole"
    size: int = 1


class Parts(msgspec.Struct):
    first: Part
    others: dict[str, list[dict[str, int]]] = {}
    parts: dict[str, Part] = {}


class Tagged(msgspec.Struct, tag=True, rename="camel"):
    own_part: Part


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Parts, Parts(Part(), {"a": [{"b": 1}, {}]}, {"c": Part(size=2)})),
        (Part, Part()),
        (dict[str, dict[str, Part]], {"a": {"b": Part()}}),
        (Tagged, Tagged(Part())),
        (Parts | None, None),
    ],
    ids=["inside", "defaults", "dicts", "tag", "none"],
)
def test_what_arrays_give_can_be_put_as_it_is(type_: Any, value: Any) -> None:
    """A dict inside a value was refused, and a field that JSON leaves out, since it has its default, was null."""
    codec = codec_for(type_, what="x")
    array = arrays.decode(codec, pa.array([codec.encode(value)], pa.binary()))
    (data,) = arrays.encode(codec, array, "values of put")
    assert codec.decode(data) == value


def test_fields_that_json_leaves_out_have_their_defaults() -> None:
    app = App("x", partitions=1)
    source, seen = app.topic("in", key=str, value=Parts), []

    @app.processor(source, columns=True)
    def see(batch: Any) -> None:
        seen.extend(batch.table["first"].to_pylist())

    with Driver(app) as driver:
        driver.send_bytes(source, b"a", b'{"first":{}}')
        driver.send(source, "a", Parts(Part(None)))
    assert seen == [{"name": "whole", "size": 1}, {"name": None, "size": 1}]


class Patch(msgspec.Struct):
    size: int | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType | None = msgspec.UNSET


def test_a_field_that_is_unset_is_null() -> None:
    """A batch with one stopped."""
    app = App("x", partitions=1)
    source, seen = app.topic("in", key=str, value=Patch), []

    @app.processor(source, columns=True)
    def see(batch: Any) -> None:
        seen.extend(batch.table.select(["size", "name"]).to_pylist())

    with Driver(app) as driver, driver.together():
        driver.send_bytes(source, b"a", b"{}")
        driver.send(source, "a", Patch(5, None))
        driver.send(source, "a", Patch(5, "x"))
    assert seen == [{"size": None, "name": None}, {"size": 5, "name": None}, {"size": 5, "name": "x"}]


def test_a_time_of_day_with_a_zone_goes_by_on_error() -> None:
    """Arrow left the zone out."""
    app = App("x", partitions=1, on_error="letters")
    source, letters = app.topic("in", key=str, value=time), app.topic("letters", key=bytes, value=bytes)
    seen: list[Any] = []

    @app.processor(source, columns=True)
    def see(batch: Any) -> None:
        seen.extend(batch.table["value"].to_pylist())

    with Driver(app) as driver, driver.together():
        driver.send(source, "a", time(1, 2))
        driver.send(source, "b", time(1, 2, tzinfo=UTC))
    assert seen == [time(1, 2)]
    assert driver.items(letters) == [(b"b", b'"01:02:00Z"')]


class Pair(msgspec.Struct, frozen=True):
    both: tuple[str, int] | None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (tuple[str, int], int, "keys of topic 'in' have a tuple of text and numbers"),
        (tuple[int, bool, str], int, "keys of topic 'in' have a tuple of numbers and bool and text"),
        (str, Pair, "values of topic 'in' have a tuple of text and numbers"),
        (str, dict[str, list[Pair]], "values of topic 'in' have a tuple of text and numbers"),
        (tuple[int, float], tuple[str, ...], ""),
        (tuple[str, str | None], list[Price], ""),
    ],
)
def test_a_tuple_of_several_types_is_refused_where_it_is_declared(key: Any, value: Any, message: str) -> None:
    """Every batch failed for it: a column of Arrow has one type."""
    app = App("x", partitions=1)
    source = app.topic("in", key=key, value=value)
    if message:
        with pytest.raises(DefinitionError, match=message):
            app.processor(source, columns=True)(lambda batch: None)
        return
    app.processor(source, columns=True)(lambda batch: seen.append(batch.table["key"].to_pylist()))
    seen: list[Any] = []
    with Driver(app) as driver:
        driver.send(
            source, (1, 2.5) if key == tuple[int, float] else ("a", None), ("x",) if key == tuple[int, float] else []
        )
    assert seen == [[[1, 2.5]]] or seen == [[["a", None]]]


class Named(msgspec.Struct):
    key: str


class Narrow(msgspec.Struct):
    size: Annotated[int, msgspec.Meta(ge=0)]


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (int, {"batch": True}, "columns=True cannot have batch=True"),
        (int, {"concurrency": 2}, "columns=True cannot have concurrency="),
        (Named, {}, "field 'key' of the values of topic 'in' would be a second column"),
    ],
)
def test_what_cannot_be_declared(value: Any, options: dict[str, Any], message: str) -> None:
    app = App("x")
    with pytest.raises(DefinitionError, match=message):
        app.processor(app.topic("in", key=str, value=value), columns=True, **options)(lambda batch: None)


def test_what_is_not_read_by_arrays_cannot_be_declared() -> None:
    app = App("x")
    source = app.topic("in", key=str, value=int)
    timers, rates = app.timers("timers", key=str), app.global_table(app.topic("rates", key=str, value=int))
    for item in (timers, rates):
        with pytest.raises(DefinitionError, match=f"{item.kind} {item.name!r}, which is not read by arrays"):
            app.processor(source, item, columns=True, alias={item: "item"})(lambda batch, item: None)

    app.processor(app.topic("limited", key=str, value=int, max_ahead=timedelta(days=1)), columns=True)(
        lambda batch: None
    )
    with pytest.raises(PipelineError, match="columns=True, but the times of 'limited' are limited"):
        app.topology()

    async def waits(batch: Any) -> None: ...

    with pytest.raises(DefinitionError, match="cannot have async def"):
        app.processor(source, columns=True)(waits)
    with pytest.raises(DefinitionError, match="the values of topics 'in' and 'names' have different types"):
        app.processor([source, app.topic("names", key=str, value=str)], columns=True)(lambda batch: None)


def test_a_number_too_large_for_a_column_goes_by_on_error() -> None:
    app = App("x", on_error="skip")
    source = app.topic("in", key=str, value=Narrow)
    seen: list[int] = []
    app.processor(source, columns=True)(lambda batch: seen.extend(batch.table["size"].to_pylist()))
    with Driver(app) as driver, driver.together():
        for size in (1, 1 << 70, 2):
            driver.send(source, "a", Narrow(size))
        driver.send_bytes(source, b"a", b'{"size":-1}')
    assert seen == [1, 2]


def test_without_pyarrow_the_declaration_says_what_to_install(tmp_path: Path) -> None:
    """And an app without columns is run, with pyarrow not loaded."""
    (tmp_path / "plain.py").write_text(
        "from orchestrator import App\nfrom orchestrator.testing import Driver\n"
        "app = App('x')\nsource = app.topic('in', key=str, value=int)\n"
        "table = app.table('t', key=str, value=int, default=int)\n"
        "@app.processor(source, table, batch=True)\ndef add(records, t):\n    for one in records: t[one.key] += 1\n"
        "with Driver(app) as driver:\n    driver.send(source, 'a', 1)\n    assert driver.table(table) == {'a': 1}\n"
        "import sys\nassert not {'pyarrow', 'numpy'} & set(sys.modules), 'loaded'\n"
        "import importlib.util\nfound = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'pyarrow' else found(name, *rest)\n"
        "import pipeline.columns.declared\npipeline.columns.declared.find_spec = importlib.util.find_spec\n"
        "app.processor(source, table, columns=True)(lambda batch, t: None)\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "plain.py"], cwd=ROOT, capture_output=True, text=True, timeout=60, env=_env()
    )
    assert "columns=True needs pyarrow, which is not installed; install the extra 'columns'" in done.stderr


def _env() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_tombstones_are_rows_between_the_others() -> None:
    app = App("x")
    source = app.topic("in", key=str, value=Flight)
    seen: list[list[int | None]] = []
    app.processor(source, columns=True)(lambda batch: seen.append(batch.table["delay"].to_pylist()))
    with Driver(app) as driver, driver.together():
        for value in (None, Flight(1), None, Flight(2), None):
            driver.send(source, "a", value)
    assert seen == [[None, 1, None, 2, None]]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(0, 3), st.lists(st.binary(max_size=9)))
def test_numbers_and_bytes_are_those_of_pyarrow(numbers_: list[int], first: int, texts: list[bytes]) -> None:
    array = pa.array(numbers_, pa.int64()).slice(first)
    there = numbers.to_numpy(array)
    assert there.tolist() == array.to_pylist()
    assert numbers.of_numpy(there).equals(array) and numbers.of_numpy(there[::2]).to_pylist() == numbers_[first::2]
    assert numbers.of_bytes(texts).equals(pa.array(texts, pa.binary()))
