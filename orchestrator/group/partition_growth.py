"""Tasks that come while members run, because a topic grew: they are dealt once, not to the member that reports them first.

One rule: such a task waits until every member that will have it too has said so, and for no more than three heartbeats:
who is stalled learns later. What a new version of the app brings comes with its first member, without a wait.
Used by step.py and membership.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from orchestrator.group import changes as ch
from orchestrator.group.members import Member
from orchestrator.group.state import GroupState
from orchestrator.group.topology_versions import expand, tasks_of_versions
from orchestrator.model import JoinRequest, Task, TaskId

HEARTBEATS = 3  # a worker looks at least once in each


def add_pending(group: GroupState, before: JoinRequest, join_request: JoinRequest, now_ms: int) -> ch.Decisions:
    """A member that is here already reports, under the same transactional id, which tasks it has by now."""
    if join_request.tasks == before.tasks:
        return
    new = tuple(t for t in _tasks(group, join_request) if t not in group.tasks and t not in group.owners)
    if new:
        yield ch.TasksPending(new, now_ms)


def only_adds_pending(group: GroupState, before: Member, now: Member) -> bool:
    """Whether nothing can follow from what a member said again: the tasks that are new to it wait for others. A large
    group would be placed anew for each of its members."""
    if before.session != now.session or replace(before.join_request, tasks=now.join_request.tasks) != now.join_request:
        return False
    had, has = _tasks(group, before.join_request).keys(), _tasks(group, now.join_request).keys()
    return had < has and has - had <= group.pending_tasks.keys()


def see_tasks(group: GroupState) -> ch.Decisions:
    """The tasks are those of the versions that are there; when they change, every member may have to let one go."""
    tasks = tasks_of_versions(group.declared, group.members.versions())
    pending = _still_pending(group, tasks) if group.pending_tasks else group.pending_tasks
    if pending:
        assigned = {task: facts for task, facts in tasks.items() if task not in pending}
        tasks = group.tasks if assigned == group.tasks else assigned
    if tasks is not group.tasks or pending is not group.pending_tasks:
        yield ch.TasksSeen(tasks, pending)


def _still_pending(group: GroupState, tasks: Mapping[TaskId, Task]) -> Mapping[TaskId, int]:
    """Of the tasks that members have between them those that may not be assigned yet, and since when they wait."""
    versions = [
        _tasks(group, join_request)
        for join_request in {m.join_request.tasks: m.join_request for m in group.members if _is_awaited(m)}.values()
    ]
    subtopologies = [{task.subtopology for task in version} for version in versions]
    return {
        task: since_ms
        for task, since_ms in group.pending_tasks.items()
        if task in tasks
        and not _is_due(group, since_ms, group.last_step_ms)
        and any(task.subtopology in has and task not in v for v, has in zip(versions, subtopologies, strict=True))
    }


def watch(group: GroupState, now_ms: int) -> ch.Decisions:
    """A member that has not reported by now is waited for no longer."""
    if any(_is_due(group, since_ms, now_ms) for since_ms in group.pending_tasks.values()):
        yield ch.TargetOutdated()


def _tasks(group: GroupState, join_request: JoinRequest) -> Mapping[TaskId, Task]:
    return group.declared if join_request.tasks is None else expand(join_request.tasks)


def _is_awaited(member: Member) -> bool:
    return member.session is not None and not (member.fenced or member.is_leaving or member.shut_down)


def _is_due(group: GroupState, since_ms: int, now_ms: int) -> bool:
    return now_ms - since_ms >= HEARTBEATS * group.settings.heartbeat_ms
