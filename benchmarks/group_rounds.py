"""A whole group in one process, with every step of its core timed: the simulator's cluster, without delays.

One rule: the real cores, nothing else. Restores end together as soon as nothing else is to be delivered, the log answers
at once. Used by benchmarks/group.py.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from orchestrator.coordinator.assignor_codec import RequestEncoder, ResponseEncoder
from orchestrator.group import events as ev
from orchestrator.group.step import Group
from orchestrator.member import events as mem
from orchestrator.member.machine import Held, Holding
from orchestrator.model import JoinRequest, Owner, Role, Settings, Task, TaskId, TaskRange
from orchestrator.simulator.cluster import Cluster
from orchestrator.simulator.coordinator import Backend, Coordinator, Watch
from orchestrator.simulator.ledger import Ledger
from orchestrator.simulator.network import Network
from orchestrator.simulator.nodes import Node
from orchestrator.simulator.processes import Process
from orchestrator.task_assignor.view import TargetAssignment, View

STATE = 1_000_000
T = TypeVar("T")


@dataclass
class Steps:
    """CPU time of the core's steps by event: how many, in all, the longest."""

    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0, 0.0]))

    def add(self, name: str, ms: float) -> None:
        one = self.took[name]
        one[0] += 1
        one[1] += ms
        one[2] = max(one[2], ms)


class Timed(Watch):
    """The CPU time of every step, and how many owner records follow."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.handed_over = 0
        self.start = 0.0

    def before(self, coordinator: Coordinator) -> None:
        self.start = time.process_time()

    def stepped(self, coordinator: Coordinator, event: ev.Event) -> None:
        self.steps.add(type(event).__name__, (time.process_time() - self.start) * 1000)

    def effect(self, coordinator: Coordinator, effect: ev.Effect) -> None:
        if isinstance(effect, ev.RecordOwners):
            self.handed_over += len(effect.records)


class TimedBackend(Backend):
    """Plans are made as by AssignorProcess: what the coordinator's loop has of it in steps, each of which counts for
    itself."""

    def __init__(self, watch: Timed) -> None:
        super().__init__()
        self.watch = watch
        self.asking, self.encoder = RequestEncoder(), ResponseEncoder()

    def assign(self, view: View) -> TargetAssignment:
        request = self._in_steps("packing a view, a step", self.asking.request(view))
        start = time.process_time()
        answer = self.encoder.answer(request)
        self.watch.steps.add("builder, in its process", (time.process_time() - start) * 1000)
        return self._in_steps("unpacking a plan, a step", self.asking.target(view, answer))

    def _in_steps(self, name: str, steps: Iterator[T | None]) -> T:
        start = time.process_time()
        for found in steps:
            self.watch.steps.add(name, (time.process_time() - start) * 1000)
            start = time.process_time()
            if found is not None:
                return found
        raise AssertionError("the steps ended without a result")


class Worker(Node):
    """A member that starts at once, and restores when the round says so."""

    def __init__(self, made: Round, join_request: JoinRequest) -> None:
        super().__init__(join_request.member, Process(made.scheduler, join_request.member), made.network, made.settings)
        self.join_request = join_request
        self.learning = made.learning

    def opened(self, task: TaskId, role: Role, epoch: int) -> None:
        if role is Role.ACTIVE:
            self.machine.step(mem.Started(task, 1), self.clock())
        else:
            self.learning.append((self, task))

    def release(self, task: TaskId, epoch: int) -> None:
        self.process.after(0, lambda: self.receive(mem.ReleaseDone(task, 1, STATE, 1)))

    def closed(self, task: TaskId, *, dropped: bool) -> None:
        """Its machine knows already what lies on its disk."""

    def on_disk(self) -> dict[TaskId, int]:
        return dict(self.machine.disk)

    def rejoin(self) -> None:
        raise AssertionError(f"{self.name} was fenced, and nobody is who can come back")


class Round(Cluster):
    """A group of `instances` and `tasks`; `run` delivers until nothing is left to deliver."""

    def __init__(
        self, instances: int, tasks: int, settings: Settings | None = None, watch: Timed | None = None
    ) -> None:
        super().__init__(settings or Settings(), Ledger(), Network())
        self.watch = self.timed = watch or Timed()
        self.nodes: dict[int, Worker] = {}
        self.learning: list[tuple[Worker, TaskId]] = []
        ids = [TaskId(p % 10, p // 10) for p in range(tasks)]
        self.coordinator = self.coordinate(
            Process(self.scheduler, "coordinator"),
            [Task(task) for task in sorted(ids)],
            TimedBackend(self.timed),
            term=self.take_lease("coordinator").term,
            gathering=False,
        )
        for number in range(instances):
            self.join(number)

    @property
    def group(self) -> Group:
        return self.coordinator.group

    @property
    def handed_over(self) -> int:
        return self.timed.handed_over

    def join(self, number: int, tasks: tuple[TaskRange, ...] | None = None) -> None:
        name = f"stream-{number:05}"
        node = self.nodes[number] = Worker(self, JoinRequest(name, name, f"{name}#1", f"{name}#1", tasks=tasks))
        self.network.connect(node, self.coordinator)

    def crash(self, number: int) -> None:
        """Its connection ends, and somebody knows that it is dead."""
        node = self.nodes.pop(number)
        self.network.end(node)
        node.process.kill()
        self.send(ev.Expired(node.name))

    def send(self, event: ev.Event) -> None:
        """The coordinator receives it behind what is on its way."""
        self.after(0, lambda: self.coordinator.receive(event))

    def run(self) -> Steps:
        """To rest: everything delivered, every restore finished."""
        steps = self.timed.steps = Steps()
        self.scheduler.run_until(self.now_ms)
        while self.learning:
            self.scheduler.run_until(self.now_ms + 10)
            restored = self.learning[:]
            self.learning.clear()
            for node, task in restored:
                node.process.after(0, lambda node=node, task=task: node.receive(mem.Progress(task, STATE, STATE)))  # type: ignore[misc]
            self.scheduler.run_until(self.now_ms)
        return steps

    def stable_start(self) -> None:
        """Everybody has its share already: the state after a first round, without making it."""
        names = sorted(self.nodes)
        for place, task in enumerate(self.group.tasks):
            node = self.nodes[names[place % len(names)]]
            record = Owner(task, 1, node.name, node.join_request.writer, 1)
            self.ledger.put(record)
            self.group.owners[task] = record
            node.machine.held[task] = Holding(Held.RUNNING, Role.ACTIVE, 1, STATE, STATE)
