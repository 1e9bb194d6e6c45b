"""What an owner says of where it ended, and how the next one goes on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import App, Record, Table
from orchestrator.model import Ending, Role, TaskId
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, TaskCommit
from workers.prepare import prepare
from workers.spec import InstanceSpec, WorkerSpec
from workers.tasks.task import TaskRun
from workers.worker.worker import Worker

DEADLINE_S = 30.0
T = TaskId(0, 0)
INPUT = Partition("numbers", 0)

app = App("ended", partitions=1)
numbers = app.topic("numbers", key=str, value=int)
last = app.table("last", key=str, value=int)


@app.processor(numbers, last)
def keep(number: Record[str, int], last: Table[str, int]) -> None:
    last[number.key] = number.value


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for has no event
        await asyncio.sleep(0)


async def begun(folder: Path, ending: Ending) -> TaskRun:
    """A task that begins where the log has a position of 3 in its input, and 40 changes in its changelog. It is closed."""
    log = MemoryLog(markers=False)
    prepared = await prepare(log, app)
    changelog = prepared.changelog(T, "last")
    await log.append({changelog: [NewRecord(b"%d" % n, b"%d" % n, n) for n in range(40)]})
    await log.append({INPUT: [NewRecord(b"k", b"1", n) for n in range(10)]})
    log.put_positions(app.id, [TaskCommit("0_0", 1, {}, {INPUT: 3})])
    instance = InstanceSpec("tests:app", app.id, "i1", "memory:", str(folder))
    worker = Worker(WorkerSpec(instance, 1, "one"), log, prepared, {})
    run = TaskRun(worker, T)
    restores = asyncio.create_task(worker.restores.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            run.open(Role.ACTIVE, 2, ending)
            await until(lambda: run.process is not None or worker.failure is not None)
        assert worker.failure is None
        return run
    finally:
        restores.cancel()
        await asyncio.gather(restores, return_exceptions=True)
        run.close()
        await run.closed()


@pytest.mark.parametrize(
    ("inputs", "changelogs", "position"),
    [
        ((("numbers", 0, 7),), (("ended-last-changelog", 0, 40),), 7),
        ((("numbers", 0, 7), ("letters", 0, 7)), (("ended-last-changelog", 0, 40),), 3),
        ((("numbers", 0, 7),), (), 3),
    ],
    ids=["of the same topics", "of a version with another input", "of a version without the table"],
)
async def test_a_task_goes_on_where_the_owner_before_ended(
    tmp_path: Path,
    inputs: tuple[tuple[str, int, int], ...],
    changelogs: tuple[tuple[str, int, int], ...],
    position: int,
) -> None:
    """By its word alone, where that is of the topics that the task has here; by the log, where it is not."""
    run = await begun(tmp_path, Ending(inputs, changelogs))
    assert run.committed == {INPUT: position}


async def test_it_waits_for_the_last_change_of_the_owner_before(tmp_path: Path) -> None:
    run = await begun(tmp_path, Ending((("numbers", 0, 7),), (("ended-last-changelog", 0, 40),), 50))
    assert run.ends == {Partition("ended-last-changelog", 0): 40} and run.from_ms == 50


async def test_a_release_says_where_it_ended(tmp_path: Path) -> None:
    log = MemoryLog(markers=False)
    prepared = await prepare(log, app)
    await log.append({INPUT: [NewRecord(b"k", b"1", n) for n in range(10)]})
    instance = InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path))
    worker = Worker(WorkerSpec(instance, 1, "one"), log, prepared, {})
    run = TaskRun(worker, T)
    found: list[Ending | None] = []
    worker.event = lambda event: found.append(getattr(event, "ending", None))  # type: ignore[method-assign]
    try:
        async with asyncio.timeout(DEADLINE_S):
            run.open(Role.ACTIVE, 1)
            await until(lambda: run.process is not None or worker.failure is not None)
        found.clear()
        run.released()
        run.become(Role.ACTIVE, 3)
        await until(lambda: run.process is not None or worker.failure is not None)
        run.commits_again = True
        run.released()
    finally:
        run.close()
        await run.closed()
    whole = Ending((("numbers", 0, 0),), (("ended-last-changelog", 0, 0),))
    assert [one for one in found if one is not None] == [whole], "and nothing, where positions are yet to be committed"
