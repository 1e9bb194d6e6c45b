"""What Spark reads as history comes to the app as it stands, or is refused; rows that are no records are set aside."""

from __future__ import annotations

import asyncio
import gzip
import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from orchestrator.errors import WrongUse
from pipeline.files import parts
from pipeline.files.shape import BadRow, FileRecord, Reading, Shape, shape_of
from pipeline.spark.bad_rows import BadRecords, TooManyBad
from pipeline.spark.history import BadHistory
from pipeline.spark.planning import cores
from pipeline.spark.set_to import set_to
from pipeline.spark.sources import From, given, is_for_spark, local_files
from pipeline.values.codecs import codec_for
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.log.sqlite import open_sqlite
from tests.cli.console import Console
from tests.spark import sample
from tests.spark.test_backfill import Place, at_home, committed, in_log, place  # noqa: F401
from workers.commands.consume import read_all

pytestmark = pytest.mark.spark
TEXTS = Reading("names", codec_for(str, what="key", key=True), codec_for(str, what="value"), 4)
ROWS = [("ann", "Ann", 1_000), ("bob", "Bob", 2_000), ("cem", "Cem", 3_000)]
EXPECTED = [(key.encode(), value.encode(), at) for key, value, at in ROWS]


def read(session: Any, text: str, folder: Path, shape: Shape = Shape()) -> list[FileRecord]:  # noqa: B008 - it is frozen
    names, _ = local_files(session, From(text), folder, TEXTS, shape)
    found = [one for name in names for part in parts.parts(name) for one in parts.read(part, TEXTS, shape)]
    return sorted(found, key=lambda one: one.key or b"")


async def test_every_kind_of_source_gives_the_same_records(tmp_path: Path, spark: Any) -> None:
    frame = spark.createDataFrame(ROWS, "key string, value string, timestamp_ms bigint").coalesce(1)
    frame.write.orc(str(tmp_path / "orc"))
    frame.createOrReplaceTempView("people")
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps(dict(zip(("key", "value", "timestamp_ms"), row, strict=True))) + "\n" for row in ROWS)
    )
    (tmp_path / "a.csv").write_text("key,value,timestamp_ms\n" + "".join(f"{k},{v},{at}\n" for k, v, at in ROWS))
    log = await open_sqlite(tmp_path / "other.db", create=True)
    await log.create_topic(TopicSpec("people", 2))
    await log.append(
        {Partition("people", n % 2): [NewRecord(*row, (("h", b"x"),))] for n, row in enumerate(EXPECTED[:2])}
    )
    await log.append({Partition("people", 0): [NewRecord(*EXPECTED[2])]})
    await log.close()
    sources = [
        "select * from people",
        "people",
        f"orc:{tmp_path / 'orc'}",
        f"orc:{tmp_path / 'orc'}/*.orc",
        f"file://{tmp_path}/orc/*.orc",
        f"file://{tmp_path}/a.jsonl",
        f"file://{tmp_path}/*.csv",
        f"csv:{tmp_path}/a.csv",
        f"json:{tmp_path}/*.jsonl",
        f"log:sqlite:{tmp_path}/other.db/people",
    ]  # fmt: skip
    for number, text in enumerate(sources):
        found = await asyncio.to_thread(read, spark, text, tmp_path / f"rows{number}")
        assert [(one.key, one.value, one.timestamp_ms) for one in found] == EXPECTED, text
    assert [one.headers for one in found] == [(("h", b"x"),), (("h", b"x"),), ()], "of a log they come with it"
    assert [one.order_ms for one in found] == [1_000, 2_000, 3_000], "partitions are merged by time"


@pytest.mark.long
async def test_a_topic_of_another_log_is_read_up_to_positions(tmp_path: Path, spark: Any) -> None:
    """Where it went on, nothing read the same again, and an audit said that all of what had come since was lost."""
    log = await open_sqlite(tmp_path / "other.db", create=True)
    await log.create_topic(TopicSpec("people", 2))

    async def append(number: int, *names: str) -> None:
        rows = [NewRecord(name.encode(), name.encode(), at) for at, name in enumerate(names)]
        await log.append({Partition("people", number): rows})

    await append(0, "a", "b", "c")
    await append(1, "d", "e")
    url = f"log:sqlite:{tmp_path}/other.db/people"

    async def found(text: str, folder: str) -> tuple[list[str], set[str]]:
        names, shown = await asyncio.to_thread(local_files, spark, From(text), tmp_path / folder, TEXTS, Shape())
        rows = [one for name in names for part in parts.parts(name) for one in parts.read(part, TEXTS, Shape())]
        return sorted((one.key or b"").decode() for one in rows), set(shown.values())

    assert await found(url, "all") == ([*"abcde"], {f"{url}@3,2"}), "it says what it has read"
    await append(0, "f")
    assert await found(f"{url}@3,2", "again") == ([*"abcde"], {f"{url}@3,2"})
    assert await found(f"{url}@1-4,0", "part") == ([*"bcf"], {f"{url}@1-4,0"})
    await log.trim({Partition("people", 0): 3})
    assert await found(url, "rest") == ([*"def"], {f"{url}@3-4,2"})
    wrong = {
        "@3": "the topic has 2 partitions, and 1 positions are named",
        "@3,x": "write a position for each partition, as in people@120,98",
        "@3-3,5": "people-1 ends at 2",
        "@4-3,1": "4 is behind 3",
        "@4,2": "what people-0 had before 3 is gone; name it 3-4 to do without",
    }
    for positions, problem in wrong.items():
        with pytest.raises(BadHistory, match=problem):
            await found(f"{url}{positions}", "wrong")
    await log.close()


def test_formats_of_text_are_read_as_they_stand(tmp_path: Path, spark: Any) -> None:
    """Spark's own readers gave every value the fields of all, whole numbers as others wanted them, and keys of other types."""
    lines = ['{"x": 12345678901234567890}', '{"x": 1, "y": [1, "2"], "z": null}', '{"x": 1.50}']
    rows = (f'{{"key": "k{n}", "value": {line}, "timestamp_ms": {n}}}\n' for n, line in enumerate(lines))
    (tmp_path / "a.json").write_text("".join(rows))
    reading = Reading("any", codec_for(str, what="key", key=True), codec_for(dict, what="value"), 4)
    [name], shown = local_files(spark, From(f"json:{tmp_path}/a.json"), tmp_path / "copies", reading, Shape())
    found = [one for part in parts.parts(name) for one in parts.read(part, reading, Shape())]
    assert [one.value for one in found] == [line.encode() for line in lines]
    assert shown[name].endswith(f"{tmp_path}/a.json")


def test_columns_of_a_query_by_their_types(tmp_path: Path, spark: Any) -> None:
    query = (
        "select 'ann' as who, timestamp'2026-01-31 12:00:00Z' as at, 'x' as value, map('h', 'v') as more, 3 as place "
        "union all select 'bob', timestamp'2026-01-31 12:00:00.123456Z', 'y', null, null"
    )
    found = read(spark, query, tmp_path / "rows", shape_of("who", "value", "at", "more", "place"))
    assert found == [
        FileRecord(found[0].line, b"ann", b"x", 1_769_860_800_000, (("h", b"v"),), None, 3),
        FileRecord(found[1].line, b"bob", b"y", 1_769_860_800_123),
    ]


def test_headers_as_sparks_reader_of_kafka_has_them(tmp_path: Path, spark: Any) -> None:
    """A list of structs became one header that was called key and had the text value."""
    of_kafka = (
        "array(named_struct('key', 'h', 'value', binary('x')), named_struct('key', 'h', 'value', cast(null as binary)))"
    )
    shape = shape_of("who", "value", "at", "headers")
    query = f"select 'ann' as who, 5L as at, 'x' as value, {of_kafka} as headers"
    [found] = read(spark, query, tmp_path / "rows", shape)
    assert found.headers == (("h", b"x"), ("h", b"")), "in their order, and without a value as those of a log"
    query = "select 'ann' as who, 5L as at, 'x' as value, array(1, 2) as headers"
    with pytest.raises(BadRow, match="row 1: headers is neither an object of strings nor a list of names with values"):
        read(spark, query, tmp_path / "numbers", shape)


def test_values_are_those_of_spark_however_its_session_writes_parquet(tmp_path: Path, spark: Any) -> None:
    """An instant lost its zone (INT96, Spark's own way), or its microseconds; days of long ago were others; an interval was a number."""
    reading = Reading("any", codec_for(str, what="key", key=True), codec_for(dict[str, Any], what="value"), 4)
    at = "2026-01-31 12:00:00.123456"
    query = (
        f"select 'ann' as who, 5L as at, timestamp'{at}Z' as instant, timestamp_ntz'{at}' as local, date'1500-01-01' as day, "
        f"array(timestamp'{at}Z') as list, parse_json('{{\"b\": [1, null]}}') as variant, interval '1' day as interval, "
        "time'12:30:00' as time"
    )
    expected = {
        "instant": "2026-01-31T12:00:00.123456Z", "local": "2026-01-31T12:00:00.123456", "day": "1500-01-01",
        "list": ["2026-01-31T12:00:00.123456Z"], "variant": '{"b":[1,null]}', "interval": "INTERVAL '1' DAY",
        "time": "12:30:00",
    }  # fmt: skip
    ways = {"outputTimestampType": "TIMESTAMP_MILLIS", "datetimeRebaseModeInWrite": "LEGACY"}
    theirs = {f"spark.sql.parquet.{name}": value for name, value in ways.items()}
    for number, settings in enumerate(({}, theirs)):
        with set_to(spark, settings):
            names, _ = local_files(spark, From(query), tmp_path / str(number), reading, shape_of("who", None, "at"))
            assert all(spark.conf.get(name) == value for name, value in settings.items()), "still the session's"
        shape = shape_of("who", None, "at")
        [found] = [one for name in names for part in parts.parts(name) for one in parts.read(part, reading, shape)]
        assert msgspec.json.decode(found.value or b"") == expected
    inside = "select 'ann' as who, 5L as at, array(parse_json('1')) as v"
    with pytest.raises(
        BadHistory, match=r"'v' has a value of the type variant in it, .* select its text, as with to_json"
    ):
        local_files(spark, From(inside), tmp_path / "inside", reading, shape_of("who", None, "at"))


class Paid(msgspec.Struct):
    who: str
    currency: str = "EUR"


@pytest.mark.long
def test_a_column_that_some_of_the_files_have_is_read_of_these(tmp_path: Path, spark: Any) -> None:
    """Spark takes the columns of one file of a folder for those of all: what others had besides was the type's default."""
    before, since = {"who": ["ann"], "at": [1]}, {"who": ["bob"], "currency": ["USD"], "at": [2]}
    for kind, written in (("parquet", pq.write_table), ("orc", orc.write_table)):
        for number, column in enumerate(("", "day=1", "day=2")):
            folder = tmp_path / kind / (column and "with-days") / column
            folder.mkdir(parents=True)
            first, last = (before, since) if number != 2 else (since, before)
            written(pa.table(first), str(folder / f"1.{kind}"))
            written(pa.table(last), str(folder / f"2.{kind}"))
    reading = Reading("paid", codec_for(str, what="key", key=True), codec_for(Paid, what="value"), 4)
    shape = shape_of("who", None, "at")
    ways = [f"{kind}:{tmp_path}/{kind}{below}" for kind in ("parquet", "orc") for below in ("/with-days", "/*.*")]
    for number, text in enumerate([*ways, f"file://{tmp_path}/parquet/*.parquet"]):
        names, _ = local_files(spark, From(text), tmp_path / f"rows{number}", reading, shape)
        found = {one.value for name in names for part in parts.parts(name) for one in parts.read(part, reading, shape)}
        assert found == {b'{"who":"ann","currency":"EUR"}', b'{"who":"bob","currency":"USD"}'}, text


class Count(msgspec.Struct):
    id: int
    share: float = 0.0
    price: Decimal = Decimal(0)


def test_whole_numbers_without_a_sign_are_ints(tmp_path: Path, spark: Any) -> None:
    """Spark has them as decimals, which fields, keys and times of the type int refused."""
    ids, at = pa.array([7], pa.uint64()), pa.array([5], pa.uint64())
    price = pa.array([Decimal("1.50")], pa.decimal128(20, 2))
    pq.write_table(pa.table({"k": ids, "id": ids, "share": ids, "price": price, "at": at}), tmp_path / "a.parquet")
    text, reading = (
        From(f"parquet:{tmp_path / 'a.parquet'}"),
        Reading("counts", codec_for(int, what="key"), codec_for(Count, what="value"), 4),
    )
    for number, value in enumerate((None, "id")):
        shape = shape_of("k", value, "at")
        own = reading if value is None else reading._replace(value=codec_for(int, what="value"))
        names, _ = local_files(spark, text, tmp_path / f"rows{number}", own, shape)
        [through] = [one for name in names for part in parts.parts(name) for one in parts.read(part, own, shape)]
        [alone] = [one for part in parts.parts(str(tmp_path / "a.parquet")) for one in parts.read(part, own, shape)]
        assert through == alone and (through.key, through.timestamp_ms) == ((7).to_bytes(8, "big"), 5)


def test_files_that_a_query_names_have_the_columns_of_all(tmp_path: Path, spark: Any) -> None:
    """As those of a path: Spark took the columns of one file, and `select *` had no others."""
    rows = {"a": {"key": ["ann"], "timestamp_ms": [1]}, "b": {"key": ["bob"], "timestamp_ms": [2], "value": ["Bob"]}}
    for name, columns in rows.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    text = f"select * from parquet.`{tmp_path}/*.parquet`"
    found = read(spark, text, tmp_path / "rows")
    assert [(one.key, one.value) for one in found] == [(b"ann", None), (b"bob", b"Bob")]
    assert spark.conf.get("spark.sql.parquet.mergeSchema") == "false", "it is the session's own again"


def test_a_column_of_two_types_is_refused(tmp_path: Path, spark: Any) -> None:
    """It depended on which file Spark looked at whether it was read, or refused in words of Spark's reader."""
    (tmp_path / "rows").mkdir()
    for name, kind in (("a", pa.int64()), ("b", pa.int32())):
        pq.write_table(
            pa.table({"key": [name], "value": pa.array([1], kind), "timestamp_ms": [1]}),
            tmp_path / f"rows/{name}.parquet",
        )
    with pytest.raises(
        BadHistory, match=r"its files have a column of two types .*BIGINT.*INT.*; name those of each type by a --from"
    ) as caught:
        read(spark, f"parquet:{tmp_path}/rows", tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_folder_that_spark_has_written_is_its_files(tmp_path: Path, spark: Any) -> None:
    """What Spark writes as a.json is a folder; the error named a copy that was no file."""
    frame = spark.createDataFrame(ROWS, "key string, value string, timestamp_ms bigint").repartition(2)
    frame.write.json(str(tmp_path / "a.json"))
    frame.write.csv(str(tmp_path / "a.csv"), header=True)
    for number, text in enumerate((f"json:{tmp_path}/a.json", f"file://{tmp_path}/a.csv", f"csv:{tmp_path}/*.csv")):
        found = read(spark, text, tmp_path / f"rows{number}")
        assert [(one.key, one.value, one.timestamp_ms) for one in found] == EXPECTED, text
    frame.write.partitionBy("key").json(str(tmp_path / "by.json"))
    with pytest.raises(BadHistory, match=r"by\.json has a column in the names of its folders \(key=\w+\)"):
        read(spark, f"json:{tmp_path}/by.json", tmp_path / "by")


async def test_a_copy_is_called_by_the_name_of_what_it_is_of(place: Place) -> None:  # noqa: F811
    """The header of a file elsewhere was refused by the name of its copy in our own folder."""
    (place.folder / "a.csv").write_text("key,text,timestamp_ms\nann,Ann,5\n")
    log = await place.log()
    with pytest.raises(BadHistory) as caught:
        await place.backfill(history={"names": [From(f"csv:{place.folder}/a.csv")]})
    assert str(caught.value).startswith(f"file:{place.folder}/a.csv has no column 'value'"), caught.value
    await log.close()


def test_a_map_whose_keys_are_no_plain_values_is_a_bad_row(tmp_path: Path) -> None:
    """It was an error of Python's: a dict is no key of a dict."""
    kind = pa.map_(pa.struct([("x", pa.int32())]), pa.int32())
    rows = {"key": ["ann", "bob"], "at": [1, 2], "seats": pa.array([[({"x": 1}, 2)], []], kind)}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    reading = Reading("any", codec_for(str, what="key", key=True), codec_for(dict, what="value"), 4)
    [part] = parts.parts(str(tmp_path / "a.parquet"))
    bad: list[Any] = []
    found = [one.key for one in parts.read(part, reading, shape_of("key", None, "at"), lambda *row: bad.append(row))]
    assert found == [b"bob"] and "row 1: column 'seats': a map has keys that are no plain values" in str(bad[0][0])


class Dated(msgspec.Struct):
    code: str
    year: int
    day: date
    share: Decimal


def test_columns_in_names_of_folders_are_text_unless_a_number_is_wanted(tmp_path: Path, spark: Any) -> None:
    """Spark made 7 of 007, which a value of any fields took, and a key of text did not."""
    below = tmp_path / "rows" / "code=007" / "year=2026" / "day=2026-01-31" / "share=1.10"
    below.mkdir(parents=True)
    pq.write_table(pa.table({"who": ["ann"], "at": [1_000]}), below / "a.parquet")

    def values(name: str, key: str, value: Any) -> list[tuple[bytes | None, bytes | None]]:
        reading = Reading("dated", codec_for(str, what="key", key=True), codec_for(value, what="value"), 4)
        shape = shape_of(key, None, "at")
        [file], _ = local_files(spark, From(f"parquet:{tmp_path}/rows"), tmp_path / name, reading, shape)
        return [(one.key, one.value) for part in parts.parts(file) for one in parts.read(part, reading, shape)]

    [(_, found)] = values("any", "who", dict[str, Any])
    assert msgspec.json.decode(found or b"") == {"code": "007", "year": "2026", "day": "2026-01-31", "share": "1.10"}
    expected = b'{"code":"007","year":2026,"day":"2026-01-31","share":"1.10"}'
    assert values("typed", "who", Dated) == [(b"ann", expected)]
    assert [key for key, _ in values("key", "code", dict[str, Any])] == [b"007"]


def test_rows_of_one_time_come_in_the_order_of_their_files(tmp_path: Path, spark: Any) -> None:
    """Spark reads the largest file first, and packs small ones together."""
    (tmp_path / "rows").mkdir()
    for name, many in (("a", 1), ("b", 4_000), ("c", 2), ("d", 900)):
        rows = [(f"{name}{number}", name, 1_000) for number in range(many)]
        table = pa.table(dict(zip(("key", "value", "timestamp_ms"), map(list, zip(*rows, strict=True)), strict=True)))
        orc.write_table(table, tmp_path / "rows" / f"{name}.orc")
    names, _ = local_files(spark, From(f"orc:{tmp_path}/rows"), tmp_path / "parts", TEXTS, Shape())
    found = [one for name in names for part in parts.parts(name) for one in parts.read(part, TEXTS, Shape())]
    expected = [
        f"{name}{number}" for name, many in (("a", 1), ("b", 4_000), ("c", 2), ("d", 900)) for number in range(many)
    ]
    assert [(one.key or b"").decode() for one in found] == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("select nothing from nowhere", "select nothing from nowhere: .*nowhere"),
        ("select 1 as key", "select 1 as key has no column 'value' for topic 'names', it has key; name columns with"),
        ("selec * from x", r"selec \* from x: "),
        ("orc:/nowhere", "orc:/nowhere: .*nowhere"),
        ("nonsense:/nowhere", "nonsense:/nowhere: .*Failed to find the data source: nonsense"),
        ("json:/nowhere", r"json:/nowhere is no pattern of files: Spark would guess .* as in json:/nowhere/\*\.json$"),
        ("csv:/nowhere/x.csv", "no file is called /nowhere/x.csv"),
        ("file:///nowhere/x.csv", "no file is called file:///nowhere/x.csv"),
        ("file:///nowhere/x.txt", "files elsewhere are read that end with"),
        ("log:people", "names no topic"),
    ],
)
def test_what_cannot_be_read_is_one_line(text: str, problem: str, tmp_path: Path, spark: Any) -> None:
    with pytest.raises(BadHistory, match=problem) as caught:
        read(spark, text, tmp_path / "rows")
    assert "\n" not in str(caught.value) and "Exception" not in str(caught.value)


def test_a_file_that_is_no_parquet_is_called_one(tmp_path: Path, spark: Any) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1nonsense")
    with pytest.raises(BadHistory, match=r"t\.parquet.*not a Parquet file"):
        read(spark, f"parquet:{tmp_path}/t.parquet", tmp_path / "rows")


def test_a_file_of_this_machine_is_no_table() -> None:
    """Spark said that no table is called that, also where the file was there."""
    for text in ("a.parquet", "dir/*.csv", "a.jsonl.gz"):
        with pytest.raises(WrongUse, match="without --from, as names="):
            given(f"names={text}", ["names"])
    for text in ("parquet:a.parquet", "s3a://b/a.csv", "a.orc", "select * from csv.`a.csv`"):
        assert given(f"names={text}", ["names"]) == ("names", From(text))


@pytest.mark.parametrize("text", ["/data/payments", "./h", "../h/2026/*"])
def test_a_path_without_a_format_is_no_table(text: str) -> None:
    with pytest.raises(WrongUse, match=r"is a path: name its format, as in --from names=orc:"):
        given(f"names={text}", ["names"])
    for kept in (f"orc:{text}", f"parquet.`{text}`", f"s3a://b/{text}", f"select * from orc.`{text}`"):
        assert given(f"names={kept}", ["names"]) == ("names", From(kept))


def test_which_topic_a_source_is_for() -> None:
    assert given("names=select * from x", ["names", "orders"]) == ("names", From("select * from x"))
    assert given("select a=b from x", ["names"]) == ("names", From("select a=b from x"))
    assert given("db.people", ["names"]) == ("names", From("db.people"))
    for text in ("other=select 1", "select 1", "names="):
        with pytest.raises(WrongUse, match="write TOPIC=SOURCE with an input of the app, names, orders"):
            given(text, ["orders", "names"])
    assert is_for_spark("s3a://bucket/x.parquet") and is_for_spark("x.orc") and not is_for_spark("C/x=y/a.parquet")
    assert [cores(master) for master in ("local[3,4]", "local-cluster[2,3,512]", "yarn")] == [3, 6, 1]


# ---------------------------------------------------------------- rows that are no records


def mixed(folder: Path) -> list[str]:
    """Files with four good rows, and a bad one of each kind."""
    order = {"id": 1, "shop": None, "amount": 1}
    lines = [
        json.dumps({"key": "a", "value": order, "timestamp_ms": 1}),
        "{nonsense",
        json.dumps({"key": "b", "value": {**order, "id": "x"}, "timestamp_ms": 2}),
        json.dumps({"key": "c", "value": order}),
        json.dumps({"key": "d", "value": order, "timestamp_ms": 3}),
    ]
    (folder / "a.jsonl").write_text("\n".join(lines))
    csv = 'key,value,timestamp_ms,note\ne,"{""id"":2,""shop"":null,""amount"":1}",4,\nf,1\n'
    no_time = 'f,"{""id"":2,""shop"":null,""amount"":1}",,"of\ntwo lines"\n'
    (folder / "b.csv").write_bytes(f"{csv}{no_time}".encode() + b"\xff,1,2,\n")
    value = msgspec.json.encode(order)
    rows = [{"key": "g", "value": value, "timestamp_ms": 5}, {"key": "h", "value": b"{}", "timestamp_ms": 6}]
    pq.write_table(pa.Table.from_pylist(rows), folder / "c.parquet")
    return [str(folder / name) for name in ("a.jsonl", "b.csv", "c.parquet")]


async def test_bad_rows_are_set_aside_and_counted(place: Place) -> None:  # noqa: F811
    log = await place.log()
    files, aside = mixed(place.folder), place.folder / "aside"
    with pytest.raises(
        BadHistory,
        match=r"(a.jsonl, line 2|b.csv, line 3|c.parquet, row 2): .*correct the file, or set such rows aside",
    ):
        await place.backfill(history={"orders": files})
    with pytest.raises(
        TooManyBad, match=r"7 rows of history of 'orders' are no record, more than --max-bad 6; all .*a.jsonl, line 2"
    ):
        await place.backfill(history={"orders": files}, bad=BadRecords(str(aside), 6))
    assert place.nothing_left() and not await committed(log)
    facts = await place.backfill(history={"orders": files}, bad=BadRecords(str(aside), 7))
    assert facts["bad_rows"] == 7
    assert {r.key for _, r in await read_all(log, "receipts")} == {b"a", b"d", b"e", b"g"}
    rows = [json.loads(line) for line in (aside / "orders.jsonl").read_text().splitlines()]
    assert [(Path(row["file"]).name, row["where"]) for row in rows] == [
        ("a.jsonl", "line 2"), ("a.jsonl", "line 3"), ("a.jsonl", "line 4"), ("b.csv", "line 3"), ("b.csv", "line 4"),
        ("b.csv", "line 6"), ("c.parquet", "row 2"),
    ]  # fmt: skip
    assert rows[0]["row"] == "{nonsense" and rows[3]["row"] == ["f", "1"] and "no timestamp_ms" in rows[2]["why"]
    assert json.loads(rows[2]["row"])["key"] == "c" and rows[4]["row"][2:] == ["", "of\ntwo lines"], "as they stand"
    assert rows[5]["row"] == ["\ufffd", "1", "2", ""] and rows[5]["why"].startswith("not UTF-8")
    await log.close()


@pytest.mark.long
async def test_rows_of_a_run_before_are_not_those_of_this_one(place: Place) -> None:  # noqa: F811
    """Rows that were corrected since stayed in the file of bad ones."""
    aside = place.folder / "aside"
    aside.mkdir()
    (aside / "names.jsonl").write_text('{"file": "a.csv", "where": "line 2", "why": "no", "row": []}\n')
    (place.folder / "a.csv").write_text("key,value,timestamp_ms\nann,Ann,5\n")
    log = await place.log()
    facts = await place.backfill(history={"names": [str(place.folder / "a.csv")]}, bad=BadRecords(str(aside), 0))
    assert facts["bad_rows"] == 0 and not list(aside.iterdir())
    await log.close()


@pytest.mark.long
async def test_bad_rows_take_no_other_files_place(place: Place) -> None:  # noqa: F811
    """History that is called as its topic, in the folder that was named, was removed: by bad rows, and without any."""
    text = b'{"key": "ann", "value": "Ann", "timestamp_ms": 5}\n'
    for name, bad in (("names", b""), ("names", b"nonsense\n")):
        path = place.folder / f"{name}.jsonl"
        path.write_bytes(text + bad)
        log = await place.log()
        with pytest.raises(
            WrongUse, match=r"rows of 'names' would go to .*/names.jsonl, which is there and is none of"
        ):
            await place.backfill(history={"names": [str(path)]}, bad=BadRecords(str(place.folder)))
        assert path.read_bytes() == text + bad and not await committed(log)
        await log.close()


@pytest.mark.long
def test_what_is_written_takes_no_place_of_history(console: Console) -> None:
    console.pay(("ann", 1))
    line = b'{"file": "a.csv", "where": "line 2", "why": "no", "row": []}\n'
    for name, content, problem in (
        ("payments.jsonl", b'{"key": "ann", "value": 1, "timestamp_ms": 5}\n', "is none of these files; name another folder"),
        ("payments.jsonl", line, "payments.jsonl is history of 'payments', and would be replaced"),
    ):  # fmt: skip
        (console.folder / name).write_bytes(content)
        done = console("backfill", "bank:app", f"payments={name}", "--bad-records", ".")
        assert done.code == 2 and problem in done.err and done.err.count("\n") == 1, done
        assert (console.folder / name).read_bytes() == content
    rows = [{"key": "ann", "value": b"1", "timestamp_ms": 5}]
    pq.write_table(pa.Table.from_pylist(rows), console.folder / "h.parquet")
    done = console("audit", "bank:app", "payments=*.parquet", "--out", "h.parquet")
    assert done.code == 2 and "--out: h.parquet is history of 'payments', and would be replaced" in done.err, done


@pytest.mark.long
async def test_a_query_is_history_of_an_app(place: Place) -> None:  # noqa: F811
    log = await place.log()
    await place.backfill(history={"names": [From("select 'ann' as key, 'Ann' as value, 5L as timestamp_ms")]})
    assert (await in_log(log))[0]["last-name"] == {"ann": "Ann"}
    assert sample.names.topic == "names" and [p.name for p in place.snapshots.iterdir() if p.name.startswith(".")] == []
    with pytest.raises(BadHistory, match=r"select 1 as key, 'x' as value, 5L as timestamp_ms, row 1: "):
        await place.backfill(
            "tests.spark.loop:app", history={"firsts": [From("select 1 as key, 'x' as value, 5L as timestamp_ms")]}
        )
    await log.close()


def test_a_dry_run_changes_nothing(console: Console) -> None:
    console.write("h.csv", "account,amount,at\nann,3,2026-01-01T00:00:00Z\nbob,4,2026-01-01T00:00:01Z\n")
    words = ("backfill", "bank:app", "payments=h.csv", "--key", "account", "--timestamp", "at", "--dry-run")
    done = console(*words)
    assert done.code == 0 and "about 2 records in 8 tasks" in done.out and "nothing was changed" in done.out, done
    assert not (console.folder / ".orchestrator").exists()
    facts = json.loads(console(*words, "--json").out)
    assert facts["rows"] == 2 and facts["inputs"][0]["bytes"] == 72
    done = console(*words[:2], "payments=h.csv", "--key", "account", "--timestamp", "when", "--dry-run")
    assert done.code == 2 and "has no column 'when'" in done.err and done.err.count("\n") == 1, done


@pytest.mark.long
def test_a_dry_run_refuses_a_file_that_is_damaged(console: Console) -> None:
    """It was an internal error."""
    line = b'{"key": "ann", "value": {"account": "ann", "amount": 1}, "timestamp_ms": 1}\n'
    damaged = {
        "cut.jsonl.gz": gzip.compress(line * 9_000)[:-200],
        "no.jsonl.gz": b"no gzip",
        "no.jsonl.bz2": b"BZh9 no bzip2",
        "no.jsonl.xz": b"no xz",
    }
    for name, data in damaged.items():
        (console.folder / name).write_bytes(data)
        done = console("backfill", "bank:app", f"payments={name}", "--dry-run")
        assert done.code == 2 and f"cannot read {console.folder}/{name}: " in done.err and done.err.count("\n") == 1, (
            done
        )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--max-bad", "3"), "--max-bad 3: name a folder for these rows, too"),
        (("--bad-records", "aside"), "--bad-records has no effect here: no history is named"),
        (("--from", "x=select 1"), "write TOPIC=SOURCE with an input of the app, payments"),
        (("--dry-run", "--max-bad", "3"), "--max-bad 3: name a folder for these rows, too"),
    ],
)
def test_options_without_effect_are_refused(words: tuple[str, ...], problem: str, console: Console) -> None:
    console.pay(("ann", 1))
    done = console("backfill", "bank:app", *words)
    assert done.code == 2 and problem in done.err and done.err.count("\n") == 1, done
