"""What each member should hold now: from the owner records and the plan to assignments.

One rule: a task stands in an assignment as active only if its owner record names that member's writer at that epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.model import Assignment, Owner, Status, TaskId
from orchestrator.roster import Member

if TYPE_CHECKING:
    from orchestrator.group import Group

Owned = Sequence[tuple[TaskId, Owner]]


def is_released(owner: Owner, member: Member) -> bool:
    """Whether the member's own report proves that it gave the task up at the recorded epoch."""
    proof = member.status.released.get(owner.task)
    return proof is not None and proof.epoch == owner.epoch


def owned_by_writer(group: Group) -> dict[str, list[tuple[TaskId, Owner]]]:
    """Owner records by the writer that they name."""
    index: dict[str, list[tuple[TaskId, Owner]]] = {}
    for task, owner in group.owners.items():
        if owner.writer:
            index.setdefault(owner.writer, []).append((task, owner))
    return index


def assignment_of(group: Group, member: Member, owned: Owned) -> Assignment:
    """What the member should hold now."""
    active: dict[TaskId, int] = {}
    release: dict[TaskId, int] = {}
    for task, owner in owned:
        if task in group.recording:
            continue
        if task in group.moves or task not in group.tasks:
            release[task] = owner.epoch
        elif not is_released(owner, member):
            active[task] = owner.epoch
    held = active.keys() | release.keys()
    coming = {t for t, move in group.moves.items() if move.target == member.name}
    coming |= {t for t, owner in group.recording.items() if owner.member == member.name}
    # A copy that is about to be granted the task stays open until then. What was said last counts as what is held: a
    # member with two assignments on their way to it would answer each with a status that asks for the other.
    learners = {t for t, m in group.learners.items() if m == member.name}
    said = member.sent.learners if member.sent is not None else ()
    learners |= {t for t in coming if t in member.status.copies or t in said}
    leaving = member.is_leaving
    return Assignment(
        group.generation,
        group.term,
        active,
        release,
        tuple(sorted(learners - held)),
        tuple(sorted(t for t, ms in group.standbys.items() if member.name in ms and t not in active)),
        group.protocol,
        leaving,
        leaving and not held and _may_go(group, member),
        {t: w for t in active if (w := group.weights.get(t, 1)) != 1},
    )


def _may_go(group: Group, member: Member) -> bool:
    """A leaver goes when nothing is left on its whole instance, and only while somebody stays."""
    instance = member.hello.instance
    if any(other.hello.instance == instance and group.owns(other) for other in group.roster):
        return False
    return any(not other.is_leaving for other in group.roster) or not group.tasks


def lacks(sent: Assignment, status: Status) -> bool:
    """Whether a member that has taken the assignment in reports less than what is in it (it dropped a task, or obeyed
    somebody else in between)."""
    if status.term != sent.term or status.generation < sent.generation:
        return False
    missing = [t for t in sent.active if t not in status.active and t not in status.released]
    return bool(missing) or any(t not in status.copies and t not in status.active for t in sent.learners)


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
