"""What a group is at one moment, and what can be read from it.

One rule: nothing here decides, and nothing but apply.py changes it; the tables keep their indexes and the set of touched
members right by themselves. Only owner records are durable; the rest is rebuilt from members' reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import replace

from orchestrator.group.end_offsets import EndOffsets
from orchestrator.group.members import Member, Members, is_released
from orchestrator.group.tables import Index, OwnerIndex, TaskTable
from orchestrator.group.topology_versions import can_run, expand
from orchestrator.model import Owner, Protocol, Released, Settings, Task, TaskId, up_to
from orchestrator.task_assignor.view import View

LONG_ASSIGNMENT = 5_000  # tasks and members from which on an assignment takes longer than an event should (10 ms)


class Phase(StrEnum):
    """Where a group stands in a rebalance; see REBALANCE in phases.py."""

    GATHERING = "gathering"  # until those who may still come back or join are there
    FENCING = "fencing"  # until the log has answered
    HELD = "held"  # by an operator
    BARRIER = "barrier"  # all that moves changes hands at once; nothing else is assigned until then
    PLANNING = "planning"
    COMPUTING = "computing"  # the target assignment is on its way from the assignor process
    MOVING = "moving"
    STABLE = "stable"


@dataclass(slots=True)
class Move:
    """An agreed change of owner that is not yet recorded: to whom, since when, and from whom (for the timing)."""

    target: str
    since_ms: int
    source: str = ""
    asked: bool = False


class HandOver(NamedTuple):
    """A change of owner whose times are not all known: who gave, who took, the giver's proof; whether it was published;
    since when the giver is silent (by the coordinator's clock), where it had nothing to read then."""

    source: str
    target: str
    proof: Released | None
    published: bool
    idle_ms: int | None = None


@dataclass(slots=True)
class Operation:
    """A running scale-down; its record in the log survives the coordinator."""

    id: str
    instances: frozenset[str]
    deadline_ms: int | None
    force: bool
    resumed: bool = False


class GroupState:
    """One application's group under one coordinator term."""

    def __init__(
        self,
        settings: Settings,
        tasks: Iterable[Task] = (),
        owners: Iterable[Owner] = (),
        *,
        term: int = 1,
        now_ms: int = 0,
        generation: int = 0,
        long_assignment: int = LONG_ASSIGNMENT,
        gathering: bool = False,
        former: str = "",
        before: Iterable[str] = (),
        started_with: int = 0,
        leavers: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self.term = term
        self.generation = self.inherited = generation
        self.declared: dict[TaskId, Task] = {task.id: task for task in tasks}  # of the coordinator's own version
        self.tasks: Mapping[TaskId, Task] = self.declared  # of all versions that are there
        # Tasks that members who run report, and since when they wait for the other members.
        self.pending_tasks: dict[TaskId, int] = {}
        self.touched: set[str] = set()  # members that a change since the last step concerns; only they are looked at
        self.by_transactional_id = OwnerIndex()
        self.owners = TaskTable(self._touch, Index[Owner](lambda owner: (owner.member,)), self.by_transactional_id)
        self.recording = TaskTable(self._touch_owner, Index[Owner](lambda owner: (owner.member,)))
        self.moves = TaskTable(self._touch_owner, Index[Move](lambda move: (move.target,)))
        self.learners = TaskTable(self._touch, Index[str](lambda member: (member,)))
        self.standbys = TaskTable(self._touch, Index[tuple[str, ...]](lambda members: members))
        self.retiring: dict[TaskId, int] = {}  # owned, and since when no version that is there has them
        self.releasable: set[TaskId] = set()  # moves that could be made, and wait for others behind the barrier
        # Their owner was in a call when a round wanted them: they move once it has let go, and the round went on without.
        self.postponed: dict[TaskId, int] = {}
        self.members = Members()
        self.fencing: set[str] = set()
        self.fenced: set[str] = set()  # transactional ids that this coordinator had the log refuse
        self.spreading: frozenset[TaskId] = frozenset()  # with a standby that restores in the place of another one
        self.finishing: dict[str, int] = {}  # learners that each instance restored when settings changed
        self.standbys_agreed = settings.standbys  # those of the last plan; the setting may ask for fewer since
        self.given_up: dict[tuple[TaskId, str], int] = {}
        self.orphaned_state: dict[TaskId, str] = {}  # on which instance's disk a worker that is gone left what it ran
        self.end_offsets = EndOffsets(self.members, self.owners)
        self.weights: dict[TaskId, int] = {}  # as their owners measured them last
        self.hand_overs: dict[TaskId, HandOver] = {}
        self.operations: dict[str, Operation] = {}  # scale-downs that run; an instance leaves while one names it
        # The last incarnation of each instance that was to leave, also once it is gone.
        self.leavers = dict(leavers or {})
        self.dismissed: dict[str, int] = {}  # instances stopped by force, and until when they may not come back
        self.started_ms = self.last_step_ms = now_ms
        self.first_join_ms: int | None = None
        self.phase = Phase.GATHERING
        self.barrier = self.dirty = False
        self.paused = False  # an operator's hold: while set, nothing is planned
        self.long_assignment = long_assignment
        self.computing: View | None = None  # what a target is computed from at the moment
        self.targets_asked = self.stale_targets = 0  # all; those of which nothing held, one after the other
        self.membership_changed = False
        self.broadcast_inputs: tuple[object, ...] = ()  # what every assignment depends on
        for owner in owners:
            self.owners[owner.task] = owner
            if owner.writer and owner.task not in self.tasks:
                self.retiring[owner.task] = now_ms
        # Until Gathered: a plan made before those without tasks are back would throw away what they restored.
        self.gathering = gathering and len(self.owners) > 0
        self.before = frozenset(before)  # the members of the last generation: once they are back, all are
        self.started_with = started_with  # so many were started together: a new group that has them waits for no other
        self.former = former  # the instance of the coordinator before, where its process is known to be gone

    # ---- owners of tasks

    def owns(self, member: Member) -> bool:
        return self._holds(member.join_request.writer, member.name) or bool(self.moves.of(member.name))

    def _holds(self, transactional_id: str, name: str) -> bool:
        """Whether an owner record of `transactional_id`, which is that of member `name`, is in the log or on its way."""
        return bool(self.by_transactional_id.of(transactional_id)) or any(
            self.recording[t].writer == transactional_id for t in self.recording.of(name)
        )

    @property
    def protocol(self) -> Protocol:
        """The best protocol that the setting allows and every member supports."""
        allowed = up_to(self.settings.protocol)
        common = [p for p in allowed if self.members.all_speak(p)]
        return common[-1] if common else Protocol.EAGER

    def weighed(self) -> Mapping[TaskId, Task]:
        """The tasks with the weights that count: given, or measured."""
        if self.settings.weights == "given":
            return self.tasks
        return {t: replace(task, weight=self.weight(t)) for t, task in self.tasks.items()}

    def weight(self, task: TaskId) -> int:
        """What the task counts as load."""
        return self.tasks[task].weight if self.settings.weights == "given" else self.weights.get(task, 1)

    def knows_all(self, member: Member) -> bool:
        """Whether the member can run every task of the group, as nearly always."""
        return (self.declared if member.join_request.tasks is None else expand(member.join_request.tasks)) is self.tasks

    def can_run(self, member: Member, task: TaskId) -> bool:
        """Whether the task is one of the group's, and the member's version of the app has it."""
        return task in self.tasks and can_run(member.join_request, task, self.declared)

    def effective_owner(self, task: TaskId) -> str | None:
        """Returns the member that owns the task, or will once its move is over; None where no member can."""
        move = self.moves.get(task)
        if move is not None:
            target = self.members.get(move.target)
            if target is not None and not target.fenced and self.can_run(target, task):
                return move.target
        pending = self.recording.get(task)
        owner = pending or self.owners.get(task)
        if owner is None or not owner.writer or owner.writer in self.fencing:
            return None
        member = self.members.get(owner.member)
        if member is None or member.join_request.writer != owner.writer or member.fenced:
            return None
        return None if pending is None and is_released(owner, member) else owner.member

    def instance_of(self, name: str) -> str | None:
        known = self.members.get(name)
        return known.join_request.instance if known is not None else None

    def transactional_ids_of(self, name: str) -> list[str]:
        """The transactional ids under which owner records name this member, in the order of their tasks."""
        found = (self.owners[task].writer for task in sorted(self.owners.of(name)))
        return [transactional_id for transactional_id in dict.fromkeys(found) if transactional_id]

    # ---- who is touched by a change

    def _touch(self, task: TaskId, names: Iterable[str]) -> None:
        self.touched.update(names)

    def _touch_owner(self, task: TaskId, names: Iterable[str]) -> None:
        """What a move or a coming record says of a task changes the assignments of its present owner and its learner, too."""
        self.touched.update(names)
        if task in self.learners:
            self.touched.add(self.learners[task])
        owner = self.owners.get(task)
        if owner is not None:
            self.touched.add(owner.member)
