"""Many tasks restore at once in one worker: what one of them waits for, or meets, is its own."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import App, Record, Table
from orchestrator.model import Role, TaskId
from state import manifest, snapshot
from state.directory import StateDirectory
from state.errors import DirectoryFull, DirectoryUnusable, StoreDamaged, StoreDeleted, TooManyFiles
from state.log.memory import MemoryLog
from state.log.protocol import Fetched, NewRecord, Partition
from state.manifest import ScopeManifest, SnapshotManifest
from state.private import make_folder
from state.snapshot import Origin
from state.store.rocksdb import RocksDbStore
from tests.state.permissions import as_any_user
from workers.log.written_back import take_as_it_is
from workers.prepare import Prepared, prepare
from workers.spec import InstanceSpec, WorkerSpec
from workers.surroundings import REAL
from workers.tasks import stores
from workers.tasks.stores import Opened, StoreOpener
from workers.tasks.task import TaskRun
from workers.worker.deleted_stores import LOOK_S
from workers.worker.worker import Worker

DEADLINE_S = 30.0
COPIES = 40  # more than the threads that an event loop has
COUNT = 20


def app_of(partitions: int) -> App:
    app = App("restored", partitions=partitions)
    numbers, last = app.topic("numbers", key=str, value=int), app.table("last", key=str, value=int)

    def keep(number: Record[str, int], last: Table[str, int]) -> None:
        last[number.key] = number.value

    app.processor(numbers, last)(keep)
    return app


class HeldLog(MemoryLog):
    """Nothing is read of the partitions in `held`."""

    def __init__(self) -> None:
        super().__init__(markers=False)
        self.held: set[Partition] = set()

    def fetch(self, partition: Partition, position: int, max_bytes: int, epoch: int = -1) -> Fetched | None:
        return None if partition in self.held else super().fetch(partition, position, max_bytes, epoch)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0)


def changelog(prepared: Prepared, number: int) -> Partition:
    return prepared.changelog(TaskId(0, number), "last")


def write_snapshot(
    root: Path,
    log: MemoryLog,
    prepared: Prepared,
    keys: Iterable[bytes] = (b"k",),
    value: Callable[[int], bytes] = lambda size: b"7",
) -> None:
    """Of a table of one key, for each task, up to offset 1; or of these keys with values of 100,000 bytes."""
    now_ms, sums = time.time_ns() // 1_000_000, {}
    for task in prepared.tasks():
        scope, (topic, _) = str(task.id), prepared.changelog(task.id, "last")
        origin = Origin(log.log_id, topic, prepared.topics[topic].topic_id, 1, now_ms)
        make_folder(root / "s" / scope)
        table = snapshot.write_table(root / "s" / scope, "last", [(key, value(100_000)) for key in keys], origin)
        sums[scope] = manifest.write_scope(root / "s" / scope, ScopeManifest(scope, log.log_id, now_ms, (table,)))
    counts = {topic: len(sums)}
    manifest.publish(root, SnapshotManifest("s", prepared.app.id, log.log_id, now_ms, counts, sums))


@asynccontextmanager
async def restoring(tmp_path: Path, log: MemoryLog, prepared: Prepared, **more: object) -> AsyncIterator[Worker]:
    instance = InstanceSpec("tests:app", prepared.app.id, "i1", "memory:", str(tmp_path), **more)  # type: ignore[arg-type]
    worker = Worker(WorkerSpec(instance, 1, "one"), log, prepared, {})
    restores = asyncio.create_task(worker.restores.run())
    try:
        yield worker
        assert worker.failure is None
        assert not restores.done(), restores.exception()
    finally:
        runs = list(worker.runs.values())
        for run in runs:
            run.close()
        await asyncio.gather(*(run.closed() for run in runs))
        restores.cancel()
        await asyncio.gather(restores, return_exceptions=True)


def opened(worker: Worker, number: int, role: Role) -> TaskRun:
    run = worker.runs[TaskId(0, number)] = TaskRun(worker, TaskId(0, number))
    run.open(role, int(role is Role.ACTIVE))
    return run


async def test_copies_that_wait_for_their_budget_hold_up_no_task(tmp_path: Path) -> None:
    """Every copy has read of its snapshot what the budget of a day allows; a task that is to run opens."""
    log = HeldLog()
    prepared = await prepare(log, app_of(COPIES + 1))
    for number in range(COPIES + 1):
        await log.append({changelog(prepared, number): [NewRecord(b"k", b"7", 0)]})
    write_snapshot(tmp_path / "snapshots", log, prepared)
    async with restoring(
        tmp_path, log, prepared, snapshots=str(tmp_path / "snapshots"), restore_rate_limit=1
    ) as worker:
        waiting = []

        async def spend(run: TaskRun, read: int) -> None:
            if run.is_copy():
                waiting.append(run)
            await original(run, read)

        original = worker.restores.spend
        worker.restores.spend = spend  # type: ignore[method-assign]
        copies = [opened(worker, number, Role.STANDBY) for number in range(COPIES)]
        await until(lambda: len(waiting) == COPIES)
        assert not any(run.stores for run in copies), "they wait for their budget"
        active = opened(worker, COPIES, Role.ACTIVE)
        await until(lambda: active.process is not None or worker.failure is not None)
        assert active.stores["last"].source == "snapshot"


async def test_a_task_that_is_closed_reads_its_snapshot_no_further(tmp_path: Path) -> None:
    log = HeldLog()
    prepared = await prepare(log, app_of(1))
    await log.append({changelog(prepared, 0): [NewRecord(b"k", b"7", 0)]})
    write_snapshot(tmp_path / "snapshots", log, prepared, (b"k%02d" % n for n in range(40)), random.Random(7).randbytes)
    async with restoring(tmp_path, log, prepared, snapshots=str(tmp_path / "snapshots")) as worker:
        sizes: list[int] = []

        async def spend(run: TaskRun, read: int) -> None:
            sizes.append(read)
            run.close()

        worker.restores.spend = spend  # type: ignore[method-assign]
        run = opened(worker, 0, Role.STANDBY)
        await until(lambda: bool(sizes))
        async with asyncio.timeout(DEADLINE_S):
            await run.closed()
        assert len(sizes) == 1, "a snapshot of 4 MB has more pieces"
        assert not run.stores
        del worker.runs[run.id]
        whole = StoreOpener(log, prepared, StateDirectory(tmp_path, "restored", "i1"), str(tmp_path / "snapshots"))
        found = (await whole.open(TaskId(0, 0)))["last"]
        found.store.close()
        assert found.source == "snapshot", "nothing half-filled is left"


async def test_a_task_that_finds_no_space_is_not_given_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was placed again as fast as the group could: some hundred hand-overs and lines a second, for as long as the disk was full."""
    monkeypatch.setattr(stores, "CAPACITY_RETRY_S", pause_s := 0.3)
    log = HeldLog()
    prepared = await prepare(log, app_of(1))
    async with restoring(tmp_path, log, prepared) as worker:

        async def full(task: TaskId, read: object) -> dict[str, Opened]:
            raise DirectoryFull(f"the store of {task} has no space left")

        monkeypatch.setattr(worker.opener, "open", full)
        began = time.monotonic()
        run = opened(worker, 0, Role.ACTIVE)
        await until(lambda: not worker.runs)
        assert time.monotonic() - began >= pause_s
        monkeypatch.setattr(stores, "CAPACITY_RETRY_S", DEADLINE_S * 2)
        run = opened(worker, 0, Role.ACTIVE)
        run.close()
        async with asyncio.timeout(DEADLINE_S):
            await run.closed()


class Full(RocksDbStore):
    """The disk is full when it is closed."""

    def close(self) -> None:
        super().close()
        raise DirectoryUnusable(f"the store {self.path} has no space left")


async def test_a_store_that_fails_to_close_leaves_its_task_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = HeldLog()
    prepared = await prepare(log, app_of(1))
    full = replace(REAL, open_store=lambda path, stamp, budget: Full(path, stamp=stamp, cache=budget))
    async with restoring(tmp_path, log, prepared) as worker:
        worker.opener = StoreOpener(log, prepared, worker.directory, "", full)
        run = opened(worker, 0, Role.STANDBY)
        await until(lambda: bool(run.stores))
        run.close()
        await run.closed()
        assert [line for line in caplog.messages if "has no space left" in line]
        worker.opener = StoreOpener(log, prepared, worker.directory, "")
        again = opened(worker, 0, Role.STANDBY)
        await until(lambda: bool(again.stores))


class Unwritten(RocksDbStore):
    """The disk is full, or no more files may be opened, when the store of the first task is written."""

    error: type[DirectoryUnusable] = DirectoryFull

    def write(self, changes: Mapping[bytes, bytes | None], offset: int, *, is_whole: bool = True) -> None:
        if "0_0" in self.path.parts:
            raise self.error(f"the store {self.path} has no space left")
        super().write(changes, offset, is_whole=is_whole)


@pytest.mark.parametrize("error", [DirectoryFull, TooManyFiles, DirectoryUnusable])
async def test_a_copy_that_finds_no_space_costs_no_task_beside_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: type[DirectoryUnusable]
) -> None:
    """The worker ended with all of its tasks, again and again; and so did its fleet, where no other instance ran."""
    monkeypatch.setattr(stores, "CAPACITY_RETRY_S", pause_s := 0.3)
    monkeypatch.setattr(Unwritten, "error", error)
    log = HeldLog()
    prepared = await prepare(log, app_of(2))
    for number in range(2):
        await log.append({changelog(prepared, number): [NewRecord(b"k", b"7", 0)]})
    full = replace(REAL, open_store=lambda path, stamp, budget: Unwritten(path, stamp=stamp, cache=budget))
    async with restoring(tmp_path, log, prepared) as worker:
        worker.opener = StoreOpener(log, prepared, worker.directory, "", full)
        began = time.monotonic()
        copy, active = opened(worker, 0, Role.STANDBY), opened(worker, 1, Role.ACTIVE)
        await until(lambda: copy.id not in worker.runs or worker.failure is not None)
        assert worker.failure is None and time.monotonic() - began >= pause_s
        await until(lambda: active.process is not None)
        assert [line for line in caplog.messages if line.startswith("0_0: ") and "has no space left" in line]


async def test_a_task_whose_folder_may_not_be_opened_is_tried_again_in_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given up at once, and so placed again at once; a look at the disk ended its worker."""
    monkeypatch.setattr(stores, "CAPACITY_RETRY_S", pause_s := 0.3)
    log = HeldLog()
    prepared = await prepare(log, app_of(2))
    async with restoring(tmp_path, log, prepared) as worker:
        worker.directory.lock("0_0").release()
        worker.directory.task("0_0").chmod(0)
        with as_any_user():
            await worker.scan_disk()
            began = time.monotonic()
            refused, active = opened(worker, 0, Role.ACTIVE), opened(worker, 1, Role.ACTIVE)
            await until(lambda: refused.id not in worker.runs)
            assert time.monotonic() - began >= pause_s and active.process is not None
        worker.directory.task("0_0").chmod(0o700)
    assert [line for line in caplog.messages if line.startswith("0_0: ") and "check its permissions" in line]


async def test_a_damaged_store_that_may_not_be_wiped_leaves_its_task_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its worker kept the lock: placed there again, the task waited for ever, and said nothing."""
    log = HeldLog()
    prepared = await prepare(log, app_of(1))
    with as_any_user():  # its threads are started below
        async with restoring(tmp_path, log, prepared) as worker:
            run = opened(worker, 0, Role.STANDBY)
            await until(lambda: bool(run.stores))
            worker.directory.task("0_0").chmod(0o500)
            worker.failed(run, StoreDamaged("the store cannot be read"))
            await run.closed()
            worker.directory.task("0_0").chmod(0o700)
            assert [line for line in caplog.messages if "check its permissions" in line]
            again = opened(worker, 0, Role.STANDBY)
            await until(lambda: bool(again.stores))


async def test_a_task_whose_folder_is_deleted_is_given_up_before_its_store_misses_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = HeldLog()
    prepared = await prepare(log, app_of(2))
    async with restoring(tmp_path, log, prepared) as worker:
        looking = asyncio.create_task(worker.deleted.run())
        runs = [opened(worker, number, Role.STANDBY) for number in range(2)]
        await until(lambda: all(run.stores for run in runs))
        shutil.rmtree(worker.directory.path / "0_0")
        await until(lambda: bool(caplog.messages))
        assert list(worker.runs) == [TaskId(0, 1)]
        assert caplog.messages[0].startswith("deleted while in use: the state of 0_0 in ")
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


@pytest.mark.parametrize("what", ["task", "instance"])
async def test_stores_that_are_deleted_while_they_are_open_are_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    log = HeldLog()
    prepared = await prepare(log, app_of(3))
    async with restoring(tmp_path, log, prepared) as worker:
        looking = asyncio.create_task(worker.deleted.run())
        runs = [opened(worker, number, Role.STANDBY) for number in range(3)]
        await until(lambda: all(run.stores for run in runs))
        folder = worker.directory.path
        for number in range(3 if what == "instance" else 2):
            shutil.rmtree(folder / f"0_{number}")
        if what == "instance":
            shutil.rmtree(folder)
        else:
            with pytest.raises(StoreDeleted) as noticed:
                runs[0].stores["last"].store.write({b"k": b"v"}, 1)
                runs[0].stores["last"].store.flush()
            worker.failed(runs[0], noticed.value)
        await until(lambda: bool(caplog.messages))
        assert len(worker.runs) == (0 if what == "instance" else 1)
        tasks = "" if what == "instance" else "the state of 0_0, 0_1 in "
        [line] = caplog.messages
        assert line.startswith(f"deleted while in use: {tasks}{folder}; ")
        if what == "instance":
            with caplog.at_level(logging.INFO):
                worker.deleted.add(runs[0])  # as one that was being opened at the time, and finds out now
            assert caplog.records[-1].levelno == logging.INFO
            for _ in range(2):  # nothing has made the folder again
                await worker.pulse.next(LOOK_S)
            assert len(caplog.messages) == 2, "one cause is one line"
        again = opened(worker, 0, Role.STANDBY)  # the one before may not be closed yet
        await until(lambda: bool(again.stores))
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def test_a_copy_that_stands_behind_the_start_of_its_changelog_is_given_up_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has yet to read is gone; the others go on. It is not restored to less than it was, unless that is to be so."""
    monkeypatch.setattr(stores, "CAPACITY_RETRY_S", 0.0)
    log = HeldLog()
    prepared = await prepare(log, app_of(2))
    first, second = changelog(prepared, 0), changelog(prepared, 1)
    for partition in (first, second):
        await log.append({partition: [NewRecord(b"%d" % n, b"1", n) for n in range(COUNT)]})
    async with restoring(tmp_path, log, prepared) as worker:
        behind, other = opened(worker, 0, Role.STANDBY), opened(worker, 1, Role.STANDBY)
        await until(lambda: all(run.by_changelog and run.position() == COUNT for run in (behind, other)))
        log.held.add(first)
        for partition in (first, second):
            for n in range(COUNT):
                await log.append({partition: [NewRecord(b"%d" % n, b"2", n)]})
        assert await log.trim({first: COUNT + 5}) > 0
        log.held.clear()
        await until(lambda: behind.id not in worker.runs)
        await until(lambda: other.position() == 2 * COUNT)
        await behind.closed()
        again = opened(worker, 0, Role.STANDBY)
        await until(lambda: again.id not in worker.runs)
        await again.closed()
        said = next(text for text in caplog.messages if f"changelog {first} begins at {COUNT + 5}" in text)
        assert f"it stands at {COUNT}" in said and said.endswith("it is tried again")
        lease = await log.acquire(prepared.app.id, "a test", "", None)
        assert lease is not None
        described = {"tables": {"last": {"changelog_topic": first.topic, "subtopology": 0}}}
        nowhere = tmp_path / "no state"
        assert await take_as_it_is(log, lease, described, prepared.topics[first.topic], nowhere) == 0
        last = opened(worker, 0, Role.STANDBY)
        await until(lambda: bool(last.by_changelog) and last.position() == 2 * COUNT)
        assert last.restored_from == COUNT + 5, "from where the changelog begins, with what it had"
