"""A backfill with --snapshot-only: the tables are in the snapshot and nowhere else, so nobody restores without it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.errors import RefusedBySafety
from pipeline.spark.verifying import verify
from state import manifest
from state.changelog import replay
from state.directory import StateDirectory
from state.errors import BaseMissing, OutcomeUnknown
from state.log import base
from state.log.protocol import GroupLog, Partition
from state.log.sqlite import SqliteLog
from state.store.rocksdb import RocksDbStore
from tests.spark import sample
from tests.spark.test_backfill import APP, ROOT, Place, committed, driven, records, write
from workers.commands.consume import read_all
from workers.journal import read_journals
from workers.prepare import Prepared, prepare
from workers.surroundings import REAL, Surroundings
from workers.tasks.stores import Opened, StoreOpener

pytestmark = pytest.mark.spark
DEADLINE_S = 120.0
Tables = dict[str, dict[Any, Any]]


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def place(tmp_path: Path, spark: Any) -> Place:
    return Place(tmp_path, spark)


async def begun(place: Place, seed: int, count: int = 300) -> tuple[GroupLog, list[Any], Any]:
    """A log with records in it, a backfill of them, and its facts."""
    sent = records(count, seed=seed)
    log = await place.log()
    await write(log, sample.app, sent)
    return log, sent, await place.backfill(snapshot_only=True)


async def opened(
    log: GroupLog, folder: Path, snapshots: str, instance: str = "i1", surroundings: Surroundings = REAL
) -> tuple[Tables, set[str]]:
    """Every table as an instance with this folder restores it, and where it came from."""
    prepared = await prepare(log, sample.app)
    directory = StateDirectory(folder, "sample", instance)
    opener = StoreOpener(log, prepared, directory, snapshots, surroundings)
    tables: Tables = {name: {} for name in sample.app.tables}
    sources: set[str] = set()
    for task in prepared.tasks():
        with directory.lock(str(task.id)):
            for name, one in (await opener.open(task.id)).items():
                await caught_up(log, one)
                tables[name] |= decoded(name, one.store)
                sources.add(one.source)
                one.store.close()
    return tables, sources


async def caught_up(log: GroupLog, one: Opened) -> None:
    end = (await log.ends([one.partition]))[one.partition]
    reader = log.reader()
    reader.add(one.partition, one.store.offset)
    while one.store.offset < end:
        for fetched in await reader.poll():
            await replay(one.store, fetched)
    await reader.close()


def decoded(name: str, store: RocksDbStore) -> dict[Any, Any]:
    table = sample.app.tables[name]
    return {table.key_codec.decode(k): table.spec.decode_value(v) for k, v in store.range(None, None)}


async def everything(log: GroupLog) -> dict[str, int]:
    prepared = await prepare(log, sample.app)
    parts = [Partition(name, n) for name, count in prepared.counts().items() for n in range(count)]
    return {str(p): end for p, end in (await log.ends(parts)).items()}


async def test_the_tables_are_in_the_snapshot_alone(place: Place) -> None:
    log, sent, facts = await begun(place, seed=11)
    tables, _ = await asyncio.to_thread(driven, sent)
    for name, table in sample.app.tables.items():
        marked = await read_all(log, table.changelog)
        assert [record.value for _, record in marked] == [None] * 4, name
        assert facts["tables"][name] == len(tables[name]) > 0
    assert await opened(log, place.folder / "state", str(place.snapshots)) == (tables, {"snapshot"})
    assert await opened(log, place.folder / "state", "") == (tables, {"disk"})  # what is on disk needs no base

    week = 8 * 24 * 3_600_000
    path = place.snapshots / facts["snapshot"]
    for file in path.glob("*/manifest.json"):  # a base grows old, and may be used all the same
        assert f'"time_ms":{manifest.load(place.snapshots, path.name).time_ms}' in file.read_text()
    later = Surroundings(wall_ms=lambda: time.time_ns() // 1_000_000 + week)
    assert await opened(log, place.folder / "later", str(place.snapshots), surroundings=later) == (tables, {"snapshot"})
    assert manifest.prune(place.snapshots, 0) == []
    await log.close()


@pytest.mark.long
async def test_nobody_restores_without_it(place: Place) -> None:
    log, _, facts = await begun(place, seed=12, count=40)
    before, positions = await everything(log), await committed(log)
    name = facts["snapshot"]
    kept = place.snapshots.rename(place.folder / "elsewhere")
    state = place.folder / "state"
    for snapshots, why in (("", "no folder of snapshots is named"), (str(place.snapshots), "it is not in")):
        with pytest.raises(
            BaseMissing, match=f"goes on from snapshot {name} .*{why}.*name its folder with --snapshots"
        ):
            await opened(log, state, snapshots)
        assert not any(path.is_dir() for path in (state / "sample/i1/0_0").iterdir())
    damaged = next((kept / name / "0_0").glob("*/*.sst"))
    damaged.write_bytes(b"?" + damaged.read_bytes()[1:])
    with pytest.raises(BaseMissing, match=r"does not match its checksum.*it is damaged: restore .* from a backup"):
        await opened(log, state, str(kept))
    with pytest.raises(BaseMissing, match=f"goes on from snapshot {name} .*no folder"):
        await verify(APP, place.url, say=place.said.append, session=place.spark)
    assert (await everything(log), await committed(log)) == (before, positions)
    await log.close()


@pytest.mark.long
async def test_verify_compares_with_the_snapshot_and_what_came_after(place: Place) -> None:
    log, _, _ = await begun(place, seed=13, count=100)

    async def wrong() -> list[str]:
        checks = await verify(APP, place.url, snapshots=place.snapshots, say=place.said.append, session=place.spark)
        return [check["check"] for check in checks if not check["ok"]]

    assert await wrong() == []
    changelog = Partition("sample-last-name-changelog", 0)
    await log.append({changelog: [msgspec.structs.replace(base.marker(1), key=b"stranger", value=b"Ann")]})
    assert await wrong() == ["table last-name: every key"]
    await log.close()


async def test_refused_it_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot is there before the log is asked; it goes again where the log says no."""
    log = await place.log()
    await write(log, sample.app, records(30, seed=3))
    loop = asyncio.get_running_loop()

    async def seed() -> None:
        lease = await log.lease("sample")
        assert lease is not None
        assert await log.seed_positions(lease, {Partition("orders", 0): 1}, {})

    def begin(text: str) -> None:
        if text.startswith("subtopology 1"):
            asyncio.run_coroutine_threadsafe(seed(), loop).result()

    with pytest.raises(RefusedBySafety, match="committed positions while backfill was at work"):
        await place.backfill(snapshot_only=True, say=begin)
    assert place.nothing_left() and not await log.metadata_of("sample", base.BASE)
    await log.close()


@pytest.mark.long
async def test_with_an_unknown_outcome_the_snapshot_stays(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may have it as its base; if not, it is the base of nothing and nobody uses it."""
    log = await place.log()
    await write(log, sample.app, records(30, seed=3))
    seed = SqliteLog.seed_positions
    committed = False

    async def no_answer(self: SqliteLog, *args: Any, **more: Any) -> bool:
        if committed:
            await seed(self, *args, **more)
        raise OutcomeUnknown("the disk failed")

    monkeypatch.setattr(SqliteLog, "seed_positions", no_answer)
    with pytest.raises(OutcomeUnknown):
        await place.backfill(snapshot_only=True)
    (orphan,) = place.snapshots.iterdir()
    assert (await opened(log, place.folder / "state", str(place.snapshots)))[1] == {"empty"}
    committed = True
    with pytest.raises(OutcomeUnknown):
        await place.backfill(snapshot_only=True)
    shutil.rmtree(orphan)
    assert (await opened(log, place.folder / "again", str(place.snapshots)))[1] == {"snapshot"}
    await log.close()


# ---------------------------------------------------------------- with instances


class Life:
    """A fleet of the sample app."""

    def __init__(self, place: Place, log: GroupLog, prepared: Prepared) -> None:
        self.place, self.log, self.prepared = place, log, prepared
        self.state = place.folder / "state"
        self.fleet: asyncio.subprocess.Process | None = None

    async def start(self, *more: str) -> None:
        words = ["run", APP, "--log", self.place.url, "--state-dir", str(self.state), *more]
        self.fleet = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "orchestrator", *words),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=(self.place.folder / "said").open("w"),
        )

    def said(self) -> str:
        return (self.place.folder / "said").read_text()

    async def until(self, what: str, is_so: Any) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not await is_so():
            assert self.fleet is not None and self.fleet.returncode is None, self.said()
            assert time.monotonic() < deadline, f"{what}: not after {DEADLINE_S:.0f} s\n{self.said()}"
            await asyncio.sleep(0.05)

    async def processed(self) -> bool:
        inputs = [p for task in self.prepared.tasks() for p in self.prepared.inputs(task.id)]
        ends, positions = await self.log.ends(inputs), await self.log.positions("sample", inputs)
        return all(positions.get(p, 0) >= end for p, end in ends.items())

    async def stop(self) -> int:
        assert self.fleet is not None
        self.fleet.send_signal(signal.SIGTERM)
        return await self.fleet.wait()


@pytest.mark.processes
async def test_instances_restore_from_it_and_go_on_and_so_do_their_standbys(place: Place) -> None:
    log, sent, facts = await begun(place, seed=14)
    prepared = await prepare(log, sample.app)
    life = Life(place, log, prepared)

    before, positions = await everything(log), await committed(log)
    await life.start()
    assert life.fleet is not None
    assert await asyncio.wait_for(life.fleet.wait(), DEADLINE_S) == 3, life.said()
    assert f"goes on from snapshot {facts['snapshot']}" in life.said() and "Traceback" not in life.said()
    assert (await everything(log), await committed(log)) == (before, positions)

    await life.start("--instances", "2", "--standbys", "1", "--snapshots", str(place.snapshots))
    late = [(topic, key, value, at + 10_000) for topic, key, value, at in records(200, seed=15)]
    await write(log, sample.app, late)
    await life.until("everything is processed", life.processed)

    async def copied() -> bool:
        def filled(
            instance: str, task: str
        ) -> set[str]:  # an owner has its tables; a standby ingests one after the other
            return {file.parent.name for file in (life.state / "sample" / instance / task).glob("*/*.sst")}

        names = [str(task.id) for task in prepared.tasks()]
        return all(filled("i1", name) == filled("i2", name) for name in names)

    await life.until("each task is on both instances", copied)
    assert await life.stop() == 0
    sources = {row["source"] for row in read_journals(life.state / "sample") if row["what"] == "started"}
    assert "empty" not in sources and any("snapshot" in source for source in sources)

    tables, _ = await asyncio.to_thread(driven, [*sent, *late])
    for instance in ("i1", "i2"):  # one of them had it as a standby
        assert await opened(log, life.state, "", instance) == (tables, {"disk"})
    assert await opened(log, place.folder / "fresh", str(place.snapshots)) == (tables, {"snapshot"})
    await log.close()
