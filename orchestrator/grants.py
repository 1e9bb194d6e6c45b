"""What each member should hold now: from the owner records and the plan to assignments.

One rule: a task stands in an assignment as active only if its owner record names that member's writer at that epoch.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

from orchestrator import events as ev
from orchestrator.model import Assignment, Owner, TaskId
from orchestrator.roster import Member

if TYPE_CHECKING:
    from orchestrator.group import Group
    from orchestrator.group_tables import TaskTable

Owned = Sequence[tuple[TaskId, Owner]]


def is_released(owner: Owner, member: Member) -> bool:
    """Whether the member's own report proves that it gave the task up at the recorded epoch."""
    proof = member.status.released.get(owner.task)
    return proof is not None and proof.epoch == owner.epoch


def assignment_of(group: Group, member: Member, owned: Owned) -> Assignment:
    """What the member should hold now."""
    active: dict[TaskId, int] = {}
    release: dict[TaskId, int] = {}
    for task, owner in owned:
        # What is given up stays asked for until another record is in the log: a proof that nobody asks for is forgotten,
        # and a coordinator that only has the old record would grant the same epoch again.
        moving = task in group.moves or task in group.recording
        if moving or task not in group.tasks or is_released(owner, member):
            release[task] = owner.epoch
        else:
            active[task] = owner.epoch
    held = active.keys() | release.keys()
    coming = group.moves.of(member.name).keys() | group.recording.of(member.name).keys()
    # A copy that is about to be granted the task stays open until then. What was said last counts as what is held: a
    # member with two assignments on their way to it would answer each with a status that asks for the other.
    said = member.sent.learners if member.sent is not None else ()
    beside = _beside(group, member)
    learners = _runnable(group, member, group.learners) - beside
    learners |= coming & (member.status.copies.keys() | set(said))
    leaving = member.is_leaving
    return Assignment(
        group.generation,
        group.term,
        active,
        release,
        tuple(sorted(learners - held)),
        tuple(sorted(_runnable(group, member, group.standbys) - active.keys() - beside)),
        group.protocol,
        leaving,
        leaving and not held and _may_go(group, member),
        {t: w for t in active if (w := group.weights.get(t, 1)) != 1},
    )


def _runnable(group: Group, member: Member, table: TaskTable[Any]) -> Set[TaskId]:
    """The member's tasks of a table that it can run: it may have come back as another version since the plan was made."""
    tasks = table.of(member.name).keys()
    return tasks if group.knows_all(member) else {task for task in tasks if group.can_run(member, task)}


def _beside(group: Group, member: Member) -> Set[TaskId]:
    """Tasks that another worker of the instance runs, or is about to: no copy of them is opened beside it until then."""
    found: set[TaskId] = set()
    for other in group.roster.of_instance(member.hello.instance):
        if other is not member:
            found.update(group.writers.of(other.hello.writer), group.recording.of(other.name))
    return found


def _may_go(group: Group, member: Member) -> bool:
    """A leaver goes when nothing is left on its whole instance, and somebody stays, or has the tasks: where everybody
    leaves, the last one does not go."""
    instance = member.hello.instance
    if any(group.owns(other) for other in group.roster.of_instance(instance)):
        return False
    if group.roster.somebody_stays() or not group.tasks:
        return True
    others = (group.roster.of_writer(writer) for writer in group.writers)
    return any(other is not None and not other.fenced for other in others)


def lacks(member: Member) -> bool:
    """Whether a member that has taken its assignment in reports less than what is in it (it dropped a task, or obeyed
    somebody else in between). Asked with every heartbeat, so an answer is not looked for twice in the same reports."""
    sent, status = member.sent, member.status
    if sent is None or status.term != sent.term or status.generation < sent.generation:
        return False
    reports = (sent, status.active, status.released, status.copies)
    if reports == member.complete:
        return False
    missing = [t for t in sent.active if t not in status.active and t not in status.released]
    if missing or any(t not in status.copies and t not in status.active for t in sent.learners):
        return True
    member.complete = reports
    return False


def same(a: Assignment, b: Assignment) -> bool:
    """Equal but for the generation: a member need not hear of moves that do not touch it."""
    return (
        a.active == b.active
        and a.release == b.release
        and a.learners == b.learners
        and a.standbys == b.standbys
        and a.protocol == b.protocol
        and a.leaving == b.leaving
        and a.shutdown == b.shutdown
    )


def tell(group: Group) -> list[Member]:
    """Send the touched members what they should hold now, where that has changed; returns those that may shut down."""
    going: list[Member] = []
    for member in _to_tell(group):
        if member.session is None or member.fenced:
            continue
        owned = [(task, group.owners[task]) for task in group.writers.of(member.hello.writer)]
        assignment = assignment_of(group, member, owned)
        if member.sent is None or not same(member.sent, assignment):
            member.told(assignment)
            group.effects.append(ev.Send(member.session, assignment))
            if assignment.shutdown:
                going.append(member)
    group.touched.clear()
    return going


def _to_tell(group: Group) -> list[Member]:
    """The touched members in the order of the roster; everybody, where something changed for everybody."""
    climate = (group.protocol, group.roster.somebody_stays(), bool(group.tasks))
    if climate != group.climate:
        group.climate = climate
        return list(group.roster)
    members = [m for m in map(group.roster.get, group.touched) if m is not None]
    # What a worker runs keeps copies from its siblings, and a leaver goes when its whole instance is empty.
    siblings = [s for m in members for s in group.roster.of_instance(m.hello.instance)]
    return sorted({m.number: m for m in (*members, *siblings)}.values(), key=lambda m: m.number)
