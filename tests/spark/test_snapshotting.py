"""Snapshots of an app that runs: whole, behind the one before, and what a restore does with several of them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.spark import half_made
from pipeline.spark.snapshotting import take
from pipeline.values.partitioner import partition_of
from state import manifest, snapshot
from state.directory import StateDirectory
from state.errors import ChangelogCut
from state.log.protocol import GroupLog, NewRecord, Partition
from state.manifest import FileSum, TableManifest
from state.scratch import LOCK, _is_left
from state.store.rocksdb import RocksDbStore
from tests.cli.console import Console
from tests.spark import tallies
from tests.spark.test_audit import FAST, TALLIES, marks
from tests.spark.test_backfill import ROOT, Place, write
from workers.commands.consume import read_all
from workers.prepare import prepare
from workers.tasks.stores import Opened, StoreOpener

pytestmark = pytest.mark.spark
CHANGELOG = tallies.sums.changelog


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def place(tmp_path: Path, spark: Any) -> Place:
    return Place(tmp_path, spark)


async def begun(place: Place) -> GroupLog:
    log = await place.log()
    await write(log, tallies.app, marks(40))
    await place.backfill(TALLIES)
    return log


TAKING = """
import asyncio, sys
from pathlib import Path
from pipeline.spark.snapshotting import take
asyncio.run(take("tallies", sys.argv[1], Path(sys.argv[2])))
"""


def killed(url: str, root: Path) -> Path:
    """What a process has left that was killed as soon as it had a folder for its snapshot."""
    words = [sys.executable, "-c", TAKING, url, str(root)]
    environment = {**os.environ, "TMPDIR": str(root.parent)}
    child = subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        until = time.monotonic() + 120
        while not (found := [path for path in root.glob("[0-9]*") if path.is_dir()]):
            assert child.poll() is None and time.monotonic() < until
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    # A process that it was about to start may still be on its way out, with the lock.
    while not _is_left(root / f".{found[0].name}{half_made.WORK}" / LOCK):
        assert time.monotonic() < until
    return found[0]


async def test_what_a_snapshot_that_was_killed_has_left_goes_with_the_next(place: Place) -> None:
    """It stayed for ever: nothing looks at a folder of files without a manifest."""
    log = await begun(place)
    root = place.folder / "taken"
    left = await asyncio.to_thread(killed, place.url, root)
    assert not (left / manifest.MANIFEST).exists()
    made = await taken(place)
    assert [path.name for path in root.iterdir()] == [made["snapshot"]]
    await log.close()


async def change(log: GroupLog, key: bytes, value: bytes | None) -> None:
    await log.append({Partition(CHANGELOG, partition_of(key, 2)): [NewRecord(key, value, 1)]})


async def taken(place: Place) -> Any:
    return await take("tallies", place.url, place.folder / "taken", session=place.spark)


async def stored(place: Place, log: GroupLog, name: str) -> dict[bytes, bytes]:
    """What a restore has of a snapshot; its offsets are those of the changelog."""
    root = place.folder / "taken"
    found = snapshot.verify(root, name)
    values: dict[bytes, bytes] = {}
    for scope in found.scopes:
        [table] = manifest.load_scope(root, found, scope).tables
        store = RocksDbStore(place.folder / "stores" / name / scope, stamp={})
        snapshot.ingest(store, root / name / scope, table)
        values |= dict(store.range(None, None))
        where = Partition(CHANGELOG, int(scope.partition("_")[2]))
        assert table.offset == (await log.ends([where]))[where]
        store.close()
    return values


async def in_changelog(log: GroupLog) -> dict[bytes, bytes]:
    values: dict[bytes, bytes | None] = {}
    for _, record in await read_all(log, CHANGELOG):
        values[record.key or b""] = record.value
    return {key: value for key, value in values.items() if value is not None}


async def opened(place: Place, log: GroupLog, name: str) -> Opened:
    """The store of m1's task, as an instance without state opens it."""
    prepared = await prepare(log, tallies.app)
    directory = StateDirectory(place.folder / name, "tallies", "i1")
    task = next(one.id for one in prepared.tasks() if one.id.partition == partition_of(b"m1", 2))
    with directory.lock(str(task)):
        found = (await StoreOpener(log, prepared, directory, str(place.folder / "taken")).open(task))["sums"]
        found.store.close()
    return found


async def test_whole_and_then_behind_the_one_before(place: Place) -> None:
    log = await begun(place)
    first = await taken(place)
    assert first["behind"] == [] and first["records"] == 2 and first["linked"] == 0
    assert await stored(place, log, first["snapshot"]) == await in_changelog(log)

    await change(log, b"m1", None)
    await change(log, b"m1-new", b"\0" * 8)
    same = partition_of(b"m1", 2) == partition_of(b"m1-new", 2)
    second = await taken(place)
    assert (second["behind"], second["records"]) == ([first["snapshot"]], 2)
    assert second["linked"] == (1 if same else 0)
    found = await stored(place, log, second["snapshot"])
    assert found == await in_changelog(log) and b"m1" not in found and b"m1-new" in found

    third = await taken(place)
    assert (third["records"], third["linked"]) == (0, 2)
    assert manifest.prune(place.folder / "taken", 1) == [first["snapshot"], second["snapshot"]]
    assert await stored(place, log, third["snapshot"]) == found  # its files are its own
    await log.close()


async def test_a_damaged_newest_snapshot_hides_no_older_one(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    log = await begun(place)
    first = await taken(place)
    await change(log, b"m1", (7).to_bytes(8, "big"))
    second = await taken(place)
    for path in (place.folder / "taken" / second["snapshot"]).rglob("*.sst"):
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    found = await opened(place, log, "state")
    assert found.source == "snapshot" and found.how.startswith(f"snapshot {first['snapshot']}: about 0.0 s"), found
    assert f"snapshot {second['snapshot']} is not used" in caplog.text
    third = await taken(place)
    assert third["behind"] == [first["snapshot"]]
    assert await stored(place, log, third["snapshot"]) == await in_changelog(log)
    await log.close()


async def test_where_no_snapshot_fits_the_reason_says_of_what(place: Place) -> None:
    log = await begun(place)
    await taken(place)
    for topic in (tallies.marks.name, tallies.sums.changelog):
        await log.grow_topic(topic, 5)
    found = await opened(place, log, "state")
    reason = f"no snapshot in {place.folder / 'taken'} is of this application and log, with as many partitions"
    assert (found.source, found.how) == ("empty", reason)
    await log.close()


async def test_what_a_changelog_has_lost_is_taken_from_the_snapshot_before_or_not_at_all(place: Place) -> None:
    """A snapshot of what is left would fill a store with a part of its table, and nothing would tell."""
    log = await begun(place)
    first = await taken(place)
    ends = await log.ends([Partition(CHANGELOG, number) for number in range(2)])
    where = max(ends, key=lambda one: ends[one])
    assert await log.trim({where: ends[where]}) > 0
    again = await taken(place)
    assert again["behind"] == [first["snapshot"]] and again["entries"] == first["entries"]
    with pytest.raises(ChangelogCut, match=rf"a snapshot of 'tallies' has its tables: changelog {where} begins at"):
        await take("tallies", place.url, place.folder / "elsewhere", session=place.spark)
    await log.close()


async def test_the_cheaper_way_is_taken_and_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await begun(place)
    facts = await taken(place)
    monkeypatch.setattr(snapshot, "READ_BYTES_S", 100)  # a disk of a hundred bytes a second
    found = await opened(place, log, "state")
    assert found.source == "empty" and found.how.startswith(f"snapshot {facts['snapshot']} takes about "), found
    assert found.how.endswith("and 0.0 s from the changelog alone")
    await log.close()


def test_estimates() -> None:
    table = TableManifest("t", "c", "id", 900_000, 10, (FileSum("a", 100 << 20, ""), FileSum("b", 100 << 20, "")))
    long, short = snapshot.estimate(table, 0, 1_200_000), snapshot.estimate(table, 890_000, 900_000)
    assert (long.snapshot_s, long.replay_s) == (2.0, 4.0) and not long.replay_is_cheaper
    assert short.replay_is_cheaper and round(short.replay_s, 3) == 0.033


def test_wrong_use(console: Console) -> None:
    done = console.here("snapshot", "bank", "--log", "sqlite:none.db")
    assert done.code == 2 and "none.db: check the path" in done.err and done.err.count("\n") == 1
    console.pay(("ann", 1))
    done = console.here("snapshot", "other")
    assert done.code == 2 and done.err.count("\n") == 1, done


@pytest.mark.processes
def test_while_the_app_runs(console: Console, spark: Any) -> None:
    """Taken beside running instances; others restore from it what they have not, and go on."""
    fleet = console.run(*FAST, "--snapshots", "snapshots")
    console.pay(*((name, 3) for name in "abcdef"))
    assert console.balance("a").strip() == "3"
    url = f"sqlite:{console.folder / '.orchestrator/bank.db'}"
    facts = asyncio.run(take("bank", url, console.folder / "snapshots", session=spark))
    assert facts["tasks"] == 8 and facts["entries"] == 6
    console.pay(("a", 4))
    assert console.balance("a").strip() == "7"
    fleet.terminate()
    assert console.end(fleet) == 0
    shutil.rmtree(console.folder / ".orchestrator/state")
    console.run(*FAST, "--snapshots", "snapshots")
    assert {name: console.balance(name).strip() for name in "abf"} == {
        "a": "7",
        "b": "3",
        "f": "3",
    }
    [journal] = (console.folder / ".orchestrator/state").rglob("journal.jsonl")
    rows = [json.loads(row) for row in journal.read_text().splitlines()]
    restored = [row["how"] for row in rows if row["what"] == "started" and row["source"] == "snapshot"]
    assert restored and all(facts["snapshot"] in how["balances"] for how in restored)
