"""What each member should hold now: from the owner records and the target assignment to assignments.

One rule: a task stands in an assignment as active only if its owner record names that member's transactional id at that epoch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence, Set
from typing import Any

from orchestrator.group import changes as ch
from orchestrator.group import events as ev
from orchestrator.group import hand_overs
from orchestrator.group.members import Member, is_released
from orchestrator.group.state import GroupState
from orchestrator.group.tables import TaskTable
from orchestrator.model import Assignment, Owner, Role, TaskId

Owned = Sequence[tuple[TaskId, Owner]]


def assignment_of(group: GroupState, member: Member, owned: Owned) -> Assignment:
    """What the member should hold now."""
    active: dict[TaskId, int] = {}
    release: dict[TaskId, int] = {}
    for task, owner in owned:
        # A release is requested until another owner record is in the log: a proof that is not asked for is forgotten,
        # and a coordinator that only has the old record would grant the same epoch again.
        moving = task in group.moves or task in group.recording or task in group.postponed
        if moving or task not in group.tasks or is_released(owner, member):
            release[task] = owner.epoch
        else:
            active[task] = owner.epoch
    held = active.keys() | release.keys()
    beside = _beside(group, member)
    learners, standbys = _incoming(group, member)
    begun = learners.union(member.sent.learners if member.sent is not None else ())
    due = _runnable(group, member, group.learners) - beside
    learners.update(task for task in due if task in begun or not waits_for_hand_over(group, task))
    standbys -= held
    standbys |= _runnable(group, member, group.standbys) - active.keys() - beside
    leaving = member.is_leaving
    return Assignment(
        group.generation,
        group.term,
        active,
        release,
        tuple(sorted(learners - held)),
        tuple(sorted(standbys)),
        group.protocol,
        leaving,
        leaving and not held and _may_go(group, member),
        {t: w for t in active if (w := group.weights.get(t, 1)) != 1},
        {t: e for t in group.hand_overs.keys() & active.keys() if (e := hand_overs.ending(group, t, active[t]))},
    )


def waits_for_hand_over(group: GroupState, task: TaskId) -> bool:
    """Whether the learner of a task begins only when the hand-over that is under way is done: another one learned the task for
    that, and there is at most one learner of a task. An owner that does not answer keeps it waiting."""
    record, move = group.recording.get(task), group.moves.get(task)
    targets = (record.member if record is not None else "", move.target if move is not None else "")
    others = (group.members.get(name) for name in targets if name and name != group.learners.get(task))
    return any(other is not None and _role_of(other, task) is Role.LEARNER for other in others)


def _incoming(group: GroupState, member: Member) -> tuple[set[TaskId], set[TaskId]]:
    """Learners and standbys that are about to be granted their task: they stay open until then, as what they are."""
    learners, standbys = set[TaskId](), set[TaskId]()
    for task in group.moves.of(member.name).keys() | group.recording.of(member.name).keys():
        role = _role_of(member, task)
        if role is not None:
            (learners if role is Role.LEARNER else standbys).add(task)
    return learners, standbys


def _role_of(member: Member, task: TaskId) -> Role | None:
    """What copy of the task the member has. What was sent last counts as what is held: a member with two assignments on
    their way to it would answer each with a status that asks for the other."""
    sent, copy = member.sent, member.status.copies.get(task)
    if sent is not None and task in sent.learners:
        return Role.LEARNER
    if sent is not None and task in sent.standbys:
        return Role.STANDBY
    return copy.role if copy is not None else None


def _runnable(group: GroupState, member: Member, table: TaskTable[Any]) -> Set[TaskId]:
    """The member's tasks of a table that it can run: it may have come back as another version since the target assignment was made."""
    tasks = table.of(member.name).keys()
    return tasks if group.knows_all(member) else {task for task in tasks if group.can_run(member, task)}


def _beside(group: GroupState, member: Member) -> Set[TaskId]:
    """Tasks that another worker of the instance runs, or is about to: no copy of them is opened beside it until then."""
    found: set[TaskId] = set()
    for other in group.members.of_instance(member.join_request.instance):
        if other is not member:
            found.update(group.by_transactional_id.of(other.join_request.writer), group.recording.of(other.name))
    return found


def _may_go(group: GroupState, member: Member) -> bool:
    """A leaver goes when nothing is left on its whole instance, and somebody stays, or has the tasks: where everybody
    leaves, the last one does not go."""
    instance = member.join_request.instance
    if any(group.owns(other) for other in group.members.of_instance(instance)):
        return False
    if group.members.somebody_stays() or not group.tasks:
        return True
    others = (group.members.of_transactional_id(transactional_id) for transactional_id in group.by_transactional_id)
    return any(other is not None and not other.fenced for other in others)


def same(a: Assignment, b: Assignment) -> bool:
    """Equal but for the generation: a member need not receive moves that do not touch it."""
    return (
        a.active == b.active
        and a.release == b.release
        and a.learners == b.learners
        and a.standbys == b.standbys
        and a.protocol == b.protocol
        and a.leaving == b.leaving
        and a.shutdown == b.shutdown
    )


def send_assignments(group: GroupState) -> Generator[ch.Decision, None, list[Member]]:
    """Send the touched members what they should hold now, where that has changed; returns those that may shut down."""
    going: list[Member] = []
    broadcast_inputs = (group.protocol, group.members.somebody_stays(), bool(group.tasks))
    # Where an input of every assignment has changed, every member is looked at.
    members = _recipients(group) if broadcast_inputs == group.broadcast_inputs else list(group.members)
    for member in members:
        if member.session is None or member.fenced:
            continue
        owned = [(task, group.owners[task]) for task in group.by_transactional_id.of(member.join_request.writer)]
        assignment = assignment_of(group, member, owned)
        if member.sent is None or not same(member.sent, assignment):
            yield ch.AssignmentSent(member, assignment)
            yield ev.Send(member.session, assignment)
            if assignment.shutdown:
                going.append(member)
    yield ch.AssignmentsDone(broadcast_inputs)
    return going


def _recipients(group: GroupState) -> list[Member]:
    """The touched members, and their siblings, in the order in which they joined."""
    members = [m for m in map(group.members.get, group.touched) if m is not None]
    # What a worker runs keeps copies from its siblings, and a leaver goes when its whole instance is empty.
    siblings = [s for m in members for s in group.members.of_instance(m.join_request.instance)]
    return sorted({m.number: m for m in (*members, *siblings)}.values(), key=lambda m: m.number)
