"""What still holds of a target assignment, after the group went on while it was computed.

One rule: a target assignment is used only where what it was computed from is as it was. Members, tasks and settings concern every
task: if they differ, nothing holds. An owner, learner or standby that differs concerns its task, which keeps what it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from orchestrator.model import Protocol, Task, TaskId
from orchestrator.task_assignor.view import TargetAssignment, View


def still_valid(target: TargetAssignment, asked: View, now: View) -> TargetAssignment | None:
    """The target assignment itself where nothing changed from `asked` to `now`; what is left of it; or None for nothing at all."""
    if (asked.members, asked.protocol, asked.settings, asked.given_up) != (
        now.members,
        now.protocol,
        now.settings,
        now.given_up,
    ) or not _same_tasks(asked.tasks, now.tasks):
        return None
    same_owners = asked.active == now.active
    changed = set() if same_owners else _with_another_owner(target, asked, now)
    changed |= (
        _changed(asked.learners, now.learners) | asked.reserved ^ now.reserved | _changed(asked.former, now.former)
    )
    for task in asked.standbys.keys() | now.standbys.keys():
        if asked.standbys.get(task, {}).keys() != now.standbys.get(task, {}).keys():
            changed.add(task)
    if gone := now.silent - asked.silent:  # those that cannot be reached any more
        changed |= {t for t in target.reassigned if target.active.get(t) in gone}
        changed |= {t for t, member in target.learners.items() if member in gone}
    if same_owners and not changed:
        return target
    active = {**target.active, **{t: now.active[t] for t in changed if t in now.active}}
    for task in changed - now.active.keys():
        active.pop(task, None)
    learners = {t: m for t, m in target.learners.items() if t not in changed}
    learners |= {t: now.learners[t].member for t in changed if t in now.learners}
    standbys = {t: m for t, m in target.standbys.items() if t not in changed}
    standbys |= {t: tuple(sorted(now.standbys[t])) for t in changed if now.standbys.get(t)}
    return TargetAssignment(active, _in_budget(learners, now), standbys, target.reassigned)


def _same_tasks(asked: Mapping[TaskId, Task], now: Mapping[TaskId, Task]) -> bool:
    """Measured weights may differ: they make a target assignment less good, not wrong."""
    if asked is now or asked == now:
        return True
    return asked.keys() == now.keys() and all(asked[t].stateful == task.stateful for t, task in now.items())


def _with_another_owner(target: TargetAssignment, asked: View, now: View) -> set[TaskId]:
    """Of the tasks of which the target assignment says more than that they stay where they are, which is nearly always few of many.
    The eager protocol deals all of them anew."""
    if now.protocol is Protocol.EAGER:
        return _changed(asked.active, now.active)
    tasks = target.reassigned.union(target.learners, target.standbys, now.learners, now.standbys)
    return {task for task in tasks if asked.active.get(task) != now.active.get(task)}


def _changed(asked: Mapping[TaskId, object], now: Mapping[TaskId, object]) -> set[TaskId]:
    if asked == now:
        return set()
    return {t for t, it in now.items() if asked.get(t) != it} | (asked.keys() - now.keys())


def _in_budget(learners: Mapping[TaskId, str], now: View) -> dict[TaskId, str]:
    """Without those new learners for which their instance has no room beside the learners that it has by now."""
    kept = {t: m for t, m in learners.items() if t in now.learners and now.learners[t].member == m}
    restoring = Counter(now.members[m].instance for t, m in kept.items() if not now.learners[t].ready)
    for task, member in sorted(learners.items()):
        host = now.members[member].instance
        if task not in kept and restoring[host] < now.settings.max_learners_per_instance:
            kept[task] = member
            restoring[host] += 1
    return kept
