"""From the group's state to the assignor's view. One rule: reads, decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from typing import TYPE_CHECKING

from orchestrator.grants import is_released
from orchestrator.model import Role, TaskId, TaskRange
from orchestrator.placement_view import FAR, LearnerView, MemberView, View
from orchestrator.versions import expand

if TYPE_CHECKING:
    from orchestrator.group import Group
    from orchestrator.roster import Member


def build_view(group: Group) -> View:
    """What the assignor may know: live members, effective owners, copies with their lags, reserved tasks."""
    live = {m.name: m for m in group.roster if not m.fenced and not m.shut_down}
    knows = {version: _knows(group, version) for version in {m.hello.tasks for m in live.values()}}
    members = {
        name: MemberView(name, m.hello.instance, m.hello.capacity, m.hello.zone, m.is_leaving, knows[m.hello.tasks])
        for name, m in sorted(live.items())
    }
    active, without = _effective_owners(group, members)
    reserved: set[TaskId] = set()
    former: dict[TaskId, str] = {}
    for task in sorted(without):
        record = group.owners.get(task)
        if record is None:
            continue
        former[task] = record.member
        if record.writer and record.writer in group.fencing:
            reserved.add(task)  # until the log says that the fence holds
        elif (silent := group.roster.get(record.member)) is not None and silent.fenced and silent.session is None:
            reserved.add(task)
    standbys, disk = _copies(group, members, without)
    _count_unused(group, members, without, disk)
    for task in list(reserved):
        record = group.owners[task]
        warm = _is_warm(group, task, standbys.get(task, {}), disk.get(task, {}))
        if not record.writer and (warm or not group.tasks[task].stateful):
            reserved.discard(task)
    learners = {
        task: LearnerView(member, _ready(group, member, task))
        for task, member in group.learners.items()
        if member in members and group.can_run(group.roster.members[member], task)
    }
    reserved -= {t for t, learner in learners.items() if learner.ready and t in reserved and not group.owners[t].writer}
    return View(
        tasks=group.weighed(),
        members=members,
        active=active,
        learners=learners,
        learner_lags={task: _lag(group, task, learner.member) for task, learner in learners.items()},
        standbys=standbys,
        disk=disk,
        reserved=frozenset(reserved),
        former=former,
        given_up=frozenset(group.given_up),
        moving=frozenset((*group.moves, *group.recording)),
        silent=frozenset(name for name, m in live.items() if m.session is None),
        protocol=group.protocol,
        settings=group.settings,
    )


def _knows(group: Group, version: tuple[TaskRange, ...] | None) -> frozenset[TaskId] | None:
    """The tasks that members of a version can run; None for all of them, which is nearly always so."""
    told = group.declared if version is None else expand(version)
    return None if told is group.tasks or told.keys() >= group.tasks.keys() else frozenset(told)


def _effective_owners(group: Group, members: dict[str, MemberView]) -> tuple[dict[TaskId, str], set[TaskId]]:
    """`group.effective_owner` of all tasks that have one of `members`: what the log says, but for the exceptions. And
    the tasks with a record that have none. Only the exceptions are looked at one by one: there may be 200,000 tasks."""
    active = dict(group.writers.members)
    lost: list[TaskId] = []
    for writer in group.writers:
        member = group.roster.of_writer(writer)
        if member is None or member.name not in members or writer in group.fencing:
            lost.extend(group.writers.of(writer))
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
    without = (task for task in (*lost, *under_way, *group.writers.nobodys) if task not in active)
    return active, {task for task in without if task in group.tasks}


def _ready(group: Group, member: str, task: TaskId) -> bool:
    known = group.roster.get(member)
    copy = known.status.copies.get(task) if known is not None else None
    return copy is not None and copy.ready


def _copies(
    group: Group, members: dict[str, MemberView], without: Container[TaskId]
) -> tuple[dict[TaskId, dict[str, int]], dict[TaskId, dict[str, int]]]:
    """Standbys by member and state on disk by instance, with their lags. How far a standby is by what others say of the
    end is looked up only for a task `without` an owner: it may take over at once, and there may be 200,000 of the others."""
    standbys: dict[TaskId, dict[str, int]] = {}
    for task, names in group.standbys.items():
        for name in names:
            if name in members and group.can_run(group.roster.members[name], task):
                copy = group.roster.members[name].status.copies.get(task)
                if copy is not None and copy.end > 0 and task not in without:
                    lag = copy.lag
                else:
                    lag = _lag(group, task, name)
                standbys.setdefault(task, {})[name] = lag
    disk: dict[TaskId, dict[str, int]] = {}
    for name in members:
        member = group.roster.members[name]
        for task, position in member.status.disk.items():
            if group.can_run(member, task):
                lag = _disk_lag(group, task, position)
                hosts = disk.setdefault(task, {})
                hosts[member.hello.instance] = min(lag, hosts.get(member.hello.instance, lag))
    for task, instance in group.left_behind.items():  # how far it is, is not known: not close, but near
        if any(m.name in members and group.can_run(m, task) for m in group.roster.of_instance(instance)):
            hosts, near = disk.setdefault(task, {}), group.settings.acceptable_recovery_lag + 1
            hosts[instance] = min(near, hosts.get(instance, near))
    return standbys, disk


def _lag(group: Group, task: TaskId, name: str) -> int:
    """How far the copy of a member is behind; one that has not said yet how far it is, or has no end, is not close."""
    copy = group.roster.members[name].status.copies.get(task)
    end = group.ends.of(task, 0)
    if copy is None or not (end or copy.end):
        return max(end, group.settings.acceptable_recovery_lag + 1)
    return max(0, max(end, copy.end) - copy.position)


def _disk_lag(group: Group, task: TaskId, position: int) -> int:
    """How far state on disk is behind; where nobody has said how far there is to go, it is not close."""
    return max(0, group.ends.of(task, FAR) - position)


def _count_unused(
    group: Group, members: Collection[str], tasks: Iterable[TaskId], disk: dict[TaskId, dict[str, int]]
) -> None:
    """A copy that nobody asked for, of a task that nobody runs, is state on disk: its owner's, who let it go under another
    coordinator, or a standby's that was to be closed."""
    for task in tasks:
        for member in group.roster.reporting(task):
            asked = member.name == group.learners.get(task) or member.name in group.standbys.get(task, ())
            if task in member.status.copies and member.name in members and not asked and group.can_run(member, task):
                lag, hosts = _lag(group, task, member.name), disk.setdefault(task, {})
                hosts[member.hello.instance] = min(lag, hosts.get(member.hello.instance, lag))


def restoring(group: Group) -> dict[str, int]:
    """How many learners each instance restores: those of live members that are not ready."""
    found: dict[str, int] = {}
    for task, name in group.learners.items():
        member = group.roster.get(name)
        if member is None:
            continue
        copy = member.status.copies.get(task)
        if copy is None or (copy.role is Role.LEARNER and not copy.ready):
            found[member.hello.instance] = found.get(member.hello.instance, 0) + 1
    return found


def _is_warm(group: Group, task: TaskId, standbys: dict[str, int], disk: dict[str, int]) -> bool:
    lags = [*standbys.values(), *disk.values()]
    return any(lag <= group.settings.acceptable_recovery_lag for lag in lags)


def can_go_on_elsewhere(group: Group, member: Member) -> bool:
    """Whether a task that the member owns could go on at once on another instance that can be reached: it has a
    caught-up copy there, or no state at all (no disk can come back with it)."""
    lag_max = group.settings.acceptable_recovery_lag
    for task in group.writers.of(member.hello.writer):
        known = group.tasks.get(task)
        if known is not None and not known.stateful and _is_other_there(group, member, task):
            return True
        for other in group.roster.reporting(task):
            if other.hello.instance == member.hello.instance or other.session is None or other.is_leaving:
                continue
            copy = other.status.copies.get(task)
            if copy is not None and (copy.ready or (copy.lag <= lag_max and copy.end > 0)):
                return True
            position = other.status.disk.get(task)
            if position is not None and _disk_lag(group, task, position) <= lag_max:
                return True
    return False


def _is_other_there(group: Group, member: Member, task: TaskId) -> bool:
    return any(
        other.session is not None
        and other.hello.instance != member.hello.instance
        and not other.is_leaving
        and not other.fenced
        and group.can_run(other, task)
        for other in group.roster
    )
