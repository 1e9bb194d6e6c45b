"""A worker follows changelogs: a store that changes its role in the middle of a replay goes on where it stands; what is
to run goes before what is only to be copied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import App, Record, Table
from orchestrator.model import Role, TaskId
from state.directory import StateDirectory
from state.log.memory import MemoryLog
from state.log.protocol import Fetched, NewRecord
from workers.prepare import prepare
from workers.spec import InstanceSpec, WorkerSpec
from workers.tasks.task import TaskRun
from workers.worker.giving_way import GivingWay
from workers.worker.worker import Worker, monotonic_ms

DEADLINE_S = 30.0
COUNT = 40_000  # many writes of the store for one fetch, with a turn of the loop after each

app = App("followed", partitions=1)
numbers = app.topic("numbers", key=str, value=int)
last = app.table("last", key=str, value=int)


@app.processor(numbers, last)
def keep(number: Record[str, int], last: Table[str, int]) -> None:
    last[number.key] = number.value


pair = App("raced", partitions=2)
raced = pair.topic("raced", key=str, value=int)
kept = pair.table("kept", key=str, value=int)


@pair.processor(raced, kept)
def keep_two(raced: Record[str, int], kept: Table[str, int]) -> None:
    kept[raced.key] = raced.value


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for has no event
        await asyncio.sleep(0)


async def test_followed_again_during_a_replay_it_goes_on_at_the_offset_of_the_store(tmp_path: Path) -> None:
    log = MemoryLog(markers=False)
    prepared = await prepare(log, app)
    task = TaskId(0, 0)
    changelog = prepared.changelog(task, "last")

    async def written(first: int) -> None:
        await log.append({changelog: [NewRecord(b"%d" % n, b"%d" % n, n) for n in range(first, first + COUNT)]})

    instance = InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path))
    worker = Worker(WorkerSpec(instance, 1, "one"), log, prepared, {})
    run = TaskRun(worker, task)
    restores = asyncio.create_task(worker.restores.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            await written(0)
            run.open(Role.STANDBY, 0)
            await until(lambda: bool(run.stores) and run.stores["last"].store.get(b"0") is not None)
            assert run.stores["last"].store.offset < COUNT, "the replay is under way"
            run.become(Role.LEARNER, 0)  # the changelog is followed again, from where the store stands by now
            await written(COUNT)
            await until(lambda: run.stores["last"].store.offset == 2 * COUNT or worker.failure is not None)
        assert worker.failure is None
        assert run.stores["last"].store.get(b"%d" % (2 * COUNT - 1)) == b"%d" % (2 * COUNT - 1)
    finally:
        restores.cancel()
        await asyncio.gather(restores, return_exceptions=True)
        run.close()
        await run.closed()


async def test_a_task_that_is_to_run_restores_before_copies(tmp_path: Path) -> None:
    """Two changelogs of the same length, many fetches long: once the active task runs, the copy has barely begun."""
    log = MemoryLog(markers=False)
    prepared = await prepare(log, pair)
    active, copy = TaskId(0, 0), TaskId(0, 1)
    for task in (active, copy):
        changelog = prepared.changelog(task, "kept")
        await log.append({changelog: [NewRecord(b"%0500d" % n, b"1", n) for n in range(COUNT)]})
    worker = Worker(
        WorkerSpec(InstanceSpec("tests:app", pair.id, "i1", "memory:", str(tmp_path)), 1, "one"), log, prepared, {}
    )
    runs = {task: TaskRun(worker, task) for task in (copy, active)}
    restores = asyncio.create_task(worker.restores.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            runs[copy].open(Role.STANDBY, 0)
            runs[active].open(Role.ACTIVE, 1)
            while runs[active].process is None and worker.failure is None:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)  # each turn of the loop is looked at: from then on the copy is restored, too
            assert worker.failure is None
            assert runs[copy].position() < COUNT / 2
            await until(lambda: runs[copy].position() == COUNT or worker.failure is not None)
        assert worker.failure is None
    finally:
        restores.cancel()
        await asyncio.gather(restores, return_exceptions=True)
        for run in runs.values():
            run.close()
            await run.closed()


async def test_a_copy_that_comes_while_the_budget_is_used_up_waits_too(tmp_path: Path) -> None:
    """Two copies of 2 MB and 20 kB/s: the second, opened while the first has used up the budget, reads no more of it than
    its share. Once it is to run here, it waits for the budget no longer."""
    log = MemoryLog(markers=False)
    prepared = await prepare(log, pair)
    first, second = TaskId(0, 0), TaskId(0, 1)
    for task in (first, second):
        for begin in range(0, 4_000, 10):
            records = [NewRecord(b"%0500d" % n, b"1", n) for n in range(begin, begin + 10)]
            await log.append({prepared.changelog(task, "kept"): records})
    instance = InstanceSpec("tests:app", pair.id, "i1", "memory:", str(tmp_path), restore_rate_limit=20_000)
    worker = Worker(WorkerSpec(instance, 1, "one"), log, prepared, {})
    runs = {task: TaskRun(worker, task) for task in (first, second)}
    restores = asyncio.create_task(worker.restores.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            for task, run in runs.items():
                run.open(Role.STANDBY, 0)
                await until(lambda run=run: bool(run.stores) and run.position() > 0)
                assert runs[task].position() < 400, "a tenth of it, many times its share"
            runs[second].become(Role.ACTIVE, 1)
            await until(lambda: runs[second].process is not None or worker.failure is not None)
        assert worker.failure is None
        assert runs[first].position() < 4_000, "a copy keeps to the budget"
    finally:
        restores.cancel()
        await asyncio.gather(restores, return_exceptions=True)
        for run in runs.values():
            run.close()
            await run.closed()


async def test_a_copy_that_changes_its_role_keeps_to_the_budget(tmp_path: Path) -> None:
    """It is followed again, for its new role, while a poll is under way that uses up the budget."""
    log = MemoryLog(markers=False)
    prepared, task = await prepare(log, app), TaskId(0, 0)
    changelog = prepared.changelog(task, "last")
    for begin in range(0, 4_000, 10):
        await log.append({changelog: [NewRecord(b"%0500d" % n, b"1", n) for n in range(begin, begin + 10)]})
    instance = InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path), restore_rate_limit=20_000)
    worker = Worker(WorkerSpec(instance, 1, "one"), log, prepared, {})
    run = TaskRun(worker, task)
    restores = asyncio.create_task(worker.restores.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            run.open(Role.STANDBY, 0)
            await until(lambda: bool(run.by_changelog) and not worker.restores._paused)
            worker.restores.add(run, changelog, 0)
            await until(lambda: run.position() > 0)
            rounds = worker.restores._round + 10
            await until(lambda: worker.restores._round >= rounds)
        assert run.position() < 400, "a tenth of it, many times its share"
    finally:
        restores.cancel()
        await asyncio.gather(restores, return_exceptions=True)
        run.close()
        await run.closed()


async def test_what_a_copy_reads_of_a_snapshot_comes_out_of_the_budget(tmp_path: Path) -> None:
    """A copy waits for what it has read; what is to run, or to be closed, does not."""
    log = MemoryLog(markers=False)
    instance = InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path), restore_rate_limit=100_000)
    worker = Worker(WorkerSpec(instance, 1, "one"), log, await prepare(log, app), {})
    run, began = TaskRun(worker, TaskId(0, 0)), monotonic_ms()
    async with asyncio.timeout(DEADLINE_S):
        await worker.restores.spend(run, 80_000)
        assert monotonic_ms() - began >= 300, "half a second's worth is there at first, and 30,000 bytes are owed"
        waiting = asyncio.create_task(worker.restores.spend(run, 1 << 40))
        await asyncio.sleep(0)
        assert not waiting.done()
        run.role = Role.ACTIVE
        await waiting
        await worker.restores.spend(run, 1 << 40)
        run.role = Role.LEARNER
        run.close()
        await worker.restores.spend(run, 1 << 40)
        await run.closed()


@pytest.mark.parametrize("how", ["released", "closed"])
async def test_a_task_that_waits_for_its_folder_is_given_up_at_once(tmp_path: Path, how: str) -> None:
    """Another worker of the instance has it open, and may itself wait for the release."""
    log = MemoryLog(markers=False)
    prepared, task = await prepare(log, app), TaskId(0, 0)
    instance = InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path))
    worker = Worker(WorkerSpec(instance, 1, "one"), log, prepared, {})
    run = TaskRun(worker, task)
    other = StateDirectory(tmp_path, app.id, "i1").lock(str(task))
    try:
        async with asyncio.timeout(DEADLINE_S):
            run.open(Role.ACTIVE, 1)
            await asyncio.sleep(0)
            if how == "closed":
                run.close()
                await run.closed()
                return
            run.release()
            await until(lambda: not run.release_wanted)
            run.become(Role.STANDBY, 0)  # what follows opens it, once it can be
            other.release()
            await until(lambda: bool(run.stores))
    finally:
        other.release()
        if how == "released":
            run.close()
            await run.closed()


async def test_a_copy_gives_way_to_a_task_that_is_taken_over_and_then_goes_on(tmp_path: Path) -> None:
    """In the middle of a replay a learner becomes ready: the copy stands still until that one has committed, and no longer."""
    log = MemoryLog(markers=False)
    prepared = await prepare(log, pair)
    learner, copy = TaskId(0, 0), TaskId(0, 1)
    changelog = prepared.changelog(copy, "kept")
    await log.append({changelog: [NewRecord(b"%0500d" % n, b"1", n) for n in range(COUNT)]})
    worker = Worker(
        WorkerSpec(InstanceSpec("tests:app", pair.id, "i1", "memory:", str(tmp_path)), 1, "one"), log, prepared, {}
    )
    run = TaskRun(worker, copy)
    restores = asyncio.create_task(worker.restores.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            run.open(Role.STANDBY, 0)
            await until(lambda: run.position() > 0 or worker.failure is not None)
            worker.giving_way.changes_role(learner, Role.ACTIVE)
            await asyncio.sleep(0)
            stood = run.position()
            for _ in range(200):
                await asyncio.sleep(0)
            assert run.position() == stood < COUNT
            worker.giving_way.over(learner)
            await until(lambda: run.position() == COUNT or worker.failure is not None)
            assert run.stores["kept"].store.get(b"%0500d" % (COUNT - 1)) == b"1"
        assert worker.failure is None
    finally:
        restores.cancel()
        await asyncio.gather(restores, return_exceptions=True)
        run.close()
        await run.closed()


async def test_nothing_is_given_way_to_for_ever() -> None:
    """A learner that is never granted, and a commit that the log does not answer."""
    giving_way, task = GivingWay(), TaskId(0, 0)
    giving_way.expect(task)
    assert giving_way.expects(task) and giving_way.expects_any()
    giving_way.commit_began()
    async with asyncio.timeout(DEADLINE_S):
        await giving_way.commit_over()
        await until(lambda: not giving_way.expects_any())
    giving_way.expect(task)
    assert not giving_way.expects_any(), "it was waited for once"
    giving_way.changes_role(task, Role.ACTIVE)
    assert giving_way.expects_any(), "it is granted now"
    giving_way.over(task)
    assert not giving_way.expects_any()


async def test_a_commit_under_way_is_waited_for_until_it_ends() -> None:
    giving_way = GivingWay()
    await giving_way.commit_over()
    giving_way.commit_began()
    waiting = asyncio.create_task(giving_way.commit_over())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    giving_way.commit_ended()
    async with asyncio.timeout(DEADLINE_S):
        await waiting


async def test_a_task_that_begins_while_its_replay_waits_keeps_what_it_has_committed(tmp_path: Path) -> None:
    """The replay of the last marker went on behind the first commit, and set the store's offset back."""
    log = MemoryLog(markers=False)
    prepared = await prepare(log, app)
    task = TaskId(0, 0)
    changelog = prepared.changelog(task, "last")
    await log.append({changelog: [NewRecord(b"a", b"1", 1)]})
    instance = InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path))
    worker = Worker(WorkerSpec(instance, 1, "one"), log, prepared, {})
    run = worker.runs[task] = TaskRun(worker, task)
    restores = asyncio.create_task(worker.restores.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            run.open(Role.LEARNER, 0)
            await until(lambda: bool(run.stores) and run.position() == 1)
            store = run.stores["last"].store
            worker.giving_way.commit_began()  # of another task: the replay waits for its end
            replaying = asyncio.create_task(worker.restores._replay(run, store, Fetched(changelog, 1, b"", 2)))
            for _ in range(20):
                await asyncio.sleep(0)
            run.become(Role.ACTIVE, 1)
            await until(lambda: run.process is not None)
            store.write({b"a": b"2"}, 7)  # its first commit
            worker.giving_way.commit_ended()
            await replaying
        assert (store.get(b"a"), store.offset) == (b"2", 7)
    finally:
        restores.cancel()
        await asyncio.gather(restores, return_exceptions=True)
        run.close()
        await run.closed()
