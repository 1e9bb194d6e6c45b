"""What one worker commits, and when: between the records its tasks complete and the positions that the log has.

One rule: what a task has handed to a commit is in no other commit until the outcome of that one is known, and a task is
handed over, or stopped in order, only when nothing of it is under way and nothing is left to commit. Pure: the record
loop sends it events, and performs its effects. At most one commit of a worker is under way.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from orchestrator.model import TaskId


class Work(StrEnum):
    """Whether calls of a running task begin."""

    PROCESSING = "processing"
    RELEASING = "releasing"  # asked to hand over: no further call begins
    STOPPING = "stopping"  # the worker stops in order: no further call begins
    FAILED = "failed"  # a call failed or was undone: what was completed is committed, and nothing else


class Share(StrEnum):
    """What of a task is in commits."""

    CLEAN = "clean"  # everything that was completed is in the log
    MOVED = "moved"  # records were completed since
    TAKEN = "taken"  # in the commit under way
    TAKEN_AND_MOVED = "taken and moved"  # and records were completed since


# (state, what happened) -> state; None: the task does not run here (any more). What is not listed changes nothing.
WORK_LIFE: dict[tuple[Work | None, str], Work | None] = {
    (None, "started"): Work.PROCESSING,
    (Work.PROCESSING, "release asked"): Work.RELEASING,
    (Work.PROCESSING, "worker stops"): Work.STOPPING,
    (Work.PROCESSING, "call failed"): Work.FAILED,
    (Work.RELEASING, "call failed"): Work.FAILED,
    (Work.RELEASING, "settled"): None,
    (Work.STOPPING, "release asked"): Work.RELEASING,
    (Work.STOPPING, "call failed"): Work.FAILED,
    (Work.STOPPING, "settled"): None,
    (Work.FAILED, "settled"): None,
    **{(work, "lost"): None for work in Work},
}
SHARE_LIFE: dict[tuple[Share, str], Share] = {
    (Share.CLEAN, "completed"): Share.MOVED,
    (Share.TAKEN, "completed"): Share.TAKEN_AND_MOVED,
    (Share.MOVED, "taken"): Share.TAKEN,
    (Share.TAKEN, "through"): Share.CLEAN,
    (Share.TAKEN_AND_MOVED, "through"): Share.MOVED,
}

# ---- events


class Started(msgspec.Struct, frozen=True):
    """A task processes from now on."""

    task: TaskId


class Lost(msgspec.Struct, frozen=True):
    """A task is given up without a commit: fenced, refused, or its state failed."""

    task: TaskId


class CallsBegan(msgspec.Struct, frozen=True):
    """Calls of this task are under way, and the loop goes on meanwhile (async processors)."""

    task: TaskId


class CallsEnded(msgspec.Struct, frozen=True):
    """No call of this task is under way. `completed`: it has completed records that no commit has taken. `failed`: a
    processor stopped, or a call was undone: what was taken for these calls is not all completed, and no other begins."""

    task: TaskId
    completed: bool
    failed: bool = False


class Completed(msgspec.Struct, frozen=True):
    """A task has completed records that no commit has taken."""

    task: TaskId


class ReleaseAsked(msgspec.Struct, frozen=True):
    task: TaskId


class CommitDue(msgspec.Struct, frozen=True):
    """The commit interval has passed."""


class CommitEnded(msgspec.Struct, frozen=True):
    """The outcome is known, or known to be unknown: these tasks are through; the others of it are lost, and named separately."""

    through: frozenset[TaskId]


class StopAsked(msgspec.Struct, frozen=True):
    """The worker stops in order."""


Event = Started | Lost | CallsBegan | CallsEnded | Completed | ReleaseAsked | CommitDue | CommitEnded | StopAsked

# ---- effects


class BeginCommit(msgspec.Struct, frozen=True):
    """Take what these tasks have completed, and commit it; CommitEnded answers."""

    tasks: tuple[TaskId, ...]


class Released(msgspec.Struct, frozen=True):
    """Everything of this task is committed and nothing of it is under way: it is given up, with the proof."""

    task: TaskId


class Halted(msgspec.Struct, frozen=True):
    """What this task completed before its call failed is committed."""

    task: TaskId


class Stopped(msgspec.Struct, frozen=True):
    """Nothing is under way and nothing is left to commit: the worker may end."""


Effect = BeginCommit | Released | Halted | Stopped


class _Task(msgspec.Struct):
    work: Work = Work.PROCESSING
    share: Share = Share.CLEAN
    in_calls: bool = False
    is_new: bool = True  # nothing of it was in a commit: whoever waited while it moved waits for its first one


class CommitMachine:
    """See the module text. `step(event)` returns what is to be done, in order."""

    def __init__(self) -> None:
        self.committing: frozenset[TaskId] = frozenset()  # the tasks of the commit under way
        self.stopping = False
        self._tasks: dict[TaskId, _Task] = {}
        self._is_due = False

    def processes(self, task: TaskId) -> bool:
        """Whether another call of this task may begin."""
        found = self._tasks.get(task)
        return found is not None and found.work is Work.PROCESSING and not found.in_calls

    def goes_on(self, task: TaskId) -> bool:
        """Whether calls that are under way may go on with the next record."""
        found = self._tasks.get(task)
        return found is not None and found.work is Work.PROCESSING

    def trusts_gaps(self, task: TaskId) -> bool:
        """Whether offsets after the completed records, of which nothing waits, hold no record either."""
        found = self._tasks.get(task)
        return found is not None and found.work is not Work.FAILED and not found.in_calls

    def step(self, event: Event) -> list[Effect]:
        match event:
            case Started(task):
                self._tasks[task] = _Task(Work.STOPPING if self.stopping else Work.PROCESSING)
            case Lost(task):
                self._work(task, "lost")
            case CallsBegan(task):
                self._tasks[task].in_calls = True
            case CallsEnded(task, completed, failed):
                self._calls_ended(task, completed, failed)
            case Completed(task):
                self._share(task, "completed")
            case ReleaseAsked(task):
                self._work(task, "release asked")
            case CommitDue():
                self._is_due = True
            case CommitEnded(through):
                self.committing = frozenset()
                for task in sorted(through):
                    self._share(task, "through")
            case StopAsked():
                self.stopping = True
                for task in sorted(self._tasks):
                    self._work(task, "worker stops")
        return self._next()

    def _calls_ended(self, task: TaskId, completed: bool, failed: bool) -> None:
        if task in self._tasks:
            self._tasks[task].in_calls = False
        if completed:
            self._share(task, "completed")
        if failed:
            self._work(task, "call failed")

    def _work(self, task: TaskId, what: str) -> None:
        found = self._tasks.get(task)
        if found is None:
            return
        after = WORK_LIFE.get((found.work, what), found.work)
        if after is None:
            del self._tasks[task]
        else:
            found.work = after

    def _share(self, task: TaskId, what: str) -> None:
        found = self._tasks.get(task)
        if found is not None:
            found.share = SHARE_LIFE.get((found.share, what), found.share)

    def _next(self) -> list[Effect]:
        """The effects that the state now asks for."""
        effects: list[Effect] = []
        for task in sorted(task for task, found in self._tasks.items() if self._is_settled(found)):
            work = self._tasks[task].work
            if work is Work.RELEASING:
                effects.append(Released(task))
            elif work is Work.FAILED:
                effects.append(Halted(task))
            self._work(task, "settled")
        if not self.committing:
            moved = [task for task, found in self._tasks.items() if found.share is Share.MOVED]
            if moved and (self._is_due or self._are_waited_for(moved)):
                effects.append(self._begin(moved))
            elif self.stopping and not self._tasks:
                effects.append(Stopped())
        return effects

    def _begin(self, moved: Iterable[TaskId]) -> BeginCommit:
        self._is_due = False
        self.committing = frozenset(moved)
        for task in self.committing:
            self._share(task, "taken")
            self._tasks[task].is_new = False
        return BeginCommit(tuple(sorted(self.committing)))

    def _is_settled(self, found: _Task) -> bool:
        return found.work is not Work.PROCESSING and not found.in_calls and found.share is Share.CLEAN

    def _are_waited_for(self, moved: Iterable[TaskId]) -> bool:
        """Whether one of these tasks is new here, or its end is waited for and only its commit is missing."""
        found = [self._tasks[task] for task in moved]
        return any(one.is_new or (one.work is not Work.PROCESSING and not one.in_calls) for one in found)
