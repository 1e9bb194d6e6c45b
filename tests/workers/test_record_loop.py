"""The record loop on the memory log: stops, slow and waiting processors, releases, each against what the log then has.

Law everywhere: the ids among the outputs are exactly those before the committed positions."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator import App, Record
from orchestrator.member.events import Assigned
from orchestrator.model import Assignment, Role, TaskId
from pipeline.errors import ProcessorFailed
from state.errors import StoreDamaged
from state.log.batches import decode
from state.log.group_store import OwnerRecord
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition
from workers.calls.blame import Blame, CallNote, Caution
from workers.prepare import prepare
from workers.spec import InstanceSpec, WorkerSpec
from workers.tasks.task import TaskRun
from workers.worker.record_loop import BUFFER_BYTES, FETCH_BYTES
from workers.worker.worker import Worker

DEADLINE_S = 30.0
TASKS = (TaskId(0, 0), TaskId(0, 1))


class HeldLog(MemoryLog):
    """The memory log; commits wait at a gate while it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self.commits = 0

    async def commit(self, *args: Any, **more: Any) -> dict[Partition, int]:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        self.commits += 1
        return await super().commit(*args, **more)


def app_of(call: Callable[..., Any], **options: Any) -> App:
    """`call(record, table, sink)` reads topic `in`, two partitions, on_error="stop"."""
    app = App("x", partitions=2)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=int)
    table = app.table("sums", key=str, value=int, default=int, local="concurrency" not in options)
    app.processor(source, table, out, **options)(call)
    return app


def count(record: Record[str, int], sums: Any, out: Any) -> None:
    sums["all"] += 1
    out.send(record.key, record.value)


@asynccontextmanager
async def running(
    tmp_path: Path,
    call: Callable[..., Any],
    *,
    records: int,
    log: HeldLog | None = None,
    keys: int = 1,
    app: App | None = None,
    on_halt: str = "exit",
    **options: Any,
) -> AsyncIterator[tuple[Worker, HeldLog, asyncio.Task[int]]]:
    """A worker that owns both tasks, with so many records in each partition; `options` are the processor's."""
    log = log or HeldLog()
    app = app or app_of(call, **options)
    prepared = await prepare(log, app)
    for task in TASKS:
        rows = [
            NewRecord(b"k%d" % (n % keys), (n * 2 + task.partition).to_bytes(8, "big", signed=True), n)
            for n in range(records)
        ]
        await log.append({Partition("in", task.partition): rows})
    instance = InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path), commit_ms=10, on_halt=on_halt)
    worker = Worker(WorkerSpec(instance, 1, "one"), log, prepared, {})
    lease = await log.acquire(app.id, "i1", "", None)
    assert lease is not None
    writer = worker.session.join_request.writer
    await log.open_writer(app.id, writer)
    await log.record_owners(lease, [OwnerRecord(str(task), 1, "i1", writer, 1) for task in TASKS])
    worker.event(Assigned(Assignment(1, 1, active=dict.fromkeys(TASKS, 1))))
    life = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield worker, log, life
            worker.stop()
            await asyncio.wait([life])
    finally:
        log.gate.set()
        worker.stop()
        await asyncio.wait([life])


async def until(what: str, condition: Callable[[], Awaitable[bool] | bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not (found if isinstance(found := condition(), bool) else await found):  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0)


async def read(log: MemoryLog, topic: str) -> Counter[int]:
    found: Counter[int] = Counter()
    for partition, end in (await log.ends([Partition(topic, 0), Partition(topic, 1)])).items():
        position = 0
        while position < end and (part := log.fetch(partition, position, 1 << 20)) is not None:
            for record in decode(part.data, position) if part.data else []:
                assert record.value is not None
                found[int.from_bytes(record.value, "big", signed=True)] += 1
            position = part.next_position
    return found


async def committed(log: MemoryLog) -> dict[int, int]:
    inputs = [Partition("in", task.partition) for task in TASKS]
    return {partition.number: offset for partition, offset in (await log.positions("x", inputs)).items()}


async def judge(log: MemoryLog) -> dict[int, int]:
    """Outputs equal what lies before the positions; returns how many records of each partition are done."""
    positions = await committed(log)
    done = dict.fromkeys((0, 1), 0)
    for number, position in positions.items():
        part = log.fetch(Partition("in", number), 0, 1 << 30)
        assert part is not None
        done[number] = sum(1 for record in decode(part.data, 0) if record.offset < position)
    assert await read(log, "out") == Counter(n * 2 + number for number in done for n in range(done[number]))
    return done


async def test_a_stop_in_the_middle_of_a_commit_loses_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, count, records=3_000) as (worker, log, life):
        await until("a first commit", lambda: log.commits > 0)
        log.gate.clear()
        await until("a commit under way", lambda: log.waiting == 1)
        worker.stop()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not life.done(), "the outcome of the commit is not known yet"
        log.gate.set()
        assert await life == 0
    done = await judge(log)
    assert sum(done.values()) > 0


async def test_a_stop_undoes_a_call_that_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.worker.record_loop.CALL_END_S", 0.05)

    async def hang(record: Record[str, int], sums: Any, out: Any) -> None:
        count(record, sums, out)
        if record.value == 6:
            await asyncio.Event().wait()

    async with running(tmp_path, hang, records=10) as (_, log, _life):

        async def both() -> bool:
            positions = await committed(log)
            return positions.get(1, 0) >= 10 and positions.get(0, 0) >= 3

        await until("the completed prefix, and the other task", both)
    assert await judge(log) == {0: 3, 1: 10}


async def test_calls_of_two_tasks_overlap(tmp_path: Path) -> None:
    together = asyncio.Barrier(2)

    async def meet(record: Record[str, int], sums: Any, out: Any) -> None:
        await together.wait()
        count(record, sums, out)

    async with running(tmp_path, meet, records=5) as (_, log, _life):
        await until("all records", lambda: _all(log, 5))
    assert await judge(log) == {0: 5, 1: 5}


async def _all(log: HeldLog, records: int) -> bool:
    return sum((await read(log, "out")).values()) == 2 * records


async def test_a_slow_processor_keeps_commits_and_the_other_task_going(tmp_path: Path) -> None:
    seen: list[int] = []

    def slow(record: Record[str, int], sums: Any, out: Any) -> None:
        seen.append(record.value)
        time.sleep(0.02)  # a call that holds the interpreter's loop, as a sync client does
        count(record, sums, out)

    async with running(tmp_path, slow, records=400) as (_, log, _life):

        async def both() -> bool:
            return len(await committed(log)) == 2

        await until("a commit of both tasks", both)
        assert len(seen) < 32, "a turn is bounded in time: the first commit does not wait for hundreds of records"
    await judge(log)


async def test_what_waits_for_a_call_is_bounded_in_bytes(tmp_path: Path) -> None:
    """Records of half a kilobyte, two megabytes in all, behind a call that lasts."""
    go, many = asyncio.Event(), 4_000

    async def hanging(record: Record[str, int], sums: Any, out: Any) -> None:
        await go.wait()
        count(record, sums, out)

    log = HeldLog()
    async with running(tmp_path, hanging, records=0, log=log) as (worker, _, _life):
        for first in range(0, many, 50):
            rows = [NewRecord(b"%0500d" % n, (2 * n).to_bytes(8, "big"), n) for n in range(first, first + 50)]
            await log.append({Partition("in", 0): rows})
        await until("a task", lambda: worker.runs[TASKS[0]].process is not None)
        merger = worker.runs[TASKS[0]].merger
        await until("enough to wait", lambda: merger.size_bytes("in", 0) > BUFFER_BYTES)
        for _ in range(2_000):  # rounds of the loop, in which it would read on
            await asyncio.sleep(0)
        batch = 50 * 600  # a fetch ends with a whole one
        assert merger.size_bytes("in", 0) <= BUFFER_BYTES + FETCH_BYTES + batch
        go.set()
        await until("all records", lambda: _first_is_done(log))
    assert (await judge(log))[0] == many


async def _first_is_done(log: MemoryLog) -> bool:
    partition = Partition("in", 0)
    return (await committed(log)).get(0, 0) == (await log.ends([partition]))[partition]


def careful(worker: Any, folder: Path) -> Path:
    """As after a crash; returns where the call under way is noted."""
    noted = folder / "call.json"
    worker.caution = worker.records._caution = Caution(CallNote(noted), careful=True, blamed=())
    return noted


async def test_a_careful_worker_processes_more_than_a_record_a_commit(tmp_path: Path) -> None:
    """After a crash it takes one record at a time, for a thousand records; the loop waits for the commit after each round."""
    async with running(tmp_path, count, records=200) as (worker, log, _):
        careful(worker, tmp_path)
        worker.records._commit_s = 0.0
        await until("all records", lambda: _all(log, 200))
        assert log.commits < 100
    await judge(log)


async def test_a_release_commits_what_is_whole_and_is_proven(tmp_path: Path) -> None:
    hanging, go = asyncio.Event(), asyncio.Event()

    async def wait(record: Record[str, int], sums: Any, out: Any) -> None:
        count(record, sums, out)
        if record.value == 4:
            hanging.set()
            await go.wait()

    async with running(tmp_path, wait, records=10) as (worker, log, _life):
        await hanging.wait()
        worker.event(Assigned(Assignment(2, 1, active={TASKS[1]: 1}, release={TASKS[0]: 1})))
        await until("the other task's records", lambda: _at(log, 1, 10))
        assert TASKS[0] not in worker.machine.released, "its call is under way"
        go.set()
        await until("the proof", lambda: TASKS[0] in worker.machine.released)
        assert await judge(log) == {0: 3, 1: 10}


async def _at(log: HeldLog, number: int, position: int) -> bool:
    return (await committed(log)).get(number, 0) >= position


@pytest.mark.parametrize("waits", [False, True])
async def test_a_processor_that_stops_leaves_what_was_completed_before(tmp_path: Path, waits: bool) -> None:
    def fail(record: Record[str, int], sums: Any, out: Any) -> None:
        count(record, sums, out)
        if record.value == 8:
            raise ValueError("asked to fail")

    async def fail_later(record: Record[str, int], sums: Any, out: Any) -> None:
        await asyncio.sleep(0)
        fail(record, sums, out)

    async with running(tmp_path, fail_later if waits else fail, records=10) as (_, log, life):
        with pytest.raises(ProcessorFailed, match="in-0@"):
            await life
    assert (await judge(log))[0] == 4


@pytest.mark.parametrize("waits", [False, True])
async def test_the_note_of_a_call_that_stopped_its_task_does_not_stay(tmp_path: Path, waits: bool) -> None:
    """A crash that came later, in the call of another task, was that record's."""
    noted: list[Path] = []
    seen: list[bool] = []

    def fail(record: Record[str, int], sums: Any, out: Any) -> None:
        count(record, sums, out)
        seen.append(bool(noted) and noted[0].exists())
        if len(seen) == 20:  # the last one of both tasks
            raise ValueError("asked to fail")

    async def fail_later(record: Record[str, int], sums: Any, out: Any) -> None:
        await asyncio.sleep(0)
        fail(record, sums, out)

    async with running(tmp_path, fail_later if waits else fail, records=10) as (worker, _, life):
        noted.append(careful(worker, tmp_path))
        with pytest.raises(ProcessorFailed, match="in-"):
            await life
    assert seen[-1] and not noted[0].exists()


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except FileNotFoundError:  # a thread removes it
        return True


async def test_a_store_that_cannot_be_read_costs_its_task_alone(tmp_path: Path) -> None:
    log = HeldLog()
    async with running(tmp_path, count, records=2_000, log=log) as (worker, _, life):
        await until("both tasks", lambda: all(t in worker.runs and worker.runs[t].process for t in TASKS))
        store = worker.runs[TASKS[0]].stores["sums"].store

        def rotten(key: bytes) -> bytes | None:
            raise StoreDamaged("a block does not match its checksum")

        store.get = rotten  # type: ignore[method-assign]
        worker.runs[TASKS[0]].process._tables["sums"].layers.known.clear()  # type: ignore[union-attr]
        one_more = NewRecord(b"k0", (4_000).to_bytes(8, "big", signed=True), 2_000)  # the others may all be through
        await log.append({Partition("in", 0): [one_more]})
        await until("the task is given up", lambda: TASKS[0] in worker.machine.released)
        await until("the other task's records", lambda: _at(log, 1, 2_000))
        assert not life.done()
        folder = worker.directory.table("0_0", "sums")
        await until("the damaged store is wiped", lambda: _is_empty(folder))
    await judge(log)


async def test_records_that_are_gone_cost_their_task_alone(tmp_path: Path) -> None:
    """The next owner of a task has processed and removed them while this process stood still; it comes back with an old
    position, before the group has told it anything."""
    log = HeldLog()

    class Thawed(type(log.reader())):  # type: ignore[misc]
        async def poll(self, **more: Any) -> Any:
            partition = Partition("in", 0)
            if partition in self._positions and not log.part(partition).start:
                log.part(partition).trim(1_000)
            return await super().poll(**more)

    log.reader = lambda: Thawed(log)  # type: ignore[method-assign]
    async with running(tmp_path, count, records=2_000, log=log) as (worker, _, life):
        await until("the task is given up", lambda: TASKS[0] in worker.machine.released)
        await until("the other task's records", lambda: _at(log, 1, 2_000))
        assert not life.done()


async def test_an_error_of_several_lines_is_one_notice(tmp_path: Path) -> None:
    """Each line was a notice of its own in `status`, and in `explain` of tasks that it was not about."""

    def fail(record: Record[str, int], sums: Any, out: Any) -> None:
        raise ValueError("2 errors\n  amount: missing\n  name: too long")

    async with running(tmp_path, fail, records=1, on_halt="continue") as (worker, _, _life):
        await until("both halts", lambda: worker.notice().count("is halted at") == 2)
        lines = worker.notice().splitlines()
    assert len(lines) == 2
    assert all("ValueError: 2 errors amount: missing name: too long; correct the processor" in line for line in lines)


async def test_a_task_that_begins_behind_a_record_is_not_careful_because_of_it(tmp_path: Path) -> None:
    """A record that ended a worker was given to each that was started; where its partition had no more records, the task went on
    one record at a time, with a note for each, for ever."""
    async with running(tmp_path, count, records=5) as (worker, log, _life):
        await until("all of it", lambda: _at(log, 0, 5))
    ended = Blame("0_0", "in", 0, 2, ("count",), "ended its worker process (exit code 7)")
    for blamed, careful in ((ended, False), (replace(ended, offset=7), True)):
        other = Worker(WorkerSpec(worker.spec.instance, 1, "two", blamed=(blamed,)), log, worker.prepared, {})
        run = other.runs[TASKS[0]] = TaskRun(other, TASKS[0])
        restores = asyncio.create_task(other.restores.run())
        run.open(Role.ACTIVE, 1)
        await until("the task", lambda run=run: run.process is not None)  # type: ignore[misc]
        assert other.caution.is_careful("0_0") is careful
        run.close()
        await run.closed()
        restores.cancel()
        await asyncio.wait([restores])


async def test_what_an_election_lost_before_it_was_committed_costs_its_task_alone(tmp_path: Path) -> None:
    """Nothing was processed of it: it ended the worker, as if the log were another one."""

    async def hang(record: Record[str, int], sums: Any, out: Any) -> None:
        if record.value == 0:
            await asyncio.Event().wait()
        count(record, sums, out)

    async with running(tmp_path, hang, records=10) as (worker, log, life):
        lost, other = (Partition("in", task.partition) for task in TASKS)

        async def goes_on() -> bool:
            return other.number in await committed(log)

        await until("the other task", goes_on)
        log.elect(lost, 0)
        await log.append({lost: [NewRecord(b"k", b"new", 1)]})
        await until("the task to be given up", lambda: TASKS[0] not in worker.runs or life.done())
        assert not life.done() and TASKS[1] in worker.runs


async def test_a_commit_behind_what_its_changelog_has_lost_restores_the_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The store went on with what the changelog had no more, and took its end: the restore after that came to another table."""
    async with running(tmp_path, count, records=5) as (worker, log, _):

        async def are_read() -> bool:
            return set((await committed(log)).values()) == {6}

        await until("all to be committed", are_read)
        run = worker.runs[TASKS[0]]
        opened = run.stores["sums"]
        before = opened.store.offset
        log.elect(opened.partition, 0)
        await log.append({Partition("in", 0): [NewRecord(b"k0", bytes(8), 1)]})
        await until("the commit", lambda: TASKS[0] not in worker.runs or opened.store.offset > before)
        assert TASKS[0] not in worker.runs
        assert f"its store stands at {before}, and {opened.partition} lost records" in caplog.text
        assert TASKS[1] in worker.runs
