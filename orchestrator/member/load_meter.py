"""How heavy a task is, as the worker that runs it measures it: records a second, or bytes of state.

One rule: noise moves nothing. A measured weight is a power of two, and stays until the measure has clearly left its
band; a new owner begins with the weight that the task had. Used by member/machine.py; the group keeps the weights.
"""

from __future__ import annotations

from collections import deque
from math import log2

from orchestrator.model import TaskId
from orchestrator.weights import WEIGHT_MAX

# What weighs 1, and everything below it: a smaller state moves in no time and is no load.
UNITS = {"rate": 100, "bytes": 16 << 20}
BAND = 0.75  # in powers of two: from 0.6 to 1.7 times what a weight stands for; neighbours' bands overlap by half
WINDOW_MS = 60_000
WINDOW_MIN_MS = 30_000
SAMPLE_MS = 5_000


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
