"""Members of a simulated cluster: the real member core, and how its effects are carried out.

One rule: a member reaches the coordinator through the network and nothing else. How its tasks are opened, restored and
released is the subclass's: at once in scenario files, at modelled speeds in the benchmark, with drawn faults in tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol, final

from orchestrator.group import events as ev
from orchestrator.member import events as mem
from orchestrator.member.machine import MemberMachine
from orchestrator.model import Ending, JoinRequest, Role, Settings, TaskId
from orchestrator.simulator.processes import Process


class Uplink(Protocol):
    """What a member needs of the network."""

    def up(self, node: Node, event: ev.Event, /) -> None:
        """The coordinator of its session receives the event, in its time."""

    def end(self, node: Node, /) -> None:
        """Its session ends; both sides notice in their time."""


class Node(ABC):
    """One member. `gone`: it has shut down for good."""

    join_request: JoinRequest

    def __init__(self, name: str, process: Process, network: Uplink, settings: Settings) -> None:
        self.name = name
        self.process = process
        self.network = network
        self.machine = MemberMachine(settings)
        self.session: int | None = None
        self.gone = False

    @property
    def alive(self) -> bool:
        return self.process.alive and not self.gone

    @property
    def stalled(self) -> bool:
        return self.process.stalled

    def clock(self) -> int:
        return self.process.clock()

    def receive(self, event: mem.MemberEvent) -> None:
        """Give the machine an event and carry out what it wants."""
        for effect in self.machine.step(event, self.clock()):
            self._act(effect)

    def report(self) -> None:
        """Sends the whole status, where it is connected."""
        if self.session is not None:
            self.network.up(self, ev.Heartbeat(self.session, self.machine.status()))

    @final
    def _act(self, effect: mem.MemberEffect) -> None:
        match effect:
            case mem.Open(task, role, epoch, ending) | mem.ChangeRole(task, role, epoch, ending):
                self.opened(task, role, epoch, ending)
            case mem.Release(task, epoch):
                self.release(task, epoch)
            case mem.Close(task) | mem.Drop(task):
                self.closed(task, dropped=isinstance(effect, mem.Drop))
                self.receive(mem.DiskSeen(self.on_disk()))
            case mem.Report():
                self.report()
            case mem.Rejoin():
                self.rejoin()
            case mem.Exit():
                self.gone = True
                self.network.end(self)
                self.left()

    @abstractmethod
    def opened(self, task: TaskId, role: Role, epoch: int, ending: Ending | None) -> None:
        """A task has begun to be held, or has another role; `ending`: where the owner before it ended, if known."""

    @abstractmethod
    def release(self, task: TaskId, epoch: int) -> None:
        """Finish the batch, then tell ReleaseDone."""

    @abstractmethod
    def closed(self, task: TaskId, *, dropped: bool) -> None:
        """A task is no longer held; dropped: without a commit."""

    @abstractmethod
    def on_disk(self) -> dict[TaskId, int]:
        """State that lies on disk unused, and how far it is."""

    @abstractmethod
    def rejoin(self) -> None:
        """Come back as a new incarnation."""

    def left(self) -> None:  # noqa: B027 - most have nothing to do about it
        """It has shut down for good."""
