"""The members of a cluster, and a coordinator that was deposed in it. One rule: plain state; cluster.py moves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orchestrator.group import events as ev
from orchestrator.group.step import Group
from orchestrator.group.topology_versions import expand, ranges
from orchestrator.member import events as mem
from orchestrator.member.machine import MemberMachine
from orchestrator.model import Assignment, JoinRequest, Settings, Task, TaskId


@dataclass(slots=True)
class Node:
    """One member of the cluster: its machine, and what a process would have on its disk."""

    name: str
    join_request: JoinRequest
    machine: MemberMachine
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
        self.machine = MemberMachine(settings)

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
        if self.missed and self.join_request.tasks is not None:
            known = expand(self.join_request.tasks)
            subtopologies = {task.subtopology for task in known}
            new = [task for task in self.missed if task.id.subtopology in subtopologies]
            self.join_request = replace(self.join_request, tasks=ranges([*known.values(), *new]))
        self.missed = []


@dataclass(slots=True)
class FormerCoordinator:
    """A coordinator that lost the lease and has not noticed; its old sessions by member."""

    group: Group
    sessions: dict[str, int]

    def step(self, event: ev.Event, now_ms: int) -> tuple[list[tuple[str, Assignment]], bool]:
        """The assignments that it sends, with the members' names, as if it were the only coordinator; and whether the log
        refused it: its first write does."""
        members = {session: name for name, session in self.sessions.items()}
        sent: list[tuple[str, Assignment]] = []
        for effect in self.group.step(event, now_ms):
            if isinstance(effect, ev.RecordOwners | ev.Fence):
                return sent, True
            if isinstance(effect, ev.Send):
                sent.append((members[effect.session], effect.assignment))
        return sent, False
