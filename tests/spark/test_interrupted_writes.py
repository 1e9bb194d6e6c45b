"""What a backfill has computed outlives the run that could not write it, whatever ended that; a commit is whole in all that goes with it.

The log, its lease and the folders are real; what is computed is nothing, at once, so that no Spark is needed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import RefusedBySafety
from pipeline.app import App
from pipeline.spark import half_made
from pipeline.spark.backfill import Clock, Run
from pipeline.spark.inputs import Computed, Inputs
from pipeline.spark.kept_work import FILE
from pipeline.spark.moment import first_begins, sources
from pipeline.spark.rows import write_pairs
from pipeline.spark.session import SparkFailed
from pipeline.spark.stage import TaskFacts
from state.errors import LogFull, LogUnavailable
from state.log.group_store import GroupStore, Lease
from state.log.protocol import NewRecord, Partition
from state.log.sqlite import SqliteLog, open_sqlite
from tests.spark import from_end
from workers.fleet import held_lease
from workers.fleet.held_lease import lease_held
from workers.prepare import BEGINNING, Prepared, beginning, prepare

APP = "tests.spark.from_end:app"
KILLED = """
import os, sys
from pathlib import Path
from pipeline.spark import half_made
half_made.begin(Path(sys.argv[1]), "one")
os.kill(os.getpid(), 9)
"""


def no_spark() -> Any:
    """A session in which nothing is ever run."""
    context = SimpleNamespace(appName="none", master="local")
    context.setJobGroup = context.setLocalProperty = context.cancelJobGroup = lambda *given: None
    context.statusTracker = lambda: SimpleNamespace(getActiveStageIds=list, getJobIdsForGroup=lambda group: [])
    return SimpleNamespace(sparkContext=context)


@dataclass
class Place:
    """An app that reads its input, which has a record in each partition, from its end on."""

    root: Path
    log: SqliteLog
    prepared: Prepared
    times_computed: int = 0
    said: list[str] = field(default_factory=list)

    async def backfill(self, app: App = from_end.app) -> dict[str, Any]:
        until = await self.log.ends(sources(self.prepared))
        begins = await first_begins(self.log, self.prepared, until)
        inputs = Inputs(APP, self.prepared, "", self.log.log_id, until, {}, begins=begins)
        async with lease_held(self.log, app.id, "backfill", is_patient=True) as held:
            run = Run(no_spark(), self.log, held, inputs, self.root, False, Clock(), self.said.append)
            run._compute = self._computed(run)  # type: ignore[method-assign]
            return await run.run()

    def _computed(self, run: Run) -> Callable[[Path], Any]:
        async def compute(work: Path) -> Computed:
            self.times_computed += 1
            names = [str(task.id) for task in self.prepared.tasks()]
            for folder in (work, run._snapshot):
                (folder / names[0]).mkdir(parents=True)
                (folder / names[0] / "some").write_text("hours of Spark")
            for name in names:
                (work / name / "state").mkdir(parents=True)
                write_pairs(work / name / "state" / "sums.parquet", iter([(b"k", b"1")]))
            return Computed(work, {name: TaskFacts(name, records_in=1) for name in names})

        return compute

    def left(self) -> list[str]:
        return sorted(path.name for path in self.root.rglob("*") if path.name in (FILE, "some"))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    log = await open_sqlite(tmp_path / "log.db", create=True)
    prepared = await prepare(log, from_end.app)
    await log.append({Partition("clicks", number): [NewRecord(b"k", b"1", 1)] for number in range(2)})
    root = tmp_path / "snapshots"
    root.mkdir()
    yield Place(root, log, prepared)
    await log.close()


@asynccontextmanager
async def refusing(error: BaseException, what: str = "seed_positions") -> AsyncIterator[None]:
    async def refused(log: Any, *given: Any, **more: Any) -> bool:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteLog, what, refused)
        yield


@asynccontextmanager
async def held_up() -> AsyncIterator[asyncio.Event]:
    """What is written does not come to its end; the event says that it has begun."""
    begun = asyncio.Event()

    async def never(log: Any, *given: Any, **more: Any) -> bool:
        begun.set()
        await asyncio.Event().wait()
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteLog, "seed_positions", never)
        yield begun


async def interrupted(place: Place) -> None:
    async with held_up() as begun:
        running = asyncio.create_task(place.backfill())
        await begun.wait()
        assert FILE in place.left(), "it can be written after a kill as well"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def goes_on(place: Place) -> None:
    """The next run writes what the first one has computed, and leaves nothing else."""
    facts = await place.backfill()
    assert place.times_computed == 1 and await place.log.positions("from-end", sources(place.prepared))
    assert [path.name for path in place.root.iterdir()] == [facts["snapshot"]]


async def test_an_interrupted_write_removes_nothing_that_was_kept(place: Place) -> None:
    """Ctrl-C of the run that was to write it: hours of Spark were gone, of the first run as well."""
    async with refusing(LogFull("no space")):
        with pytest.raises(LogFull):
            await place.backfill()
    kept = place.left()
    assert len(kept) == 3
    await interrupted(place)
    assert place.left() == kept
    await goes_on(place)


async def test_what_is_computed_outlives_a_write_that_is_interrupted_at_first(place: Place) -> None:
    await interrupted(place)
    await goes_on(place)


async def test_what_is_computed_outlives_executors_that_are_lost_while_they_write(place: Place) -> None:
    async with refusing(SparkFailed("its Java has ended")):
        with pytest.raises(SparkFailed):
            await place.backfill()
    await goes_on(place)


async def test_what_no_run_can_write_any_more_goes_also_where_it_was_kept(place: Place) -> None:
    """The app has begun meanwhile."""
    async with refusing(LogFull("no space")):
        with pytest.raises(LogFull):
            await place.backfill()
    async with refusing(RefusedBySafety("committed positions")):
        with pytest.raises(RefusedBySafety):
            await place.backfill()
    assert not place.left()


async def test_what_is_computed_goes_where_the_lease_is_lost(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A beat finds that out, which cancels what is written."""
    monkeypatch.setattr(held_lease, "BEAT_S", 0.01)
    async with held_up() as begun:
        running = asyncio.create_task(place.backfill())
        await begun.wait()
        await taken(place.log)
        with pytest.raises(RefusedBySafety, match="took over"):
            await running
    assert not place.left()


async def taken(log: GroupStore) -> None:
    """The lease, by an instance; its holder may beat meanwhile."""
    lease: Lease | None = None
    async with asyncio.timeout(30):
        while lease is None:
            lease = await log.acquire("from-end", "i1", "", await log.lease("from-end"))


def test_what_was_kept_outlives_the_kill_of_the_run_that_was_to_write_it(tmp_path: Path) -> None:
    """The killed one held its lock: the next job below the snapshots took it for its leftovers."""
    kept = half_made.begin(tmp_path, "one")
    (kept.path / FILE).write_text("{}")
    kept.keep()
    (tmp_path / "one").mkdir()
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == -9
    assert not half_made.clean(tmp_path)
    assert (kept.path / FILE).exists() and (tmp_path / "one").exists()
    (kept.path / FILE).unlink()  # it is written
    assert half_made.clean(tmp_path) == [kept.path] and not list(tmp_path.iterdir())


async def test_where_the_app_begins_is_in_the_log_before_all_else(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came behind the commit, and a log that was away then had the snapshot removed, and no audit knew the beginning ever after."""
    recorded = SqliteLog.replace_metadata

    async def away(log: Any, application: str, kind: str, *given: Any) -> bool:
        if kind == BEGINNING:
            raise LogUnavailable("the log is away")
        return await recorded(log, application, kind, *given)

    with monkeypatch.context() as patch:
        patch.setattr(SqliteLog, "replace_metadata", away)
        with pytest.raises(LogUnavailable):
            await place.backfill()
    inputs = sources(place.prepared)
    assert not await place.log.positions("from-end", inputs), "nothing is committed"
    await goes_on(place)
    assert [await beginning(place.log, place.prepared, p) for p in inputs] == [1, 1]
