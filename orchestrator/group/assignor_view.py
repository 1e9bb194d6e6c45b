"""From the group's state to the assignor's view. One rule: reads, decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping

from orchestrator.group.members import Member, is_released
from orchestrator.group.state import GroupState
from orchestrator.group.topology_versions import expand
from orchestrator.model import Copy, Role, TaskId, TaskRange
from orchestrator.task_assignor.view import FAR, LearnerView, MemberView, View


def build_view(group: GroupState) -> View:
    """What the assignor may know: live members, effective owners, copies with their lags, reserved tasks."""
    live = {m.name: m for m in group.members if not m.fenced and not m.shut_down}
    knows = {version: _knows(group, version) for version in {m.join_request.tasks for m in live.values()}}
    members = {
        name: MemberView(
            name,
            m.join_request.instance,
            m.join_request.capacity,
            m.join_request.zone,
            m.is_leaving,
            knows[m.join_request.tasks],
        )
        for name, m in sorted(live.items())
    }
    active, without = _effective_owners(group, members)
    standbys, disk = _copies(group, members, without)
    _count_unused(group, members, without, disk)
    learners = {
        task: LearnerView(member, _ready(group, member, task))
        for task, member in group.learners.items()
        if member in members and group.can_run(group.members.by_name[member], task)
    }
    return View(
        tasks=group.weighed(),
        members=members,
        active=active,
        learners=learners,
        learner_lags={task: lag_of(group, task, learner.member) for task, learner in learners.items()},
        standbys=standbys,
        disk=disk,
        reserved=_reserved(group, without, standbys, disk, learners),
        former={task: group.owners[task].member for task in sorted(without) if task in group.owners},
        given_up=frozenset(group.given_up),
        moving=frozenset((*group.moves, *group.recording)),
        silent=frozenset(name for name, m in live.items() if m.session is None),
        protocol=group.protocol,
        settings=group.settings,
    )


def _reserved(
    group: GroupState,
    without: Iterable[TaskId],
    standbys: Mapping[TaskId, dict[str, int]],
    disk: Mapping[TaskId, dict[str, int]],
    learners: Mapping[TaskId, LearnerView],
) -> frozenset[TaskId]:
    """Tasks without an owner that are kept all the same: until the log confirms a fence; and while the disk of a silent
    member may come back, unless the task is warm elsewhere or has no state."""
    found: set[TaskId] = set()
    for task in without:
        record = group.owners.get(task)
        if record is None:
            continue
        if record.writer and record.writer in group.fencing:
            found.add(task)
            continue
        silent = group.members.get(record.member)
        if silent is None or not silent.fenced or silent.session is not None:
            continue
        learner = learners.get(task)
        goes_on = _is_warm(group, task, standbys.get(task, {}), disk.get(task, {})) or not group.tasks[task].stateful
        if record.writer or not (goes_on or (learner is not None and learner.ready)):
            found.add(task)
    return frozenset(found)


def _knows(group: GroupState, version: tuple[TaskRange, ...] | None) -> frozenset[TaskId] | None:
    """The tasks that members of a version can run; None for all of them, which is nearly always so."""
    known = group.declared if version is None else expand(version)
    return None if known is group.tasks or known.keys() >= group.tasks.keys() else frozenset(known)


def _effective_owners(group: GroupState, members: dict[str, MemberView]) -> tuple[dict[TaskId, str], set[TaskId]]:
    """`group.effective_owner` of all tasks that have one of `members`: what the log says, but for the exceptions. And
    the tasks with a record that have none. Only the exceptions are looked at one by one: there may be 200,000 tasks."""
    active = dict(group.by_transactional_id.members)
    lost: list[TaskId] = []
    for transactional_id in group.by_transactional_id:
        member = group.members.of_transactional_id(transactional_id)
        if member is None or member.name not in members or transactional_id in group.fencing:
            lost.extend(group.by_transactional_id.of(transactional_id))
        else:
            released = (task for task in member.status.released if active.get(task) == member.name)
            lost.extend(task for task in released if is_released(group.owners[task], member))
    for task in lost:
        del active[task]
    under_way = (*group.recording, *group.moves)
    for task in under_way:
        owner = group.effective_owner(task)
        if owner in members:
            active[task] = owner
        else:
            active.pop(task, None)
    # A task that is gone still has an owner only until that has released it, or while its record is on its way.
    for task in (*group.retiring, *under_way):
        if task not in group.tasks:
            active.pop(task, None)
    without = (task for task in (*lost, *under_way, *group.by_transactional_id.without_owner) if task not in active)
    return active, {task for task in without if task in group.tasks}


def _ready(group: GroupState, member: str, task: TaskId) -> bool:
    known = group.members.get(member)
    copy = known.status.copies.get(task) if known is not None else None
    return copy is not None and copy.ready


def _copies(
    group: GroupState, members: dict[str, MemberView], without: Container[TaskId]
) -> tuple[dict[TaskId, dict[str, int]], dict[TaskId, dict[str, int]]]:
    """Standbys by member and state on disk by instance, with their lags. How far a standby is by what others say of the
    end is looked up only for a task `without` an owner: it may take over at once, and there may be 200,000 of the others."""
    standbys: dict[TaskId, dict[str, int]] = {}
    for task, names in group.standbys.items():
        for name in names:
            if name in members and group.can_run(group.members.by_name[name], task):
                copy = group.members.by_name[name].status.copies.get(task)
                if copy is not None and knows_end(copy) and task not in without:
                    lag = copy.lag
                else:
                    lag = lag_of(group, task, name)
                standbys.setdefault(task, {})[name] = lag
    disk: dict[TaskId, dict[str, int]] = {}
    for name in members:
        member = group.members.by_name[name]
        for task, position in member.status.disk.items():
            if group.can_run(member, task):
                lag = disk_lag(group, task, position)
                hosts = disk.setdefault(task, {})
                hosts[member.join_request.instance] = min(lag, hosts.get(member.join_request.instance, lag))
    for task, instance in group.orphaned_state.items():  # how far it is, is not known: not close, but near
        if any(m.name in members and group.can_run(m, task) for m in group.members.of_instance(instance)):
            hosts, near = disk.setdefault(task, {}), group.settings.acceptable_recovery_lag + 1
            hosts[instance] = min(near, hosts.get(instance, near))
    return standbys, disk


def lag_of(group: GroupState, task: TaskId, name: str) -> int:
    """How far the copy of a member is behind; one that has not said yet how far it is, or has no end, is not close."""
    copy = group.members.by_name[name].status.copies.get(task)
    end = group.end_offsets.of(task, 0)
    if copy is None or not (end or knows_end(copy)):
        return max(end, group.settings.acceptable_recovery_lag + 1)
    return max(0, max(end, copy.end) - copy.position)


def knows_end(copy: Copy) -> bool:
    """Whether its lag is known; a worker of an older version reports an end only where there is one."""
    return copy.end_known or copy.end > 0


def disk_lag(group: GroupState, task: TaskId, position: int) -> int:
    """How far state on disk is behind; where no end was reported, it is not close."""
    return max(0, group.end_offsets.of(task, FAR) - position)


def _count_unused(
    group: GroupState, members: Collection[str], tasks: Iterable[TaskId], disk: dict[TaskId, dict[str, int]]
) -> None:
    """A copy that is not assigned, of a task without an owner, is state on disk: its owner's, who let it go under another
    coordinator, or a standby's that was to be closed."""
    for task in tasks:
        for member in group.members.reporting(task):
            asked = member.name == group.learners.get(task) or member.name in group.standbys.get(task, ())
            if task in member.status.copies and member.name in members and not asked and group.can_run(member, task):
                lag, hosts = lag_of(group, task, member.name), disk.setdefault(task, {})
                hosts[member.join_request.instance] = min(lag, hosts.get(member.join_request.instance, lag))


def restoring(group: GroupState) -> dict[str, int]:
    """How many learners each instance restores: those of live members that are not ready."""
    found: dict[str, int] = {}
    for task, name in group.learners.items():
        member = group.members.get(name)
        if member is None:
            continue
        copy = member.status.copies.get(task)
        if copy is None or (copy.role is Role.LEARNER and not copy.ready):
            found[member.join_request.instance] = found.get(member.join_request.instance, 0) + 1
    return found


def _is_warm(group: GroupState, task: TaskId, standbys: dict[str, int], disk: dict[str, int]) -> bool:
    lags = [*standbys.values(), *disk.values()]
    return any(lag <= group.settings.acceptable_recovery_lag for lag in lags)


def can_go_on_elsewhere(group: GroupState, transactional_id: str, instance: str) -> bool:
    """Whether a task that a worker of `instance` owns could go on at once on another instance that can be reached: it has
    a caught-up copy there, or no state at all (no disk can come back with it)."""
    lag_max = group.settings.acceptable_recovery_lag
    for task in group.by_transactional_id.of(transactional_id):
        known = group.tasks.get(task)
        if known is not None and not known.stateful and _is_other_there(group, instance, task):
            return True
        for other in group.members.reporting(task):
            if other.join_request.instance == instance or other.session is None or other.is_leaving:
                continue
            if _is_close(other, task, lag_max):
                return True
            position = other.status.disk.get(task)
            if position is not None and disk_lag(group, task, position) <= lag_max:
                return True
    return False


def has_warm_standby(group: GroupState, transactional_id: str, instance: str) -> bool:
    """Whether a task that a worker of `instance` owns has a caught-up standby on another instance that can be reached."""
    lag_max = group.settings.acceptable_recovery_lag
    standbys = (
        (task, group.members.get(name))
        for task in group.by_transactional_id.of(transactional_id)
        for name in group.standbys.get(task, ())
    )
    return any(
        other is not None
        and other.join_request.instance != instance
        and other.session is not None
        and not other.is_leaving
        and _is_close(other, task, lag_max)
        for task, other in standbys
    )


def _is_close(member: Member, task: TaskId, lag_max: int) -> bool:
    copy = member.status.copies.get(task)
    return copy is not None and (copy.ready or (copy.lag <= lag_max and knows_end(copy)))


def _is_other_there(group: GroupState, instance: str, task: TaskId) -> bool:
    return any(
        other.session is not None
        and other.join_request.instance != instance
        and not other.is_leaving
        and not other.fenced
        and group.can_run(other, task)
        for other in group.members
    )
