"""Whether a group has come to rest. One rule: reads, decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.model import TaskId
from orchestrator.roster import Member

if TYPE_CHECKING:
    from orchestrator.group import Group


def is_stable(group: Group) -> bool:
    """Every task has a running owner, nothing moves, nobody learns or leaves: the last instance, which cannot, does not."""
    return (
        bool(group.roster.members)
        and all(_runs(group, task) for task in group.tasks)
        and not group.coming
        and not group.moves
        and not group.recording
        and not group.learners
        and not group.fencing
        and group.computing is None
        and group.operation is None
        and not (any(m.is_leaving for m in group.roster) and len({m.hello.instance for m in group.roster}) > 1)
    )


def holder_of(group: Group, task: TaskId) -> Member | None:
    """The member that the owner record of the task names, if it is here under that very writer."""
    owner = group.owners.get(task)
    if owner is None or not owner.writer:
        return None
    member = group.roster.get(owner.member)
    return member if member is not None and member.hello.writer == owner.writer else None


def _runs(group: Group, task: TaskId) -> bool:
    """Whether the task's owner says that it has caught up and processes."""
    holder, owner = holder_of(group, task), group.owners.get(task)
    begun = holder.status.started.get(task) if holder is not None else None
    return begun is not None and owner is not None and begun.epoch == owner.epoch
