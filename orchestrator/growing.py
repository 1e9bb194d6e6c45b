"""Tasks that come while members run, because a topic grew: they are dealt once, not to whoever tells of them first.

One rule: such a task waits until every member that will have it too has said so, and for no more than three heartbeats:
who is stalled learns later. What a new version of the app brings comes with its first member and waits for nobody.
Used by group.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.model import Hello, Task, TaskId
from orchestrator.roster import Member
from orchestrator.versions import expand

if TYPE_CHECKING:
    from orchestrator.group import Group

HEARTBEATS = 3  # a worker looks at least once in each


def told(group: Group, before: Hello, hello: Hello, now_ms: int) -> None:
    """A member that is here already tells, under the same writer, which tasks it has by now."""
    if hello.tasks == before.tasks:
        return
    for task in _tasks(group, hello):
        if task not in group.tasks and task not in group.owners:
            group.coming.setdefault(task, now_ms)


def only_waits(group: Group, before: Member, now: Member) -> bool:
    """Whether nothing can follow from what a member said again: the tasks that are new to it wait for others. A large
    group would be placed anew for each of its members."""
    if before.session != now.session or replace(before.hello, tasks=now.hello.tasks) != now.hello:
        return False
    had, has = _tasks(group, before.hello).keys(), _tasks(group, now.hello).keys()
    return had < has and has - had <= group.coming.keys()


def without_coming(group: Group, tasks: Mapping[TaskId, Task]) -> Mapping[TaskId, Task]:
    """Of the tasks that members have between them those that may be dealt now."""
    if not group.coming:
        return tasks
    versions = [
        _tasks(group, hello) for hello in {m.hello.tasks: m.hello for m in group.roster if _is_awaited(m)}.values()
    ]
    subtopologies = [{task.subtopology for task in version} for version in versions]
    group.coming = {
        task: since_ms
        for task, since_ms in group.coming.items()
        if task in tasks
        and not _is_due(group, since_ms, group.last_step_ms)
        and any(task.subtopology in has and task not in v for v, has in zip(versions, subtopologies, strict=True))
    }
    if not group.coming:
        return tasks
    found = {task: facts for task, facts in tasks.items() if task not in group.coming}
    return group.tasks if found == group.tasks else found


def watch(group: Group, now_ms: int) -> None:
    """Whoever has not told by now is waited for no longer."""
    if any(_is_due(group, since_ms, now_ms) for since_ms in group.coming.values()):
        group.dirty = True


def _tasks(group: Group, hello: Hello) -> Mapping[TaskId, Task]:
    return group.declared if hello.tasks is None else expand(hello.tasks)


def _is_awaited(member: Member) -> bool:
    return member.session is not None and not (member.fenced or member.is_leaving or member.shut_down)


def _is_due(group: Group, since_ms: int, now_ms: int) -> bool:
    return now_ms - since_ms >= HEARTBEATS * group.settings.heartbeat_ms
