"""A whole group in one process, fed event by event, with every step timed. One rule: the real cores, nothing else.

Members are real MemberMachines; restores end together as soon as nothing else is to be delivered, the log answers at
once. Used by benchmarks/group.py.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from orchestrator.coordinator.assignor_codec import RequestEncoder, ResponseEncoder
from orchestrator.group import events as ev
from orchestrator.group.step import Group
from orchestrator.member import events as mem
from orchestrator.member.machine import Held, Holding, MemberMachine
from orchestrator.model import JoinRequest, Owner, Role, Settings, Task, TaskId
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


class Round:
    """A group of `instances` and `tasks`; `run` delivers until nothing is left to deliver."""

    def __init__(self, instances: int, tasks: int, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        ids = [TaskId(p % 10, p // 10) for p in range(tasks)]
        self.group = Group(self.settings, [Task(task) for task in sorted(ids)])
        self.machines: dict[int, MemberMachine] = {}
        self.join_requests: dict[int, JoinRequest] = {}
        self.queue: deque[tuple[int, ev.Event | mem.MemberEvent]] = deque()
        self.learning: deque[tuple[int, TaskId]] = deque()
        self.asking, self.encoder = RequestEncoder(), ResponseEncoder()
        self.steps = Steps()
        self.now = 0
        self.handed_over = 0
        for number in range(instances):
            self.join(number)

    def join(self, number: int) -> None:
        name = f"stream-{number:05}"
        self.machines[number] = MemberMachine(self.settings)
        self.join_requests[number] = JoinRequest(name, name, f"{name}#1", f"{name}#1")
        self.queue.append((-1, ev.Joined(number, self.join_requests[number], self.machines[number].status())))

    def crash(self, number: int) -> None:
        """Its connection ends, and somebody knows that it is dead."""
        del self.machines[number]
        self.queue.append((-1, ev.SessionEnded(number)))
        self.queue.append((-1, ev.Expired(self.join_requests[number].member)))

    def run(self) -> Steps:
        """To rest: everything delivered, every restore finished."""
        self.steps = Steps()
        while self.queue or self.learning:
            if self.queue:
                to, event = self.queue.popleft()
                if to < 0:
                    self.core(event)  # type: ignore[arg-type]
                else:
                    self.member(to, event)  # type: ignore[arg-type]
            else:
                self.now += 10
                self.queue.extend((number, mem.Progress(task, STATE, STATE)) for number, task in self.learning)
                self.learning.clear()
        return self.steps

    def core(self, event: ev.Event) -> None:
        start = time.process_time()
        effects = self.group.step(event, self.now)
        self.steps.add(type(event).__name__, (time.process_time() - start) * 1000)
        for effect in effects:
            match effect:
                case ev.Send(session, assignment):
                    self.queue.append((session, mem.Assigned(assignment)))
                case ev.RecordOwners(records):
                    self.handed_over += len(records)
                    self.queue.append((-1, ev.OwnersRecorded(records)))
                case ev.ComputeTarget(number, view):
                    self.queue.append((-1, ev.TargetComputed(number, self.compute(view))))
                case ev.Fence(writer):
                    tasks = tuple(sorted(self.group.by_transactional_id.of(writer)))
                    self.queue.append((-1, ev.Fenced(writer, tasks)))
                case _:
                    pass

    def compute(self, view: View) -> TargetAssignment:
        """AssignorProcess, as the coordinator does: what its loop has of it in steps, each of which counts for itself."""
        request = self.in_steps("packing a view, a step", self.asking.request(view))
        start = time.process_time()
        answer = self.encoder.answer(request)
        self.steps.add("builder, in its process", (time.process_time() - start) * 1000)
        return self.in_steps("unpacking a plan, a step", self.asking.target(view, answer))

    def in_steps(self, name: str, steps: Iterator[T | None]) -> T:
        start = time.process_time()
        for found in steps:
            self.steps.add(name, (time.process_time() - start) * 1000)
            start = time.process_time()
            if found is not None:
                return found
        raise AssertionError("the steps ended without a result")

    def member(self, number: int, event: mem.MemberEvent) -> None:
        machine = self.machines.get(number)
        if machine is None:
            return
        told = False
        for effect in machine.step(event, self.now):
            match effect:
                case mem.Open(task, Role.ACTIVE, _) | mem.ChangeRole(task, Role.ACTIVE, _):
                    machine.step(mem.Started(task, 1), self.now)
                case mem.Open(task, _, _):
                    self.learning.append((number, task))
                case mem.Release(task, _):
                    self.queue.append((number, mem.ReleaseDone(task, 1, STATE, 1)))
                case mem.Report():
                    told = True
                case _:
                    pass
        if told:
            self.beat(number)

    def beat(self, number: int) -> None:
        self.queue.append((-1, ev.Heartbeat(number, self.machines[number].status())))

    def stable_start(self) -> None:
        """Everybody has its share already: the state after a first round, without making it."""
        names = sorted(self.machines)
        for place, task in enumerate(self.group.tasks):
            number = names[place % len(names)]
            name = self.join_requests[number].member
            self.group.owners[task] = Owner(task, 1, name, f"{name}#1", 1)
            self.machines[number].held[task] = Holding(Held.RUNNING, Role.ACTIVE, 1, STATE, STATE)
