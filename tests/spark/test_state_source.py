"""Tables and topics for SQL: typed columns, one key from one task, and the same rows from the log, a snapshot and the stores."""

from __future__ import annotations

import asyncio
import enum
import re
import shutil
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import msgspec
import pandas as pd
import pyarrow as pa
import pytest

import orchestrator.spark
from orchestrator import App, Record, Table
from orchestrator.errors import WrongUse
from pipeline.errors import CodecError
from pipeline.spark import notebook
from pipeline.spark.history import BadHistory
from pipeline.spark.repartition import repartition
from pipeline.spark.snapshotting import take
from pipeline.spark.typed import column
from pipeline.tables import expiry
from pipeline.values.codecs import JsonCodec
from pipeline.values.made_defaults import with_made_defaults
from pipeline.values.partitioner import partition_of
from state import manifest, snapshot
from state.errors import StateError
from state.log.protocol import NewRecord, Partition
from state.log.sqlite import open_sqlite
from state.store.rocksdb import RocksDbStore
from tests.attacks.test_tls import certificate
from tests.cli.console import Console
from tests.spark import sample, tallies
from tests.spark.test_backfill import APP, ROOT, Place, records, write
from workers.commands.consume import read_all
from workers.prepare import prepare

pytestmark = pytest.mark.spark


class Filled(NamedTuple):
    spark: Any
    url: str
    folder: Path
    taken: str

    def table(self, name: str, **options: str) -> Any:
        reader = self.spark.read.format("orchestrator.state").option("app", "sample").option("log", self.url)
        return reader.options(table=name, **options).load()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Iterator[Filled]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        place = Place(tmp_path_factory.mktemp("filled"), spark)

        async def made() -> str:
            log = await open_sqlite(place.path, create=True)
            await write(log, sample.app, records(120, seed=31))
            await place.backfill(APP)
            await log.close()
            facts = await take("sample", place.url, place.folder / "taken", session=spark)
            return str(facts["snapshot"])

        orchestrator.spark.register(spark)
        yield Filled(spark, place.url, place.folder, asyncio.run(made()))


def test_a_table_as_the_log_and_a_snapshot_have_it(filled: Filled) -> None:
    from_log = filled.table("totals")
    assert from_log.dtypes == [("task", "string"), ("partition", "int"), ("key", "string"), ("value", "bigint")]
    rows = sorted(from_log.collect())
    assert rows and all(row["task"] == f"0_{partition_of(row['key'].encode(), 4)}" for row in rows)
    assert sorted(filled.table("totals", of="snapshot", snapshots=str(filled.folder / "taken")).collect()) == rows
    one = filled.table("totals", key=rows[0]["key"])
    assert one.collect() == [rows[0]] and one.rdd.getNumPartitions() == 1
    other = next(row["task"] for row in rows if row["task"] != rows[0]["task"])
    assert filled.table("totals", key=rows[0]["key"], task=other).collect() == [], "it is of another task"
    assert filled.table("totals", task=rows[0]["task"]).count() == sum(row["task"] == rows[0]["task"] for row in rows)


def test_sql_over_a_table_and_a_topic(filled: Filled) -> None:
    filled.spark.sql(
        "create or replace temporary view shops using orchestrator.state "
        f"options (app 'sample', log '{filled.url}', table 'shops')"
    )
    [(tasks, biggest)] = filled.spark.sql("select count(distinct task), max(value) from shops").collect()
    assert tasks > 1 and biggest > 0
    orders = filled.spark.read.format("orchestrator.log").options(app="sample", log=filled.url, topics="orders").load()
    types = dict(orders.dtypes)
    assert types["key"] == "string" and types["value"] == "struct<amount:bigint,id:bigint,shop:string>"
    [(amount, ids)] = orders.where("key = 'p1'").selectExpr("sum(value.amount)", "count(distinct value.id)").collect()
    values = [value for topic, key, value, _ in records(120, seed=31) if topic is sample.orders and key == "p1"]
    assert (amount, ids) == (sum(order.amount for order in values), len(values)) and values
    bare = filled.spark.read.format("orchestrator.log").options(log=filled.url, topics="orders").load()
    assert dict(bare.dtypes)["value"] == "binary"


def test_the_queries_of_the_page(filled: Filled) -> None:
    """Each of docs/sql.md, over tables of another app that have the same columns."""
    taken = {"of": "snapshot", "snapshots": str(filled.folder / "taken"), "snapshot": filled.taken}
    views = {"balances": {}, "monday": taken, "tuesday": {}}
    for name, options in views.items():
        filled.table("totals", **options).createOrReplaceTempView(name)
    changes = {"app": "sample", "log": filled.url, "topics": "sample-totals-changelog"}
    filled.spark.read.format("orchestrator.log").options(**changes).load().createOrReplaceTempView("changes")
    blocks = re.findall(r"```sql\n(.*?)```", (ROOT / "docs/sql.md").read_text(), re.DOTALL)
    top, difference, over_time = [filled.spark.sql(block.replace("'ann'", "'p1'")).collect() for block in blocks[1:]]
    assert [row["value"] for row in top] == sorted((row["value"] for row in top), reverse=True) and top
    assert difference == []
    assert [row["value"] for row in over_time] == [row["value"] for row in filled.table("totals", key="p1").collect()]


def test_struct_columns() -> None:
    schema = {
        "$ref": "#/$defs/Order",
        "$defs": {
            "Order": {
                "type": "object",
                "properties": {
                    "id": {"type": "integer"},
                    "shop": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "lines": {"type": "array", "items": {"type": "integer"}},
                },
            }
        },
    }
    found = column("json", schema)
    assert found.ddl == "struct<`id`:bigint,`shop`:string,`lines`:string>"
    value = found.value(b'{"id": 7, "shop": null, "lines": [1, 2], "more": 1}')
    assert value == {"id": 7, "shop": None, "lines": "[1, 2]"}
    assert pa.array([value, None], found.arrow).to_pylist() == [value, None]
    assert column("json", {"type": "array"}).value(b"[1]") == "[1]"
    assert column("custom").ddl == "binary" and column("int").value(b"\0" * 7 + b"\5") == 5


class State(enum.Enum):
    OPEN, OVER = "open", "over"


class Level(enum.IntEnum):
    LOW, HIGH = 1, 2


class Ticket(msgspec.Struct, tag="ticket"):
    state: State
    level: Level | None = None
    kind: Literal["a", "b"] = "a"
    either: Literal["a", 1] = 1


def test_a_field_of_an_enum_is_its_value() -> None:
    """It was JSON text: where state = 'open' had no rows, for what stood there was "open" with its quotes."""
    found = column("json", msgspec.json.schema(Ticket))
    assert found.ddl == "struct<`type`:string,`state`:string,`level`:bigint,`kind`:string,`either`:string>"
    value = found.value(msgspec.json.encode(Ticket(State.OPEN, Level.HIGH)))
    assert value == {"type": "ticket", "state": "open", "level": 2, "kind": "a", "either": "1"}
    assert found.value(b'{"type": "ticket", "state": "over"}')["kind"] == "a"
    assert found.value(b'{"state": "over"}')["type"] == "ticket", "as the app reads it, too"


class Spot(msgspec.Struct, frozen=True):
    town: str
    since: date


class Visit(msgspec.Struct):
    at: datetime
    price: Decimal = Decimal("1.5")
    photo: bytes = b"x"
    tags: list[str] = msgspec.field(default_factory=lambda: ["a"])
    where: Spot | None = None


@pytest.mark.parametrize(
    ("type_", "value", "ddl", "shown"),
    [
        (date, date(2026, 1, 31), "string", "2026-01-31"),
        (uuid.UUID, uuid.UUID(int=7), "string", "00000000-0000-0000-0000-000000000007"),
        (datetime, datetime(2026, 1, 31, 12, tzinfo=UTC), "string", "2026-01-31T12:00:00Z"),
        (Decimal, Decimal("1.50"), "string", "1.50"),
        (State, State.OPEN, "string", "open"),
        (bool, True, "boolean", True),
        (int | None, None, "bigint", None),
        (str | None, "x", "string", "x"),
        (bytes | None, b"\xff", "binary", b"\xff"),
        (int | str, "x", "string", '"x"'),
        (tuple[str, int], ("a", 1), "string", '["a",1]'),
        (Spot, Spot("Rome", date(2026, 1, 31)), "struct<`town`:string,`since`:string>", {"town": "Rome", "since": "2026-01-31"}),
        (Spot | None, None, "struct<`town`:string,`since`:string>", None),
    ],
)  # fmt: skip
def test_keys_and_values_that_json_writes_as_text(type_: Any, value: Any, ddl: str, shown: Any) -> None:
    """They were JSON text, with quotes: where key = '2026-01-31' had no rows."""
    codec = JsonCodec(type_)
    found = column("json", codec.schema)
    assert found.ddl == ddl
    assert pa.array([found.value(codec.encode(value))], found.arrow).to_pylist() == [shown]


def test_bytes_of_a_field_are_binary_and_what_a_function_makes_is_a_default() -> None:
    found = column("json", with_made_defaults(Visit, msgspec.json.schema(Visit)))
    assert found.ddl == "struct<`at`:string,`price`:string,`photo`:binary,`tags`:string,`where`:string>"
    value = {"at": "2026-01-31T12:00:00Z", "price": "1.5", "photo": b"x", "tags": '["a"]', "where": None}
    assert found.value(b'{"at": "2026-01-31T12:00:00Z"}') == value
    with pytest.raises(CodecError, match=r'\{"price": "2"\} has no at'):  # it was null, which no value of the app is
        found.value(b'{"price": "2"}')
    with pytest.raises(CodecError, match=r"photo is \"a\", no base64"):
        found.value(b'{"at": "2026-01-31T12:00:00Z", "photo": "a"}')
    with pytest.raises(CodecError, match=r"it is 5, no string"):
        column("json", msgspec.json.schema(date)).value(b"5")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"id": 1}', {"id": 1, "part": 0.5, "is_new": True, "of": "x", "tags": "[]"}),
        (b'{"id": 2.0, "part": 1, "is_new": false, "of": null}', {"id": 2, "part": 1.0, "is_new": False, "of": None, "tags": "[]"}),
        (b'{"id": 1.5}', "id is 1.5, no bigint"),
        (b'{"id": true}', "id is true, no bigint"),
        (b'{"part": true}', "part is true, no double"),
        (b'{"is_new": 1}', "is_new is 1, no boolean"),
        (b'{"of": 7}', "of is 7, no string"),
        (b"[1]", r"\[1\] is no object"),
        (b"{", "is no JSON"),
        (b'{"of": "\xff"}', "is no JSON"),
    ],
)  # fmt: skip
def test_a_value_is_what_the_app_would_see_or_refused(data: bytes, found: Any) -> None:
    """Never the 1 that Arrow makes of 1.5, and never null where there is a value, or a default."""
    fields = {
        "id": {"type": "integer"},
        "part": {"type": "number", "default": 0.5},
        "is_new": {"type": "boolean", "default": True},
        "of": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": "x"},
        "tags": {"type": "array", "items": {"type": "string"}, "default": []},
    }
    typed = column("json", {"type": "object", "properties": fields})
    if isinstance(found, str):
        with pytest.raises(CodecError, match=found):
            typed.value(data)
    else:
        assert pa.array([typed.value(data)], typed.arrow).to_pylist() == [found]


class Offer(msgspec.Struct):
    price: Decimal
    least: Decimal | None = None
    steps: list[Decimal] = []


@pytest.mark.parametrize(
    ("data", "price", "least", "steps"),
    [
        (b'{"price": "1.50"}', "1.50", None, "[]"),
        (b'{"price": 1.50, "least": 3}', "1.50", "3", "[]"),
        (b'{"price": 12345678901234567.890, "least": 1e2, "steps": [12345678901234567.890]}', "12345678901234567.890", "1E+2", "[12345678901234567.890]"),
    ],
)  # fmt: skip
def test_decimals_that_are_numbers_keep_their_digits(data: bytes, price: str, least: str | None, steps: str) -> None:
    """The app reads them so; as a field they were refused, and inside of a list they lost digits."""
    found = column("json", msgspec.json.schema(Offer))
    assert found.value(data) == {"price": price, "least": least, "steps": steps}
    read = JsonCodec(Offer).decode(data)
    assert (str(read.price), read.least and str(read.least)) == (price, least)
    assert column("json", msgspec.json.schema(Decimal)).value(price.encode()) == price
    with pytest.raises(CodecError, match="price is true, no string"):
        found.value(b'{"price": true}')


def test_a_record_that_is_none_of_its_type_is_named() -> None:
    from pipeline.spark.log_source import _typed

    cells = {
        "topic": ["t"] * 3,
        "partition": [1] * 3,
        "offset": [7, 8, 9],
        "value": [b'{"id": 1}', None, b'{"id": "x"}'],
    }
    batch = pa.RecordBatch.from_pydict({**cells, "value": pa.array(cells["value"], pa.binary())})
    types = {"value": column("json", {"type": "object", "properties": {"id": {"type": "integer"}}})}
    assert _typed(batch.slice(0, 2), types).column("value").to_pylist() == [{"id": 1}, None]
    with pytest.raises(
        CodecError, match=r't-1, offset 9: the value is none of its type .*id is "x", no bigint.* shows bytes'
    ):
        _typed(batch, types)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "none"}, "has no table 'none'; it has"),
        ({"table": "totals", "of": "disk"}, "write changelog, snapshot, stores"),
        ({"table": "totals", "task": "0_9"}, "task '0_9' has no part of the table"),
        ({"table": "totals", "of": "snapshot"}, 'needs .option("snapshots", ...)'),
        ({"table": "totals", "keys": "p1"}, "has no option 'keys'; did you mean 'key'?"),
        ({"table": "totals", "path": "x"}, "has no option 'path'; it knows app, key"),
        ({"table": "totals", "snapshot": "x"}, 'is for .option("of", "snapshot"), and this reads the changelog'),
        ({"table": "totals", "state": "x"}, 'is for .option("of", "stores"), and this reads the changelog'),
    ],
)
def test_wrong_options(filled: Filled, options: dict[str, str], said: str) -> None:
    from pipeline.spark.state_source import StateReader

    with pytest.raises(WrongUse) as raised:
        StateReader({"app": "sample", "log": filled.url, **options}).partitions()
    assert said in str(raised.value)


UNTIL = '{"orders-0": 0, "orders-1": 0, "orders-2": 0, "orders-3": %d}'


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, 'needs .option("topics", ...)'),
        ({"topics": "orders", "app": "sample", "form": "x"}, "has no option 'form'; it knows app, log, topics, until"),
        ({"topics": "orders", "until": "12"}, 'write JSON like {"payments-0": 12}'),
        ({"topics": "orders", "until": '{"orders-0": 1}'}, "until says nothing of orders-1"),
        ({"topics": " , "}, "topics ' , ' names none; write their names"),
        ({"topics": "orders", "until": UNTIL % -1}, "until says -1 of orders-3, which has positions from 0 to "),
        ({"topics": "orders", "until": UNTIL % 99_999}, "until says 99999 of orders-3, which has positions from 0 to "),
    ],
)
def test_wrong_options_of_the_log(filled: Filled, options: dict[str, str], said: str) -> None:
    from pipeline.spark.log_source import LogReader

    with pytest.raises(WrongUse) as raised:
        LogReader({"log": filled.url, **options}).partitions()
    assert said in str(raised.value)


def test_whole_numbers_of_a_float_and_numbers_that_are_too_large() -> None:
    from pipeline.spark.state_source import _batch

    found = column("json", {"type": "object", "properties": {"mean": {"type": "number"}, "id": {"type": "integer"}}})
    schema = pa.schema([("task", pa.string()), ("key", pa.string()), ("value", found.arrow)])
    rows = [{"task": "0_1", "key": key, "value": found.value(data)} for key, data in VALUES]
    assert _batch(rows[:2], schema).column("value").to_pylist() == [
        {"mean": 2.0**53, "id": 1},
        {"mean": 1.5, "id": None},
    ]
    with pytest.raises(CodecError, match="task 0_1, key 'c': the value does not fit the column in Spark"):
        _batch(rows, schema)


VALUES = [
    ("a", b'{"mean": 9007199254740993, "id": 1}'),
    ("b", b'{"mean": 1.5}'),
    ("c", b'{"mean": 1, "id": 9223372036854775808}'),
]


@pytest.mark.long
def test_a_snapshot_of_before_a_repartition_has_its_keys(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    place = Place(tmp_path, spark)
    app, taken = "tests.spark.tallies:app", tmp_path / "taken"

    async def made() -> str:
        log = await open_sqlite(place.path, create=True)
        await write(log, tallies.app, [(tallies.marks, f"k{n}", n + 1, 10 * n) for n in range(20)])
        await place.backfill(app)
        facts = await take("tallies", place.url, taken, session=spark)
        await repartition(app, place.url, 3, tmp_path / "state", session=spark)
        await log.close()
        return str(facts["snapshot"])

    named = asyncio.run(made())
    orchestrator.spark.register(spark)

    def read(**options: str) -> dict[str, int]:
        given = {"app": "tallies", "log": place.url, "table": "sums", **options}
        return {
            row["key"]: row["value"]
            for row in spark.read.format("orchestrator.state").options(**given).load().collect()
        }

    before = {"of": "snapshot", "snapshots": str(taken), "snapshot": named}
    expected = {f"k{n}": n + 1 for n in range(20)}
    assert read() == read(**before) == expected
    moved = next(key for key in expected if partition_of(key.encode(), 2) != partition_of(key.encode(), 3))
    assert read(key=moved) == read(**before, key=moved) == {moved: expected[moved]}


def test_a_backfill_from_dataframes(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    frame = spark.sql(
        "select 'm' || (id % 3) as who, id - 4 as amount, timestamp_millis(1000 * id) as at from range(9)"
    )
    url = f"sqlite:{tmp_path / 'log.db'}"
    columns = {"key": "who", "value": "amount", "timestamp": "at"}
    facts = orchestrator.spark.backfill(
        "tests.spark.tallies:app", {"marks": frame}, log=url, snapshots=tmp_path / "snapshots", **columns
    )
    assert (facts["records_in"], facts["outputs"]) == (9, {"seen": 9})
    reader = spark.read.format("orchestrator.state").options(app="tallies", log=url, table="sums")
    orchestrator.spark.register(spark)
    assert {row["key"]: row["value"] for row in reader.load().collect()} == {"m0": -3, "m2": 3}
    with pytest.raises(
        BadHistory,
        match=r"^the DataFrame of 'marks', (row|record) 1: no timestamp_ms; .* \(timestamp= names another column\)$",
    ):
        more = {"log": f"sqlite:{tmp_path / 'more.db'}", "snapshots": tmp_path / "snapshots"}
        timeless = frame.selectExpr("who", "amount", "cast(null as timestamp) as at")
        orchestrator.spark.backfill(tallies.app, {"marks": timeless}, **more, **columns)
    with pytest.raises(WrongUse, match="'here' is of no module that executors could import; save it as a module"):
        orchestrator.spark.backfill(App("here"), {"marks": frame}, **more)
    with pytest.raises(WrongUse, match="at least one"):
        orchestrator.spark.backfill("tests.spark.tallies:app", {}, log=url, snapshots=tmp_path)


def until_the_main_thread_waits() -> None:
    deadline, names = time.monotonic() + 30, set[str]()
    while "result" not in names:
        assert time.monotonic() < deadline, names
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        names = {one.f_code.co_name for one, _ in traceback.walk_stack(frame)}


# A DataFrame as Spark leaves it when its session is stopped; that of the tests serves others.
STOPPED = SimpleNamespace(
    isStreaming=False, sparkSession=SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)), schema=()
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            lambda spark: pd.DataFrame({"key": ["ann"]}),
            r"is a pandas\..*DataFrame, and no DataFrame of Spark; make one",
        ),
        (lambda spark: [spark.range(1)], "is a builtins.list, and no DataFrame of Spark"),
        (lambda spark: "marks.jsonl", "is a builtins.str, and no DataFrame of Spark"),
        (
            lambda spark: spark.readStream.format("rate").load(),
            "is a stream, which has no end; read the same source with",
        ),
        (lambda spark: STOPPED, "is of a session of Spark that was stopped; make a session, and the DataFrame anew in"),
    ],
)
def test_what_is_no_history_is_refused_before_anything(given: Any, said: str, tmp_path: Path, spark: Any) -> None:
    """An AttributeError, or a class of errors of Spark's."""
    history = {"marks": given(spark)}
    with pytest.raises(WrongUse, match=said):
        orchestrator.spark.backfill(
            "tests.spark.tallies:app", history, log=f"sqlite:{tmp_path}/log.db", snapshots=tmp_path / "snapshots"
        )
    assert not list(tmp_path.iterdir())


async def test_a_cell_of_a_notebook_is_called_on_an_event_loop(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Jupyter does; and its interrupt ends what runs before the cell ends."""
    monkeypatch.chdir(ROOT)
    frame = spark.sql("select 'm' as key, 1L as value, 5L as timestamp_ms")
    given = {"log": f"sqlite:{tmp_path / 'log.db'}", "snapshots": tmp_path / "snapshots", "say": lambda text: None}
    ended: list[str] = []

    async def interrupted(*given: Any, **more: Any) -> dict[str, Any]:
        await asyncio.to_thread(until_the_main_thread_waits)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await asyncio.wait_for(asyncio.Future(), 30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return {}

    with monkeypatch.context() as patch:
        patch.setattr(notebook, "run_backfill", interrupted)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                orchestrator.spark.backfill("tests.spark.tallies:app", {"marks": frame}, **given)
        finally:
            signal.signal(signal.SIGINT, before)
    assert ended == ["cancelled"]
    facts = orchestrator.spark.backfill("tests.spark.tallies:app", {"marks": frame}, **given)
    assert facts["records_in"] == 1


async def test_every_column_of_a_frame_may_be_named(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the options of the command name them: headers and partitions were for files alone."""
    monkeypatch.chdir(ROOT)
    frame = spark.sql(
        "select 'm' as who, 1L as n, 5L as at, map('h', 'x') as more, place from values (0), (1) as t(place)"
    )
    columns = {"key": "who", "value": "n", "timestamp": "at", "headers": "more", "partition": "place"}
    url, snapshots = f"sqlite:{tmp_path / 'log.db'}", tmp_path / "snapshots"
    given = {"log": url, "snapshots": snapshots, "say": lambda text: None}
    await asyncio.to_thread(
        partial(orchestrator.spark.backfill, "tests.spark.tallies:app", {"marks": frame}, **columns, **given)
    )
    log = await open_sqlite(tmp_path / "log.db", create=False)
    sums = {where.number: record.value for where, record in await read_all(log, tallies.sums.changelog)}
    assert sums == {number: (1).to_bytes(8, "big") for number in (0, 1)}, "each in its own partition"
    assert {record.headers for _, record in await read_all(log, "seen")} == {(("h", b"x"),)}
    await log.close()


@pytest.mark.processes
def test_the_stores_of_instances_and_of_a_disk(console: Console, spark: Any) -> None:
    orchestrator.spark.register(spark)
    fleet = console.run("--session-timeout", "3s", "--heartbeat", "300ms")
    console.pay(*((name, 3) for name in "abcdef"))
    assert console.balance("f").strip() == "3"
    url = f"sqlite:{console.folder / '.orchestrator/bank.db'}"
    reader = spark.read.format("orchestrator.state").options(app="bank", log=url, table="balances", of="stores")
    live = sorted(reader.load().collect())
    assert [(row["key"], row["value"]) for row in sorted(live, key=lambda row: row["key"])] == [
        (k, 3) for k in "abcdef"
    ]
    fleet.terminate()
    assert console.end(fleet) == 0
    reader = reader.option("state", str(console.folder / ".orchestrator/state"))
    assert sorted(reader.load().collect()) == live

    state = console.folder / ".orchestrator/state/bank"
    mine = [path for path in state.glob("*/") if path.is_dir()]
    for task in {path.name for folder in mine for path in folder.glob("0_*/")}:
        store = RocksDbStore(state / "i8" / task / "balances", stamp={"log_id": "another"})
        store.write({b"zoe": b"\0" * 8}, 1_000_000)  # what an app of this name kept of another log, further on
        store.close()
        (state / "i9" / task / "balances").mkdir(parents=True)
        (state / "i9" / task / "balances" / "CURRENT").write_text("MANIFEST-nonsense\n")
    assert sorted(reader.load().collect()) == live, "neither is in the way of the good one"
    for folder in mine:
        shutil.rmtree(folder)
    with pytest.raises(Exception, match=r"no store of 0_\d can be read: .*it belongs to another log"):
        reader.load().collect()


def test_tables_and_topics_with_keys_of_dates(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    frame = spark.sql(
        """select '2026-01-31' as key, '{"count": 3, "last": "2026-02-01"}' as value, 5L as timestamp_ms"""
    )
    url = f"sqlite:{tmp_path / 'log.db'}"
    given = {"log": url, "snapshots": tmp_path / "snapshots", "say": lambda text: None}
    orchestrator.spark.backfill("tests.spark.dated:app", {"days": frame}, **given)
    orchestrator.spark.register(spark)
    state = spark.read.format("orchestrator.state").options(app="dated", log=url, table="latest")
    for found in (
        state.load().where("key = '2026-01-31' and value.last > '2026-01-31'"),
        state.option("key", '"2026-01-31"').load(),
    ):
        [row] = found.collect()
        assert row["key"] == "2026-01-31" and row["value"].asDict() == {
            "count": 3,
            "last": "2026-02-01",
            "tags": '["none"]',
        }
    changes = (
        spark.read.format("orchestrator.log").options(app="dated", log=url, topics="dated-latest-changelog").load()
    )
    assert [row["key"] for row in changes.collect()] == ["2026-01-31"]


def test_copies_that_are_gone_are_named(filled: Filled, tmp_path: Path) -> None:
    """A DataFrame that is used again an hour later reads what was planned then."""
    from pipeline.spark.state_source import StateReader, TaskPart

    reader = StateReader({"app": "sample", "log": filled.url, "table": "totals", "of": "stores"})
    with pytest.raises(StateError, match=r"gone is not there any more: .* load\(\) the DataFrame again"):
        list(reader.read(TaskPart("0_0", path=str(tmp_path / "gone"))))
    assert not (tmp_path / "gone").exists()


def test_of_an_expiring_table_no_more_is_held_than_a_row_needs(tmp_path: Path) -> None:
    """Its time lies behind nearly all entries: all of them were held until it was read."""
    from pipeline.spark.state_source import StateReader, TaskPart, _unexpired

    app = App("fading", partitions=1)
    clicks = app.topic("clicks", key=str, value=int)
    seen = app.table("seen", key=str, value=int, expire=timedelta(seconds=10))

    @app.processor(clicks, seen)
    def see(click: Record[str, int], seen: Table[str, int]) -> None:
        seen[click.key] = click.value

    times = {"gone": 1_000, "kept": 9_000, "new": 11_500}
    stored = {key.encode(): expiry.stored(seen.value_codec.encode(at), at) for key, at in times.items()}
    entries = stored | {expiry.STREAM_TIME_KEY: expiry.stored_time(11_500)}

    async def made() -> None:
        log = await open_sqlite(tmp_path / "log.db", create=True)
        await prepare(log, app)
        written = [NewRecord(key, value, 0, ()) for key, value in entries.items()]
        await log.append({Partition("fading-seen-changelog", 0): written})
        await log.close()

    asyncio.run(made())
    store = RocksDbStore(tmp_path / "store", stamp={})
    store.write(entries, len(entries))
    store.close()
    reader = StateReader({"app": "fading", "log": f"sqlite:{tmp_path / 'log.db'}", "table": "seen"})
    [of_log] = reader.partitions()
    (folder := tmp_path / "taken" / "s-1" / "0_0").mkdir(parents=True)
    origin = snapshot.Origin("log-1", "fading-seen-changelog", "topic-1", 4, 1_000)
    found = snapshot.write_table(folder, "seen", sorted(entries.items()), origin)
    digest = manifest.write_scope(folder, manifest.ScopeManifest("0_0", "log-1", 1_000, (found,)))
    taken = manifest.SnapshotManifest(
        "s-1", "fading", "log-1", 1_000, {"fading-seen-changelog": 1}, {"0_0": digest}, ()
    )
    manifest.publish(tmp_path / "taken", taken)
    of_snapshot = TaskPart("0_0", root=str(tmp_path / "taken"), name="s-1")
    for part in (of_log, of_snapshot, TaskPart("0_0", path=str(tmp_path / "store"))):
        rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
        assert {row["key"]: row["value"] for row in rows} == {"kept": 9_000, "new": 11_500}, part

    read: list[bytes] = []

    def pairs() -> Iterator[tuple[bytes, bytes]]:
        for key, value in [(expiry.STREAM_TIME_KEY, entries[expiry.STREAM_TIME_KEY]), *sorted(entries.items())]:
            read.append(key)
            yield key, value

    rows_of = _unexpired(pairs(), 10_000)
    assert [next(rows_of)[0], next(rows_of)[0]] == [b"kept", b"new"]
    assert read == [expiry.STREAM_TIME_KEY, b"gone", b"kept", b"new"], "and no pair behind the one that is given"
    assert list(rows_of) == []


def test_what_is_named_twice_is_read_once(filled: Filled) -> None:
    """Rows of a task came twice from a snapshot, and those of a topic."""
    snapshots = str(filled.folder / "taken")
    once, twice = (
        filled.table("totals", of="snapshot", snapshots=snapshots, task=name) for name in ("0_0", "0_0, 0_0")
    )
    assert once.count() == twice.count() > 0
    reader = filled.spark.read.format("orchestrator.log").option("log", filled.url)
    assert reader.options(topics="orders,orders").load().count() == reader.options(topics="orders").load().count() > 0


def test_what_a_changelog_has_lost_is_refused(filled: Filled, tmp_path: Path) -> None:
    """A part of the table was shown for all of it."""
    shutil.copy(filled.url.removeprefix("sqlite:"), tmp_path / "cut.db")

    async def cut() -> None:
        log = await open_sqlite(tmp_path / "cut.db", create=False)
        assert await log.trim({Partition("sample-totals-changelog", 1): 1}) == 1
        await log.close()

    asyncio.run(cut())
    with pytest.raises(
        Exception, match=r"changelog sample-totals-changelog-1 begins at 1, and what was written before"
    ):
        filled.table("totals", log=f"sqlite:{tmp_path / 'cut.db'}").collect()


@pytest.mark.long
@pytest.mark.processes
def test_the_stores_of_instances_with_certificates_whose_secret_lies_elsewhere(console: Console, spark: Any) -> None:
    """As it does for every app on Kafka, where no file of the log is there to lie beside."""
    orchestrator.spark.register(spark)
    mine, key = certificate(console.folder, "fleet")
    tls = ("--tls-cert", mine, "--tls-key", key, "--tls-ca", mine)
    secret = console.folder / "kept" / "bank.secret"
    secret.parent.mkdir()
    console("secret", "bank", "--new", "--out", str(secret))
    console.environment["ORCHESTRATOR_SECRET_FILE"] = str(secret)
    for name, value in zip(("CERT", "KEY", "CA"), tls[1::2], strict=True):
        console.environment[f"ORCHESTRATOR_TLS_{name}"] = value
    console.run(
        "--session-timeout", "3s", "--heartbeat", "300ms", "--listen", "127.1:0"
    )  # which is not taken for this machine
    console.pay(("a", 3))
    assert console("query", "bank", "balances", "a").out.strip() == "3"
    url = f"sqlite:{console.folder / '.orchestrator/bank.db'}"
    reader = spark.read.format("orchestrator.state").options(app="bank", log=url, table="balances", of="stores")
    with pytest.raises(Exception, match=r'there is no secret at .*; name the file with .option."secret"'):
        reader.load().collect()
    reader = reader.option("secret", str(secret))
    with pytest.raises(Exception, match=r"wants TLS|certificate|TLS"):
        reader.load().collect()
    reader = reader.options(**{flag.removeprefix("--"): value for flag, value in zip(tls[::2], tls[1::2], strict=True)})
    assert [(row["key"], row["value"]) for row in reader.load().collect()] == [("a", 3)]
