"""What a worker's machine receives and what it wants done: one dataclass each. The machine is machine.py."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.model import Assignment, Ending, Role, TaskId

# ---- events


@dataclass(frozen=True, slots=True)
class Assigned:
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Started:
    """An active task has caught up with its changelog and processes since `at_ms` (wall). `from_ms`, `awaited`: see
    ProcessingStarted."""

    task: TaskId
    at_ms: int = 0
    from_ms: int = 0
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """The first commit of records in this epoch (wall ms), for the timing of the hand-over."""

    task: TaskId
    at_ms: int


@dataclass(frozen=True, slots=True)
class ReleaseDone:
    """The batch is finished and committed; wall ms of the last commit of records (0: none) and of
    the stop; where it ended, for the next owner."""

    task: TaskId
    last_ms: int
    position: int
    stopped_ms: int = 0
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a copy has come: sums of positions and ends over the task's changelogs."""

    task: TaskId
    position: int
    end: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A copy reads a snapshot: it is as far as if at `position`, and not open yet."""

    task: TaskId
    position: int
    end: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What the active tasks do: see MemberStatus.facts."""

    facts: dict[TaskId, tuple[int, int, int, int]]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Tasks whose commit the log refused, or that failed here: given up without a commit."""

    tasks: frozenset[TaskId]


@dataclass(frozen=True, slots=True)
class WriterLost:
    """The log or the coordinator says that this writer is fenced: everything is lost."""


@dataclass(frozen=True, slots=True)
class DiskSeen:
    """State that lies on disk unused: task -> position."""

    disk: dict[TaskId, int]


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """Connected to a coordinator of `term`."""

    term: int


@dataclass(frozen=True, slots=True)
class Noticed:
    """What an operator should know of this worker by now: see MemberStatus.notice, and log_away."""

    notice: str
    log_away: bool = False


@dataclass(frozen=True, slots=True)
class LeaveWanted:
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


@dataclass(frozen=True, slots=True)
class Open:
    """Begin to hold a task: as a copy (epoch 0), or as active at `epoch`; `ending`: from where the owner before has left it."""

    task: TaskId
    role: Role
    epoch: int
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class ChangeRole:
    """The state stays open; only the role changes (learner or standby to active, learner to standby and back)."""

    task: TaskId
    role: Role
    epoch: int
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Revoked: finish the batch, commit, answer ReleaseDone; then the state stays open as a copy, or is closed."""

    task: TaskId
    epoch: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close a copy; its state stays on disk."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class Drop:
    """Lost: give up without a commit; what is not committed is forgotten."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class Report:
    """Send the whole status now."""


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Come back as a new incarnation under a new writer id."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Nothing is left here: shut down."""


MemberEffect = Open | ChangeRole | Release | Close | Drop | Report | Rejoin | Exit
