"""Which tasks there are: what the members' versions of the app have between them.

One rule: a task exists as long as a member that stays can run it. A new version brings its tasks with its first member;
what only an older version has goes with its last one. Reads join_requests, decides nothing else. Used by step.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from orchestrator.model import JoinRequest, Task, TaskId, TaskRange

Version = tuple[TaskRange, ...] | None  # of the app: its tasks, as JoinRequest names them


def ranges(tasks: Iterable[Task]) -> tuple[TaskRange, ...]:
    """Tasks as runs of partitions: how a worker reports thousands in a few words."""
    found: list[TaskRange] = []
    for task in sorted(tasks, key=lambda t: t.id):
        last = found[-1] if found else None
        alike = last is not None and (last.subtopology, last.stateful, last.weight) == (
            task.id.subtopology,
            task.stateful,
            task.weight,
        )
        if last is not None and alike and last.first + last.partitions == task.id.partition:
            found[-1] = TaskRange(last.subtopology, last.first, last.partitions + 1, last.stateful, last.weight)
        else:
            found.append(TaskRange(task.id.subtopology, task.id.partition, 1, task.stateful, task.weight))
    return tuple(found)


@lru_cache(maxsize=64)
def expand(version: tuple[TaskRange, ...]) -> Mapping[TaskId, Task]:
    """The tasks of some ranges, by id. The result is shared: callers do not change it."""
    return {
        TaskId(r.subtopology, partition): Task(TaskId(r.subtopology, partition), r.stateful, r.weight)
        for r in version
        for partition in range(r.first, r.first + r.partitions)
    }


def tasks_of_versions(declared: Mapping[TaskId, Task], present: Collection[Version]) -> Mapping[TaskId, Task]:
    """What versions of the app (Members.versions) have between them. A member that does not say what it has has what the
    coordinator's own version has, and so has a group without members."""
    versions = [expand(version) for version in sorted(version for version in present if version is not None)]
    if not present or None in present:
        versions.append(declared)
    if len(versions) == 1:
        return versions[0]  # nearly always: it is not copied
    found: dict[TaskId, Task] = {}
    for version in versions:
        for task in version.values():
            other = found.get(task.id)
            if other is not None and other != task:  # they differ in what they say of it: the more careful one
                task = Task(task.id, task.stateful or other.stateful, max(task.weight, other.weight))
            found[task.id] = task
    return found


def can_run(join_request: JoinRequest, task: TaskId, declared: Mapping[TaskId, Task]) -> bool:
    """Whether the member's version of the app has the task."""
    return task in (declared if join_request.tasks is None else expand(join_request.tasks))
