"""The members of a world, and a coordinator that was deposed in it. One rule: plain state; world.py moves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orchestrator import member as mem
from orchestrator.group import Group
from orchestrator.model import Hello, Settings, Task, TaskId
from orchestrator.versions import expand, ranges


@dataclass(slots=True)
class Node:
    """One member of the world: its machine, and what a process would have on its disk."""

    name: str
    hello: Hello
    machine: mem.MemberMachine
    session: int | None = None
    alive: bool = True
    stalled: bool = False
    lives: int = 1
    inbox: list[mem.MemberEvent] = field(default_factory=list)
    disk: dict[TaskId, int] = field(default_factory=dict)
    missed: list[Task] = field(default_factory=list)  # that came with a topic, and it has not seen yet
    revoked: list[TaskId] = field(default_factory=list)

    def start_again(self, settings: Settings) -> None:
        """A new process on the old disk."""
        self.alive, self.stalled = True, False
        self.inbox.clear()
        for task, holding in self.machine.held.items():  # it may still run: then this is a bounce
            self.disk[task] = max(holding.position, self.disk.get(task, 0))
        self.machine = mem.MemberMachine(settings)

    def facts(
        self, measures: Mapping[TaskId, int], weights: str, now_ms: int
    ) -> dict[TaskId, tuple[int, int, int, int]]:
        """What a worker tells of the tasks it holds: their sizes in bytes, or how many records they had so far."""
        found: dict[TaskId, tuple[int, int, int, int]] = {}
        for task in self.machine.held:
            measured = measures.get(task, 0)
            size, records = (measured, 0) if weights == "bytes" else (0, measured * now_ms // 1000)
            found[task] = (0, size, records, 0)
        return found

    def learn(self) -> None:
        """It sees by itself what it missed, as far as its version reads those topics."""
        if self.missed and self.hello.tasks is not None:
            known = expand(self.hello.tasks)
            subtopologies = {task.subtopology for task in known}
            new = [task for task in self.missed if task.id.subtopology in subtopologies]
            self.hello = replace(self.hello, tasks=ranges([*known.values(), *new]))
        self.missed = []


@dataclass(slots=True)
class Deposed:
    """A coordinator that lost the lease and has not noticed; its old sessions by member."""

    group: Group
    sessions: dict[str, int]
