"""The members of scenario files. One rule: everything is done at once, but for restores: those end when `ready` says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from orchestrator.group.topology_versions import expand, ranges
from orchestrator.member import events as mem
from orchestrator.member.machine import MemberMachine
from orchestrator.model import Ending, JoinRequest, Role, Settings, Task, TaskId
from orchestrator.simulator.nodes import Node, Uplink
from orchestrator.simulator.processes import Process

STATE_SIZE = 1_000_000  # positions in a task's changelog: far above any acceptable lag, so that learners must restore


class Member(Node):
    """One member, in a process of its own. `rejoined` is called when it has come back as a new incarnation by itself."""

    def __init__(
        self,
        join_request: JoinRequest,
        process: Process,
        network: Uplink,
        settings: Settings,
        rejoined: Callable[[Member], None],
    ) -> None:
        super().__init__(join_request.member, process, network, settings)
        self.join_request = join_request
        self.rejoined = rejoined
        self.lives = 1
        self.disk: dict[TaskId, int] = {}
        self.missed: list[Task] = []  # that came with a topic, and it has not seen yet
        self.revoked: list[TaskId] = []

    # ---- what its machine wants

    def opened(self, task: TaskId, role: Role, epoch: int, ending: Ending | None) -> None:
        holding = self.machine.held[task]
        if role is Role.ACTIVE:
            holding.position = holding.end = STATE_SIZE
            self.receive(mem.Started(task))
        else:
            # What lies on disk has to be opened and caught up, too: that ends when `ready` says so.
            self.receive(mem.Progress(task, holding.position, STATE_SIZE))

    def release(self, task: TaskId, epoch: int) -> None:
        self.revoked.append(task)
        self.disk[task] = STATE_SIZE
        self.receive(mem.ReleaseDone(task, 0, STATE_SIZE))

    def closed(self, task: TaskId, *, dropped: bool) -> None:
        if dropped:
            self.disk[task] = STATE_SIZE

    def on_disk(self) -> dict[TaskId, int]:
        return dict(self.disk)

    def rejoin(self) -> None:
        self.lives += 1
        self.learn()
        incarnation = f"{self.name}#{self.lives}"
        self.join_request = replace(self.join_request, incarnation=incarnation, writer=incarnation)
        self.machine.disk = dict(self.disk)
        self.rejoined(self)

    # ---- what happens to it

    def crash(self) -> None:
        """The process is gone; what it held is on its disk."""
        self.process.kill()
        for task, holding in self.machine.held.items():
            position = STATE_SIZE if holding.epoch else holding.position
            self.disk[task] = max(position, self.disk.get(task, 0))
        self.session = None

    def lose_session(self, session: int | None) -> None:
        """The coordinator of that session is another one by now."""
        if self.session == session:
            self.session = None

    def start_again(self, settings: Settings) -> None:
        """A new process on the old disk."""
        self.process.kill()
        self.process.start()
        self.gone = False
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
