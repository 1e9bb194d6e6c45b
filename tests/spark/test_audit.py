"""An audit finds what is wrong in a changelog, in a store, in the outputs, with the key and both values; and nothing else."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from orchestrator.coordinator.requests import StatusRequest
from orchestrator.model import TaskId
from pipeline.records import OutputRecord
from pipeline.spark import audit_command
from pipeline.spark.comparing import Comparing
from pipeline.spark.differences import Changelogs, tables
from pipeline.spark.rows import Outputs
from pipeline.spark.shown_differences import line
from pipeline.spark.verifying import Stores, Wanted, audit, verify
from pipeline.values.partitioner import partition_of
from state.directory import StateDirectory
from state.log.protocol import GroupLog, NewRecord, Partition, TopicSpec
from state.log.sqlite import open_sqlite
from state.store.rocksdb import RocksDbStore
from tests.cli.console import Console
from tests.spark import from_end, tallies
from tests.spark.test_backfill import ROOT, Place, committed, write
from workers.commands.consume import read_all
from workers.connection.credentials import credentials_of
from workers.fleet.client import Client
from workers.prepare import prepare
from workers.tasks.inputs import start_positions
from workers.tasks.stores import StoreOpener

pytestmark = pytest.mark.spark
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms")
FROM_END, TALLIES = "tests.spark.from_end:app", "tests.spark.tallies:app"


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def place(tmp_path: Path, spark: Any) -> Place:
    return Place(tmp_path, spark)


def on_disk(place: Place) -> Stores:
    """The stores that lie in the folder of the place; nothing runs."""
    client = lambda log: Client(log, "tallies", lambda: credentials_of("tallies", place.url))  # noqa: E731
    return Stores(client, place.folder / "s/tallies")


async def audited(place: Place, **wanted: Any) -> dict[str, dict[str, Any]]:
    """The checks that failed, by their text."""
    facts = await audit(TALLIES, place.url, Wanted(**wanted), say=place.said.append, session=place.spark)
    return {check["check"]: check for check in facts["checks"] if not check["ok"]}


def marks(count: int) -> list[Any]:
    """Sums of three names go up and down, and one is none at the end."""
    values = [(f"m{n % 3}", (n % 5) - 2) for n in range(count)]
    left = sum(value for name, value in values if name == "m0")
    return [(tallies.marks, name, value, 10 * n) for n, (name, value) in enumerate([*values, ("m0", -left)])]


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Path:
    """A log with what an app did, and its stores on disk as an instance leaves them."""
    made = Place(tmp_path_factory.mktemp("computed"), spark)

    async def compute() -> None:
        log = await made.log()
        await write(log, tallies.app, marks(40))
        await made.backfill(TALLIES)
        prepared = await prepare(log, tallies.app)
        directory = StateDirectory(made.folder / "s", "tallies", "i1")
        for task in prepared.tasks():
            with directory.lock(str(task.id)):
                one = (await StoreOpener(log, prepared, directory, str(made.snapshots)).open(task.id))["sums"]
                one.store.close()
        await log.close()

    with pytest.MonkeyPatch.context() as home:
        home.chdir(ROOT)
        asyncio.run(compute())
    return made.folder


@pytest.fixture
def filled(place: Place, computed: Path) -> Place:
    """A place with a copy of it."""
    shutil.copytree(computed, place.folder, dirs_exist_ok=True)
    return place


async def test_a_damaged_store_a_doubled_output_and_a_missing_tombstone(filled: Place) -> None:
    log = await filled.log()
    assert await audited(filled, stores=on_disk(filled)) == {}

    where, total = next((p, r) for p, r in await read_all(log, tallies.sums.changelog))
    path = filled.folder / "s/tallies/i1" / f"0_{where.number}" / "sums"
    store = RocksDbStore(path, stamp={})
    store.write({total.key or b"": (999).to_bytes(8, "big")}, store.offset)
    store.close()
    record_of, record = next((p, r) for p, r in await read_all(log, "seen"))
    lives_on = NewRecord(b"m0", (5).to_bytes(8, "big"), 1)  # as if its tombstone had not been written
    where_m0 = Partition(where.topic, partition_of(b"m0", 2))
    again = NewRecord(record.key, record.value, record.timestamp_ms, record.headers)
    await log.append({where_m0: [lives_on], record_of: [again]})

    out = filled.folder / "differences.parquet"
    wrong = await audited(filled, stores=on_disk(filled), out=out)
    assert sorted(wrong) == ["outputs seen: every record", "stores of sums: every key of 2", "table sums: every key"]
    [stored] = wrong["stores of sums: every key of 2"]["differences"]
    amount = int.from_bytes(total.value or b"", "big", signed=True)
    key, on = (total.key or b"").decode(), f"0_{where.number} on i1 (on disk)"
    assert stored == {"kind": "differs", "store": on, "key": key, "expected": amount, "found": 999}
    assert line(stored) == f'  {on}: key "{key}": expected {amount}, found 999'
    [kept] = wrong["table sums: every key"]["differences"]
    assert (kept["kind"], kept["key"], kept["expected"], kept["found"]) == ("extra", "m0", None, 5)
    [doubled] = wrong["outputs seen: every record"]["differences"]
    assert (doubled["kind"], doubled["timestamp_ms"]) == ("doubled", record.timestamp_ms)
    rows = pq.read_table(out).to_pylist()
    assert sorted((row["check"], row["kind"]) for row in rows) == [
        ("outputs seen: every record", "doubled"),
        ("stores of sums: every key of 2", "differs"),
        ("table sums: every key", "extra"),
    ]
    assert {row["found"] for row in rows} >= {"999", "5"}

    await log.close()


@pytest.mark.long
async def test_a_store_that_cannot_be_read_is_a_check_that_failed(filled: Place) -> None:
    log = await filled.log()
    where, _ = next((p, r) for p, r in await read_all(log, tallies.sums.changelog))
    path = filled.folder / "s/tallies/i1" / f"0_{where.number}" / "sums"
    path.joinpath(next(file.name for file in path.glob("*.sst"))).write_bytes(b"no table of RocksDB")
    facts = await audit(
        TALLIES, filled.url, Wanted(stores=on_disk(filled)), say=filled.said.append, session=filled.spark
    )
    [unreadable] = [check for check in facts["checks"] if "cannot be read" in check["check"]]
    assert "\n" not in unreadable["check"], "RocksDB's reason has two lines, which broke the table"
    assert all({"differ", "differences"} <= check.keys() for check in facts["checks"]), "as the page has it"
    assert all(bool(check["differ"]) != check["ok"] for check in facts["checks"]) and unreadable["differ"] == 1
    await log.close()


@pytest.mark.long
async def test_outputs_that_retention_removes_while_they_are_computed_are_not_lost(filled: Place) -> None:
    log = await filled.log()
    ends = await log.ends([Partition("seen", number) for number in range(2)])

    def say(line: str) -> None:
        if line.startswith("subtopology"):
            asyncio.run(removed())

    async def removed() -> None:
        other = await filled.log()
        await other.trim(ends)
        await other.close()

    facts = await audit(TALLIES, filled.url, Wanted(), say=say, session=filled.spark)
    wrong = [check["check"] for check in facts["checks"] if not check["ok"]]
    assert wrong == [f"outputs seen are whole in the log: {sum(ends.values())} are gone"]
    await log.close()


@pytest.mark.long
async def test_a_key_that_is_written_meanwhile_is_compared(filled: Place) -> None:
    """It was left out, and the table was ok: of a busy app, which writes all of its keys again and again, nothing was found."""
    log = await filled.log()
    where, total = next((p, r) for p, r in await read_all(log, tallies.sums.changelog) if r.value is not None)
    amount = int.from_bytes(total.value or b"", "big", signed=True)

    def later(value: int) -> NewRecord:
        return NewRecord(total.key, value.to_bytes(8, "big"), 1)

    await log.append({where: [later(999)]})

    def say(line: str) -> None:
        if line.startswith("subtopology"):
            asyncio.run(written())

    async def written() -> None:
        other = await filled.log()
        await other.append({where: [later(7)]})
        await other.close()

    facts = await audit(TALLIES, filled.url, Wanted(), say=say, session=filled.spark)
    [wrong] = [check for check in facts["checks"] if not check["ok"]]
    [found] = wrong["differences"]
    assert (found["expected"], found["found"], wrong.get("left_out")) == (amount, 999, None)
    await log.close()


@pytest.mark.long
def test_what_compaction_may_have_removed_is_left_out(tmp_path: Path, spark: Any) -> None:
    def rows(values: dict[str, str | None], name: str) -> Any:
        data = [("sums", 0, 0, key.encode(), value.encode() if value else None) for key, value in values.items()]
        return spark.createDataFrame(data, f"subject string, partition int, copy int, key binary, {name} binary")

    expected = rows(dict.fromkeys(["right", "wrong", "hot", "gone", "deleted", "moved"], "1"), "expected")
    found = rows({"right": "1", "wrong": "2", "hot": "2", "moved": "2"}, "found")
    after = rows(dict.fromkeys(["right", "hot", "gone", "deleted", "moved"]), "value")
    again = rows({"right": "1", "wrong": "2", "hot": "2", "deleted": None, "moved": "3"}, "there")
    changelogs = Changelogs("found", lambda: after, lambda: again)
    one = tables(expected, found, tmp_path, "keys", changelogs)["sums"]
    assert one.kinds == {"differs": 2, "missing": 1}, "wrong and hot, and deleted, whose tombstone is there"
    assert one.left_out == 2, "gone and moved: what they had is not there any more"
    changed = Changelogs("found", lambda: after, lambda: rows({"else": "1"}, "there"))
    hot = tables(rows({"hot": "1"}, "expected"), rows({"hot": "2"}, "found"), tmp_path, "hot", changed)["sums"]
    assert (hot.differ, hot.left_out, hot.holds) == (0, 1, False), "nothing was compared"
    two = {"hot": "1", "right": "1"}
    some = tables(rows(two, "expected"), rows({**two, "hot": "2"}, "found"), tmp_path, "some", changed)["sums"]
    assert (some.differ, some.left_out, some.holds) == (0, 1, True)


@pytest.mark.long
async def test_headers_times_and_order_of_what_was_sent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log gets what a broken commit would have left: first a header and a time, then all in another order."""
    original = Outputs.of

    def altered(self: Outputs, partition: int) -> Iterator[OutputRecord]:
        found = list(original(self, partition))
        if partition == self.partitions()[0]:
            found[0] = msgspec.structs.replace(found[0], headers=(("forged", b"1"),))
            found[1] = msgspec.structs.replace(found[1], timestamp_ms=7)
        return iter(found)

    def turned(self: Outputs, partition: int) -> Iterator[OutputRecord]:
        return iter(list(original(self, partition))[::-1])

    for number, (broken, kinds) in enumerate(((altered, {"lost", "doubled"}), (turned, {"order"}))):
        one = Place(place.folder / str(number), place.spark)
        one.folder.mkdir()
        log = await one.log()
        await write(log, tallies.app, marks(20))
        with monkeypatch.context() as patch:
            patch.setattr(Outputs, "of", broken)
            await one.backfill(TALLIES)
        [(text, wrong)] = (await audited(one)).items()
        assert text == "outputs seen: every record"
        assert {shown["kind"] for shown in wrong["differences"]} == kinds
        assert wrong["lost"] == wrong["doubled"] == (2 if kinds == {"lost", "doubled"} else 0)
        await log.close()


@pytest.mark.long
async def test_records_that_nothing_has_processed(filled: Place) -> None:
    """`verify` is not content with them; an audit states up to where it compared."""
    log = await filled.log()
    await write(log, tallies.app, [(tallies.marks, "m1", 1, 9_000_000 + n) for n in range(50)])
    checks = await verify(TALLIES, filled.url, say=filled.said.append, session=filled.spark)
    assert [(c["check"], c["found"]) for c in checks if not c["ok"]] == [("inputs are processed to their ends", 50)]
    facts = await audit(TALLIES, filled.url, Wanted(), say=filled.said.append, session=filled.spark)
    assert facts["unread"] == 50 and all(check["ok"] for check in facts["checks"])
    positions = await committed(log, tallies.app)
    assert facts["positions"] == {str(p): at for p, at in positions.items()}
    await log.close()


async def test_a_topic_that_is_read_from_its_end(place: Place) -> None:
    """A backfill reads nothing of it, and an audit does not ask for what came before the app began."""
    log = await place.log()
    await write(log, from_end.app, [(from_end.clicks, f"k{n}", n, n) for n in range(20)])
    facts = await place.backfill(FROM_END)
    assert facts["records_in"] == 0 and facts["tables"] == {"sums": 0}
    checks = await verify(FROM_END, place.url, say=place.said.append, session=place.spark)
    assert [check["check"] for check in checks if not check["ok"]] == []
    await log.close()


@pytest.mark.long
async def test_a_backfill_begins_where_an_instance_began(place: Place) -> None:
    """One that ended before its first commit: what came since then is of the app."""
    log = await place.log()
    await write(log, from_end.app, [(from_end.clicks, "k", n, n) for n in range(5)])
    prepared = await prepare(log, from_end.app)
    for task in prepared.tasks():
        await start_positions(log, "from-end", prepared, task.id, prepared.inputs(task.id))
    await write(log, from_end.app, [(from_end.clicks, "k", n, n) for n in range(3)])
    facts = await place.backfill(FROM_END)
    assert facts["records_in"] == 3 and facts["tables"] == {"sums": 1}
    checks = await verify(FROM_END, place.url, say=place.said.append, session=place.spark)
    assert [check["check"] for check in checks if not check["ok"]] == []
    await log.close()


async def test_where_an_app_began_is_kept(place: Place) -> None:
    """Also when the process that began ended before its first commit: what came meanwhile is not left out."""
    log = await place.log()
    await write(log, from_end.app, [(from_end.clicks, "k", n, n) for n in range(5)])
    prepared = await prepare(log, from_end.app)
    ends = await log.ends([Partition("clicks", n) for n in range(2)])
    [task] = [TaskId(0, p.number) for p, end in ends.items() if end]
    inputs = prepared.inputs(task)
    first, _ = await start_positions(log, "from-end", prepared, task, inputs)
    await write(log, from_end.app, [(from_end.clicks, "k", n, n) for n in range(3)])
    assert (await start_positions(log, "from-end", prepared, task, inputs))[0] == first
    assert list(first.values()) == [5]
    await log.close()


def test_lines_of_differences() -> None:
    assert line({"kind": "lost", "partition": 2, "key": 7, "expected": {"a": 1}, "found": None, "times": 3}) == (
        '  partition 2: key 7: {"a": 1} is not in the log, 3 times'
    )
    window = {"kind": "missing", "partition": 0, "key": "a", "start_ms": 0, "end_ms": 60, "expected": 1, "found": None}
    assert line(window) == '  partition 0: key "a" in the window 0 to 60: expected 1, found nothing'


def test_wrong_use(console: Console) -> None:
    console.pay(("ann", 1))
    (console.folder / "there.parquet").mkdir()  # as Spark writes one: it was met after all was computed
    console.write("aside", "")
    for words, said in (
        (("--out", "x.csv"), "let the name end with .parquet"),
        (("--out", "none/x.parquet"), "there is no folder none"),
        (("--out", "there.parquet"), "it is a folder; name a file"),
        (("payments=h.jsonl", "--bad-records", "aside"), "--bad-records aside: it is a file; name a folder"),
        (("--limit", "0"), "--limit"),
    ):
        done = console.here("audit", "bank:app", *words)
        assert done.code == 2 and said in done.err and done.err.count("\n") == 1, done
    assert audit_command._out(None) is None


@pytest.mark.long
@pytest.mark.processes
def test_the_stores_of_running_instances(console: Console, spark: Any) -> None:
    """Active tasks and standbys, each up to where it is, while they run; nothing is left of the copies."""
    console.run(*FAST, "--standbys", "1", instances=2)
    console.pay(*((name, amount) for name in "abcdefgh" for amount in (1, 2)))
    url = f"sqlite:{console.folder / '.orchestrator/bank.db'}"
    state = console.folder / ".orchestrator/state/bank"

    def of_bank(log: GroupLog) -> Client:
        return Client(log, "bank", lambda: credentials_of("bank", url), url)

    async def run() -> dict[str, Any]:
        wanted = Wanted(stores=Stores(of_bank, state))
        return await audit(f"{console.folder / 'bank.py'}:app", url, wanted, say=lambda text: None, session=spark)

    async def standbys() -> int:
        log = await open_sqlite(console.folder / ".orchestrator/bank.db", create=False)
        client = of_bank(log)
        try:
            status = await client.ask(StatusRequest())
            return sum(len(task["standbys"]) for task in status["tasks"])
        finally:
            await client.close()
            await log.close()

    console.until("standbys", lambda: asyncio.run(standbys()) == 8)
    facts = asyncio.run(run())
    assert [check for check in facts["checks"] if not check["ok"]] == [], json.dumps(facts, indent=1)
    [stores] = [check for check in facts["checks"] if check["check"].startswith("stores of")]
    assert stores["check"] == "stores of balances: every key of 16" and stores["found"] == 16
    assert not list(state.glob("*/.copies/*"))

    for flags, said in (
        (("--log", "sqlite:none.db"), "none.db"),
        (("--secret-file", "none"), "there is no secret at none"),
        (("--tls-cert", "a.pem"), "--tls-cert and --tls-key go together"),
        (("--tls-key", "a.pem"), "--tls-cert and --tls-key go together"),
        (("--tls-ca", "a.pem"), "--tls-ca a.pem cannot be read"),
    ):
        done = console.here("audit", "bank:app", *flags)
        assert done.code == 2 and said in done.err and done.err.count("\n") == 1, (flags, done)


@pytest.mark.long
async def test_a_folder_without_stores_is_named(filled: Place) -> None:
    """A mistyped --state-dir: no store was looked at, all was ok, and nothing said so."""
    found = on_disk(filled)
    assert await audited(filled, stores=found) == {} and not any("no stores" in line for line in filled.said)
    elsewhere = Stores(found.client, filled.folder / "nowhere/tallies")
    assert await audited(filled, stores=elsewhere) == {}
    assert any(
        f"no stores of 'tallies' were found, as no instance runs and {elsewhere.state} has none" in line
        for line in filled.said
    )


# ---------------------------------------------------------------- compacted topics


async def begun_on_compacted(place: Place) -> GroupLog:
    """What the app reads and writes is compacted, as topics of Kafka's may be, and was not yet when the app ran."""
    log = await place.log()
    for name in ("marks", "seen"):
        await log.create_topic(TopicSpec(name, 2, kind="changelog"))
    await write(log, tallies.app, marks(40))
    await place.backfill(TALLIES)
    return log


@pytest.mark.long
async def test_a_compacted_output_is_compared_by_its_last_records(place: Place) -> None:
    """The audit called lost what compaction had removed."""
    log = await begun_on_compacted(place)
    assert (await log.compact("seen")).removed > 0
    assert await audited(place) == {}
    _, last = max(((p, r) for p, r in await read_all(log, "seen") if r.key == b"m1"), key=lambda one: one[1].offset)
    where = Partition("seen", partition_of(b"m1", 2))
    await log.append({where: [NewRecord(b"m1", (77).to_bytes(8, "big"), 9_000)]})
    [(text, check)] = (await audited(place)).items()
    assert text == "outputs seen: the last record of every key (the topic is compacted)"
    [shown] = check["differences"]
    assert (shown["key"], shown["expected"], shown["found"]) == ("m1", int.from_bytes(last.value or b"", "big"), 77)
    await log.close()


@pytest.mark.long
async def test_what_compaction_removes_of_outputs_meanwhile_is_left_out(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that a busy app sent again after the moment that is compared was missing: its last record before that was gone."""
    log, run = await begun_on_compacted(place), Comparing.run

    async def go_on() -> None:
        own = await open_sqlite(place.path, create=False)
        await own.append(
            {Partition("seen", partition_of(b"m1", 2)): [NewRecord(b"m1", (77).to_bytes(8, "big"), 9_000)]}
        )
        assert (await own.compact("seen")).removed > 0
        await own.close()

    def busy(self: Comparing, *given: Any) -> Any:
        asyncio.run(go_on())
        return run(self, *given)

    monkeypatch.setattr(Comparing, "run", busy)
    facts = await audit(TALLIES, place.url, Wanted(), say=place.said.append, session=place.spark)
    assert [check["check"] for check in facts["checks"] if not check["ok"]] == []
    [seen] = [check for check in facts["checks"] if check["check"].startswith("outputs seen")]
    assert (seen["differ"], seen["left_out"]) == (0, 1)
    await log.close()


@pytest.mark.long
async def test_a_compacted_input_is_named_where_something_differs(place: Place) -> None:
    """Only where partitions begin was looked at, so that tables differed and nothing said why."""
    log = await begun_on_compacted(place)
    assert (await log.compact("marks")).removed > 0
    facts = await audit(TALLIES, place.url, Wanted(), say=place.said.append, session=place.spark)
    checks = {check["check"]: check["ok"] for check in facts["checks"]}
    assert not checks["table sums: every key"]
    assert next(iter(checks)) == (
        "inputs are whole in the log, but for earlier values of keys that compaction may have removed of marks"
    )
    await log.close()
