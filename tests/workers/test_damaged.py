"""A store that turns out to be damaged costs its task, and of its stores that one alone; what its changelog has lost stays on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import App, Record, Table
from orchestrator.coordinator import messages
from orchestrator.model import Role, TaskId
from state.errors import ChangelogCut, StoreDamaged
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord
from state.store.rocksdb import peek
from tests.workers.test_record_loop import TASKS, HeldLog, count, running, until
from tests.workers.test_restores_at_once import opened, restoring
from tests.workers.test_restores_at_once import until as until_here
from workers.prepare import prepare
from workers.tasks.stores import StoreOpener
from workers.worker.offered_stores import answered

TASK = TaskId(0, 0)


class NoCommits:
    commit = None


@pytest.mark.parametrize("kind", ["query", "scan"])
async def test_a_query_of_it_costs_the_task_alone(tmp_path: Path, kind: str) -> None:
    """It ended the worker, and with it its instance and the fleet; the store was not wiped, so the next query did so again."""
    async with running(tmp_path, count, records=5) as (worker, _log, life):
        await until("both tasks", lambda: all(t in worker.runs and worker.runs[t].process for t in TASKS))
        store = worker.runs[TASKS[0]].stores["sums"].store

        def rotten(*_: object) -> None:
            raise StoreDamaged("a block does not match its checksum", worker.directory.table("0_0", "sums"))

        store.get = store.range = rotten  # type: ignore[method-assign, assignment]
        wanted = (
            messages.Lookup(1, "0_0", "sums", b"k")
            if kind == "query"
            else messages.Scan(1, "0_0", "sums", b"", None, 9)
        )
        found = await answered(worker, NoCommits(), wanted)
        assert found.error == "0_0: a block does not match its checksum"
        await until("the task is given up", lambda: TASKS[0] in worker.machine.released)
        assert not life.done() and worker.failure is None and TASKS[1] in worker.runs


def two_tables() -> App:
    app = App("restored", partitions=1)
    numbers = app.topic("numbers", key=str, value=int)
    last, first = app.table("last", key=str, value=int), app.table("first", key=str, value=int)

    def keep(number: Record[str, int], last: Table[str, int], first: Table[str, int]) -> None:
        last[number.key] = first[number.key] = number.value

    app.processor(numbers, last, first)(keep)
    return app


@pytest.mark.parametrize("cut", [None, "last", "first"], ids=["whole", "that of the damaged", "that of the other"])
async def test_it_is_wiped_alone_and_only_where_its_changelog_has_everything(tmp_path: Path, cut: str | None) -> None:
    log = MemoryLog(markers=False)
    prepared = await prepare(log, two_tables())
    changelogs = {table: prepared.changelog(TASK, table) for table in ("last", "first")}
    for n in range(5):
        await log.append({one: [NewRecord(b"%d" % n, b"1", n)] for one in changelogs.values()})
    async with restoring(tmp_path, log, prepared) as worker:
        folders = {table: worker.directory.table("0_0", table) for table in changelogs}
        run = opened(worker, 0, Role.STANDBY)
        await until_here(lambda: bool(run.stores) and run.position() == 10)
        if cut is not None:
            await log.trim({changelogs[cut]: 3})
        worker.failed(run, StoreDamaged("a block does not match its checksum", folders["last"]))
        await run.closed()
        assert peek(folders["first"]).offset == 5
        if cut == "last":
            assert peek(folders["last"]).offset == 5, "nothing else has its first entries"
            with pytest.raises(ChangelogCut, match="a block does not match its checksum"):
                await worker.opener.open(TASK)
            return
        assert not folders["last"].exists()
        again = opened(worker, 0, Role.STANDBY)
        await until_here(lambda: bool(again.stores) and again.position() == 10)
        assert again.stores["last"].store.get(b"4") == b"1" and again.stores["first"].source == "disk"


async def test_it_is_not_taken_as_it_lies_where_it_could_not_be_wiped(tmp_path: Path) -> None:
    log = HeldLog()
    prepared = await prepare(log, two_tables())
    changelog = prepared.changelog(TASK, "last")
    await log.append({changelog: [NewRecord(b"a", b"1", 1)]})
    async with restoring(tmp_path, log, prepared) as worker:
        run = opened(worker, 0, Role.STANDBY)
        await until_here(lambda: bool(run.stores) and run.position() > 0)
        run.close()
        await run.closed()
        worker.opener.damaged.met(TASK, StoreDamaged("no checksum", worker.directory.table("0_0", "last")))
        with worker.directory.lock("0_0"):
            found = await worker.opener.open(TASK)
            assert (found["last"].source, found["first"].source) == ("empty", "empty")
            assert found["last"].store.offset == 0
            for one in found.values():
                one.store.close()


async def test_another_store_that_lies_there_by_now_is_not_the_damaged_one(tmp_path: Path) -> None:
    """Another worker of the instance had the task meanwhile, and had restored it."""
    log = MemoryLog(markers=False)
    prepared = await prepare(log, two_tables())
    await log.append({prepared.changelog(TASK, "last"): [NewRecord(b"a", b"1", 1)]})
    async with restoring(tmp_path, log, prepared) as worker:
        run = opened(worker, 0, Role.STANDBY)
        await until_here(lambda: bool(run.stores) and run.position() == 1)
        run.close()
        await run.closed()
        path = worker.directory.table("0_0", "last")
        worker.opener.damaged.met(TASK, StoreDamaged("no checksum", path))
        with worker.directory.lock("0_0"):
            worker.directory.wipe("0_0", "last")
            other = StoreOpener(log, prepared, worker.directory, "")
            for _ in range(2):
                restored = await other.open(TASK)
                restored["last"].store.write({b"a": b"1"}, 1)
                for one in restored.values():
                    one.store.close()
            found = await worker.opener.open(TASK)
            assert (found["last"].source, found["last"].store.get(b"a")) == ("disk", b"1")
            for one in found.values():
                one.store.close()


async def test_what_another_process_holds_is_not_wiped(tmp_path: Path) -> None:
    log = MemoryLog(markers=False)
    prepared = await prepare(log, two_tables())
    async with restoring(tmp_path, log, prepared) as worker:
        other = StoreOpener(log, prepared, worker.directory, "")
        with worker.directory.lock("0_0"):
            held = await other.open(TASK)
            worker.opener.damaged.met(TASK, StoreDamaged("no checksum", worker.directory.table("0_0", "last")))
            run = opened(worker, 0, Role.STANDBY)  # waits for the lock
            run.close()
            await run.closed()
            assert worker.directory.table("0_0", "last").exists()
            for one in held.values():
                one.store.close()
