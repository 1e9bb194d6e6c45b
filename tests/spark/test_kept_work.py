"""A backfill that the log does not take leaves what it has computed, and the same command writes that; another one computes anew."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.spark.engine import Engine
from pipeline.spark.kept_work import FILE, FRAMES
from pipeline.spark.moment import sources
from pipeline.spark.set_to import set_to
from pipeline.spark.sources import From
from state import manifest, snapshot
from state.errors import LeaseLost, LogFull, StateError
from state.log.sqlite import SqliteLog
from tests.often import often
from tests.spark import tallies
from tests.spark.test_audit import TALLIES
from tests.spark.test_backfill import ROOT, Place, check_restored, write
from workers.commands.consume import read_all
from workers.fleet import held_lease
from workers.prepare import prepare

pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(ROOT)
    return Place(tmp_path, spark)


def refusing(patch: pytest.MonkeyPatch, error: StateError, what: str = "seed_positions") -> None:
    async def refused(log: Any, *given: Any, **more: Any) -> bool:
        raise error

    patch.setattr(SqliteLog, what, refused)


def kept(place: Place) -> list[Path]:
    return sorted(place.snapshots.glob(".*.work"))


async def answered(log: Any) -> tuple[dict[bytes | None, bytes | None], Counter[bytes | None]]:
    sums = {record.key: record.value for _, record in await read_all(log, tallies.sums.changelog)}
    return sums, Counter(record.key for _, record in await read_all(log, "seen"))


def expected(amounts: dict[str, int]) -> tuple[dict[bytes | None, bytes | None], Counter[bytes | None]]:
    return {key.encode(): n.to_bytes(8, "big") for key, n in amounts.items()}, Counter(map(str.encode, amounts))


async def test_the_same_command_writes_what_was_computed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the cut of the first run: what came into the inputs meanwhile is for live instances."""
    log, folder, amounts = await refused_once(place, monkeypatch)
    assert f"what was computed is kept in {folder}: the same command" in place.said[-1]
    inputs = sources(await prepare(log, tallies.app))
    assert not await log.positions("tallies", inputs)
    ends = {str(p): at for p, at in (await log.ends(inputs)).items()}
    await write(log, tallies.app, [(tallies.marks, "k1", 100, 900)])

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run", computes)
        facts = await place.backfill(TALLIES)
    assert any("goes on with what a backfill before has computed" in line for line in place.said)
    assert await answered(log) == expected(amounts)
    assert facts["positions"] == ends and facts["records_in"] == 20 and facts["outputs"] == {"seen": 20}
    assert [path.name for path in place.snapshots.iterdir()] == [facts["snapshot"]]
    await check_restored(place, log, snapshot.verify(place.snapshots, facts["snapshot"]))
    await log.close()


@pytest.mark.long
async def test_what_was_computed_of_rows_that_are_others_by_now_is_not_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what Spark reads its name alone was compared: rows that had come since were lost."""
    folder = place.folder / "rows"
    folder.mkdir()
    await (await place.log()).close()

    async def refused(text: str) -> None:
        with monkeypatch.context() as patch:
            refusing(patch, LogFull("no space"))
            with pytest.raises(LogFull):
                await place.backfill(TALLIES, history={"marks": given(text)})

    def given(text: str) -> Any:
        return [From(text)]

    def add(name: str) -> None:
        pq.write_table(pa.table({"key": [name], "value": [1], "timestamp_ms": [1]}), folder / f"{name}.parquet")

    add("a")
    await refused(f"parquet:{folder}")
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run", computes)
        await refused(f"parquet:{folder}")  # with what is kept
    with set_to(place.spark, {"spark.sql.caseSensitive": "true"}):
        await refused(f"parquet:{folder}")
    add("b")
    await refused(f"parquet:{folder}")
    place.spark.read.parquet(str(folder)).createOrReplaceTempView("some_rows")
    await refused("select * from some_rows")
    place.spark.sql("select 'c' as key, 1L as value, 5L as timestamp_ms").createOrReplaceTempView("some_rows")
    facts = await place.backfill(TALLIES, history={"marks": given("select * from some_rows")})
    assert facts["records_in"] == 1 and len(kept(place)) == 4, "one of each answer, and none was taken for another"
    log = await place.log()
    assert {record.key for _, record in await read_all(log, "seen")} == {b"c"}
    await log.close()


async def test_all_jobs_of_a_backfill_are_in_its_group(place: Place) -> None:
    """The job in which Spark looks at the columns of files was in none: where no slot was free no line said so, and it could not be
    cancelled."""
    pq.write_table(pa.table({"key": ["a"], "value": [1], "timestamp_ms": [1]}), place.folder / "a.parquet")
    await (await place.log()).close()
    tracker: Any = place.spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    await place.backfill(TALLIES, history={"marks": [From(f"parquet:{place.folder}/a.parquet")]})
    assert set(tracker.getJobIdsForGroup(None)) == before


@pytest.mark.parametrize("is_frame", [False, True])
async def test_what_is_computed_of_rows_that_nothing_names_is_not_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, is_frame: bool
) -> None:
    """No other run could know it for its own, and the message named the same command as what goes on from there."""
    await (await place.log()).close()
    source: Any = From("select 'c' as key, 1L as value, 5L as timestamp_ms")
    if is_frame:
        folder = place.snapshots / f"{FRAMES}1" / "0"
        folder.mkdir(parents=True)
        source = str(folder / "a.parquet")
        pq.write_table(pa.table({"key": ["c"], "value": [1], "timestamp_ms": [1]}), source)
    refusing(monkeypatch, LogFull("no space"))
    with pytest.raises(LogFull):
        await place.backfill(TALLIES, history={"marks": [source]})
    assert not kept(place) and "is not kept" in place.said[-1]
    assert [path.name for path in place.snapshots.iterdir()] == [f"{FRAMES}1"] * is_frame


async def test_a_full_log_is_not_taken_for_another_process(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beats are refused as all that is written; what was computed meanwhile is kept."""
    monkeypatch.setattr(held_lease, "BEAT_S", 0.01)
    log = await place.log()
    await write(log, tallies.app, [(tallies.marks, f"k{n}", 1, n) for n in range(20)])
    with monkeypatch.context() as patch:
        refusing(patch, LogFull("no space: free some"), "renew")
        with pytest.raises(LogFull, match="free some"):
            await place.backfill(TALLIES)
    assert len(kept(place)) == 1
    facts = await place.backfill(TALLIES)
    assert facts["records_in"] == 20 and await log.positions("tallies", sources(await prepare(log, tallies.app)))
    await log.close()


async def test_nothing_that_befalls_the_lease_ends_what_is_committed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot is published, and the command ends well: its advice would be to run again what is done."""
    monkeypatch.setattr(held_lease, "BEAT_S", 0.01)
    log = await place.log()
    await write(log, tallies.app, [(tallies.marks, f"k{n}", 1, n) for n in range(20)])
    published = manifest.publish

    def slowly(root: Path, found: manifest.SnapshotManifest) -> None:
        asyncio.run(until_lost())
        published(root, found)

    async def until_lost() -> None:
        """Until a beat has met it: this is called in a thread."""
        with monkeypatch.context() as patch:
            met = asyncio.Event()
            loop = asyncio.get_running_loop()

            async def lost(log: Any, lease: Any) -> Any:
                loop.call_soon_threadsafe(met.set)
                raise LeaseLost("taken")

            patch.setattr(SqliteLog, "renew", lost)
            async with asyncio.timeout(30):
                await met.wait()

    monkeypatch.setattr(manifest, "publish", slowly)
    facts = await place.backfill(TALLIES)
    assert manifest.load(place.snapshots, facts["snapshot"]).application == "tallies"
    assert [path.name for path in place.snapshots.iterdir()] == [facts["snapshot"]]
    await log.close()


def computes(engine: Any, say: Any) -> None:
    raise AssertionError("it was computed again")


@pytest.mark.long
async def test_another_history_is_computed_anew(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await place.log()
    file = place.folder / "marks.jsonl"

    def written(more: int) -> dict[str, list[str]]:
        rows = [{"key": f"k{n}", "value": more + n, "timestamp_ms": n} for n in range(20)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {"marks": [str(file)]}

    with monkeypatch.context() as patch:
        refusing(patch, LogFull("no space"))
        with pytest.raises(LogFull):
            await place.backfill(TALLIES, history=written(100))
    [folder] = kept(place)
    await place.backfill(TALLIES, history=written(1_000))
    assert any(line.startswith(f"{folder} has what a backfill of 'tallies' computed of anoth") for line in place.said)
    assert await answered(log) == expected({f"k{n}": 1_000 + n for n in range(20)})
    assert kept(place) == [folder]
    await log.close()


@pytest.mark.long
@pytest.mark.parametrize("is_from", often((False, True), True))
async def test_a_file_that_was_changed_behind_its_time_is_another(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, is_from: bool
) -> None:
    """As an archive that is unpacked again leaves it: as long as the one before, and of the same time."""
    log = await place.log()
    file = place.folder / "marks.jsonl"

    def written(value: int) -> dict[str, Any]:
        file.write_text(json.dumps({"key": "k", "value": value, "timestamp_ms": 1}) + "\n")
        os.utime(file, (1_000, 1_000))
        return {"marks": [From(f"json:{file}") if is_from else str(file)]}

    with monkeypatch.context() as patch:
        refusing(patch, LogFull("no space"))
        with pytest.raises(LogFull):
            await place.backfill(TALLIES, history=written(1))
    await place.backfill(TALLIES, history=written(2))
    assert await answered(log) == expected({"k": 2})
    await log.close()


@pytest.mark.parametrize("only", [False, True])
async def test_what_nobody_can_write_any_more_is_not_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, only: bool
) -> None:
    """Another process has the application; or the snapshot was published, and is all that there is."""
    log = await place.log()
    await write(log, tallies.app, [(tallies.marks, "k1", 1, 1)])
    with monkeypatch.context() as patch:
        refusing(patch, LogFull("no space") if only else LeaseLost("taken"))
        with pytest.raises(Exception, match=r"no space|took over"):
            await place.backfill(TALLIES, snapshot_only=only)
    assert not kept(place)
    await log.close()


async def refused_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Path, dict[str, int]]:
    """A log, the folder of what was computed and could not be written, and what the inputs have."""
    log = await place.log()
    amounts = {f"k{n}": n + 1 for n in range(20)}
    await write(log, tallies.app, [(tallies.marks, key, n, n) for key, n in amounts.items()])
    with monkeypatch.context() as patch:
        refusing(patch, LogFull("no space"))
        with pytest.raises(LogFull):
            await place.backfill(TALLIES)
    [folder] = kept(place)
    return log, folder, amounts


@pytest.mark.parametrize("text", often(("", '{"application":"tallies","log_', "[]", "{}", "\ufffd"), "{}", "\ufffd"))
async def test_facts_that_cannot_be_read_are_named_and_not_used(
    place: Place, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Those of a version that wrote others, or of a disk that lost them: each backfill beside them was an internal error."""
    log, folder, amounts = await refused_once(place, monkeypatch)
    (folder / FILE).write_text(text)
    await place.backfill(TALLIES)
    assert await answered(log) == expected(amounts)
    assert any(f"{folder} has what a backfill computed and could not write, and" in line for line in place.said)
    await log.close()


@pytest.mark.parametrize(
    ("name", "is_gone"),
    [(".*.work/*/outputs/seen.parquet", True), (".*.work/*/state/sums.parquet", False), ("2*/0_0/sums/*.sst", True)],
)
async def test_what_is_not_whole_any_more_is_not_written(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, is_gone: bool
) -> None:
    """Of outputs whose file was gone none were written, without a word."""
    log, folder, amounts = await refused_once(place, monkeypatch)
    one = min(place.snapshots.glob(name))
    if is_gone:
        one.unlink()
    else:
        one.write_bytes(one.read_bytes()[:-9])
    await place.backfill(TALLIES)
    assert await answered(log) == expected(amounts)
    assert any(f"{folder}, or " in line and "is not as a backfill has left it" in line for line in place.said)
    await log.close()
