"""The members of a world, and a coordinator that was deposed in it. One rule: plain state; world.py moves it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator import member as mem
from orchestrator.group import Group
from orchestrator.model import Hello, Task, TaskId
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
