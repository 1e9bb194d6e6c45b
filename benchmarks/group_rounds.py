"""A whole group in one process (orchestrator/simulator/round.py), with every step of its core timed. Used by
benchmarks/group.py.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from orchestrator.coordinator.assignor_codec import RequestEncoder, ResponseEncoder
from orchestrator.group import events as ev
from orchestrator.model import Settings
from orchestrator.simulator.coordinator import Backend, Coordinator
from orchestrator.simulator.round import Counted, Round
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


class Timed(Counted):
    """The CPU time of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.took = Steps()
        self.start = 0.0

    def before(self, coordinator: Coordinator) -> None:
        self.start = time.process_time()

    def stepped(self, coordinator: Coordinator, event: ev.Event) -> None:
        super().stepped(coordinator, event)
        self.took.add(type(event).__name__, (time.process_time() - self.start) * 1000)


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
        self.watch.took.add("builder, in its process", (time.process_time() - start) * 1000)
        return self._in_steps("unpacking a plan, a step", self.asking.target(view, answer))

    def _in_steps(self, name: str, steps: Iterator[T | None]) -> T:
        start = time.process_time()
        for found in steps:
            self.watch.took.add(name, (time.process_time() - start) * 1000)
            start = time.process_time()
            if found is not None:
                return found
        raise AssertionError("the steps ended without a result")


class TimedRound(Round):
    """A round of a group at rest, of which every step is timed."""

    def __init__(self, instances: int, tasks: int, settings: Settings | None = None) -> None:
        self.timed = Timed()
        super().__init__(instances, tasks, settings, at_rest=True, watch=self.timed, backend=TimedBackend(self.timed))

    def timed_run(self) -> Steps:
        """To rest; what its steps took."""
        took = self.timed.took = Steps()
        self.run()
        return took
