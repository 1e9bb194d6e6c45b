"""What a worker has fetched before a task is granted to it: the inputs of learners that are ready, and of no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from orchestrator import App, Record, Table
from orchestrator.member.events import Assigned
from orchestrator.model import Assignment, Ending, TaskId
from state.log.memory import MemoryLog
from state.log.memory_reader import MemoryReader
from state.log.protocol import NewRecord, Partition, TaskCommit
from workers.prepare import prepare
from workers.spec import InstanceSpec, WorkerSpec
from workers.worker.worker import Worker

DEADLINE_S = 30.0
T = TaskId(0, 0)
INPUT, CHANGELOG = Partition("numbers", 0), Partition("ahead-last-changelog", 0)

app = App("ahead", partitions=1)
numbers = app.topic("numbers", key=str, value=int)
last = app.table("last", key=str, value=int)


@app.processor(numbers, last)
def keep(number: Record[str, int], last: Table[str, int]) -> None:
    last[number.key] = number.value


class SeenReader(MemoryReader):
    """Notes what it is asked of the input."""

    def __init__(self, log: MemoryLog, seen: list[tuple[str, int]]) -> None:
        super().__init__(log)
        self._seen = seen

    def ahead(self, partition: Partition, position: int) -> None:
        self._seen.append(("ahead", position))

    def add(self, partition: Partition, position: int) -> None:
        if partition == INPUT:
            self._seen.append(("add", position))
        super().add(partition, position)

    def drop(self, partition: Partition) -> None:
        if partition == INPUT:
            self._seen.append(("drop", 0))
        super().drop(partition)


class SeenLog(MemoryLog):
    def __init__(self) -> None:
        super().__init__(markers=False)
        self.seen: list[tuple[str, int]] = []

    def reader(self) -> MemoryReader:
        return SeenReader(self, self.seen)


@asynccontextmanager
async def learning(folder: Path) -> AsyncIterator[tuple[Worker, SeenLog]]:
    """A worker with a learner of a task whose position is 3, and 40 changes to restore."""
    log = SeenLog()
    prepared = await prepare(log, app)
    await log.append({CHANGELOG: [NewRecord(b"%d" % n, b"%d" % n, n) for n in range(40)]})
    await log.append({INPUT: [NewRecord(b"k", b"1", n) for n in range(10)]})
    log.put_positions(app.id, [TaskCommit("0_0", 1, {}, {INPUT: 3})])
    worker = Worker(
        WorkerSpec(InstanceSpec("tests:app", app.id, "i1", "memory:", str(folder)), 1, "one"), log, prepared, {}
    )
    life = asyncio.create_task(worker.run())
    worker.event(Assigned(Assignment(1, 1, learners=(T,))))
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield worker, log
    finally:
        worker.stop()
        await asyncio.wait([life])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for has no event
        await asyncio.sleep(0.001)


async def test_inputs_of_a_learner_that_is_ready_are_fetched_from_what_is_committed(tmp_path: Path) -> None:
    """It begins where the owner before has ended, whatever was fetched."""
    async with learning(tmp_path) as (worker, log):
        await until(lambda: log.seen != [])
        assert log.seen == [("ahead", 3)] and worker.runs[T].process is None
        ending = Ending((("numbers", 0, 7),), (("ahead-last-changelog", 0, 40),))
        worker.event(Assigned(Assignment(1, 2, active={T: 2}, endings={T: ending})))
        await until(lambda: worker.runs[T].process is not None)
        assert log.seen == [("ahead", 3), ("add", 7)]


async def test_what_is_not_granted_is_fetched_no_longer(tmp_path: Path) -> None:
    async with learning(tmp_path) as (worker, log):
        await until(lambda: log.seen != [])
        await until(lambda: len(log.seen) > 1)
        assert log.seen == [("ahead", 3), ("drop", 0)] and not worker.giving_way.expects(T)


async def test_a_learner_that_goes_takes_what_was_fetched_with_it(tmp_path: Path) -> None:
    async with learning(tmp_path) as (worker, log):
        await until(lambda: log.seen != [])
        worker.event(Assigned(Assignment(1, 2)))
        await until(lambda: len(log.seen) > 1)
        assert log.seen == [("ahead", 3), ("drop", 0)]
