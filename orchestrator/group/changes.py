"""Everything that can change in a group: one value for each change, as a log would hold it.

One rule: a change says what is so from now on, not how it came about; it carries all that apply.py needs. Modules that
decide yield changes and effects (`Decision`); step.py applies each before the next one is decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

import msgspec

from orchestrator.group.events import Effect
from orchestrator.group.members import Member
from orchestrator.group.phases import Turn
from orchestrator.group.state import HandOver, Move, Operation
from orchestrator.model import Assignment, MemberStatus, Owner, Settings, Task, TaskId
from orchestrator.task_assignor.view import View

# ---- members


class Change(msgspec.Struct, frozen=True):
    """One change of a group's state. A struct, because there are three of them in each of thousands of heartbeats a second."""


Decision = Change | Effect
Decisions = Iterator[Decision]


class JoinReceived(Change, frozen=True):
    """A worker asked to join, at `now_ms`, and has seen `generation`."""

    now_ms: int
    generation: int


class MemberBound(Change, frozen=True):
    """`member` speaks over `session` from now on, in the place of any member of its name."""

    member: Member
    session: int


class SessionLost(Change, frozen=True):
    """The connection ended; its member is silent from `now_ms` on."""

    session: int
    now_ms: int


class StatusReceived(Change, frozen=True):
    """The member reported its whole status; progress and ends of changelogs follow it, unless the member is fenced."""

    member: Member
    status: MemberStatus
    now_ms: int


class LogAwaited(Change, frozen=True):
    """The member has waited for the log for another `waited_ms`: what it is asked to do has that much more time."""

    member: Member
    waited_ms: int


class ReportsKept(Change, frozen=True):
    """Progress and ends of changelogs follow the status with which the member joined."""

    member: Member
    now_ms: int


class WeightsMeasured(Change, frozen=True):
    """Owners measured these tasks."""

    weights: Mapping[TaskId, int]


class LeavingMarked(Change, frozen=True):
    """An operator wants the member to leave, or no longer."""

    member: Member
    leaving: bool


class MemberFenced(Change, frozen=True):
    """The member's transactional id is refused from now on."""

    member: Member


class MemberShutDown(Change, frozen=True):
    """The member was sent its shutdown."""

    member: Member


class MemberRemoved(Change, frozen=True):
    """The member is gone, with its replicas; what it ran lies on the disk of its instance, if that is still there."""

    member: Member


class AssignmentSent(Change, frozen=True):
    """This is what the member was sent last."""

    member: Member
    assignment: Assignment


class AssignmentMissing(Change, frozen=True):
    """The member does not hold what it was sent: it is sent again."""

    member: Member
    now_ms: int


class LearnerAwaited(Change, frozen=True):
    """The member does not report these learners yet: their time counts from now on."""

    member: Member
    tasks: tuple[TaskId, ...]
    now_ms: int


class Touched(Change, frozen=True):
    """The assignments of these members are computed again."""

    names: Set[str]


class AssignmentsDone(Change, frozen=True):
    """All touched members have been looked at, under these inputs that concern every assignment."""

    broadcast_inputs: tuple[object, ...]


# ---- tasks and their owners


class TasksSeen(Change, frozen=True):
    """The group has these tasks, and `pending` ones wait for other members."""

    tasks: Mapping[TaskId, Task]
    pending: Mapping[TaskId, int]


class TasksPending(Change, frozen=True):
    """A member reports tasks that are new to the group."""

    tasks: tuple[TaskId, ...]
    now_ms: int


class FenceRequested(Change, frozen=True):
    """The log was asked to refuse a transactional id."""

    transactional_id: str


class FenceConfirmed(Change, frozen=True):
    """The log refuses the transactional id; its `tasks` have no owner."""

    transactional_id: str
    tasks: tuple[TaskId, ...]


class OwnerRecorded(Change, frozen=True):
    """The owner record is in the log."""

    record: Owner


class MovesBegun(Change, frozen=True):
    """The owner records of these moves are on their way to the log; `barrier`: others still wait for each other."""

    records: tuple[Owner, ...]
    hand_overs: Mapping[TaskId, HandOver]
    generation: int
    barrier: bool


class RetirementsBegun(Change, frozen=True):
    """Owner records without an owner, of tasks that no version has any more, are on their way to the log."""

    records: tuple[Owner, ...]


class MoveDropped(Change, frozen=True):
    """The task does not change its owner after all."""

    task: TaskId


class MovePostponed(Change, frozen=True):
    """The task's owner speaks and does not let go: the round goes on without it. The release stays asked for."""

    task: TaskId
    now_ms: int


class MovesReleasable(Change, frozen=True):
    """Behind the barrier these moves could be made: in addition to those before, or `instead`."""

    tasks: Set[TaskId]
    instead: bool = False


class HandOverTimed(Change, frozen=True):
    """What is known of the times of a hand-over; None: nothing more will be."""

    task: TaskId
    hand_over: HandOver | None


# ---- replicas


class LearnerSet(Change, frozen=True):
    """The member learns the task; None: no member does."""

    task: TaskId
    member: str | None


class StandbysSet(Change, frozen=True):
    """These members keep standbys of the task; None: the task is gone."""

    task: TaskId
    members: tuple[str, ...] | None


class LearnerGivenUp(Change, frozen=True):
    """The member made no progress: the task is learned elsewhere."""

    member: Member
    task: TaskId
    now_ms: int


class GivenUpForgotten(Change, frozen=True):
    """The instance may learn the task again."""

    task: TaskId
    instance: str


class StateReclaimed(Change, frozen=True):
    """A worker of the instance reports itself what lies on its disk."""

    instance: str


# ---- the target assignment


class Turned(Change, frozen=True):
    """The rebalance enters another phase, or stays in its own."""

    turn: Turn


class TargetOutdated(Change, frozen=True):
    """The target assignment has to be computed again; `membership`: with it the generation grows in any case."""

    membership: bool = False


class TargetRequested(Change, frozen=True):
    """A target assignment is computed from this view; None: at once, so that nothing is awaited."""

    view: View | None


class TargetReceived(Change, frozen=True):
    """The requested target assignment is there. `stale`: nothing of it holds; `outdated`: not all of it does."""

    stale: bool
    outdated: bool


class TargetAgreed(Change, frozen=True):
    """What the group agrees on, and the moves that lead there; `barrier`: they are made all at once."""

    learners: Mapping[TaskId, str]
    standbys: Mapping[TaskId, tuple[str, ...]]
    moves: Mapping[TaskId, Move]
    barrier: bool


class TargetUsed(Change, frozen=True):
    """A target assignment was looked at; `standbys`: the setting that it was computed with, where all of it holds."""

    standbys: int | None


class AcceptedAsIs(Change, frozen=True):
    """The present state is agreed: nothing is assigned before the next change."""


class Reconfigured(Change, frozen=True):
    """Settings or tasks may have changed; learners that run are finished, whatever the budget is now."""

    finishing: Mapping[str, int]
    settings: Settings | None = None
    declared: Mapping[TaskId, Task] | None = None


class HoldSet(Change, frozen=True):
    """An operator holds the group: nothing is assigned; or lets it go on."""

    on: bool


class Gathered(Change, frozen=True):
    """Those who were here before this coordinator have had the time to come back."""


# ---- operations and time


class OperationBegun(Change, frozen=True):
    """A scale-down runs, beside others. `incarnations`: of its leavers, by instance, as far as they are known."""

    operation: Operation
    incarnations: Mapping[str, str]


class OperationOver(Change, frozen=True):
    """The scale-down runs no more; instances that it stopped by force may not come back before `until_ms`, and those that were
    `taken_back` stay, also where one is silent and comes back later."""

    operation: str
    dismissed: Mapping[str, int] = msgspec.field(default_factory=dict)
    taken_back: frozenset[str] = frozenset()


class Stepped(Change, frozen=True):
    """The time of the step; `pause_ms`: the coordinator stood still for so long before it."""

    now_ms: int
    pause_ms: int = 0
