"""A worker process: one event loop that fetches, processes, commits, restores and follows, for the tasks it is given.

One rule: what a task does is decided by MemberMachine (orchestrator/member.py); this shell performs its effects and
tells it what came of them. `python -m workers.worker` reads its spec from the first line of standard input; when the
pipe closes, the parent is gone and so is the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator import member_events as mem
from orchestrator.coordinator import monotonic_ms
from orchestrator.errors import OrchestratorError
from orchestrator.member import MemberMachine
from orchestrator.model import Role, TaskId
from pipeline.errors import ProcessorFailed
from state.directory import StateDirectory
from state.errors import StateError
from state.log.protocol import Log, Partition
from workers import growth
from workers.commit import Taken
from workers.failpoint import Failpoint
from workers.following import Following
from workers.journal import Journal, wall_ms
from workers.prepare import Prepared
from workers.processing import Processing
from workers.session import Session
from workers.spec import WorkerSpec
from workers.stores import StoreOpener, disk_positions
from workers.task import TaskRun

log = logging.getLogger("orchestrator.worker")
CLEAN_UP_S, CLEAN_UP_DELAY_MS, DRAIN_S = 60.0, 600_000, 10.0


class Worker:
    """Everything one worker process holds."""

    def __init__(self, spec: WorkerSpec, log_: Log, prepared: Prepared, resources: Mapping[str, Any]) -> None:
        instance = spec.instance
        self.spec = spec
        self.log = log_
        self.prepared = prepared
        self.resources = resources
        self.application = prepared.app.id
        self.directory = StateDirectory(Path(instance.state_dir), self.application, instance.instance)
        self.opener = StoreOpener(log_, prepared, self.directory, instance.snapshots)
        self.machine = MemberMachine(instance.settings)
        self.session = Session(self)
        self.journal = Journal(
            self.directory.path / "journal.jsonl", instance=instance.instance, incarnation=spec.incarnation
        )
        self.failpoint = Failpoint(instance.failpoint, self)
        self.runs: dict[TaskId, TaskRun] = {}
        self.following = Following(self)
        self.processing = Processing(self)
        self.failure: BaseException | None = None
        self.stopping = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()

    # ---- life

    async def run(self) -> int:
        """Until told to leave (0), stopped (0), or something fails (raises)."""
        self.scan_disk()
        loops = [
            asyncio.create_task(loop, name=name)
            for name, loop in (
                ("session", self.session.run()),
                ("heartbeat", self.session.beat()),
                ("processing", self.processing.run()),
                ("following", self.following.run()),
                ("upkeep", self._upkeep()),
                ("growth", growth.run(self)),
            )
        ]
        stop = asyncio.create_task(self.stopping.wait(), name="stop")
        await asyncio.wait([*loops, stop], return_when=asyncio.FIRST_COMPLETED)
        for loop in loops:
            loop.cancel()
        results = await asyncio.gather(*loops, return_exceptions=True)
        stop.cancel()
        if self.failure is None:
            self.failure = next(
                (r for r in results if isinstance(r, BaseException) and not isinstance(r, asyncio.CancelledError)), None
            )
        await self._finish()
        if self.failure is not None:
            raise self.failure
        return 0

    async def _finish(self) -> None:
        """Commit what is done (unless something failed), close everything, say good-bye."""
        try:
            async with asyncio.timeout(DRAIN_S):
                if self.failure is None or isinstance(self.failure, ProcessorFailed):
                    await self.processing.commit()
                for run in list(self.runs.values()):
                    run.close()
                for run in list(self.runs.values()):
                    await run.closed()
                await asyncio.gather(*self._closing)
        except (TimeoutError, StateError) as error:
            log.warning("closing: %s", error or "took too long")
        await self.session.close()

    def stop(self) -> None:
        """A bounce: commit and go; the tasks are kept for this member for the session timeout."""
        self.machine.bounce = True
        self.session.send_now()
        self.stopping.set()

    def leave(self) -> None:
        """Hand everything over, then go."""
        self.tell(mem.LeaveWanted())

    def failed(self, run: TaskRun, error: StateError) -> None:
        """A task's state failed: give it up and say so; somebody with better luck takes it."""
        self.runs.pop(run.id, None)
        self.tell(mem.Dropped(frozenset({run.id})))

    def crashed(self, error: BaseException) -> None:
        """Something that must not happen: stop the worker with it."""
        if self.failure is None:
            self.failure = error
        self.stopping.set()

    # ---- the machine

    def tell(self, event: mem.MemberEvent) -> None:
        """Give the machine an event and perform what it wants."""
        for effect in self.machine.step(event, monotonic_ms()):
            self._perform(effect)

    def _perform(self, effect: mem.MemberEffect) -> None:
        match effect:
            case mem.Open(task, role, epoch):
                self._open(task, role, epoch)
            case mem.ChangeRole(task, role, epoch):
                run = self.runs.get(task)
                if run is None:
                    self._open(task, role, epoch)
                else:
                    run.become(role, epoch)
            case mem.Release(task, _):
                run = self.runs.get(task)
                if run is not None:
                    run.release()
            case mem.Close(task) | mem.Drop(task):
                self._close(task)
            case mem.Report():
                self.session.send_soon()
            case mem.Rejoin():
                self.session.rejoin()
            case mem.Exit():
                self.session.send_now()
                self.stopping.set()

    def _open(self, task: TaskId, role: Role, epoch: int) -> None:
        run = TaskRun(self, task)
        self.runs[task] = run
        run.open(role, epoch)

    def _close(self, task: TaskId) -> None:
        run = self.runs.pop(task, None)
        if run is None:
            return
        run.close()
        closing = asyncio.get_running_loop().create_task(self._closed(run))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _closed(self, run: TaskRun) -> None:
        await run.closed()
        if not self.stopping.is_set():
            self.scan_disk()

    def scan_disk(self) -> None:
        """Tell the group what state lies here unused."""
        found = disk_positions(self.directory, self.prepared, self.log.log_id)
        self.tell(mem.DiskSeen(found))

    # ---- readers, for tasks

    def follow(self, run: TaskRun, partition: Partition, position: int) -> None:
        self.following.add(run, partition, position)

    def unfollow(self, partition: Partition) -> None:
        self.following.drop(partition)

    def read(self, run: TaskRun, partition: Partition, position: int) -> None:
        self.processing.add(run, partition, position)

    def unread(self, partition: Partition) -> None:
        self.processing.drop(partition)

    async def start_positions(self, run: TaskRun, inputs: Sequence[Partition]) -> dict[Partition, int]:
        """Where these inputs of a task go on: what is committed, else what the topic says of its start."""
        committed = await self.log.positions(self.application)
        positions: dict[Partition, int] = {}
        missing = [p for p in inputs if p not in committed]
        starts = await self.log.starts(inputs)
        ends = await self.log.ends(missing) if missing else {}
        for partition in inputs:
            start = self.prepared.topology.topics[partition.topic].start
            position = committed.get(partition)
            gone = position is not None and position < starts[partition]
            if position is not None and not gone:
                positions[partition] = position
            elif start == "fail" and (gone or starts[partition] > 0):
                told = f"the committed position {position} is gone" if gone else "no position is committed"
                raise OrchestratorError(
                    f"{run.id}: {told} in {partition}, which begins at {starts[partition]}; "
                    'give the topic start="beginning" or start="end"'
                )
            elif start == "end" and partition.number < self.prepared.begun[partition.topic]:
                positions[partition] = ends.get(partition, starts[partition])
            else:
                positions[partition] = starts[partition]
        return positions

    # ---- what the log refuses

    def lost(self, runs: tuple[TaskRun, ...], fenced: bool) -> None:
        """The log refused these tasks, or the whole writer."""
        if fenced:
            self.tell(mem.WriterLost())
        elif runs:
            self.tell(mem.Dropped(frozenset(run.id for run in runs)))

    def committed(self, taken: Taken) -> None:
        """A task's commit is through: time it, and tell of the first one of this epoch."""
        now = wall_ms()
        run = taken.run
        if taken.changes.records_in:
            run.processed(now, taken.changes.records_in)
            if not run.first_done:
                run.first_done = True
                self.journal.write("first", task=run.scope, epoch=run.epoch, first_ms=now)
                self.tell(mem.FirstRecord(run.id, now))

    async def _upkeep(self) -> None:
        """Now and then: remove stale folders, consumed re-key records, overwritten changelog records."""
        while True:
            await asyncio.sleep(CLEAN_UP_S)
            keep = [str(task) for task in self.machine.held]
            await asyncio.to_thread(self.directory.clean, keep, delay_ms=CLEAN_UP_DELAY_MS, now_ms=wall_ms())
            self.scan_disk()
            await self.processing.trim()
            for run in list(self.runs.values()):
                if run.process is not None and run.id.partition == 0:
                    for opened in list(run.stores.values()):
                        await self.log.compact(opened.partition.topic)
