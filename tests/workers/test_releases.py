"""A release is answered whatever the task does: its processor fails, its halt is being written, or it waits for a global table."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from orchestrator import App, Record
from orchestrator.member.events import Assigned
from orchestrator.model import Assignment, TaskId
from state.log.group_store import MetadataKind
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, TopicSpec
from tests.workers.test_record_loop import HeldLog, count, running, until
from tests.workers.test_unreadable import RottenLog
from workers.tasks import halts
from workers.tasks.halts import HALTS, Halt
from workers.worker.worker import Worker

ASKED, OTHER = TaskId(0, 0), TaskId(0, 1)


def release(worker: Worker) -> None:
    worker.event(Assigned(Assignment(1, 2, active={OTHER: 1}, release={ASKED: 1})))


def is_released(worker: Worker) -> bool:
    """It is given up, and reported so; a worker that ends gives up all of them."""
    return ASKED in worker.machine.released and ASKED not in worker.machine.held


class SlowHalts(HeldLog):
    """Writes of halts wait at a gate while it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.halt_gate = asyncio.Event()
        self.is_writing = False

    async def replace_metadata(
        self, application: str, kind: MetadataKind, key: str, seen: bytes | None, value: bytes | None
    ) -> bool:
        if kind == HALTS:
            self.is_writing = True
            await self.halt_gate.wait()
        return await super().replace_metadata(application, kind, key, seen, value)


async def test_of_a_call_that_fails_behind_it(tmp_path: Path) -> None:
    """The halt took the release's place, and the task could not be moved again."""
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def fail(record: Record[str, int], sums: Any, out: Any) -> None:
        if record.value == 0:
            began.set()
            await goes_on.wait()
            raise ValueError("no")

    async with running(tmp_path, fail, records=1, on_halt="continue") as (worker, log, life):
        await began.wait()
        release(worker)
        goes_on.set()
        await until("the release", lambda: is_released(worker))
        found = await halts.read(log, "x", "0_0")
        assert found is not None and found.place == ("in", 0, 0)
        assert not life.done()


async def test_that_comes_between_a_failure_and_the_commit_of_what_was_before_it(tmp_path: Path) -> None:
    def fail(record: Record[str, int], sums: Any, out: Any) -> None:
        if record.value == 20:
            raise ValueError("no")
        count(record, sums, out)

    log = HeldLog()
    log.gate.clear()
    async with running(tmp_path, fail, records=20, log=log, on_halt="continue") as (worker, _, _life):
        await until("the failure", lambda: ASKED in worker.runs and worker.runs[ASKED].failure is not None)
        release(worker)
        log.gate.set()
        await until("the release", lambda: is_released(worker))
        found = await halts.read(log, "x", "0_0")
        assert found is not None and found.place == ("in", 0, 10)


async def test_that_comes_before_the_halt_is_in_the_log(tmp_path: Path) -> None:
    """The next owner would try the record again, and the halt would come behind it."""

    def fail(record: Record[str, int], sums: Any, out: Any) -> None:
        if record.value == 0:
            raise ValueError("no")

    log = SlowHalts()
    async with running(tmp_path, fail, records=1, log=log, on_halt="continue") as (worker, _, _life):
        await until("the halt is being written", lambda: log.is_writing)
        release(worker)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not is_released(worker)
        log.halt_gate.set()
        await until("the release", lambda: is_released(worker))
        assert await halts.read(log, "x", "0_0") is not None


async def test_of_a_task_that_waits_for_a_global_table(tmp_path: Path) -> None:
    """Neither a release nor an end waits for what the task begins with."""
    app = App("x", partitions=2)
    rates = app.global_table(app.topic("in", key=str, value=bytes, partitions=2), alias="rates")
    app.processor(app.topic("orders", key=str, value=str, partitions=2), rates)(lambda order, rates: None)
    async with running(tmp_path, count, records=50, keys=50, log=RottenLog(), app=app) as (worker, _, life):
        await until("a word", lambda: "in-0 cannot be read at 0" in worker.notice())
        await until("both tasks", lambda: all(t in worker.runs and worker.runs[t].begun_epoch for t in (ASKED, OTHER)))
        release(worker)
        await until("the release", lambda: is_released(worker))
        waiting = worker.runs[OTHER]
        waiting.close()
        await waiting.closed()
        assert not life.done()


async def test_a_halt_that_was_written_late_holds_no_task() -> None:
    """Its owner had lost the task; the next one has committed the record. Not so one whose record retention has removed."""
    log, place, halt = MemoryLog(markers=False), Partition("in", 0), Halt("in", 0, 3, "no", 1)
    await log.create_topic(TopicSpec("in", 1))
    for number in range(6):
        await log.append({place: [NewRecord(b"k", b"v", number)]})
    lease = await log.acquire("x", "i1", "", None)
    assert lease is not None and await log.seed_positions(lease, {place: 3}, {})
    await halts.write(log, "x", "0_0", halt)
    assert await halts.not_outrun(log, "x", "0_0", halt, {place: 3}) == halt
    assert await halts.not_outrun(log, "x", "0_0", halt, {place: 5}) == halt, "it begins further on than was committed"
    await log.forget_positions(lease, [place])
    assert await log.seed_positions(lease, {place: 4}, {})
    assert await halts.not_outrun(log, "x", "0_0", halt, {place: 4}) is None
    assert await halts.read(log, "x", "0_0") is None
    await halts.write(log, "x", "0_0", halt)
    assert await log.trim({place: 4}) == 4
    assert await halts.not_outrun(log, "x", "0_0", halt, {place: 4}) == halt
