"""What the group receives and what it wants done: one struct each.

One rule: the result of an effect comes back as the next event; the core never waits. Shells perform effects.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from orchestrator.model import Assignment, JoinRequest, MemberStatus, Owner, TaskId
from orchestrator.task_assignor.view import TargetAssignment, View

# ---- events


class Joined(msgspec.Struct, frozen=True):
    """A worker opened a session (first, again, or after a reconnect) and reported its whole status."""

    session: int
    join_request: JoinRequest
    status: MemberStatus


class Heartbeat(msgspec.Struct, frozen=True):
    """A member's whole status; at once after a change, else every heartbeat interval."""

    session: int
    status: MemberStatus


class SessionEnded(msgspec.Struct, frozen=True):
    """The connection is gone. That is not death: the session may be resumed."""

    session: int


class OwnersRecorded(msgspec.Struct, frozen=True):
    """The owner records are in the log; their grants may go out."""

    records: tuple[Owner, ...]


class Fenced(msgspec.Struct, frozen=True):
    """The log refuses this transactional id from now on; `tasks` are those it had."""

    transactional_id: str
    tasks: tuple[TaskId, ...]


class Expired(msgspec.Struct, frozen=True):
    """A process that knows it reports that a member is dead (an operator, a supervisor): do not wait for its session."""

    member: str


class Leaving(msgspec.Struct, frozen=True):
    """Mark instances as leaving, beside those that leave already. `resumed`: read from the log by a new coordinator, before the
    first member has joined; `incarnations`: theirs, by instance, as they were when it was written down."""

    operation: str
    instances: tuple[str, ...]
    deadline_ms: int | None = None
    force: bool = False
    resumed: bool = False
    incarnations: Mapping[str, str] = msgspec.field(default_factory=dict)


class UndoLeaving(msgspec.Struct, frozen=True):
    """Take all scale-downs that run back; their learners finish what they began."""


class TargetComputed(msgspec.Struct, frozen=True):
    """The answer to ComputeTarget: where tasks belong, by the view that was sent with it."""

    number: int
    target: TargetAssignment


class Gathered(msgspec.Struct, frozen=True):
    """Members that were here before this coordinator have had the time to come back."""


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


Event = (
    Joined
    | Heartbeat
    | SessionEnded
    | OwnersRecorded
    | Fenced
    | Expired
    | Leaving
    | UndoLeaving
    | TargetComputed
    | Gathered
    | Tick
)

# ---- effects


class Send(msgspec.Struct, frozen=True):
    """Send an assignment over a session."""

    session: int
    assignment: Assignment


class CloseSession(msgspec.Struct, frozen=True):
    """End a session; `fenced` tells the worker that its transactional id is refused from now on."""

    session: int
    fenced: bool


class RecordOwners(msgspec.Struct, frozen=True):
    """Write owner records into the log under the lease; the answer is OwnersRecorded."""

    records: tuple[Owner, ...]


class Fence(msgspec.Struct, frozen=True):
    """Have the log refuse this transactional id; the answer is Fenced."""

    transactional_id: str


class ComputeTarget(msgspec.Struct, frozen=True):
    """Place the tasks of this view, which takes long; go on with other events meanwhile. The answer is TargetComputed."""

    number: int
    view: View


class OperationEnded(msgspec.Struct, frozen=True):
    """A scale-down came to its end: "done", "rolled back" or "forced"."""

    operation: str
    outcome: str


class HandedOver(msgspec.Struct, frozen=True):
    """A task changed hands. `gap_ms`: from the last commit of the old owner to the first of the new (None: none on one
    side, yet). `pause_ms`: that part of it in which there was something to do, see hand_overs.py (None: not known).
    The event comes twice where the first commit comes later."""

    task: TaskId
    epoch: int
    source: str
    target: str
    gap_ms: int | None
    pause_ms: int | None


class Announced(msgspec.Struct, frozen=True):
    """Something a person reads: `S2 shuts down`, `S1 fenced`, `S1 rejoined`."""

    text: str
    facts: Mapping[str, str] | None = None


Effect = Send | CloseSession | RecordOwners | Fence | ComputeTarget | OperationEnded | HandedOver | Announced
