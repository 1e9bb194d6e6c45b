"""A worker follows changelogs: a store that changes its role in the middle of a replay goes on where it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from orchestrator import App, Record, Table
from orchestrator.model import Role, TaskId
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord
from workers.prepare import prepare
from workers.spec import InstanceSpec, WorkerSpec
from workers.task import TaskRun
from workers.worker import Worker

DEADLINE_S = 30.0
COUNT = 40_000  # many writes of the store for one fetch, with a turn of the loop after each

app = App("followed", partitions=1)
numbers = app.topic("numbers", key=str, value=int)
last = app.table("last", key=str, value=int)


@app.processor(numbers, last)
def keep(number: Record[str, int], last: Table[str, int]) -> None:
    last[number.key] = number.value


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
    following = asyncio.create_task(worker.following.run())
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
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        run.close()
        await run.closed()
