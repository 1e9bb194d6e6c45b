"""What a worker's machine receives and what it wants done: one struct each. The machine is machine.py."""

from __future__ import annotations

import msgspec

from orchestrator.model import Assignment, Ending, Role, TaskId

# ---- events


class Assigned(msgspec.Struct, frozen=True):
    assignment: Assignment


class Started(msgspec.Struct, frozen=True):
    """An active task has caught up with its changelog and processes since `at_ms` (wall). `from_ms`, `awaited`: see
    ProcessingStarted."""

    task: TaskId
    at_ms: int = 0
    from_ms: int = 0
    awaited: bool = False


class FirstRecord(msgspec.Struct, frozen=True):
    """The first commit of records in this epoch (wall ms), for the timing of the hand-over."""

    task: TaskId
    at_ms: int


class ReleaseDone(msgspec.Struct, frozen=True):
    """The batch is finished and committed; wall ms of the last commit of records (0: none) and of
    the stop; where it ended, for the next owner."""

    task: TaskId
    last_ms: int
    position: int
    stopped_ms: int = 0
    ending: Ending | None = None


class Progress(msgspec.Struct, frozen=True):
    """How far a copy has come: sums of positions and ends over the task's changelogs."""

    task: TaskId
    position: int
    end: int


class Reading(msgspec.Struct, frozen=True):
    """A copy reads a snapshot: it is as far as if at `position`, has read so many bytes, and is not open yet."""

    task: TaskId
    position: int
    end: int
    read: int


class Measured(msgspec.Struct, frozen=True):
    """What the active tasks do: see MemberStatus.facts."""

    facts: dict[TaskId, tuple[int, int, int, int]]


class Dropped(msgspec.Struct, frozen=True):
    """Tasks whose commit the log refused, or that failed here: given up without a commit."""

    tasks: frozenset[TaskId]


class WriterLost(msgspec.Struct, frozen=True):
    """The log or the coordinator says that this writer is fenced: everything is lost."""


class DiskSeen(msgspec.Struct, frozen=True):
    """State that lies on disk unused: task -> position."""

    disk: dict[TaskId, int]


class SessionOpened(msgspec.Struct, frozen=True):
    """Connected to a coordinator of `term`."""

    term: int


class Noticed(msgspec.Struct, frozen=True):
    """What an operator should know of this worker by now: see MemberStatus.notice, and log_away."""

    notice: str
    log_away: bool = False


class LeaveWanted(msgspec.Struct, frozen=True):
    """This instance was asked to leave for good (drain)."""


MemberEvent = (
    Assigned
    | Started
    | FirstRecord
    | ReleaseDone
    | Progress
    | Reading
    | Measured
    | Dropped
    | WriterLost
    | DiskSeen
    | SessionOpened
    | Noticed
    | LeaveWanted
)

# ---- effects


class Open(msgspec.Struct, frozen=True):
    """Begin to hold a task: as a copy (epoch 0), or as active at `epoch`; `ending`: from where the owner before has left it."""

    task: TaskId
    role: Role
    epoch: int
    ending: Ending | None = None


class ChangeRole(msgspec.Struct, frozen=True):
    """The state stays open; only the role changes (learner or standby to active, learner to standby and back)."""

    task: TaskId
    role: Role
    epoch: int
    ending: Ending | None = None


class Release(msgspec.Struct, frozen=True):
    """Revoked: finish the batch, commit, answer ReleaseDone; then the state stays open as a copy, or is closed."""

    task: TaskId
    epoch: int


class Close(msgspec.Struct, frozen=True):
    """Close a copy; its state stays on disk."""

    task: TaskId


class Drop(msgspec.Struct, frozen=True):
    """Lost: give up without a commit; what is not committed is forgotten."""

    task: TaskId


class Report(msgspec.Struct, frozen=True):
    """Send the whole status now."""


class Rejoin(msgspec.Struct, frozen=True):
    """Come back as a new incarnation under a new writer id."""


class Exit(msgspec.Struct, frozen=True):
    """Nothing is left here: shut down."""


MemberEffect = Open | ChangeRole | Release | Close | Drop | Report | Rejoin | Exit
