"""One task as a worker holds it: its stores, its role, its place in inputs and changelogs.

One rule: everything that may block (opening, closing) happens in this task's own queue, in order, so a slow task holds
up no other. The worker owns the readers; this module tells it what to read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from orchestrator.member_events import Progress, Reading, ReleaseDone, Started
from orchestrator.model import Role, TaskId
from pipeline.merge import Merger
from pipeline.process import TaskProcess
from state.directory import TaskLock
from state.errors import BaseMissing, DirectoryLocked, StateError
from state.log.protocol import Partition
from workers.journal import wall_ms
from workers.stores import Opened

if TYPE_CHECKING:
    from workers.worker import Worker

log = logging.getLogger("orchestrator.task")
LOCK_RETRY_S = 0.05


class TaskRun:
    """A held task. `process` is set only while it runs as active."""

    def __init__(self, worker: Worker, task: TaskId) -> None:
        self.worker = worker
        self.id = task
        self.scope = str(task)
        self.subtopology = worker.prepared.subtopology(task)
        self.inputs = worker.prepared.inputs(task)
        self.stores: dict[str, Opened] = {}
        self.by_changelog: dict[Partition, Opened] = {}
        self.role = Role.STANDBY
        self.epoch = 0
        self.begun_epoch = 0
        self.process: TaskProcess | None = None
        self.merger = Merger()
        self.committed: dict[Partition, int] = {}
        self.ends: dict[Partition, int] = {}
        self.catching_up = False
        self.release_wanted = False
        self.closing = False
        self.first_done = False
        self.last_ms = 0
        self.pause_ms = 0
        self.records = 0
        self.opened_ns = 0
        self.restored_from = 0
        self._lock: TaskLock | None = None
        self._queue: asyncio.Queue[Callable[[], Coroutine[Any, Any, None]] | None] = asyncio.Queue()
        self._runner = asyncio.get_running_loop().create_task(self._run(), name=f"task {task}")
        self._closed = False

    # ---- the queue

    async def _run(self) -> None:
        while (step := await self._queue.get()) is not None:
            try:
                await step()
            except BaseMissing as error:  # of the whole instance: no other task would find it either
                await self._shut()
                self.worker.crashed(error)
            except StateError as error:
                log.error("%s: %s", self.id, error)
                await self._shut()
                self.worker.failed(self, error)
            except Exception as error:  # noqa: BLE001 - a task of the loop: whatever it is ends the worker with it
                await self._shut()
                self.worker.crashed(error)

    def _then(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._queue.put_nowait(step)

    def open(self, role: Role, epoch: int) -> None:
        self.role, self.epoch = role, epoch
        self._then(self._open)

    def become(self, role: Role, epoch: int) -> None:
        """Another role for the same open state."""
        self.role, self.epoch, self.release_wanted = role, epoch, False
        self._then(self._become)

    def close(self) -> None:
        """Give up the state; it stays on disk. Whatever was not committed is forgotten."""
        self.closing = True
        self.stop_processing()
        self.release_wanted = False
        self._then(self._shut)
        self._queue.put_nowait(None)

    async def closed(self) -> None:
        await self._runner

    # ---- steps

    async def _open(self) -> None:
        self.opened_ns = time.monotonic_ns()
        while self._lock is None:
            try:
                self._lock = self.worker.directory.lock(self.scope)
            except DirectoryLocked:
                # A twin of this process still has it: the fence, or its end, frees the folder.
                await asyncio.sleep(LOCK_RETRY_S)
        self.stores = await self.worker.opener.open(self.id, await self._reading())
        self.by_changelog = {opened.partition: opened for opened in self.stores.values()}
        self.restored_from = self.position()
        await self._become()

    async def _reading(self) -> Callable[[int, int], None]:
        """What a copy reads of a snapshot is progress, and comes out of the restore budget: the thread waits for it."""
        loop, worker = asyncio.get_running_loop(), self.worker
        tables = self.subtopology.tables
        end = sum((await worker.log.ends([worker.prepared.changelog(self.id, table) for table in tables])).values())

        async def told(size: int, position: int) -> None:
            worker.tell(Reading(self.id, position, end))
            await worker.following.spend(self, size)

        def read(size: int, position: int) -> None:
            asyncio.run_coroutine_threadsafe(told(size, position), loop).result()

        return read

    async def _become(self) -> None:
        self.ends = await self.worker.log.ends(list(self.by_changelog))
        if self.role is Role.ACTIVE:
            if self.begun_epoch == self.epoch:
                return  # granted while it was still opening, which saw the grant: it must not begin twice
            self.begun_epoch = self.epoch
        for partition, opened in self.by_changelog.items():
            self.worker.follow(self, partition, opened.store.offset)
        if self.role is Role.ACTIVE:
            self.catching_up = True
            await self.caught_up()
        else:
            self.worker.tell(Progress(self.id, self.position(), sum(self.ends.values())))

    async def caught_up(self) -> None:
        """As active: once every store has reached the end of its changelog, begin to process."""
        if not self.catching_up or any(o.store.offset < self.ends[p] for p, o in self.by_changelog.items()):
            return
        self.catching_up = False
        for partition in self.by_changelog:
            self.worker.unfollow(partition)
        positions = await self.worker.start_positions(self, self.inputs)
        prepared = self.worker.prepared
        stores = {table: opened.store for table, opened in self.stores.items()}
        self.process = TaskProcess(
            prepared.app, self.subtopology, self.id.partition, stores, prepared.counts(), self.worker.resources
        )
        self.merger = Merger()
        self.committed = dict(positions)
        self.first_done, self.last_ms, self.pause_ms = False, 0, 0
        for partition, position in positions.items():
            self.worker.read(self, partition, position)
        self._journal_start()
        self.worker.tell(Progress(self.id, self.position(), self.position()))
        self.worker.tell(Started(self.id, wall_ms()))

    def topics_grew(self) -> None:
        """What it sends goes by the new counts from now on; what it reads may have a partition more."""
        if self.process is not None:
            self.process.counts_are(self.worker.prepared.counts())
        self._then(self._read_more)

    async def _read_more(self) -> None:
        new = [p for p in self.worker.prepared.inputs(self.id) if p not in self.inputs]
        self.inputs = [*self.inputs, *new]
        process = self.process
        if not new or process is None:
            return  # what begins later begins with all of them
        positions = await self.worker.start_positions(self, new)
        if self.process is process:
            self.committed.update(positions)
            for partition, position in positions.items():
                self.worker.read(self, partition, position)

    def _journal_start(self) -> None:
        sources = sorted({opened.source for opened in self.stores.values()}) or ["stateless"]
        self.worker.journal.write(
            "started",
            task=self.scope,
            epoch=self.epoch,
            source="+".join(sources),
            restored_from=self.restored_from,
            position=self.position(),
            opened_ms=(time.monotonic_ns() - self.opened_ns) // 1_000_000,
        )

    async def _shut(self) -> None:
        for partition in self.by_changelog:
            self.worker.unfollow(partition)
        self.stop_processing()
        stores, self.stores, self.by_changelog = self.stores, {}, {}
        for opened in stores.values():
            await asyncio.to_thread(opened.store.close)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # ---- processing

    def stop_processing(self) -> None:
        """No more input; what is in memory and not committed is forgotten."""
        for partition in self.inputs:
            self.worker.unread(partition)
        self.catching_up = False
        self.process = None

    def release(self) -> None:
        """Asked to hand over: the worker commits after its current batch and then calls `released`."""
        self.release_wanted = True
        self._then(self._release_unstarted)

    async def _release_unstarted(self) -> None:
        """A task that had not started yet has nothing to commit."""
        if self.process is None and self.release_wanted:
            self.released()

    def released(self) -> None:
        """All that was processed is committed: give up the task, with the proof."""
        self.release_wanted = False
        self.stop_processing()
        self.worker.journal.write(
            "released", task=self.scope, epoch=self.epoch, last_ms=self.last_ms, pause_ms=self.pause_ms
        )
        self.worker.tell(ReleaseDone(self.id, self.last_ms, self.position(), wall_ms()))

    def processed(self, now_ms: int, records: int) -> None:
        """A commit with `records` of this task is through."""
        self.records += records
        if self.last_ms:
            self.pause_ms = max(self.pause_ms, now_ms - self.last_ms)
        self.last_ms = now_ms

    def is_copy(self) -> bool:
        """Whether it is restored for later, and may wait."""
        return self.role is not Role.ACTIVE and not self.closing

    # ---- positions

    def position(self) -> int:
        """How far the stores are: the sum over the task's changelogs."""
        return sum(opened.store.offset for opened in self.stores.values())

    def state_bytes(self) -> int:
        return sum(opened.store.size_bytes() for opened in self.stores.values())
