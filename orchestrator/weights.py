"""How heavy a task is: given by people, or measured by who runs it (records a second, bytes of state).

One rule: noise moves nothing. A measured weight is a power of two, and stays until the measure has clearly left its
band; a new owner begins with the weight that the task had. Measured in member.py, used by placement.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import log2
from typing import TYPE_CHECKING

from orchestrator.errors import WrongUse
from orchestrator.model import Status, Task, TaskId

if TYPE_CHECKING:
    from orchestrator.group import Group
    from orchestrator.roster import Member

# What weighs 1, and everything below it: less is moved in no time, and it loads nobody.
UNITS = {"rate": 100, "bytes": 16 << 20}
BAND = 0.75  # in powers of two: from 0.6 to 1.7 times what a weight stands for; neighbours' bands overlap by half
WINDOW_MS = 60_000
WINDOW_MIN_MS = 30_000
SAMPLE_MS = 5_000
WEIGHT_MAX = 1 << 20

Given = Sequence[tuple[str, int]]


def weigh(before: int, measured: float, unit: int) -> int:
    """The weight for what was measured; `before` while the measure is in its band."""
    exact = log2(max(measured, unit) / unit)
    if abs(exact - log2(before)) <= BAND:
        return before
    return min(WEIGHT_MAX, 1 << round(exact))


class RateMeter:
    """Records a second of each task, over the last minute of one epoch; unknown before half of that has passed."""

    def __init__(self) -> None:
        self._samples: dict[TaskId, tuple[int, deque[tuple[int, int]]]] = {}

    def rate(self, task: TaskId, epoch: int, records: int, now_ms: int) -> float | None:
        """`records`: so many were processed in this epoch up to now."""
        known, samples = self._samples.get(task, (epoch, deque[tuple[int, int]]()))
        if known != epoch or (samples and samples[-1][1] > records):
            samples = deque[tuple[int, int]]()
        self._samples[task] = epoch, samples
        if not samples or now_ms - samples[-1][0] >= SAMPLE_MS:
            samples.append((now_ms, records))
        while now_ms - samples[0][0] > WINDOW_MS:
            samples.popleft()
        elapsed = now_ms - samples[0][0]
        return (records - samples[0][1]) * 1000 / elapsed if elapsed >= WINDOW_MIN_MS else None


def heard(group: Group, member: Member, before: Status) -> None:
    """A member that told `before` may have measured its tasks anew."""
    status = member.status
    if (before.weights, before.active) != (status.weights, status.active):
        for task, epoch in status.active.items():
            owner = group.owners.get(task)
            if owner is not None and owner.epoch == epoch:
                group.weights[task] = status.weights.get(task, 1)


# ---- given by people


def parse_given(text: str) -> tuple[tuple[str, int], ...]:
    """`0_3=4,1=2`: task 0_3 weighs 4, those of subtopology 1 weigh 2. Raises WrongUse."""
    found: dict[str, int] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, equals, weight = word.partition("=")
        sane = weight.isascii() and weight.isdecimal() and len(weight) <= 9 and 0 < int(weight) <= WEIGHT_MAX
        if not equals or not sane or not all(part.isdecimal() for part in name.split("_")) or name.count("_") > 1:
            raise WrongUse(f"'{word}' is not TASK=WEIGHT; write 0_3=4 for a task, 1=2 for all tasks of subtopology 1")
        if name in found:
            raise WrongUse(f"'{word}': {name} has a weight already; write each once")
        found[name] = int(weight)
    return tuple(found.items())


def with_given(tasks: Iterable[Task], given: Given) -> list[Task]:
    """The tasks with the weights that were given; the name of a task goes before that of its subtopology."""
    weights = dict(given)
    return [
        replace(task, weight=weights.get(str(task.id), weights.get(str(task.id.subtopology), task.weight)))
        for task in tasks
    ]


def strange(tasks: Iterable[Task], given: Given) -> list[str]:
    """Names that were given a weight and are no task or subtopology."""
    known = {name for task in tasks for name in (str(task.id), str(task.id.subtopology))}
    return [name for name, _ in given if name not in known]
