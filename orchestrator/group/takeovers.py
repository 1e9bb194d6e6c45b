"""What goes on while a new coordinator still gathers: tasks whose owner is known to be gone, and that are warm elsewhere.

One rule: a member that is known to be gone is fenced after the same grace under every coordinator, and a copy that is close
goes on at once; everything else waits until all are back (docs/decisions/51). Called by timeouts.py with each Tick.
"""

from __future__ import annotations

from orchestrator.group import changes as ch
from orchestrator.group import events as ev
from orchestrator.group import fencing
from orchestrator.group.assignor_view import can_go_on_elsewhere, disk_lag, lag_of
from orchestrator.group.members import Member
from orchestrator.group.state import GroupState, Move
from orchestrator.model import Protocol, TaskId
from orchestrator.names import natural


def fence_former(group: GroupState) -> ch.Decisions:
    """Workers of the instance whose process was the coordinator: they end with it, as if their connections had ended when
    this coordinator began."""
    here = group.members.transactional_ids()
    for transactional_id in [w for w in group.by_transactional_id if w not in here and w not in group.fencing]:
        name = group.owners[next(iter(group.by_transactional_id.of(transactional_id)))].member
        if is_known_gone(group, transactional_id, name):
            yield ev.Announced(f"{name} fenced")
            yield from fencing.fence(group, transactional_id)


def is_known_gone(group: GroupState, transactional_id: str, name: str) -> bool:
    """Whether an owner that is not back ended with the coordinator before, and a task of it is warm elsewhere."""
    return _is_worker_of(name, group.former) and can_go_on_elsewhere(group, transactional_id, group.former)


def _is_worker_of(name: str, instance: str) -> bool:
    """By their names: it is not here to say so itself. A member is its instance, or `instance.number`."""
    head, _, number = name.rpartition(".")
    return instance != "" and (name == instance or (head == instance and number.isdecimal()))


def take_over(group: GroupState, now_ms: int) -> ch.Decisions:
    """Nothing is assigned while the group gathers, but a task without an owner, of which a member that is
    here has a close copy, goes there. The eager protocol gives nothing before every member has given up everything."""
    absent = not group.by_transactional_id.keys() <= group.members.transactional_ids()
    if not (group.gathering or absent) or group.fencing or group.paused or group.barrier:
        return
    free = [t for t in group.by_transactional_id.without_owner if t in group.tasks]
    free = [t for t in free if t not in group.moves and t not in group.recording]
    if not free or group.protocol is Protocol.EAGER:
        return
    learners, standbys = dict(group.learners), dict(group.standbys)
    moves: dict[TaskId, Move] = {}
    for task in sorted(free):
        target = _warmest(group, task)
        if target is None:
            continue
        moves[task] = Move(target.name, now_ms)
        beside = {m.name for m in group.members.of_instance(target.join_request.instance)}
        standbys[task] = tuple(name for name in standbys.get(task, ()) if name not in beside)
        if learners.get(task) in beside:
            del learners[task]
    if moves:
        membership = group.membership_changed
        yield ch.TargetAgreed(learners, standbys, moves, False)
        yield ch.TargetOutdated(membership)


def _warmest(group: GroupState, task: TaskId) -> Member | None:
    """Who goes on with the task at once: the owner before, where its disk is close, else the closest copy."""
    lag_max, former = group.settings.acceptable_recovery_lag, group.owners[task].member
    found: list[tuple[bool, int, tuple[tuple[int, int, str], ...], Member]] = []
    for member in group.members.reporting(task):
        if member.session is None or member.fenced or member.is_leaving or member.shut_down:
            continue
        copy, position = member.status.copies.get(task), member.status.disk.get(task)
        if not group.can_run(member, task):
            continue
        if copy is not None:
            lag = 0 if copy.ready else lag_of(group, task, member.name)
        else:
            lag = disk_lag(group, task, position or 0)
        if lag <= lag_max:
            found.append((member.name != former, lag, natural(member.name), member))
    return min(found, key=lambda one: one[:3])[3] if found else None
