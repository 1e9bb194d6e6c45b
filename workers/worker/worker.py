"""A worker process: one event loop that fetches, processes, commits, restores and follows, for the tasks it is given.

One rule: what a task does is decided by MemberMachine (orchestrator/member/machine.py); this shell performs its effects and
gives it what came of them as events. Its parts know it by their ports (ports.py) alone; worker_main.py makes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.clocks import monotonic_ms
from orchestrator.member import events as mem
from orchestrator.member.machine import MemberMachine
from orchestrator.model import Ending, MemberStatus, Role, TaskId
from state.errors import DirectoryUnusable, LogReplaced, StateError, StoreDeleted
from state.log.protocol import GroupLog, Guarantee, MayWrite, Partition
from workers.calls.blame import Caution, note_path
from workers.calls.call_watch import Turn, blame, is_of_one_record
from workers.connection.uplink import Watch
from workers.end_watch import LIMIT_S, failure_of
from workers.log.patient_log import PatientLog
from workers.log_lines import TASK
from workers.metrics.families import ERRORS, OF_WORKER
from workers.metrics.measures import Measures, Samples
from workers.prepare import Prepared
from workers.spec import OVERDUE, REPORTED, WorkerSpec, end_of_worker
from workers.surroundings import REAL, Surroundings
from workers.tasks import halts, inputs
from workers.tasks.commit import Taken
from workers.tasks.halts import Halt
from workers.tasks.stores import StoreOpener, disk_positions
from workers.tasks.task import TaskRun
from workers.worker import counted, growth, halt_watch, offered_stores, upkeep
from workers.worker.deleted_stores import DeletedStores
from workers.worker.failpoint import Failpoint
from workers.worker.giving_way import GivingWay
from workers.worker.global_tables import GlobalTables
from workers.worker.measuring import Measuring
from workers.worker.notices import joined
from workers.worker.pulse import Pulse
from workers.worker.record_loop import RecordLoop
from workers.worker.restore_loop import RestoreLoop
from workers.worker.session import Session
from workers.worker.stamps import Stamps
from workers.worker.unopened import Unopened

log = logging.getLogger("orchestrator.worker")
DRAIN_S = 10.0


class Worker:
    """Everything one worker process holds."""

    def __init__(
        self,
        spec: WorkerSpec,
        log_: GroupLog,
        prepared: Prepared,
        resources: Mapping[str, Any],
        surroundings: Surroundings = REAL,
    ) -> None:
        instance = spec.instance
        self.spec = spec
        self.log = log_
        self.prepared = prepared
        self.resources = resources
        self.surroundings = surroundings
        self.application = prepared.app.id
        self.directory = surroundings.open_directory(Path(instance.state_dir), self.application, instance.instance)
        self.opener = StoreOpener(log_, prepared, self.directory, instance.snapshots, surroundings)
        self.machine = MemberMachine(instance.settings)
        self.pulse = Pulse()
        self.commits = 0  # of tasks, so far
        self.session = Session(self)
        self.measuring = Measuring(self)
        self.journal = surroundings.open_journal(
            self.directory.path / "journal.jsonl",
            {"instance": instance.instance, "incarnation": spec.incarnation},
        )
        self.failpoint = Failpoint(instance, log_)
        self.caution = Caution(
            surroundings.open_note(note_path(self.directory.path, spec.incarnation)),
            careful=spec.careful,
            blamed=spec.blamed,
        )
        self.measures = Measures(OF_WORKER)
        self.deleted = DeletedStores(self)
        self.giving_way = GivingWay()
        self.runs: dict[TaskId, TaskRun] = {}
        self.globals = GlobalTables(self)
        self.restores = RestoreLoop(self)
        self.records = RecordLoop(self)
        self.unopened = Unopened(self.surroundings.clock)
        self.stamps = Stamps(self)
        self.failure: BaseException | None = None
        self.report = 0  # where nothing fails
        self.stopping = asyncio.Event()
        self.halting = asyncio.Lock()  # writes of halts: one that is over is not taken for the next one
        self._closing: dict[asyncio.Task[None], None] = {}  # in order

    # ---- life

    async def run(self) -> int:
        """Until asked to leave or stopped (`report`), or a part of it fails (raises)."""
        await self.scan_disk()
        loops = [
            asyncio.create_task(loop, name=name)
            for name, loop in (
                ("session", self.session.run()),
                ("heartbeat", self.session.beat()),
                ("measuring", self.measuring.run()),
                *([("global tables", self.globals.run())] if self.globals.stores else []),
                ("restores", self.restores.run()),
                ("deleted stores", self.deleted.run()),
                ("upkeep", upkeep.run(self)),
                ("growth", growth.run(self)),
                ("halts", halt_watch.run(self)),
                ("records", self.records.run()),
                ("stores", offered_stores.run(self, self.records)),
            )
        ]
        stop = asyncio.create_task(self.stopping.wait(), name="stop")
        await asyncio.wait([*loops, stop], return_when=asyncio.FIRST_COMPLETED)
        self.failure = self.failure or failure_of(loops, go_on=True)
        self.stopping.set()
        await self._stop_records()
        self.failure = self.failure or failure_of(loops)
        self.surroundings.end_within(LIMIT_S, end_of_worker(self.failure, self.report))
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        stop.cancel()
        self.failure = self.failure or failure_of(loops)
        await self._close_all()
        if self.failure is not None:
            raise self.failure
        return self.report

    async def _stop_records(self) -> None:
        """End the calls and commit what is whole. Nothing is lost where there is no time for it: what no commit has, the
        next owner reads again."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.records.stop()
        except TimeoutError:
            log.warning("the last commit did not end within %.0f s; what it leaves out is processed again", DRAIN_S)
        self.records.left_out.end()

    async def _close_all(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_S):
                for run in list(self.runs.values()):
                    run.close()
                for run in list(self.runs.values()):
                    await run.closed()
                await asyncio.gather(*self._closing)
        except TimeoutError:
            log.warning(
                "the stores were not closed within %.0f s; they are checked when they are opened again", DRAIN_S
            )
        await self.session.close()

    def stop(self, *, comes_back: bool = True) -> None:
        """Commit and go. A bounce where it comes back: the tasks are kept for this member for the session timeout."""
        self.machine.bounce = comes_back
        self.session.send_now()
        self.stopping.set()

    def leave(self) -> None:
        """Hand everything over, then go."""
        self.event(mem.LeaveWanted())

    def failed(self, run: TaskRun, error: StateError) -> None:
        """A task's state failed: it is given up, and restored where the group places it; a damaged store is wiped."""
        if isinstance(error, LogReplaced):  # of all tasks
            self.crashed(error)
            return
        if isinstance(error, StoreDeleted):
            self.deleted.add(run)
        else:
            goes_on = "tried again" if self.unopened.hold(run.id, error) else "restored from the log"
            self.opener.damaged.met(run.id, error)
            log.error("%s: %s; it is %s", run.id, error, goes_on)
        self.measures.add(ERRORS, 1, "state")
        self.given_up(run)

    def given_up(self, run: TaskRun) -> None:
        """What a task has in memory is not to be committed: it is restored from the log."""
        if self.runs.get(run.id) is run:
            self.event(mem.Dropped(frozenset({run.id})))
            self._close(run.id)

    def halted(self, run: TaskRun) -> None:
        """A call failed, or was undone by a stop: the halt is written down, or the worker ends with the error."""
        error, run.failure = run.failure, None
        if error is None:
            return
        self.measures.add(ERRORS, 1, "processor")
        if self.spec.instance.on_halt == "exit":
            self.crashed(error)
            return
        log.error("%s is halted: %s", run.id, error)
        halt = halts.of_failure(error, self.surroundings.wall_ms())
        run.halted(halt)
        self._soon(self._write_halt(run, halt))

    async def _write_halt(self, run: TaskRun, halt: Halt) -> None:
        try:
            async with self.halting:
                await halts.write(self.log, self.application, run.scope, halt)
        except StateError as error:
            self.crashed(error)
        else:
            run.halt_written()

    def crashed(self, error: BaseException) -> None:
        """An internal error: stop the worker with it."""
        if self.failure is None:
            self.failure = error
        self.stopping.set()

    def overdue(self, turn: Turn) -> None:
        """A sync call lasts longer than `--max-call`: nothing in this process can end it but its end. Called from the
        thread that keeps the connection alive; the parent reads the note. A batch leaves none: the next worker is careful,
        takes its records one at a time, and so finds the one."""
        limit_s = self.spec.instance.max_call_ms / 1000
        if is_of_one_record(turn):
            self.caution.begin(blame(turn, f"lasted longer than --max-call of {limit_s:g} s"))
        self.surroundings.exit(REPORTED + OVERDUE)

    def log_waits(self) -> str:
        """Why calls wait for the log; "" where none does."""
        return self.log.waiting if isinstance(self.log, PatientLog) else ""

    def log_waits_so_far(self) -> tuple[int, float]:
        return self.log.waits() if isinstance(self.log, PatientLog) else (0, 0.0)

    def notice(self) -> str:
        """What an operator should know of this worker now, a line each."""
        waiting = self.log_waits()
        lines = [f"waits for the log: {waiting}"] if waiting else []
        lines += [*self.records.long_calls(), *self.records.rests.notices()]
        lines += [line for loop in (self.records, self.restores, self.globals) for line in loop.unreadable.notices()]
        processing = {run.id for run in self.runs.values() if run.process is not None}
        halted = [(run.id, run.halt) for run in self.runs.values() if run.halt is not None and run.process is None]
        lines += [f"{task} is halted at {halt.record}: {halt.error}" for task, halt in halted]
        return joined([*lines, *self.unopened.notices(processing), *self.measuring.notices()])

    # ---- the machine

    def event(self, event: mem.MemberEvent) -> None:
        if isinstance(event, mem.Started):
            self.level(self.runs.get(event.task))
            if not event.awaited:
                self.giving_way.over(event.task)
        for effect in self.machine.step(event, monotonic_ms()):
            self._perform(effect)

    def term_began(self, term: int) -> None:
        """Another coordinator, another entry in the log's history: what is written from now on is stamped with it."""
        self._soon(self.stamps.renew(term))

    def _perform(self, effect: mem.MemberEffect) -> None:
        match effect:
            case mem.Open(task, role, epoch, ending):
                self._open(task, role, epoch, ending)
            case mem.ChangeRole(task, role, epoch, ending):
                run = self.runs.get(task)
                self.giving_way.changes_role(task, role)
                if run is None:
                    self._open(task, role, epoch, ending)
                else:
                    run.become(role, epoch, ending)
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

    def _open(self, task: TaskId, role: Role, epoch: int, ending: Ending | None) -> None:
        TASK.set(str(task))  # its steps run in a copy of this context: their log lines are of it
        run = self.runs[task] = TaskRun(self, task)
        TASK.set("")
        run.open(role, epoch, ending)

    def _close(self, task: TaskId) -> None:
        run = self.runs.pop(task, None)
        if run is None:
            return
        self.giving_way.over(task)
        run.close()
        self._soon(self._closed(run))

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside the loops; the worker does not end before it has ended."""
        task = asyncio.get_running_loop().create_task(work)
        self._closing[task] = None
        task.add_done_callback(self._closing.pop)

    async def _closed(self, run: TaskRun) -> None:
        await run.closed()
        if not self.stopping.is_set():
            with suppress(DirectoryUnusable):  # what lies there is not known, so it counts for nothing
                await self.scan_disk(run.id)

    async def scan_disk(self, one: TaskId | None = None) -> None:
        """Tell the group what state lies here unused: all of it, or what has become of one task's. A look opens the store,
        beside the loop; what is held is known better."""
        held = set(self.machine.held)
        names = [str(one)] if one is not None else sorted(set(self.directory.tasks()) - set(map(str, held)))
        found = await asyncio.to_thread(disk_positions, self.directory, names, self.prepared, self.log.log_id)
        kept = {t: p for t, p in self.machine.disk.items() if (t in held if one is None else t != one)}
        self.event(mem.DiskSeen({**kept, **found}))

    # ---- asked by its parts (ports.py)

    def guarantee(self) -> tuple[Guarantee, MayWrite]:
        """How the next commit is made; see Session."""
        return self.session.guarantee()

    @property
    def transactional_id(self) -> str:
        return self.session.join_request.writer

    @property
    def member(self) -> str:
        return self.session.join_request.member

    def status(self) -> MemberStatus:
        return self.machine.status()

    def active(self) -> list[TaskRun]:
        return self.records.active()

    def is_ready(self, task: TaskId) -> bool:
        return (holding := self.machine.held.get(task)) is not None and holding.ready

    def level(self, run: TaskRun | None) -> None:
        if run is not None and run.by_changelog and run.level_ms is None:  # the first time ends a restore
            run.level_ms = monotonic_ms() - run.opened_ms
            counted.restored(self.measures, run, run.level_ms / 1000)

    def measured(self) -> Samples:
        counted.put_gauges(self.measures, self)
        return self.measures.samples()

    @property
    def long_call(self) -> Watch:
        return self.records.long_call

    async def before_commit(self, taken: list[Taken]) -> None:
        await self.failpoint.before_commit(self.transactional_id, taken)

    def topics_grew(self, prepared: Prepared) -> None:
        """Go by other counts; the group gets another join request where there are other tasks now."""
        before, self.prepared = self.prepared, prepared
        for run in list(self.runs.values()):
            run.topics_grew()
        if prepared.tasks() != before.tasks():
            self.session.join_again()

    async def start_positions(self, run: TaskRun, partitions: Sequence[Partition]) -> dict[Partition, int]:
        found, taken = await inputs.start_positions(self.log, self.application, self.prepared, run.id, partitions)
        if taken:
            self.commit_again(run)
        return found

    def commit_again(self, run: TaskRun) -> None:
        run.commits_again, self.records.quiet = True, False

    def held(self) -> list[TaskId]:
        return list(self.machine.held)

    # ---- what the log refuses

    def lost(self, runs: tuple[TaskRun, ...], fenced: bool) -> None:
        """The log refused these tasks, or the whole writer."""
        if fenced:
            self.event(mem.WriterLost())
        for run in runs:
            self.given_up(run)

    def committed(self, taken: Taken) -> None:
        """A task's commit is through: time it, and report the first one of this epoch."""
        now = self.surroundings.wall_ms()
        run = taken.run
        self.commits += 1
        self.caution.committed(taken.part.positions)
        if taken.changes.records_in:
            run.processed(now, taken.changes.records_in)
            if not run.first_done:
                run.first_done = True
                self.giving_way.over(run.id)
                self.journal.write("first", task=run.scope, epoch=run.epoch, first_ms=now, from_ms=run.from_ms)
                self.event(mem.FirstRecord(run.id, now))
