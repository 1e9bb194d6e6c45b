"""Rules of the shell removed one at a time: patches applied by the test, never flags in the product. Each must be caught.

One rule: a mutation removes exactly one rule; if no seed notices, the simulation is too weak or the rule is not needed.
`DIRECTED` names faults that make the lives in which a rule matters likelier; they are drawn beside others.
"""

from __future__ import annotations

import asyncio
import heapq
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from orchestrator.coordinator import shell
from orchestrator.coordinator.election import Election
from orchestrator.coordinator.ledger import NotCoordinator
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import ListenerWatch
from orchestrator.model import Ending
from pipeline.calls.overlap import Overlap
from pipeline.calls.timeouts import Countdown
from pipeline.merge import Merger
from pipeline.process import TaskProcess
from state import manifest, snapshot
from state.errors import LeaseLost, LogUnavailable, OutcomeUnknown, StoreDamaged
from state.history import History
from state.log import memory
from state.log.memory import MemoryLog
from state.log.protocol import Partition, TaskCommit
from tests.process_simulation.disk import Directory, DiskStore, Lock
from tests.process_simulation.process import current
from workers import prepare
from workers.calls.blame import CallNote, Caution
from workers.calls.call_watch import CallWatch
from workers.connection.contact import Contact
from workers.connection.uplink import LoopUplink
from workers.fleet.fleet import LEAVE_S, Fleet
from workers.instance import instance
from workers.instance.candidate import Candidate
from workers.instance.instance import Instance
from workers.instance.ledger import LogLedger
from workers.log import patience
from workers.log.patience import Patience
from workers.tasks import beginning, commit, commit_machine, halts, stores
from workers.tasks.commit import Taken
from workers.tasks.commit_machine import SHARE_LIFE, CommitMachine, Share, Work
from workers.tasks.task import TaskRun
from workers.worker import growth, record_loop, worker, worker_main
from workers.worker.session import Session
from workers.worker.worker import Worker

Mutation = Callable[[ExitStack], None]


def _patch(stack: ExitStack, owner: object, name: str, value: object) -> None:
    stack.enter_context(patch.object(owner, name, value))


# ---- fences


def ignore_the_fence(stack: ExitStack) -> None:
    """A worker whose commit is answered with a fence goes on."""

    def lost(self: Worker, runs: tuple[TaskRun, ...], fenced: bool) -> None:
        """Nothing."""

    _patch(stack, Worker, "lost", lost)


def fence_is_not_passed_on(stack: ExitStack) -> None:
    """The coordinator's word that the session was fenced is not told to the machine."""
    original = Worker.event

    def handled(self: Worker, event: object) -> None:
        if type(event).__name__ != "WriterLost":
            original(self, event)  # type: ignore[arg-type]

    _patch(stack, Worker, "event", handled)


def rejoin_under_the_old_writer(stack: ExitStack) -> None:
    """A fenced worker comes back under the transactional id that was fenced."""

    def rejoin(self: Session) -> None:
        uplink, self._uplink = self._uplink, None
        if uplink is not None:
            asyncio.get_running_loop().create_task(uplink.close())

    _patch(stack, Session, "rejoin", rejoin)


def log_forgets_fences(stack: ExitStack) -> None:
    """The log neither refuses a fenced transactional id, nor who does not own a scope any more."""
    original = MemoryLog.commit

    async def anyone(
        self: MemoryLog, application: str, writer: str, parts: Sequence[TaskCommit], **how: Any
    ) -> dict[Partition, int]:
        self._fenced.clear()
        return await original(self, application, writer, parts, **how)

    _patch(stack, MemoryLog, "commit", anyone)
    _patch(stack, memory, "owns", lambda record, part, writer: True)


def a_commit_without_a_fence_knows_no_time(stack: ExitStack) -> None:
    """A worker that nothing would fence goes on at least once, however long ago a coordinator heard it."""
    _patch(stack, Contact, "may_begin", lambda self: True)
    _patch(stack, Contact, "may_write", lambda self: True)


def a_deposed_coordinator_answers(stack: ExitStack) -> None:
    """A coordinator that stood still, and has a successor by now, tells its members that they are heard."""
    _patch(stack, shell, "LEASE_TIMEOUT_MS", 1 << 40)


# ---- commits


def try_an_unknown_outcome_again(stack: ExitStack) -> None:
    """A commit whose outcome nobody knows is made once more."""
    original = commit.commit

    async def again(log: Any, application: str, writer: str, taken: list[Taken], before: Any, *how: Any) -> object:
        class Patient:
            async def commit(self, *args: Any, **more: Any) -> Any:
                try:
                    return await log.commit(*args, **more)
                except OutcomeUnknown:
                    return await log.commit(*args, **more)

        return await original(Patient(), application, writer, taken, before, *how)  # type: ignore[arg-type]

    _patch(stack, record_loop, "commit", again)


def go_on_after_an_unknown_outcome(stack: ExitStack) -> None:
    """A commit whose outcome nobody knows is taken for one that failed: the task goes on as it is."""
    original = Worker.lost

    def lost(self: Worker, runs: tuple[TaskRun, ...], fenced: bool) -> None:
        if fenced:
            original(self, runs, fenced)

    _patch(stack, Worker, "lost", lost)


def positions_of_refused_parts(stack: ExitStack) -> None:
    """What was read for a refused part is committed with the parts of others."""
    original = commit.commit

    async def with_positions(
        log: Any, application: str, writer: str, taken: list[Taken], before: Any, *how: Any
    ) -> object:
        everything = {p: o for t in taken for p, o in t.part.positions.items()}

        class Generous:
            async def commit(self, application: str, writer: str, parts: list[TaskCommit], **how: Any) -> Any:
                first = parts[0]
                more = TaskCommit(first.scope, first.epoch, first.records, {**everything, **first.positions})
                return await log.commit(application, writer, [more, *parts[1:]], **how)

        return await original(Generous(), application, writer, taken, before, *how)  # type: ignore[arg-type]

    _patch(stack, record_loop, "commit", with_positions)


def stores_before_the_log(stack: ExitStack) -> None:
    """The stores are written before the commit is in the log."""
    original = commit.commit

    async def early(log: Any, application: str, writer: str, taken: list[Taken], before: Any, *how: Any) -> object:
        for one in taken:
            for table, writes in one.changes.writes.items():
                store = one.run.stores[table].store
                store.write(writes, store.offset)
        return await original(log, application, writer, taken, before)

    _patch(stack, record_loop, "commit", early)


def a_failed_store_goes_on(stack: ExitStack) -> None:
    """A store that could not be written is taken for one that was."""
    original = commit._apply

    def apply(taken: Taken, ends: dict[Partition, int]) -> bool:
        if not original(taken, ends):
            taken.process.mark_applied()
            taken.run.committed.update(taken.part.positions)
        return True

    _patch(stack, commit, "_apply", apply)


def offset_apart_from_the_data(stack: ExitStack) -> None:
    """A store's offset is written in a batch of its own, before the data."""
    original = DiskStore.write

    def write(self: DiskStore, changes: Mapping[bytes, bytes | None], offset: int, **how: Any) -> None:
        original(self, {}, offset, **how)
        original(self, changes, offset, **how)

    _patch(stack, DiskStore, "write", write)


def a_busy_log_is_not_waited_for(stack: ExitStack) -> None:
    """A call that the log has no time for is not made again."""

    async def once(self: Patience, call: Callable[[], Any]) -> Any:
        return await call()

    _patch(stack, Patience, "__call__", once)


def an_unknown_outcome_is_waited_for(stack: ExitStack) -> None:
    """Calls are made again also where the log does not say that nothing was written."""
    _patch(stack, patience, "LogUnavailable", (LogUnavailable, OutcomeUnknown))


# ---- beginnings


def begin_twice(stack: ExitStack) -> None:
    """A task that was granted while it opened begins once for each."""
    original = TaskRun._become

    async def become(self: TaskRun) -> None:
        self.begun_epoch = 0
        await original(self)

    _patch(stack, TaskRun, "_become", become)


def begin_before_caught_up(stack: ExitStack) -> None:
    """A task begins with what its stores have, whatever its changelogs have."""
    original = TaskRun._is_level

    def at_once(self: TaskRun) -> bool:
        self.ends = dict.fromkeys(self.ends, 0)
        return original(self)

    _patch(stack, TaskRun, "_is_level", at_once)


def no_lock_on_a_folder(stack: ExitStack) -> None:
    """Whoever wants the folder of a task has it."""
    _patch(stack, Directory, "lock", lambda self, task: Lock(self._disk, self.path / "nowhere" / current().name))


def begin_at_the_start(stack: ExitStack) -> None:
    """A task begins where its topics begin, whatever is committed."""

    async def positions(self: Worker, run: TaskRun, inputs: Sequence[Partition]) -> dict[Partition, int]:
        return await self.log.starts(inputs)

    _patch(stack, Worker, "start_positions", positions)


def begin_at_the_end(stack: ExitStack) -> None:
    """A task begins where its topics end, whatever is committed."""

    async def positions(self: Worker, run: TaskRun, inputs: Sequence[Partition]) -> dict[Partition, int]:
        return await self.log.ends(inputs)

    _patch(stack, Worker, "start_positions", positions)


def an_ending_before_the_last_record(stack: ExitStack) -> None:
    """A release does not say that its last record is processed."""
    original = beginning.ending

    def ending(committed: Mapping[Partition, int], opened: Iterable[stores.Opened], last_ms: int) -> Ending:
        return original({one: max(0, at - 1) for one, at in committed.items()}, opened, last_ms)

    _patch(stack, beginning, "ending", ending)


def an_ending_before_the_last_change(stack: ExitStack) -> None:
    """A release does not say how far its changelogs go: the next owner begins with the store that it has."""
    original = beginning.ending

    def ending(committed: Mapping[Partition, int], opened: Iterable[stores.Opened], last_ms: int) -> Ending:
        made = original(committed, opened, last_ms)
        return made._replace(changelogs=tuple((topic, number, 0) for topic, number, _ in made.changelogs))

    _patch(stack, beginning, "ending", ending)


def an_ending_is_kept(stack: ExitStack) -> None:
    """A task that begins again in its epoch, as it is resumed, begins where the owner before it ended."""
    original = TaskRun._begin

    async def begin(self: TaskRun) -> None:
        kept, epoch = self._ending, self.epoch
        await original(self)
        if self.epoch == epoch:
            self._ending = kept

    _patch(stack, TaskRun, "_begin", begin)


def trust_any_store(stack: ExitStack) -> None:
    """A store that cannot be read is taken for an empty one at its place."""

    def from_disk(self: Any, change: Any) -> Any:
        path = self._directory.table(str(change.task), change.table)
        stamp = {"log_id": self._log.log_id, "topic_id": self._topic_id(change)}
        try:
            store = self._surroundings.open_store(path, stamp, self._budget)
        except StoreDamaged:
            self._directory.wipe(str(change.task), change.table)
            store = self._surroundings.open_store(path, stamp, self._budget)
            store.write({}, change.end)
        return store

    _patch(stack, stores.StoreOpener, "_from_disk", from_disk)


# ---- ends


def orderly_stop_kills(stack: ExitStack) -> None:
    """An instance that is told to stop kills its workers at once."""
    original = Instance._stop_all

    def stop(self: Instance) -> None:
        original(self)
        self._kill_all()

    _patch(stack, Instance, "_stop_all", stop)


def a_stopped_worker_lives_on(stack: ExitStack) -> None:
    """Nobody kills a worker that was stopped for a session."""

    async def watch(self: Instance) -> None:
        await asyncio.Event().wait()

    _patch(stack, Instance, "_watch", watch)


def an_orphan_lives_on(stack: ExitStack) -> None:
    """A worker whose instance is gone goes on."""

    async def listen(worker: Worker) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), None)
        while line := await reader.readline():
            worker.stop() if line.strip() == b"stop" else worker.leave()

    _patch(stack, worker_main, "_listen", listen)


def nobody_starts_it_again(stack: ExitStack) -> None:
    """An instance that was killed stays away."""

    async def watch(self: Fleet, name: str, slot: Any) -> None:
        if await self._start(name, slot):
            await slot.handle.wait()

    _patch(stack, Fleet, "_watch", watch)


def gaps_are_always_trusted(stack: ExitStack) -> None:
    """Offsets of which nothing waits count as read, also while calls are under way."""
    _patch(stack, CommitMachine, "trusts_gaps", lambda self, task: task in self._tasks)


def commits_overlap(stack: ExitStack) -> None:
    """A commit begins whatever became of the one before."""
    original = CommitMachine._begin

    def begin(self: CommitMachine, moved: Any) -> Any:
        effect = original(self, moved)
        self.committing = frozenset()
        return effect

    _patch(stack, CommitMachine, "_begin", begin)


def what_was_taken_is_not_put_back(stack: ExitStack) -> None:
    """Records that a turn had no time for are forgotten."""
    _patch(stack, Merger, "put_back", lambda self, *args: None)


# ---- the coordinator


def serve_after_the_term(stack: ExitStack) -> None:
    """A coordinator whose lease was taken goes on to serve."""

    async def renew(self: LogLedger) -> None:
        try:
            self._lease = await self._log.renew(self._lease)
        except LeaseLost:
            return

    original = LogLedger.record_owners

    async def record(self: LogLedger, records: Any) -> None:
        try:
            await original(self, records)
        except NotCoordinator:
            return

    _patch(stack, LogLedger, "renew", renew)
    _patch(stack, LogLedger, "record_owners", record)


def take_the_lease_at_once(stack: ExitStack) -> None:
    """A candidate does not wait until the beat of the lease stands still."""
    _patch(stack, Election, "look", lambda self, seen, now_ms: True)


def never_take_the_lease(stack: ExitStack) -> None:
    """A lease whose beat stands still, or whose port refuses, is left to its holder."""

    async def is_refused(self: ListenerWatch, address: str) -> bool:
        return False

    _patch(stack, Election, "look", lambda self, seen, now_ms: seen is None)
    _patch(stack, ListenerWatch, "is_refused", is_refused)


def connect_once(stack: ExitStack) -> None:
    """A worker that lost its connection does not look for the coordinator again."""
    original = Session._once

    async def once(self: Session) -> None:
        if getattr(self, "_was_here", False):
            await asyncio.Event().wait()
        try:
            await original(self)
        finally:
            self._was_here = self._worker.machine.term > 0  # type: ignore[attr-defined]

    _patch(stack, Session, "_once", once)


def sessions_do_not_end(stack: ExitStack) -> None:
    """The coordinator hears nothing of a connection that ended, and answers nobody who joins again."""
    original = Coordinator.event

    def event(self: Coordinator, happened: Any) -> None:
        if type(happened).__name__ not in ("SessionEnded", "Tick"):
            original(self, happened)

    _patch(stack, Coordinator, "event", event)


# ---- calls and records


def gaps_after_a_failed_call(stack: ExitStack) -> None:
    """Offsets of which nothing waits count as read, also after a call that failed."""

    def trusts(self: CommitMachine, task: Any) -> bool:
        found = self._tasks.get(task)
        return found is not None and not found.in_calls

    _patch(stack, CommitMachine, "trusts_gaps", trusts)


def a_release_does_not_wait_for_the_call(stack: ExitStack) -> None:
    """A task is handed over while a call of it is under way, and offsets of which nothing waits count as read."""

    def settled(self: CommitMachine, found: Any) -> bool:
        return found.work is not Work.PROCESSING and found.share is Share.CLEAN

    _patch(stack, CommitMachine, "_is_settled", settled)


def halted_before_the_commit(stack: ExitStack) -> None:
    """A task is halted at once, and what it completed before is forgotten until it is resumed."""
    original = CommitMachine._is_settled

    def settled(self: CommitMachine, found: Any) -> bool:
        return original(self, found) or (found.work is Work.FAILED and not found.in_calls)

    _patch(stack, CommitMachine, "_is_settled", settled)


def taken_again_before_the_outcome(stack: ExitStack) -> None:
    """What a task completes while its commit is under way is taken at once, with a commit of its own."""
    _patch(stack, commit_machine, "SHARE_LIFE", {**SHARE_LIFE, (Share.TAKEN, "completed"): Share.MOVED})
    original = CommitMachine._next

    def step(self: CommitMachine) -> Any:
        held, self.committing = self.committing, frozenset()
        effects = original(self)
        self.committing = self.committing or held
        return effects

    _patch(stack, CommitMachine, "_next", step)


def a_halt_is_not_written(stack: ExitStack) -> None:
    """A task is given up to a halt that the log does not have."""

    async def write(*args: Any) -> None:
        """Nothing."""

    _patch(stack, halts, "write", write)


def a_halt_takes_the_place_of_a_release(stack: ExitStack) -> None:
    """A task whose processor fails while its release is asked for is never handed over."""

    def written(self: TaskRun) -> None:
        self.halt_is_written = True

    _patch(stack, TaskRun, "halt_written", written)


def a_skip_is_over_before_it_is_committed(stack: ExitStack) -> None:
    """A halt goes from the log when the task goes on, not when the skip of its record is committed."""
    original = TaskRun._begin

    async def begin(self: TaskRun) -> None:
        await original(self)
        if self.halt is not None and self.halt.skip:
            await self.worker.log.put_metadata(self.worker.application, halts.HALTS, self.scope, None)

    _patch(stack, TaskRun, "_begin", begin)


def a_later_halt_forgets_a_skip(stack: ExitStack) -> None:
    """A halt overwrites the one before it, and what of that was to be skipped."""

    async def nothing(*args: Any) -> tuple[()]:
        return ()

    _patch(stack, halts, "_not_committed", nothing)


def a_cancelled_candidate_looks_on(stack: ExitStack) -> None:
    """Where the coordinator's loops fail as the candidate is cancelled, it is a candidate for ever."""
    _patch(stack, Candidate, "over", lambda self: None)


# ---- calls at once, and again


def calls_count_as_they_end(stack: ExitStack) -> None:
    """A call counts though one before it is under way."""

    def count(self: Overlap) -> None:
        ended = [entry for entry in self._entries if entry.draft is not None]
        for entry in ended:
            self._entries.remove(entry)
            self._calls.counts(entry.topic, entry.raw, entry.index, entry.draft)  # type: ignore[arg-type]

    _patch(stack, Overlap, "_count", count)


def keys_are_called_at_once(stack: ExitStack) -> None:
    """A call begins though another one of its key is under way."""

    def draw(self: Overlap) -> bool:
        found = original(self)
        for waiting in self._keys.values():
            while waiting:
                entry = waiting.popleft()
                heapq.heappush(self._ready, (entry.index, entry))
        return found

    def ended(self: Overlap, entry: Any, draft: Any) -> None:
        self._keys.setdefault(entry.raw.key, deque())
        original_ended(self, entry, draft)

    original, original_ended = Overlap._draw, Overlap._ended
    _patch(stack, Overlap, "_draw", draw)
    _patch(stack, Overlap, "_ended", ended)


def what_is_called_again_is_not_put_back(stack: ExitStack) -> None:
    """A record whose call is to be made again is taken for done."""
    _patch(stack, TaskProcess, "left", lambda self, records: list(records)[1:])


def a_pause_counts_as_a_call(stack: ExitStack) -> None:
    """The timeout of an async call counts the time for which its process stood still."""
    original = Countdown._tick

    def tick(self: Countdown, loop: asyncio.AbstractEventLoop) -> None:
        self._left -= max(0.0, loop.time() - self._seen - self._slice)
        original(self, loop)

    _patch(stack, Countdown, "_tick", tick)


def never_careful(stack: ExitStack) -> None:
    """A worker that is started after a crash takes as many records at a time as ever, and notes no call."""
    _patch(stack, Caution, "is_careful", lambda self, scope: False)


def a_blamed_record_is_called_again(stack: ExitStack) -> None:
    """The record that ended the process is given to its processor once more, not to its policy."""
    _patch(stack, Caution, "blamed", lambda self, topic, partition, offset: None)


def a_killed_process_blames_its_call(stack: ExitStack) -> None:
    """The note of a process that was killed from outside is taken for the record that ended it."""
    original = CallNote.read
    _patch(stack, CallNote, "read", lambda self, code: original(self, max(code, 1)))


def a_batch_blames_its_last_record(stack: ExitStack) -> None:
    """A batch that lasts too long is answered for by the last of its records."""
    _patch(stack, worker, "is_of_one_record", lambda turn: True)


def nobody_watches_calls(stack: ExitStack) -> None:
    """A call that lasts longer than --max-call is let be."""
    _patch(stack, CallWatch, "look", lambda self, turn: "")


def nobody_keeps_the_connection_alive(stack: ExitStack) -> None:
    """Heartbeats wait for user code."""
    _patch(stack, LoopUplink, "_keep_alive", lambda self: None)


# ---- the log, and topics


def patience_has_no_end(stack: ExitStack) -> None:
    """A log that is away is waited for, whatever --log-timeout says."""

    def away(self: Patience, error: Exception, begun: float) -> None:
        self.reason = str(error)

    _patch(stack, Patience, "_away", away)


def a_timeout_of_the_log_is_a_crash(stack: ExitStack) -> None:
    """A worker that gave the log up is started again, for ever."""
    _patch(stack, instance, "ENDS", tuple(code for code in instance.ENDS if code != 6))


def nobody_looks_at_topics(stack: ExitStack) -> None:
    """A topic that grows is not noticed by the workers that run."""

    async def run(worker: Worker) -> None:
        await asyncio.Event().wait()

    _patch(stack, growth, "run", run)


def start_at_what_is_gone(stack: ExitStack) -> None:
    """A task begins at its committed position, whether or not the records there are gone."""
    original = Worker.start_positions

    async def positions(self: Worker, run: TaskRun, inputs: Sequence[Partition]) -> dict[Partition, int]:
        found = await original(self, run, inputs)
        return {**found, **await self.log.positions(self.application, inputs)}

    _patch(stack, Worker, "start_positions", positions)


# ---- snapshots


def any_snapshot_is_used(stack: ExitStack) -> None:
    """Whether a snapshot is of this changelog, within its bounds and young enough is not asked."""
    _patch(stack, snapshot, "problem", lambda *args, **facts: None)


def an_old_snapshot_is_used(stack: ExitStack) -> None:
    """A snapshot is used however long ago it was taken: deletions since may be forgotten."""
    original = snapshot.problem

    def problem(scope: Any, table: str, **facts: Any) -> str | None:
        return original(scope, table, **{**facts, "delete_retention_ms": 1 << 40, "forgotten": 0})

    _patch(stack, snapshot, "problem", problem)


def an_old_store_is_used(stack: ExitStack) -> None:
    """A store on disk goes on however long ago it held all of its changelog."""
    original = stores.usable

    def usable(offset: int, stamp: Any, **facts: Any) -> str | None:
        return original(offset, stamp, **{**facts, "delete_retention_ms": 1 << 40, "forgotten": 0})

    _patch(stack, stores, "usable", usable)


def a_snapshot_of_any_history_is_used(stack: ExitStack) -> None:
    """Histories are not compared."""
    _patch(stack, History, "problem", lambda self, stamped, partition, offset: None)


def files_are_not_compared(stack: ExitStack) -> None:
    """A store takes the files of a snapshot whatever their sums are."""
    trusting = SimpleNamespace(**{**vars(snapshot), "verified": lambda folder, files: iter(())})
    _patch(stack, stores, "snapshot", trusting)


def any_base_is_used(stack: ExitStack) -> None:
    """A base of which the log knows nothing counts as a snapshot like any."""
    original = manifest.fitting

    def fitting(root: Path, application: str, log_id: str, counts: Any, *, base: str = "") -> Any:
        bases = [one.snapshot for one in manifest.listing(root)[0] if one.base and one.application == application]
        found = [one for name in (base, *bases) for one in original(root, application, log_id, counts, base=name)]
        return sorted(found, key=lambda one: one.time_ms, reverse=True)

    _patch(stack, manifest, "fitting", fitting)


def a_base_is_not_known(stack: ExitStack) -> None:
    """A changelog that goes on from a snapshot is replayed alone."""
    _patch(stack, stores.base, "of_topic", lambda bases, topic: None)


def deletions_behind_a_base_are_forgotten(stack: ExitStack) -> None:
    """Compaction forgets deletions of entries that stand in the base alone."""
    _patch(stack, memory, "stands_on_one", lambda values, topic: False)


def a_base_is_pruned(stack: ExitStack) -> None:
    """`snapshot prune` removes what changelogs go on from."""

    def prune(root: Path, keep: int, **more: Any) -> list[str]:
        removed = [one.snapshot for one in manifest.listing(root)[0][: -keep or None]]
        for name in removed:
            shutil.rmtree(root / name)
        return removed

    _patch(stack, manifest, "prune", prune)


MUTATIONS: dict[str, Mutation] = {
    made.__name__: made
    for made in (
        ignore_the_fence,
        fence_is_not_passed_on,
        rejoin_under_the_old_writer,
        log_forgets_fences,
        try_an_unknown_outcome_again,
        go_on_after_an_unknown_outcome,
        positions_of_refused_parts,
        stores_before_the_log,
        a_failed_store_goes_on,
        a_busy_log_is_not_waited_for,
        an_unknown_outcome_is_waited_for,
        offset_apart_from_the_data,
        begin_twice,
        begin_before_caught_up,
        no_lock_on_a_folder,
        begin_at_the_start,
        begin_at_the_end,
        an_ending_before_the_last_record,
        an_ending_before_the_last_change,
        an_ending_is_kept,
        trust_any_store,
        orderly_stop_kills,
        a_stopped_worker_lives_on,
        an_orphan_lives_on,
        nobody_starts_it_again,
        gaps_are_always_trusted,
        commits_overlap,
        what_was_taken_is_not_put_back,
        serve_after_the_term,
        take_the_lease_at_once,
        never_take_the_lease,
        connect_once,
        sessions_do_not_end,
        gaps_after_a_failed_call,
        a_release_does_not_wait_for_the_call,
        halted_before_the_commit,
        taken_again_before_the_outcome,
        a_halt_is_not_written,
        a_halt_takes_the_place_of_a_release,
        a_skip_is_over_before_it_is_committed,
        calls_count_as_they_end,
        keys_are_called_at_once,
        what_is_called_again_is_not_put_back,
        never_careful,
        a_blamed_record_is_called_again,
        a_killed_process_blames_its_call,
        a_batch_blames_its_last_record,
        nobody_watches_calls,
        nobody_keeps_the_connection_alive,
        patience_has_no_end,
        a_timeout_of_the_log_is_a_crash,
        a_commit_without_a_fence_knows_no_time,
        a_deposed_coordinator_answers,
        nobody_looks_at_topics,
        start_at_what_is_gone,
        any_snapshot_is_used,
        an_old_snapshot_is_used,
        an_old_store_is_used,
        a_snapshot_of_any_history_is_used,
        files_are_not_compared,
        any_base_is_used,
        a_base_is_not_known,
        deletions_behind_a_base_are_forgotten,
        a_base_is_pruned,
    )
}

OF_SNAPSHOTS: dict[str, tuple[str, ...]] = {
    "any_snapshot_is_used": ("lost-disk", "snapshot-topic", "snapshot-past-end"),
    "an_old_snapshot_is_used": ("lost-disk", "snapshot", "compact"),
    "an_old_store_is_used": ("restart-fleet", "kill", "leave", "join", "compact"),
    "a_snapshot_of_any_history_is_used": ("lost-disk", "snapshot-history", "snapshot-restored", "kill-coordinator"),
    "files_are_not_compared": ("lost-disk", "snapshot", "snapshot-damaged"),
    "any_base_is_used": ("lost-disk", "snapshot-base"),
    "a_base_is_not_known": ("lost-disk",),
    "deletions_behind_a_base_are_forgotten": ("lost-disk", "compact"),
    "a_base_is_pruned": ("lost-disk", "snapshot", "snapshot-damaged", "prune"),
}

# Where a rule concerns one kind of application, its lives are of that kind.
APPLICATION = {
    **dict.fromkeys(OF_SNAPSHOTS, "saving"),
    "a_commit_without_a_fence_knows_no_time": "repeating",
    "a_deposed_coordinator_answers": "repeating",
    "a_release_does_not_wait_for_the_call": "asking",
    "a_halt_takes_the_place_of_a_release": "asking",
    "a_killed_process_blames_its_call": "lettering",
    "nobody_looks_at_topics": "forwarding",
    "a_skip_is_over_before_it_is_committed": "counting",
    "calls_count_as_they_end": "overlapping",
    "keys_are_called_at_once": "overlapping",
    "what_is_called_again_is_not_put_back": "retrying",
}

DIRECTED: dict[str, tuple[str, ...]] = {
    **OF_SNAPSHOTS,
    "a_commit_without_a_fence_knows_no_time": ("stop-worker", "stop-instance", "stall", "kill-coordinator"),
    "a_deposed_coordinator_answers": ("stop-worker", "stop-instance", "stall", "kill-coordinator"),
    "never_take_the_lease": ("kill-coordinator",),
    "trust_any_store": ("damaged-store", "kill", "leave"),
    "gaps_after_a_failed_call": ("raises",),
    "a_release_does_not_wait_for_the_call": ("leave", "join"),
    "halted_before_the_commit": ("raises",),
    "taken_again_before_the_outcome": ("unknown", "refuse"),
    "a_halt_is_not_written": ("raises",),
    "a_halt_takes_the_place_of_a_release": ("raises", "leave", "join"),
    "an_ending_before_the_last_record": ("join", "leave"),
    "an_ending_before_the_last_change": ("join", "leave"),
    "an_ending_is_kept": ("raises", "join", "leave"),
    "a_skip_is_over_before_it_is_committed": ("raises",),
    "calls_count_as_they_end": ("kill-worker", "kill-step"),
    "keys_are_called_at_once": ("join",),
    "what_is_called_again_is_not_put_back": ("client-away",),
    "never_careful": ("exits", "crashes"),
    "a_blamed_record_is_called_again": ("exits", "crashes"),
    "a_killed_process_blames_its_call": ("kill-worker", "kill-step"),
    "a_batch_blames_its_last_record": ("hangs",),
    "nobody_watches_calls": ("hangs",),
    "nobody_keeps_the_connection_alive": ("hangs",),
    "patience_has_no_end": ("away",),
    "a_timeout_of_the_log_is_a_crash": ("away",),
    "nobody_looks_at_topics": ("grow",),
    "start_at_what_is_gone": ("retain",),
    "connect_once": ("reset", "half-close"),
    "ignore_the_fence": ("fence", "stop-instance"),
    "fence_is_not_passed_on": ("stop-instance", "stall"),
    "rejoin_under_the_old_writer": ("fence", "stop-instance"),
    "log_forgets_fences": ("stop-instance", "stop-worker", "stall"),
    "try_an_unknown_outcome_again": ("unknown",),
    "go_on_after_an_unknown_outcome": ("unknown",),
    "positions_of_refused_parts": ("refuse",),
    "stores_before_the_log": ("unknown", "kill-worker", "stop-instance"),
    "a_busy_log_is_not_waited_for": ("lock-long", "full", "away"),
    "an_unknown_outcome_is_waited_for": ("unknown",),
    "a_failed_store_goes_on": ("failed-write",),
    "a_stopped_worker_lives_on": ("stop-worker",),
    "serve_after_the_term": ("stop-instance", "stop-instance"),
    "begin_twice": ("fence", "kill-worker", "refuse", "join"),
    "gaps_are_always_trusted": ("term", "restart-fleet", "kill-worker"),
    "commits_overlap": ("unknown", "kill-worker"),
    "what_was_taken_is_not_put_back": ("term",),
}


def ends_from_before_a_grant(stack: ExitStack) -> None:
    """The ends that a copy asked for are those that the task is caught up at."""
    original = TaskRun._read_ends

    async def read(self: TaskRun) -> bool:
        if not self.ends:
            await original(self)
        return True

    _patch(stack, TaskRun, "_read_ends", read)


def a_topic_that_grew_meanwhile_is_refused(stack: ExitStack) -> None:
    """An instance that starts while another one makes a topic, and an operator grows it, takes that for a mismatch."""
    _patch(stack, prepare, "TopicMismatch", KeyError)


def a_fleet_leaves_to_those_who_are_gone(stack: ExitStack) -> None:
    """A fleet that leaves does not look again whether there is anybody to leave to."""

    async def sleep(self: Fleet) -> None:
        await asyncio.sleep(LEAVE_S)

    _patch(stack, Fleet, "_hand_over", sleep)


def a_record_to_be_skipped_is_halted_at(stack: ExitStack) -> None:
    """A call that began before its record was to be skipped, and fails after, halts the task again."""

    async def write(log: Any, application: str, task: str, halt: Any) -> bool:
        seen = await log.metadata(application, halts.HALTS, task)
        return bool(await log.replace_metadata(application, halts.HALTS, task, seen, halts.encode(halt)))

    _patch(stack, halts, "write", write)


def a_refused_request_ends_no_term(stack: ExitStack) -> None:
    """A coordinator whose write for a request is refused goes on until one of its loops is."""

    async def keep(self: Coordinator, facts: Any) -> None:
        await self.ledger.put_operations([*self._operations.values(), facts])
        self._operations[str(facts["id"])] = facts

    _patch(stack, Coordinator, "keep_operation", keep)


# Rules that few lives need: the mended plan (`mended/NAME.json`) that breaks without them.
OF_MENDED: dict[str, Mutation] = {
    "cancelled_with_its_loops": a_cancelled_candidate_looks_on,
    "grown_while_it_started": a_topic_that_grew_meanwhile_is_refused,
    "nobody_is_left_to_leave_to": a_fleet_leaves_to_those_who_are_gone,
    "forgotten_skip": a_later_halt_forgets_a_skip,
    "paused_call": a_pause_counts_as_a_call,
    "granted_while_ends_are_asked": ends_from_before_a_grant,
    "deposed_while_the_log_is_locked": a_refused_request_ends_no_term,
    "called_until_after_its_skip": a_record_to_be_skipped_is_halted_at,
}
