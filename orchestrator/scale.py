"""Which instances a share is counted of, and what it costs to empty one. One rule: reads the group; the choice itself is
in shares.py."""

from __future__ import annotations

from orchestrator.errors import RefusedBySafety
from orchestrator.group import Group
from orchestrator.model import TaskId


def leaver_costs(group: Group, present: set[str]) -> dict[str, tuple[int, int]]:
    """Instance -> (bytes to move that have no ready copy elsewhere, number of tasks)."""
    result = dict.fromkeys(present, (0, 0))
    for owner in group.owners.values():
        member = group.roster.get(owner.member)
        if member is None or not owner.writer or member.hello.instance not in result:
            continue
        task = group.tasks.get(owner.task)
        cost, count = result[member.hello.instance]
        moves_state = (
            task is not None and task.stateful and not _ready_elsewhere(group, owner.task, member.hello.instance)
        )
        size = max(1, task.state_bytes) if task is not None and moves_state else 0
        result[member.hello.instance] = (cost + size, count + 1)
    return result


def _ready_elsewhere(group: Group, task: TaskId, instance: str) -> bool:
    for other in group.roster.reporting(task):
        copy = other.status.copies.get(task)
        if copy is not None and other.hello.instance != instance and copy.lag <= group.settings.acceptable_recovery_lag:
            return True
    return False


def running(group: Group) -> set[str]:
    """The instances that a share is counted of: running or joining, not leaving. Raises RefusedBySafety while owners may
    still come back to a new coordinator: a share of those who are back already would be another number."""
    here = group.roster.writers()
    absent = sorted(
        {group.owners[next(iter(group.writers.of(w)))].member for w in group.writers.keys() - here - group.fencing}
    )
    left = group.started_ms + group.settings.rejoin_grace_ms - group.last_step_ms
    if absent and left > 0:
        raise RefusedBySafety(
            f"{', '.join(absent)} had tasks and {'is' if len(absent) == 1 else 'are'} not back with this coordinator; "
            f"how many instances run is known in {left / 1000:.1f} s at most (rejoin_grace): try again then"
        )
    return {m.hello.instance for m in group.roster if not m.is_leaving and not m.fenced}
