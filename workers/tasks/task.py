"""One task as a worker holds it: its stores, its role, its place in inputs and changelogs.

One rule: everything that may block (opening, closing) happens in this task's own queue, in order, so a slow task holds
up no other. The worker owns the readers; this module decides what they read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from orchestrator.clocks import monotonic_ms
from orchestrator.member.events import MemberEvent, Progress, ReleaseDone, Started
from orchestrator.model import Ending, Role, TaskId
from pipeline.errors import ProcessorFailed
from pipeline.merge import Merger
from pipeline.process import TaskProcess
from state.directory import StateDirectory, TaskLock
from state.errors import BaseMissing, ChangelogCut, DirectoryLocked, DirectoryUnusable, StateError
from state.log.protocol import Partition
from workers.calls.blame import Caution
from workers.journal import Journal
from workers.tasks import beginning, skips
from workers.tasks.halts import Halt
from workers.tasks.inbox import inbox
from workers.tasks.snapshot_progress import GivenUp, reading
from workers.tasks.stores import Opened, StoreOpener, close, origins, wait_for_capacity
from workers.tasks.turn_size import TurnSize

log = logging.getLogger("orchestrator.task")
LOCK_RETRY_S = 0.05


class RecordReader(Protocol):
    """The record loop, as a task knows it: reads its inputs, processes and commits them."""

    def start(self, run: TaskRun) -> None: ...
    def add(self, run: TaskRun, partition: Partition, position: int) -> None: ...
    def drop(self, run: TaskRun) -> None: ...
    def release(self, task: TaskId) -> None: ...


class RestoreReader(Protocol):
    """The restore loop, as a task knows it: reads its changelogs into its stores."""

    def add(self, run: TaskRun, partition: Partition, position: int) -> None: ...
    def drop(self, partition: Partition) -> None: ...
    async def spend(self, run: TaskRun, read: int) -> None: ...


class TaskPort(beginning.ProcessPort, Protocol):
    """What a task needs of its worker, beside what its processors need."""

    @property
    def directory(self) -> StateDirectory: ...
    @property
    def opener(self) -> StoreOpener: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def caution(self) -> Caution: ...
    @property
    def records(self) -> RecordReader: ...
    @property
    def restores(self) -> RestoreReader: ...

    def event(self, event: MemberEvent) -> None: ...
    def failed(self, run: TaskRun, error: StateError) -> None: ...
    async def start_positions(self, run: TaskRun, inputs: Sequence[Partition]) -> dict[Partition, int]: ...


class TaskRun:
    """A held task. `process` is set only while it runs as active."""

    def __init__(self, worker: TaskPort, task: TaskId) -> None:
        self.worker = worker
        self.id, self.scope = task, str(task)
        self.subtopology = worker.prepared.subtopology(task)
        self.inputs = worker.prepared.inputs(task)
        self.changelogs = [worker.prepared.changelog(task, table) for table in self.subtopology.tables]
        self.stores: dict[str, Opened] = {}
        self.by_changelog: dict[Partition, Opened] = {}
        self.role, self.epoch = Role.STANDBY, 0
        self.begun_epoch = self.held_epoch = 0  # that it began in; that it has begun in, to process or to be held
        self.process: TaskProcess | None = None
        self.merger = Merger()
        self.committed: dict[Partition, int] = {}
        self.commits_again = False  # the positions, moved or not: a log may forget old ones
        self.ends: dict[Partition, int] = {}
        self.catching_up = self.release_wanted = self.closing = self.first_done = False
        self.halt: Halt | None = None
        self.halt_is_written = True  # one that is not in the log yet cannot have been taken back there
        self.failure: ProcessorFailed | None = None  # of its processor, until what was completed before is committed
        self.last_ms = self.from_ms = 0  # its last commit; that of the owner before, as the log has it
        self.awaited = False  # there was input when it began
        self.pause_ms = self.records = self.opened_ms = self.restored_from = 0
        self.level_ms: int | None = None  # after the opening, its stores were level with their changelogs
        self.turn_size = TurnSize()
        self._asked: beginning.Asked | None = None  # ahead of what has to be read first
        self._ending: Ending | None = None  # of the owner before, until it has begun
        self._lock: TaskLock | None = None
        self._queue: asyncio.Queue[Callable[[], Coroutine[Any, Any, None]] | None] = asyncio.Queue()
        self._runner = asyncio.get_running_loop().create_task(self._run(), name=f"task {task}")
        self._closed = False

    # ---- the queue

    async def _run(self) -> None:
        while (step := await self._queue.get()) is not None:
            if self.closing and step != self._shut:
                continue
            try:
                await step()
            except BaseMissing as error:  # of the whole instance: no other task would find it either
                await self._shut()
                self.worker.crashed(error)
            except StateError as error:
                self.worker.failed(self, error)
            except Exception as error:  # noqa: BLE001 - a task of the loop: whatever it is ends the worker with it
                await self._shut()
                self.worker.crashed(error)

    def then(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._queue.put_nowait(step)

    def open(self, role: Role, epoch: int, ending: Ending | None = None) -> None:
        self.role, self.epoch, self._ending = role, epoch, ending
        self.then(self._open)

    def become(self, role: Role, epoch: int, ending: Ending | None = None) -> None:
        """Another role for the same open state."""
        self.role, self.epoch, self._ending, self.release_wanted = role, epoch, ending, False
        self.then(self._become)

    def close(self) -> None:
        """Give up the state; it stays on disk. Whatever was not committed is forgotten."""
        self.closing = True
        self.stop_processing()
        self.release_wanted = False
        self.then(self._shut)
        self._queue.put_nowait(None)

    async def closed(self) -> None:
        await self._runner

    # ---- steps

    async def _open(self) -> None:
        self.opened_ms = monotonic_ms()
        try:
            while not await self._take():  # noqa: ASYNC110 - a lock of the kernel has no event
                await asyncio.sleep(LOCK_RETRY_S)
        except GivenUp:
            return
        self.by_changelog = {opened.partition: opened for opened in self.stores.values()}
        self.restored_from = self.position()
        await self._become()

    async def _take(self) -> bool:
        """Opens the stores; False where a twin still has them (the fence, or its end, frees the folder), or this worker has
        not closed them yet after their folder was deleted. Raises GivenUp."""
        if self.release_wanted:  # the next owner may hold the folder already, and wait for the release
            self.released()
            raise GivenUp
        if self.closing:
            raise GivenUp
        try:
            self._lock = self.worker.directory.lock(self.scope)
            ends = await self.worker.log.ends(self.changelogs)
            spend = partial(self.worker.restores.spend, self)
            read = reading(self.id, sum(ends.values()), self.worker.event, spend, lambda: self.closing)
            self.stores = await self.worker.opener.open(self.id, read)
        except DirectoryLocked:
            self._unlock()
        except (DirectoryUnusable, ChangelogCut):
            await wait_for_capacity(lambda: self.closing or self.release_wanted)
            raise
        return self._lock is not None

    async def _become(self) -> None:
        if self._lock is None:  # it was released before it could be opened
            await self._open()
            return
        if begins := self.role is Role.ACTIVE:
            if self.begun_epoch == self.epoch:
                return  # granted while it was still opening, which saw the grant: it must not begin twice
            self._forget_asked()
            self._asked = self._ask()
        if not await self._read_ends():
            return  # the step of what it is now follows
        for partition, opened in self.by_changelog.items():
            self.worker.restores.add(self, partition, opened.store.offset)
        if begins:
            self.begun_epoch, self.catching_up = self.epoch, True
            if sum(self.ends.values()) - self.position() > self.worker.spec.instance.settings.acceptable_recovery_lag:
                self._forget_asked()  # it is asked again when all that is read
            if self._is_level():
                await self._begin()
        else:
            self.worker.event(Progress(self.id, self.position(), sum(self.ends.values())))

    async def _read_ends(self) -> bool:
        """Whether the ends of the changelogs are those of the role it has: ends that were asked for before a grant miss the
        last commit of the old owner."""
        if (known := self._known()) is not None:
            self.ends = known.ends
            return True
        role, epoch = self.role, self.epoch
        self.ends = await self.worker.log.ends(list(self.by_changelog), settled=role is Role.ACTIVE)
        return (role, epoch) == (self.role, self.epoch)

    def _is_level(self) -> bool:
        """As active: whether every store has reached the end of its changelog, for the first time."""
        if not self.catching_up or any(o.store.offset < self.ends[p] for p, o in self.by_changelog.items()):
            return False
        self.catching_up = False
        for partition in self.by_changelog:
            self.worker.restores.drop(partition)
        return True

    def caught_up(self) -> None:
        """As active: once its stores are level, begin to process. In its own queue: its changelogs are read beside others'."""
        if self._is_level():
            self.then(partial(self._begin_in, self.epoch))

    async def _begin_in(self, epoch: int) -> None:
        if self.role is Role.ACTIVE and self.epoch == epoch:
            await self._begin()

    def _known(self) -> beginning.Known | None:
        return beginning.read_ending(self._ending, self.inputs, self.changelogs)

    def _ask(self) -> beginning.Asked:
        worker, inputs = self.worker, self.inputs
        ask = partial(beginning.ask, worker.log, worker.prepared.app.id, self.scope, inputs, self._known())
        return beginning.Asked(ask(lambda: worker.start_positions(self, inputs), worker.globals.known))

    def _forget_asked(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.forget()

    async def _begin(self) -> None:
        """Process from the committed positions on; hold the task and process nothing where it is halted."""
        epoch = self.epoch
        # Who looks whether a halt was taken back must not take a task that begins for one that is held.
        self.halt = None
        self._asked = self._asked or self._ask()
        # It stays in the field: a release, and an end, wait for no answer.
        answers = None if self.release_wanted else await self._asked.answers()
        is_given_up = self.closing or self.release_wanted or (self.role, self.epoch) != (Role.ACTIVE, epoch)
        if answers is None or is_given_up:
            return
        (halt, committed, left), self._asked = answers, None
        self.from_ms, self.awaited = left.last_ms, left.is_awaited(committed)
        again = self.held_epoch == epoch
        self.halt, self.halt_is_written, self.held_epoch, self._ending = halt, True, epoch, None
        self.committed = dict(committed)
        if halt is not None and not halt.skip:
            self._report_started(again=again)
            return
        self.worker.caution.committed(committed)
        skips.leave_out_records(halt, committed, self.scope, self.worker.caution)
        self.process = beginning.process(self.worker, self.id, self.stores)
        skips.leave_out_calls(halt, self.process)
        self.worker.caution.watch_calls(self.scope, self.process)
        self.merger, self.first_done, self.last_ms, self.pause_ms = inbox(self.process), False, 0, 0
        self.worker.records.start(self)
        for partition, position in committed.items():
            self.worker.records.add(self, partition, position)
        self._report_started(again=again)

    def _report_started(self, *, again: bool) -> None:
        if not again:  # one that goes on after a halt started when it was given the task
            known: dict[str, Any] = {
                "position": self.position(),
                "level_ms": self.level_ms,
                "opened_ms": monotonic_ms() - self.opened_ms,
            }
            known |= {"log_id": self.worker.log.log_id, "restored_from": self.restored_from}
            self.worker.journal.write("started", task=self.scope, epoch=self.epoch, **origins(self.stores), **known)
        self.worker.event(Progress(self.id, self.position(), self.position()))
        self.worker.event(Started(self.id, self.worker.surroundings.wall_ms(), self.from_ms, self.awaited))

    def halted(self, halt: Halt) -> None:
        """A processor stopped: what was completed is committed; the task is held, and processes nothing."""
        self.stop_processing()
        self.halt, self.halt_is_written = halt, False

    def halt_written(self) -> None:
        """The log has it: a release has waited for that, so that no next owner tries the record again."""
        self.halt_is_written = True
        if self.release_wanted:
            self.then(self._release_unstarted)

    def resume(self, halt: Halt | None) -> None:
        """The halt was taken back; `halt` says where a record is to be skipped."""
        self.halt = halt
        self.then(self._resume)

    async def _resume(self) -> None:
        # One that is about to begin reads the halt itself: begun twice, it would put out again what it has committed meanwhile.
        if self.process is None and self.role is Role.ACTIVE and self.held_epoch == self.epoch:
            await self._begin()

    def topics_grew(self) -> None:
        """What it sends goes by the new counts from now on; what it reads may have a partition more."""
        if self.process is not None:
            self.process.counts_are(self.worker.prepared.counts())
        self.then(self._read_more)

    async def _read_more(self) -> None:
        new = [p for p in self.worker.prepared.inputs(self.id) if p not in self.inputs]
        self.inputs = [*self.inputs, *new]
        if not new or (process := self.process) is None:
            self._forget_asked()
            return  # what begins later begins with all of them
        positions = await self.worker.start_positions(self, new)
        if self.process is process:
            self.committed.update(positions)
            for partition, position in positions.items():
                self.worker.records.add(self, partition, position)

    async def _shut(self) -> None:
        for partition in self.by_changelog:
            self.worker.restores.drop(partition)
        self.stop_processing()
        stores, self.stores, self.by_changelog = self.stores, {}, {}
        for opened in stores.values():
            if (error := await close(opened.store)) is not None:
                self.worker.failed(self, error)
        if self._lock is not None and (error := await self.worker.opener.damaged.discard(self.id)) is not None:
            self.worker.failed(self, error)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # ---- processing

    def stop_processing(self) -> None:
        """No more input; what is in memory and not committed is forgotten."""
        self.worker.records.drop(self)
        self._forget_asked()
        self.catching_up = False
        self.process = None

    def release(self) -> None:
        """Asked to hand over: the record loop commits what the task has, and then calls `released`."""
        self.release_wanted = True
        if self.process is not None:
            self.worker.records.release(self.id)
        else:
            self._forget_asked()
            self.then(self._release_unstarted)

    async def _release_unstarted(self) -> None:
        """A task that had not started yet has nothing to commit; one that has started since is released like any."""
        if not self.release_wanted or not self.halt_is_written:
            return
        if self.process is None:
            self.released()
        else:
            self.worker.records.release(self.id)

    def released(self) -> None:
        """All that was processed is committed: give up the task, with the proof."""
        self.release_wanted = False
        is_whole = self.process is not None and self.halt is None and not self.commits_again
        last_ms = self.last_ms or self.from_ms
        ending = beginning.ending(self.committed, self.stores.values(), last_ms) if is_whole else None
        self.stop_processing()
        self.worker.journal.write(
            "released", task=self.scope, epoch=self.epoch, last_ms=self.last_ms, pause_ms=self.pause_ms
        )
        now_ms = self.worker.surroundings.wall_ms()
        self.worker.event(ReleaseDone(self.id, self.last_ms, self.position(), now_ms, ending))

    def processed(self, now_ms: int, records: int) -> None:
        """A commit with `records` of this task is through."""
        self.records += records
        if self.last_ms:
            self.pause_ms = max(self.pause_ms, now_ms - self.last_ms)
        self.last_ms = now_ms

    def has_moved(self, *, with_gaps: bool) -> bool:
        """Whether a commit has content: completed records, or positions after gaps."""
        if self.process is None:
            return False
        if self.process.has_completed or self.commits_again:
            return True
        number = self.id.partition
        return with_gaps and any(
            self.committed.get(Partition(topic, number), 0) < offset
            for (topic, _), offset in self.merger.gaps().items()
        )

    def is_copy(self) -> bool:
        """Whether it is restored for later, and may wait."""
        return self.role is not Role.ACTIVE and not self.closing

    def position(self) -> int:
        """How far the stores are: the sum over the task's changelogs."""
        return sum(opened.store.offset for opened in self.stores.values())

    def state_bytes(self) -> int:
        return sum(opened.store.size_bytes() for opened in self.stores.values())
