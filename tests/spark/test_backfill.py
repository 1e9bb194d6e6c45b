"""A backfill gives the answer that the Driver gives, all of it or nothing, and refuses what it must."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from struct import pack
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.errors import RefusedBySafety, WrongUse
from orchestrator.testing import Driver
from pipeline.files.shape import Shape, shape_of
from pipeline.spark.backfill import backfill
from pipeline.spark.engine import ComputationFailed
from pipeline.spark.history import BadHistory
from pipeline.spark.planning import plan_text, planned
from pipeline.spark.verifying import verify
from pipeline.values.partitioner import partition_of
from state import manifest, snapshot
from state.log.protocol import GroupLog, Log, NewRecord, Partition
from state.log.sqlite import open_sqlite
from state.store.rocksdb import RocksDbStore
from tests.spark import loop, outside, sample
from workers.commands.cluster import LOCAL
from workers.commands.consume import read_all
from workers.fleet import held_lease as lease_module
from workers.prepare import prepare

pytestmark = pytest.mark.spark
APP, OUTSIDE, LOOP = "tests.spark.sample:app", "tests.spark.outside:app", "tests.spark.loop:app"
ROOT = Path(__file__).resolve().parent.parent.parent
Sent = tuple[Any, str, Any, int]


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def records(count: int, seed: int) -> list[Sent]:
    """Orders and names of some people; times go back and forth, some orders fail, some have no shop."""
    choice = random.Random(seed)
    found: list[Sent] = []
    for number in range(count):
        who, at_ms = f"p{choice.randrange(9)}", 1_000 + 10 * number + choice.randrange(-40, 40)
        if choice.random() < 0.1:
            found.append((sample.names, who, choice.choice(["Ann", "Bob", "Cem"]), at_ms))
        else:
            shop = choice.choice([None, "north", "south", "west"])
            found.append((sample.orders, who, sample.Order(number, shop, choice.randrange(-5, 15)), at_ms))
    return found


async def committed(log: GroupLog, app: Any = sample.app) -> dict[Partition, int]:
    """The positions of the app's inputs."""
    prepared = await prepare(log, app)
    return await log.positions(app.id, [p for task in prepared.tasks() for p in prepared.inputs(task.id)])


async def write(log: GroupLog, app: Any, sent: Sequence[Sent]) -> None:
    prepared = await prepare(log, app)
    batch: dict[Partition, list[NewRecord]] = {}
    for topic, key, value, at_ms in sent:
        data = topic.key_codec.encode(key)
        where = Partition(topic.topic, partition_of(data, prepared.topics[topic.topic].partitions))
        headers = (("trace", b"t%d" % (at_ms % 5)),) if at_ms % 2 else ()
        batch.setdefault(where, []).append(NewRecord(data, topic.value_codec.encode(value), at_ms, headers))
    await log.append(batch)


def driven(sent: Sequence[Sent]) -> tuple[dict[str, dict[Any, Any]], dict[str, Counter[Any]]]:
    """Tables and outputs as the Driver has them."""
    with Driver(sample.app) as driver:
        with driver.together():
            for topic, key, value, at_ms in sent:
                headers = (("trace", b"t%d" % (at_ms % 5)),) if at_ms % 2 else ()
                driver.send(topic, key, value, timestamp_ms=at_ms, headers=headers)
        tables = {name: driver.table(table) for name, table in sample.app.tables.items()}
        outputs = {
            topic.topic: Counter((r.key, repr(r.value), r.timestamp_ms, r.headers) for r in driver.records(topic))
            for topic in (sample.receipts, sample.greetings, sample.letters)
        }
    return tables, outputs


async def in_log(log: Log) -> tuple[dict[str, dict[Any, Any]], dict[str, Counter[Any]]]:
    """The same as the log has them."""
    tables: dict[str, dict[Any, Any]] = {}
    for name, table in sample.app.tables.items():
        found = await read_all(log, table.changelog)
        tables[name] = {table.key_codec.decode(r.key or b""): table.spec.decode_value(r.value or b"") for _, r in found}
        assert len(tables[name]) == len(found)
    outputs: dict[str, Counter[Any]] = {}
    for topic in (sample.receipts, sample.greetings, sample.letters):
        outputs[topic.topic] = Counter(
            (
                topic.key_codec.decode(r.key or b""),
                repr(topic.value_codec.decode(r.value or b"")),
                r.timestamp_ms,
                r.headers,
            )
            for _, r in await read_all(log, topic.topic)
        )
    return tables, outputs


class Place:
    """A folder with a log in it."""

    def __init__(self, folder: Path, spark: Any) -> None:
        self.folder = folder
        self.spark = spark
        self.said: list[str] = []
        self.path = folder / "log.db"
        self.url = f"sqlite:{self.path}"
        self.snapshots = folder / "snapshots"

    async def log(self) -> GroupLog:
        return await open_sqlite(self.path, create=True)

    async def backfill(self, app: str = APP, history: Mapping[str, list[str]] | None = None, **more: Any) -> Any:
        more.setdefault("say", self.said.append)
        return await backfill(app, self.url, self.snapshots, history=history or {}, session=self.spark, **more)

    def nothing_left(self) -> bool:
        return not self.snapshots.exists() or not list(self.snapshots.iterdir())


@pytest.fixture
def place(tmp_path: Path, spark: Any) -> Place:
    return Place(tmp_path, spark)


async def test_one_answer_and_where_it_is(place: Place) -> None:
    sent = records(600, seed=1)
    log = await place.log()
    await write(log, sample.app, sent)
    facts = await place.backfill()
    assert await in_log(log) == await asyncio.to_thread(driven, sent)

    positions = await committed(log)
    assert positions == {p: (await log.ends([p]))[p] for p in positions}  # the re-key topic is empty
    assert {p.topic for p in positions} == {"orders", "names", "sample-by-shop-repartition"}
    assert not await read_all(log, "sample-by-shop-repartition")
    assert facts["spilled_tables"] == 0
    assert facts["positions"] == {str(p): at for p, at in positions.items()}
    assert facts["outputs"]["receipts"] + facts["dead_lettered"] == sum(t is sample.orders for t, *_ in sent)

    found = snapshot.verify(place.snapshots, facts["snapshot"])
    counts = (await prepare(log, sample.app)).counts()
    assert manifest.newest(place.snapshots, "sample", log.log_id, counts) == found
    await check_restored(place, log, found)
    assert [p.name for p in place.snapshots.iterdir()] == [facts["snapshot"]]
    kept = sorted((place.snapshots / facts["snapshot"] / "outputs/receipts").glob("*.parquet"))
    assert sum(pq.read_metadata(path).num_rows for path in kept) == facts["outputs"]["receipts"]
    await log.close()


async def test_state_that_exceeds_its_memory_is_the_same(place: Place) -> None:
    sent = records(400, seed=6)
    log = await place.log()
    await write(log, sample.app, sent)
    facts = await place.backfill(memory_bytes=1_000)
    assert facts["spilled_tables"] > 0
    assert await in_log(log) == await asyncio.to_thread(driven, sent)
    await check_restored(place, log, snapshot.verify(place.snapshots, facts["snapshot"]))
    await log.close()


async def check_restored(place: Place, log: GroupLog, found: manifest.SnapshotManifest) -> None:
    """A store filled from the snapshot holds what the changelog holds, at the changelog's end."""
    for task in found.scopes:
        for table in manifest.load_scope(place.snapshots, found, task).tables:
            where = Partition(table.topic, int(task.partition("_")[2]))
            changelog = {r.key: r.value for p, r in await read_all(log, table.topic) if p == where}
            store = RocksDbStore(place.folder / "store" / task / table.table, stamp={})
            snapshot.ingest(store, place.snapshots / found.snapshot / task, table)
            assert dict(store.range(None, None)) == changelog
            assert store.offset == (await log.ends([where]))[where]
            store.close()


async def test_history_files_come_before_the_log(place: Place) -> None:
    sent = records(400, seed=2)
    names = [one for one in sent if one[0] is sample.names]
    orders = [one for one in sent if one[0] is sample.orders]
    # History is in the order of time; what is in the log comes after it, whatever its time.
    before = sorted(orders[:300], key=lambda one: one[3])
    early = [(topic, key, value, at - at % 2) for topic, key, value, at in before]  # no headers in files
    late = [(topic, key, value, at - 2_000) for topic, key, value, at in orders[300:]]
    log = await place.log()
    await write(log, sample.app, [*names, *late])
    rows = [{"key": key, "value": msgspec.to_builtins(value), "timestamp_ms": at} for _, key, value, at in early]
    as_struct, as_json, as_bytes = rows[:100], rows[100:200], rows[200:]
    pq.write_table(pa.Table.from_pylist(as_struct), place.folder / "a.parquet")
    lines = [json.dumps({**row, "value": json.dumps(row["value"])}) for row in as_json]
    (place.folder / "b.jsonl").write_text("\n".join(lines))
    binary = [
        {"key": r["key"].encode(), "value": msgspec.json.encode(r["value"]), "timestamp_ms": r["timestamp_ms"]}
        for r in as_bytes
    ]
    pq.write_table(pa.Table.from_pylist(binary), place.folder / "c.parquet")
    facts = await place.backfill(history={"orders": [str(place.folder / "*.parquet"), str(place.folder / "b.jsonl")]})
    assert facts["records_in"] - facts["rekeyed"]["sample-by-shop-repartition"] == len(sent)
    tables, outputs = await asyncio.to_thread(driven, [*names, *early, *late])
    found, written = await in_log(log)
    assert found == tables
    assert written["receipts"] == outputs["receipts"]
    assert written["greetings"] == outputs["greetings"]  # they tell in which order orders and names were taken
    # Where history lies is no offset of a log: dead letters name another one, and are the same in all else.
    assert Counter(key for key, *_ in written["letters"].elements()) == Counter(
        key for key, *_ in outputs["letters"].elements()
    )
    await log.close()


@pytest.mark.long
async def test_an_input_that_has_lost_its_beginning_is_named(place: Place) -> None:
    """What is left is computed; that it is not all of it is no secret, of a topic of another log neither."""
    log = await place.log()
    await write(log, loop.app, [(loop.firsts, f"p{n % 3}", n, n) for n in range(9)])
    ends = await log.ends([Partition("firsts", n) for n in range(2)])
    await write(log, loop.app, [(loop.firsts, f"p{n % 3}", n, n) for n in range(9, 15)])
    assert await log.trim(ends) == sum(ends.values()) == 9
    lost = 9
    warning = "has lost its first {} to its retention; this history begins behind them"
    plan = await planned(LOOP, place.url, {}, Shape(), LOCAL)
    assert f"warning: firsts {warning.format(f'{lost} positions')}" in plan_text(plan)
    (place.folder / "before.jsonl").write_text('{"key": "p0", "value": 1, "timestamp_ms": 1}\n')
    files = {"firsts": [str(place.folder / "before.jsonl")]}
    assert "has lost" not in plan_text(await planned(LOOP, place.url, files, Shape(), LOCAL)), "they are in files"
    await place.backfill(LOOP)
    assert [line for line in place.said if "has lost" in line] == [
        f"warning: firsts {warning.format(f'{lost} positions')}"
    ]
    checks = await verify(LOOP, place.url, say=place.said.append, session=place.spark)
    assert [check["found"] for check in checks if not check["ok"]] == [lost]
    assert place.said[-1].startswith("no table and no output was compared")
    await log.close()


@pytest.mark.long
async def test_values_reach_the_app_as_they_stand(place: Place) -> None:
    """Nothing is inferred: what one line has and another has not, numbers, and fields that no type names stay as they are;
    names and times that Spark would read in its own way are read in ours."""
    log = await place.log()
    lines = [
        {
            "key": "a",
            "value": {"id": 1, "shop": "1", "amount": 2, "note": None},
            "timestamp_ms": 10,
            "headers": {"h": "x"},
        },
        {"key": "b", "value": {"id": 2, "shop": None, "amount": 3, "more": [1.0, {"x": True}]}, "timestamp_ms": 20},
    ]
    odd = place.folder / "_odd [1]{2}.jsonl"
    odd.write_text("\n".join(json.dumps(line) for line in lines))
    at = datetime(1970, 1, 1, 2, 0, 0, 30_999, tzinfo=timezone(timedelta(hours=2)))
    third = {"key": "c", "value": json.dumps({"id": 3, "shop": None, "amount": 13}), "timestamp_ms": at}
    pq.write_table(pa.Table.from_pylist([third]), place.folder / ".hidden.parquet")
    names = [str(odd), str(place.folder / ".hidden.parquet")]
    await place.backfill(history={"orders": names}, allow_outside=True)
    letters = [record for _, record in await read_all(log, "letters")]
    assert [(one.key, one.value, one.timestamp_ms) for one in letters] == [(b"c", third["value"].encode(), 30)]
    receipts = {record.key: record for _, record in await read_all(log, "receipts")}
    assert receipts[b"a"].headers == (("h", b"x"),) and receipts[b"a"].timestamp_ms == 10
    await log.close()


async def test_a_flat_file_by_its_columns(place: Place) -> None:
    log = await place.log()
    path = place.folder / "flat.csv"
    path.write_text(
        '\ufeffwho,id,shop,amount,time,other\r\nann,1,"a ""b"", c\nd",5,2026-01-31T12:00:00Z,x\r\nbob,2,,6,1769860801,y\r\n'
    )
    await place.backfill(history={"orders": [str(path)]}, shape=shape_of("who", None, "time:s"))
    with pytest.raises(WrongUse, match="a backfill of history of orders, which is not in the log; name it again"):
        await verify(APP, place.url, say=place.said.append, session=place.spark)
    receipts = sorted((r.key, r.value, r.timestamp_ms) for _, r in await read_all(log, "receipts"))
    assert receipts == [(b"ann", pack(">q", 1), 1_769_860_800_000), (b"bob", pack(">q", 2), 1_769_860_801_000)]
    shops = await read_all(log, sample.shops.changelog)
    assert [r.key for _, r in shops] == [b'["a \\"b\\", c\\nd",1]']
    await log.close()


async def test_nothing_to_read_commits_nothing(place: Place) -> None:
    """Neither in the log nor in history: positions of nothing would refuse the history that was forgotten."""
    log = await place.log()
    await prepare(log, sample.app)
    with pytest.raises(WrongUse, match=r"nothing to read.*TOPIC=PATTERN"):
        await place.backfill()
    empty = place.folder / "names.parquet"
    text = pa.array([], pa.string())
    pq.write_table(pa.table({"key": text, "value": text, "timestamp_ms": pa.array([], pa.int64())}), empty)
    with pytest.raises(WrongUse, match="nothing to read"):
        await place.backfill(history={"names": [str(empty)]})
    assert place.nothing_left() and not await committed(log)
    await log.close()


@pytest.mark.parametrize("key", ["k7", None])
async def test_a_record_of_history_that_fails_is_named_as_its_file_has_it(key: str | None, place: Place) -> None:
    """The error had an offset of -1099511627769, or named what came due."""
    lines = [{"key": f"k{n}", "value": n, "timestamp_ms": n} for n in range(20)]
    lines[7] |= {"key": key, "value": -1}
    (place.folder / "clicks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    log = await place.log()
    with pytest.raises(
        ComputationFailed, match=rf"failed at the record of key {key!r} at 7 ms in the history of clicks in task 0_\d: "
    ):
        await place.backfill(OUTSIDE, history={"clicks": [str(place.folder / "clicks.jsonl")]}, allow_outside=True)
    await log.close()


async def test_a_failing_processor_leaves_nothing(place: Place) -> None:
    log = await place.log()
    clicks = [(outside.clicks, f"k{n}", n if n != 7 else -1, n) for n in range(20)]
    await write(log, outside.app, clicks)
    with pytest.raises(ComputationFailed, match=r"see failed at clicks-.*a negative click") as told:
        await place.backfill(OUTSIDE, allow_outside=True)
    assert "outside.py" in told.value.frames and "stage.py" not in told.value.frames
    assert place.nothing_left()
    assert not await committed(log, outside.app)
    assert not await read_all(log, "outside-seen-changelog")
    await log.close()


async def test_outside_of_the_promise(place: Place) -> None:
    log = await place.log()
    await write(log, outside.app, [(outside.clicks, "k", 1, 1)])
    with pytest.raises(RefusedBySafety, match=r"table 'seen' \(local=True\).*--allow-outside"):
        await place.backfill(OUTSIDE)
    await place.backfill(OUTSIDE, allow_outside=True)
    assert any("allow-outside" in line for line in place.said)
    await log.close()


async def test_an_app_that_has_begun_is_refused(place: Place) -> None:
    log = await place.log()
    await write(log, sample.app, records(30, seed=3))
    await place.backfill()
    before = await log.ends(list(await committed(log)))
    with pytest.raises(RefusedBySafety, match="committed positions"):
        await place.backfill()
    assert await log.ends(list(before)) == before
    await log.close()


async def test_a_changelog_with_something_in_it_is_refused(place: Place) -> None:
    log = await place.log()
    await write(log, sample.app, records(30, seed=3))
    await log.append({Partition("sample-totals-changelog", 1): [NewRecord(b"p1", b"1", 0)]})
    with pytest.raises(RefusedBySafety, match=r"sample-totals-changelog-1 .*not empty"):
        await place.backfill()
    assert place.nothing_left()
    await log.close()


async def test_a_running_app_is_refused(place: Place) -> None:
    log = await place.log()
    await write(log, sample.app, records(30, seed=3))
    lease = await log.acquire("sample", "i1", "127.0.0.1:1", None)
    assert lease is not None

    async def beat() -> None:
        held = lease
        while True:
            held = await log.renew(held)
            await asyncio.sleep(0.2)

    beating = asyncio.create_task(beat())
    try:
        with pytest.raises(RefusedBySafety, match=r"is running .i1 holds its lease"):
            await place.backfill()
    finally:
        beating.cancel()
    assert place.nothing_left() and not await committed(log)
    await log.close()


@pytest.mark.parametrize(("stage", "beat_s"), [("subtopology 0", lease_module.BEAT_S), ("subtopology 1", 3_600)])
async def test_losing_the_lease_ends_it_with_nothing_written(
    place: Place, stage: str, beat_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it computes the loss is noticed by the next beat; where no beat comes, by the look before it writes."""
    monkeypatch.setattr(lease_module, "BEAT_S", beat_s)
    log = await place.log()
    await write(log, sample.app, records(30, seed=3))

    def take_over(text: str) -> None:
        """From the thread that computes: somebody becomes the coordinator."""
        if text.startswith(stage):
            asyncio.run(steal())

    async def steal() -> None:
        other = await open_sqlite(place.path, create=False)
        while await other.acquire("sample", "i1", "127.0.0.1:1", await other.lease("sample")) is None:
            continue  # a beat came between
        await other.close()

    with pytest.raises(RefusedBySafety, match="took over"):
        await place.backfill(say=take_over)
    assert place.nothing_left() and not await committed(log)
    assert not await read_all(log, "receipts")
    await log.close()


@pytest.mark.long
async def test_a_cancelled_backfill_leaves_nothing_and_can_be_run_again(place: Place) -> None:
    log = await place.log()
    await write(log, sample.app, records(30, seed=3))
    loop, first = asyncio.get_running_loop(), asyncio.Event()
    running = asyncio.create_task(place.backfill(say=lambda text: loop.call_soon_threadsafe(first.set)))
    await first.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert place.nothing_left() and not await committed(log)
    await place.backfill()
    assert await committed(log)
    await log.close()


@pytest.mark.parametrize(
    ("history", "error", "words"),
    [
        ({"receipts": ["x.parquet"]}, WrongUse, "'receipts' is no input of 'sample'; its inputs are names, orders"),
        ({"orders": ["none-*.parquet"]}, BadHistory, r"no file is called none-\*.parquet"),
        ({"orders": ["README.md"]}, BadHistory, "README.md: files are read that end with"),
        ({"orders": ["pyproject.parquet"]}, BadHistory, "no file is called"),
    ],
)
async def test_history_that_is_none(place: Place, history: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        await place.backfill(history=history)


async def test_history_without_its_columns(place: Place) -> None:
    pq.write_table(pa.Table.from_pylist([{"key": "a", "payload": "b"}]), place.folder / "bad.parquet")
    with pytest.raises(BadHistory, match="has no column 'value' for topic 'orders', it has key, payload"):
        await place.backfill(history={"orders": [str(place.folder / "bad.parquet")]})


async def test_history_that_its_type_cannot_read_is_named(place: Place) -> None:
    rows = [{"key": "a", "value": '{"id": "no number"}', "timestamp_ms": 1}]
    pq.write_table(pa.Table.from_pylist(rows), place.folder / "bad.parquet")
    with pytest.raises(
        BadHistory,
        match=r"bad.parquet, row 1: .*cannot be read as Order.*correct the file, or set such rows aside with --bad-records DIR$",
    ):
        await place.backfill(history={"orders": [str(place.folder / "bad.parquet")]})
    assert place.nothing_left()


@pytest.mark.long
async def test_what_the_app_writes_into_its_own_inputs_is_followed(place: Place) -> None:
    log = await place.log()
    await write(log, loop.app, [(loop.firsts, f"p{n % 3}", n, n) for n in range(9)])
    await write(log, loop.app, [(loop.seconds, f"p{n % 3}", 100, 5_000) for n in range(2)])
    facts = await place.backfill(LOOP)
    found = await read_all(log, loop.sums.changelog)
    sums = {loop.sums.key_codec.decode(r.key or b""): loop.sums.spec.decode_value(r.value or b"") for _, r in found}
    positions = await committed(log, loop.app)
    assert sums == {"p0": 2 * (0 + 3 + 6) + 100, "p1": 2 * (1 + 4 + 7) + 100, "p2": 2 * (2 + 5 + 8)}
    assert facts["records_in"] == 9 + 2 + 9
    assert positions == await log.ends(list(positions)), "nothing is processed a second time"
    checks = await verify(LOOP, place.url, say=place.said.append, session=place.spark)
    wrong = [check for check in checks if not check["ok"]]  # two of the records in `seconds` are not the app's
    assert [(check["check"].split(":")[0], check["doubled"]) for check in wrong] == [("outputs seconds", 2)]
    await log.close()


async def test_an_app_in_a_file_of_any_name(place: Place) -> None:
    path = place.folder / "pipeline.py"
    path.write_text(Path(str(loop.__file__)).read_text() + "\nimport beside\nassert beside.HERE\n")
    (place.folder / "beside.py").write_text("HERE = True")
    log = await place.log()
    await write(log, loop.app, [(loop.firsts, "p", 1, 1)])
    facts = await place.backfill(f"{path}:app")
    assert facts["tables"] == {"sums": 1}
    await log.close()


@pytest.mark.long
async def test_a_producer_of_a_followed_topic_is_found(place: Place) -> None:
    log = await place.log()
    await write(log, loop.app, [(loop.firsts, "p", 1, 1)])
    here = asyncio.get_running_loop()

    def say(text: str) -> None:
        if text.startswith("subtopology 0"):  # said by the thread that computes
            asyncio.run_coroutine_threadsafe(write(log, loop.app, [(loop.seconds, "q", 5, 2)]), here).result()

    with pytest.raises(RefusedBySafety, match="another producer wrote to seconds-"):
        await place.backfill(LOOP, say=say)
    assert not await committed(log, loop.app) and len(await read_all(log, "seconds")) == 1 and place.nothing_left()
    await log.close()


@pytest.mark.long
async def test_verify_finds_one_wrong_value_one_lost_and_one_doubled_record(place: Place) -> None:
    log = await place.log()
    await write(log, sample.app, records(200, seed=4))
    await place.backfill()
    checks = await verify(APP, place.url, say=place.said.append, session=place.spark)
    assert [c["check"] for c in checks if not c["ok"]] == [] and len(checks) == 10

    receipt = next(r for _, r in await read_all(log, "receipts"))
    where, total = next((p, r) for p, r in await read_all(log, "sample-totals-changelog"))
    await log.append(
        {
            where: [NewRecord(total.key, b"\0" * 8, 1)],
            Partition("receipts", 0): [NewRecord(receipt.key, receipt.value, 1)],
        }
    )
    found = {c["check"]: c for c in await verify(APP, place.url, say=place.said.append, session=place.spark)}
    wrong = [name for name, c in found.items() if not c["ok"]]
    assert wrong == ["table totals: every key", "outputs receipts: every record"]
    assert found[wrong[0]]["differ"] == 1 and found[wrong[0]]["example"]["key"] == (total.key or b"").decode()
    assert (found[wrong[1]]["lost"], found[wrong[1]]["doubled"]) == (0, 1)
    await log.close()


@pytest.mark.long
async def test_verify_compares_a_topic_that_the_app_both_writes_and_reads(place: Place) -> None:
    log = await place.log()
    await write(log, loop.app, [(loop.firsts, f"p{n % 3}", n, n) for n in range(9)])
    await place.backfill(LOOP)
    written = "outputs seconds: every record (the app reads it too: records of others count as doubled)"

    async def seconds() -> Any:
        checks = await verify(LOOP, place.url, say=place.said.append, session=place.spark)
        return next(check for check in checks if check["check"] == written)

    assert {"expected": 9, "found": 9, "ok": True}.items() <= (await seconds()).items()
    where, record = next(iter(await read_all(log, "seconds")))
    await log.append({where: [NewRecord(record.key, record.value, 1)]})
    assert {"found": 10, "ok": False, "doubled": 1}.items() <= (await seconds()).items()
    await log.close()
