"""Whether a group has come to rest. One rule: reads, decides nothing."""

from __future__ import annotations

from orchestrator.group.members import Member
from orchestrator.group.state import GroupState
from orchestrator.model import TaskId


def is_stable(group: GroupState) -> bool:
    """Returns whether every task has a running owner, and no task moves, no member learns and no instance leaves (the last
    instance cannot, and so does not count)."""
    return (
        bool(group.members.by_name)
        and all(_runs(group, task) for task in group.tasks)
        and not group.pending_tasks
        and not group.moves
        and not group.postponed
        and not group.recording
        and not group.learners
        and not group.fencing
        and group.computing is None
        and not group.operations
        and not (any(m.is_leaving for m in group.members) and len({m.join_request.instance for m in group.members}) > 1)
    )


def holder_of(group: GroupState, task: TaskId) -> Member | None:
    """The member that the owner record of the task names, if it is here under that very transactional_id."""
    owner = group.owners.get(task)
    if owner is None or not owner.writer:
        return None
    member = group.members.get(owner.member)
    return member if member is not None and member.join_request.writer == owner.writer else None


def _runs(group: GroupState, task: TaskId) -> bool:
    """Whether the task's owner says that it has caught up and processes."""
    holder, owner = holder_of(group, task), group.owners.get(task)
    begun = holder.status.started.get(task) if holder is not None else None
    return begun is not None and owner is not None and begun.epoch == owner.epoch
