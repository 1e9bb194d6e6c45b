"""Tables from task to what the group knows of it, read from both sides: by task, and by whom an entry names.

One rule: an entry changes only through `table[task] = value`, `del`, `discard` and `become`, so that the other sides
stay right and every member that an entry names, or named, is known as touched. Kept by step.py; a step looks only at touched
members, whatever the number of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping
from typing import Generic, TypeVar

from orchestrator.model import Owner, TaskId

V = TypeVar("V")
NOTHING: Mapping[TaskId, None] = {}


class Index(Generic[V]):
    """Name -> tasks whose entry has that name, in the order in which they came."""

    def __init__(self, names: Callable[[V], tuple[str, ...]]) -> None:
        self.names = names
        self._tasks: dict[str, dict[TaskId, None]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def keys(self) -> KeysView[str]:
        """Whom some entry names, to be compared with others at once."""
        return self._tasks.keys()

    def of(self, name: str) -> Mapping[TaskId, None]:
        return self._tasks.get(name, NOTHING)

    def add(self, task: TaskId, value: V) -> None:
        for name in self.names(value):
            self._tasks.setdefault(name, {})[task] = None

    def drop(self, task: TaskId, value: V) -> None:
        for name in self.names(value):
            tasks = self._tasks[name]
            tasks.pop(task, None)
            if not tasks:
                del self._tasks[name]


class OwnerIndex(Index[Owner]):
    """By transactional id, and beside it task -> member, for all records that name a transactional id (a plain dict is quick to copy); and
    the tasks of those that name none."""

    def __init__(self) -> None:
        super().__init__(lambda owner: (owner.writer,) if owner.writer else ())
        self.members: dict[TaskId, str] = {}
        self.without_owner: set[TaskId] = set()

    def add(self, task: TaskId, value: Owner) -> None:
        super().add(task, value)
        if value.writer:
            self.members[task] = value.member
        else:
            self.without_owner.add(task)

    def drop(self, task: TaskId, value: Owner) -> None:
        super().drop(task, value)
        self.members.pop(task, None)
        self.without_owner.discard(task)


class TaskTable(dict[TaskId, V]):
    """Task -> value, with its indexes. `touch` is called for each task that changes, with the names in the first index."""

    def __init__(self, touch: Callable[[TaskId, Iterable[str]], None], by: Index[V], *more: Index[V]) -> None:
        super().__init__()
        self._touch = touch
        self._by = by
        self._indexes = (by, *more)

    def of(self, name: str) -> Mapping[TaskId, None]:
        """The tasks whose entry names `name`."""
        return self._by.of(name)

    def named(self) -> Iterator[str]:
        """Returns every member that an entry names."""
        return iter(self._by)

    def __setitem__(self, task: TaskId, value: V) -> None:
        if task in self:
            self._forget(task, self[task])
        super().__setitem__(task, value)
        for index in self._indexes:
            index.add(task, value)
        self._touch(task, self._by.names(value))

    def __delitem__(self, task: TaskId) -> None:
        self._forget(task, self[task])
        super().__delitem__(task)

    def _forget(self, task: TaskId, value: V) -> None:
        for index in self._indexes:
            index.drop(task, value)
        self._touch(task, self._by.names(value))

    def discard(self, task: TaskId) -> None:
        """Remove the entry if there is one."""
        if task in self:
            del self[task]

    def become(self, other: Mapping[TaskId, V]) -> None:
        """Hold what `other` holds; only what differs is touched."""
        for task in [task for task in self if task not in other]:
            del self[task]
        for task, value in other.items():
            if self.get(task) != value:
                self[task] = value
