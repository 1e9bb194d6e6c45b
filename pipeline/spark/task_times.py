"""The time of tasks whose keys come to share a task, where an app gets more partitions.

One rule: time only goes forward. A task of the new count is at the furthest time of those that its keys were in, so each of these
is brought to that time first, and what is due on the way happens there, once, before anything moves. Which tasks meet follows from
the two counts alone: with a multiple of the old count none do. Pure; decision 92 says why. Used by `repartition` and `relocation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd

from orchestrator.durations import show_duration
from orchestrator.errors import RefusedBySafety
from pipeline.time.position import BEFORE_DUE, Place

Task = tuple[int, int]  # subtopology and partition


@dataclass(frozen=True)
class TaskTimes:
    """`reached`: how far the time of each task of `before` partitions has come; tasks that have none are left out."""

    before: int
    to: int
    reached: Mapping[Task, Place] = field(default_factory=dict)

    def _meet(self, number: int, other: int) -> bool:
        """Whether keys of a partition of one count may lie in a partition of the other."""
        return (number - other) % gcd(self.before, self.to) == 0

    def goal(self, task: Task) -> Place | None:
        """Where the time of a task, of either count, is when all has moved: that of the furthest of those whose keys it has,
        or shares a task with; None where none of them has a time."""
        number, partition = task
        found = {
            place for (sub, other), place in self.reached.items() if sub == number and self._meet(partition, other)
        }
        if len(found) < 2:
            return min(found, default=None)
        at_ms, order, _ = max(found)
        return at_ms + (order != BEFORE_DUE), BEFORE_DUE, b""

    def forward(self) -> dict[Task, int]:
        """The tasks that are brought forward, and by how many milliseconds."""
        goals = {task: self.goal(task) for task in self.reached}
        return {
            task: goal[0] - self.reached[task][0]
            for task, goal in sorted(goals.items())
            if goal is not None and goal > self.reached[task]
        }

    def refuse_far(self, application: str, most_ms: int) -> None:
        """Raises RefusedBySafety where a task would be brought forward by more."""
        forward = self.forward()
        task = max(forward, key=lambda one: forward[one], default=None)
        if task is None or forward[task] <= most_ms:
            return
        goal, at_ms = self.goal(task), self.reached[task][0]
        assert goal is not None
        whole = -(-self.to // self.before) * self.before
        raise RefusedBySafety(
            f"task {task[0]}_{task[1]} of '{application}' is at {at_ms} ms and comes to share its keys' tasks with one at {goal[0]} ms, "
            f"{show_duration(forward[task])} ahead: records of the time between would be late there. Process newer records of its "
            f"partition first, give --to {whole}, with which no tasks meet, or let it go forward with --forward "
            f"{-(-forward[task] // 1000)}s"
        )
