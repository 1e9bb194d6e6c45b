"""Active tasks: fetch their inputs, process, commit. One turn of the loop serves every task of the worker.

One rule: CommitMachine decides what is committed, released and stopped, and when; this loop performs it. A turn of a task
is bounded in time and in records, and the calls of async tasks go on beside the loop, so one slow task holds up no other;
nothing is cancelled inside a commit. Nothing is awaited per record (3 to 7 times the cost) unless the app asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable

from orchestrator.model import TaskId
from pipeline.errors import ProcessorFailed
from pipeline.process import TaskProcess
from pipeline.records import RawRecord
from state.errors import LogDamaged, PositionOutOfRange, StateError
from state.log.protocol import Partition, Reader
from workers.calls.call_watch import TURN_S, CallWatch, CallWatches, Turn, blame
from workers.tasks import commit_machine as cm
from workers.tasks.commit import Taken, collect, commit
from workers.tasks.inbox import take_in
from workers.tasks.task import TaskRun
from workers.worker import counted
from workers.worker.heads import Heads
from workers.worker.idle import Idle
from workers.worker.left_out import LeftOutLines
from workers.worker.ports import RecordPort
from workers.worker.rests import Rests
from workers.worker.turns import died, in_turn, undo
from workers.worker.unreadable import Unreadable

log = logging.getLogger("orchestrator.records")
TURN_RECORDS, TURN_COLUMNS = 500, 1 << 15  # of a turn: most records, and in columns
FETCH_BYTES, FETCH_BYTES_MIN = 256 << 10, 16 << 10
BUFFER_BYTES, BUFFER_BYTES_ALL = 1 << 20, 64 << 20  # of records that wait: of a partition; of a worker, or for a commit
COLUMNS = 8  # times as much of each where a processor takes columns: a call costs mostly what its distinct keys do
ROUNDS = 20  # a turn of N calls at once takes so many times N records at most
IDLE_MS, QUIET_MS = 20, 500  # where nothing can be processed; where besides nothing is to be committed or called
LOOKS, CALL_END_S = 3, 5.0  # heartbeats for looking at a sync call that lasts; how long a stop waits for async calls


class RecordLoop:
    """One reader for all inputs of this worker's active tasks."""

    def __init__(self, worker: RecordPort) -> None:
        self.machine = cm.CommitMachine()
        self._worker = worker
        self._reader: Reader = worker.log.reader()
        self._runs: dict[Partition, TaskRun] = {}
        self._paused: set[Partition] = set()
        clock = worker.surroundings.clock
        self.unreadable, self.rests, self.left_out = Unreadable(clock), Rests(clock), LeftOutLines()
        self._heads, self._caution = Heads(worker.log), worker.caution
        self._idle = Idle(worker.prepared.app.idle_ms, clock, worker.surroundings.wall_ms)
        self._calls: dict[TaskRun, asyncio.Task[None]] = {}
        self.commit: asyncio.Task[None] | None = None  # that is under way
        self._commit_s, self._next_commit, self._gathered = worker.spec.instance.commit_ms / 1000, 0.0, 0
        times = COLUMNS if any(one.columns for one in worker.prepared.app.processors.values()) else 1
        self._fetch_bytes, self._buffer_bytes = FETCH_BYTES * times, BUFFER_BYTES * times
        self._stopped = asyncio.Event()
        self.quiet = False  # only a record gives work; a part that has other work clears it
        self._turn_under_way: Turn | None = None
        self._turns: dict[TaskRun, Turn] = {}  # of async tasks
        self._careful: TaskRun | None = None  # the one whose careful calls began last
        self._watches: CallWatches[TaskRun] = CallWatches(clock)
        look_s = LOOKS * worker.spec.instance.settings.heartbeat_ms / 1000
        self._watch = CallWatch(clock, worker.spec.instance.max_call_ms / 1000, worker.overdue, look_s)

    def start(self, run: TaskRun) -> None:
        """A task processes from now on; its inputs are added next."""
        self._event(cm.Started(run.id))

    def add(self, run: TaskRun, partition: Partition, position: int) -> None:
        self._runs[partition] = run
        self._paused.discard(partition)
        self.unreadable.forget(partition)
        self._reader.add(partition, position)

    def drop(self, run: TaskRun) -> None:
        """A task processes no more; what it has not committed is forgotten, and a call under way is undone."""
        for partition in [partition for partition, one in self._runs.items() if one is run]:
            del self._runs[partition]
            self._paused.discard(partition)
            self.unreadable.forget(partition)
            self._reader.drop(partition)
        if (calls := self._calls.pop(run, None)) is not None:
            undo(run, calls)
        self.rests.forget(run)
        if run.process is not None:
            self._event(cm.Lost(run.id))

    def release(self, task: TaskId) -> None:
        """Commit what the task has, then hand it over."""
        self._event(cm.ReleaseAsked(task))
        if task in self._worker.runs:
            self._nudge(self._worker.runs[task])

    def active(self) -> list[TaskRun]:
        return [run for run in self._worker.runs.values() if run.process is not None]

    async def run(self) -> None:
        """Until `stop` has come to its end."""
        while not self._stopped.is_set():
            ticks = self._idle.follows and self._idle.tick(self.active())
            if not await self._fetch() and not ticks and (self.quiet or self._is_quiet()):
                self.quiet = True
                continue
            self.quiet = False
            for run in in_turn(self.active(), self._careful):
                await self._process(run)
                self._look_at_the_time()
            if self.commit is not None:
                await asyncio.wait([self.commit])
            await asyncio.sleep(0)

    def _is_quiet(self) -> bool:
        """Whether only a record, or a task that comes or goes, gives work."""
        if self._calls or self.commit is not None or self._paused or self.unreadable.notices() or self.rests.notices():
            return False
        return not any(
            len(run.merger) or run.has_moved(with_gaps=self.machine.trusts_gaps(run.id)) for run in self.active()
        )

    async def stop(self) -> None:
        """An orderly end: no further call begins, what is whole is committed, async calls that last are undone."""
        self._event(cm.StopAsked())
        for run in self.active():
            self._nudge(run)
        overdue = asyncio.get_running_loop().call_later(CALL_END_S, self._undo_calls)
        try:
            await self._stopped.wait()
        finally:
            overdue.cancel()

    @staticmethod
    def _nudge(run: TaskRun) -> None:
        """Calls that overlap wait for the next one that ends, and must know."""
        if run.process is not None:
            run.process.nudge()

    def _may_call(self, run: TaskRun) -> bool:
        """Whether a record waits, and its call may begin. A run that was given up may have a successor by now."""
        waits = run.process is not None and len(run.merger) > 0 and not self._heads.waits(run)
        goes_on = waits and self.machine.processes(run.id) and not self.rests.rests(run)
        return goes_on and not self._caution.commits_first(run) and self._careful not in self._calls

    def _undo_calls(self) -> None:
        for run, calls in self._calls.items():
            log.warning("%s: a call lasts; it is undone, and its record is read again by the next owner", run.id)
            undo(run, calls)

    async def _fetch(self) -> bool:
        """Read what there is for the tasks that have little left; wait where nothing can be processed. Returns whether a record can."""
        if self.quiet:
            return await self._read(self._fetch_bytes, QUIET_MS)
        ready = any(self._may_call(run) for run in self.active())
        most = max(FETCH_BYTES_MIN, min(self._buffer_bytes, BUFFER_BYTES_ALL // max(1, len(self._runs))))
        self._hold_back(most)
        for partition, position in self.unreadable.due():
            if partition in self._runs:
                self._reader.add(partition, position)
        if len(self._paused) == len(self._runs):
            await asyncio.sleep(0 if ready else IDLE_MS / 1000)
            return True
        return await self._read(min(self._fetch_bytes, most), 0 if ready else IDLE_MS) or ready

    async def _read(self, size: int, wait_ms: int) -> bool:
        try:
            fetched = await self._reader.poll(max_bytes_per_partition=size, wait_ms=wait_ms)
            self._heads.fetched()
        except PositionOutOfRange as error:
            self._records_are_gone(error)
            return True
        for part in fetched:
            run = self._runs.get(part.partition)
            if run is None or run.process is None:
                continue
            try:
                take_in(run.merger, run.process, self._worker.prepared.event_times[part.partition.topic], part)
            except LogDamaged as error:
                self.unreadable.hold(part.partition, part.position, error)
                self._reader.drop(part.partition)
                continue
            self._nudge(run)
            self._gathered += len(part.data)
        return bool(fetched)

    def _records_are_gone(self, error: PositionOutOfRange) -> None:
        """What a task has yet to read was removed by retention, by its next owner while this process stood still, or lost in an
        election before it was committed. It costs the task alone; its next start goes by `start_positions`."""
        run = self._runs.get(partition := Partition(*error.partition))
        if run is None:
            return  # dropped while the fetch was under way
        if run.committed.get(partition, 0) > error.end:
            raise error  # the log has lost what was processed, or is another one; see growth.py
        self._worker.failed(run, error)

    def _hold_back(self, most: int) -> None:
        """Read no more of a partition of which `most` bytes wait, and go on once half of them are processed."""
        for partition, run in self._runs.items():
            waiting = run.merger.size_bytes(*partition)
            if partition in self._paused:
                position = run.merger.read_to(*partition)
                if waiting <= most // 2 and position is not None:
                    self._paused.discard(partition)
                    self._reader.add(partition, position)
            elif waiting > most:
                self._paused.add(partition)
                self._reader.drop(partition)

    def _look_at_the_time(self) -> None:
        """Every commit interval, or once much was read: report what was completed, also in calls that are under way."""
        now, is_much = asyncio.get_running_loop().time(), self._gathered >= BUFFER_BYTES_ALL
        if now < self._next_commit and not is_much and not self._caution.commits_now(self.active):
            return
        self._next_commit, self._gathered = now + self._commit_s, 0
        self.rests.look(self.active())
        for run, error in died(self._calls):
            self._calls_ended(run, failed=True)
            if error is not None:
                self._worker.crashed(error)
        for run in self.active():
            if run.has_moved(with_gaps=self.machine.trusts_gaps(run.id)):
                self._event(cm.Completed(run.id))
        self._event(cm.CommitDue())

    async def _process(self, run: TaskRun) -> None:
        """One turn, where a record waits. Turns of one record follow each other for as long as a turn lasts: after each
        round the loop waits for the commit under way, and a careful worker would process one record a commit."""
        until = (clock := self._worker.surroundings.clock)() + TURN_S
        while self._may_call(run) and await self._heads.are_known(run) and self._may_call(run):
            await self._turn(run)
            if run.process is None or run.process.needs_async:
                break  # async calls go on beside this loop, and end elsewhere
            if clock() >= until or not self._caution.is_careful(run.scope):
                break

    async def _turn(self, run: TaskRun) -> None:
        """Process some records of a task. Sync calls wait for the end of a commit: both want the interpreter."""
        process = run.process
        assert process is not None
        if process.needs_async:
            self._begin_calls(run)
            return
        if self.commit is not None:
            await asyncio.wait([self.commit])
            if run.process is not process or not self._may_call(run):
                return
        turn = self._take(run, process)
        clock, self._turn_under_way = self._worker.surroundings.clock, turn
        until = (began := clock()) + self._caution.turn_s(run.scope)
        try:
            done = 1 if self._is_refused(turn) else process.run(turn.records, clock, until)
        except (ProcessorFailed, StateError) as error:
            self._failed(run, turn, error)
        else:
            self._turn_ended(run, turn, done, clock() - began)
        finally:
            self._turn_under_way = None
        await asyncio.sleep(0)

    def _turn_ended(self, run: TaskRun, turn: Turn, done: int, took_s: float) -> None:
        """What it has left waits again: all that has not been called, or is to be called again later."""
        counted.turn_ended(self._worker.measures, run, took_s)
        if turn.is_careful:
            self._caution.end(run.scope)
        again, columns = turn.process.again, turn.process.takes_columns
        run.merger.put_back(run.id.partition, turn.records[done:] if again is None else turn.process.left(turn.records))
        if again is not None:
            self.rests.begin(run, again.delay_s)
        elif turn.process.most_at_once == 1 and not turn.is_careful:
            run.turn_size.ended(max(1, done), took_s, TURN_COLUMNS if columns else TURN_RECORDS)
        self._calls_ended(run)

    def _take(self, run: TaskRun, process: TaskProcess) -> Turn:
        """The records of the next turn; one, with a note of its call, where the worker is careful."""
        careful = self._caution.is_careful(run.scope)
        most = 1 if careful else run.turn_size.records if process.most_at_once == 1 else process.most_at_once
        turn = Turn(run.scope, process, run.merger.take(most, to_first_end=process.keeps_order), careful)
        if careful:
            self._caution.begin(blame(turn))
        return turn

    def _is_refused(self, turn: Turn) -> bool:
        """Whether a careful turn's record is left out, or left to its policies, without any call. Raises ProcessorFailed."""
        if not turn.is_careful:
            return False
        topic, record = turn.records[0]
        if self._caution.is_left_out(topic, turn.process.partition, record.offset):
            turn.process.answering.skip(topic, record)
            return True
        found = self._caution.blamed(topic, turn.process.partition, record.offset)
        return found is not None and found.refuse(self._worker.prepared.app, turn.process, record)

    def _begin_calls(self, run: TaskRun) -> None:
        if self._caution.is_careful(run.scope):
            if self._calls:
                return  # no other call, sync or async, beside it: the note names the one that ends the process
            self._careful = run
        elif self._careful is run:
            self._careful = None
        self._event(cm.CallsBegan(run.id))
        self._calls[run] = asyncio.get_running_loop().create_task(self._call(run), name=f"calls of {run.id}")

    async def _call(self, run: TaskRun) -> None:
        """The calls of an async task until the turn is over; those that overlap go on, up to a bound, while records come."""
        process = run.process
        assert process is not None
        turn = self._turns[run] = self._take(run, process)
        began = (now := self._worker.surroundings.clock)()
        try:
            if self._is_refused(turn):
                done = 1
            else:
                until = began + self._caution.turn_s(run.scope) if process.most_at_once == 1 else math.inf
                done = await process.run_async(
                    turn.records,
                    lambda: now() if self.machine.goes_on(run.id) else math.inf,
                    until,
                    lambda: self._more(run, turn),
                )
        except (ProcessorFailed, StateError) as error:
            self._failed(run, turn, error)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is ends the worker with it
            is_asked_for = run.process is not process or not self.machine.goes_on(run.id)
            self._undone(run, process)
            if not (is_asked_for and isinstance(error, asyncio.CancelledError)):
                self._worker.crashed(error)
        else:
            if run.process is process:
                self._turn_ended(run, turn, done, now() - began)
            elif turn.is_careful:
                self._caution.end(run.scope)
        finally:
            if self._turns.get(run) is turn:
                del self._turns[run]

    def _more(self, run: TaskRun, turn: Turn) -> list[tuple[str, RawRecord]]:
        """Further records for calls that overlap."""
        at_once = turn.process.most_at_once
        if turn.is_careful or run.process is not turn.process:
            return []
        if len(turn.records) >= max(TURN_RECORDS, at_once * ROUNDS) or not isinstance(turn.records, list):
            return []
        turn.records.extend(more := list(run.merger.take(at_once)))
        return more

    def _calls_ended(self, run: TaskRun, *, failed: bool = False) -> None:
        """No call of the task is under way; what was completed may be committed."""
        self._calls.pop(run, None)
        self._event(cm.CallsEnded(run.id, run.has_moved(with_gaps=False), failed))

    def _undone(self, run: TaskRun, process: TaskProcess) -> None:
        """A call did not end: its record, and what was taken with it, are read again by the next owner."""
        if run.process is process:
            self._calls_ended(run, failed=True)

    def _failed(self, run: TaskRun, turn: Turn, error: ProcessorFailed | StateError) -> None:
        """A processor stopped: what was completed before is committed, then the task is halted. Or a store failed: the task is restored.
        Its call is over in both cases, and a crash that follows is not its."""
        if turn.is_careful:
            self._caution.end(turn.scope)
        if isinstance(error, StateError):
            self._worker.failed(run, error)
        elif run.process is turn.process:
            run.failure = error
            self._calls_ended(run, failed=True)

    def _event(self, event: cm.Event) -> None:
        for effect in self.machine.step(event):
            match effect:
                case cm.BeginCommit(tasks):
                    self._begin_commit(tasks)
                case cm.Released(task):
                    self._worker.runs[task].released()
                case cm.Halted(task):
                    self._worker.halted(self._worker.runs[task])
                case cm.Stopped():
                    self._stopped.set()

    def _begin_commit(self, tasks: Iterable[TaskId]) -> None:
        runs = [self._worker.runs[task] for task in tasks]
        now_ms, trusts = self._worker.surroundings.wall_ms(), self.machine.trusts_gaps
        taken = [one for run in runs if (one := collect(run, now_ms, with_gaps=trusts(run.id))) is not None]
        through = frozenset(tasks) - {one.run.id for one in taken}  # nothing of theirs is to be written
        self._worker.giving_way.commit_began()
        self.commit = asyncio.get_running_loop().create_task(self._commit_all(taken, through), name="commit")

    async def _commit_all(self, taken: list[Taken], through: frozenset[TaskId]) -> None:
        """One commit, from what was taken to its outcome; never cancelled."""
        worker = self._worker
        try:
            if taken:
                writer, how, began = worker.transactional_id, worker.guarantee(), worker.surroundings.clock()
                outcome = await commit(worker.log, worker.application, writer, taken, worker.before_commit, how)
                counted.commit_ended(worker.measures, outcome, worker.surroundings.clock() - began)
                for done in outcome.done:
                    self.left_out.committed(done.run.scope, done.changes.left_out)
                    worker.committed(done)
                through |= {done.run.id for done in outcome.done}
                # A fence of an incarnation that was given up meanwhile says nothing of the one after it.
                worker.lost(outcome.lost, outcome.fenced and writer == worker.transactional_id)
        except Exception as error:  # noqa: BLE001 - a task of the loop: whatever it is ends the worker with it
            worker.crashed(error)
            for one in taken:  # not known to be in the log: not to be committed again
                worker.given_up(one.run)
        self.commit = None
        worker.giving_way.commit_ended()
        self._event(cm.CommitEnded(through))

    def long_calls(self) -> list[str]:
        """A line for each async call under way that lasts."""
        return self._watches.look(self._turns)

    def long_call(self) -> str:
        """The same of a sync call, or "". Called from the thread of heartbeats, while the call holds the loop."""
        return self._watch.look(self._turn_under_way)
