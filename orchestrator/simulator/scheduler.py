"""Virtual time: a heap of calls. One rule: equal times run in the order they were planned, so that a cluster replays
exactly. Processes (processes.py) plan on it; who drives a cluster runs it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from orchestrator.errors import OrchestratorError


class TooManyEvents(OrchestratorError):
    """More events happened than the limit allows: the cluster runs in circles, or is too large to play."""


class Scheduler:
    """`happened` counts the calls that were made."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.happened = 0
        self._happened_max: int | None = None
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = 0

    def allow(self, events: int) -> None:
        """So many calls from now on, and then TooManyEvents."""
        self._happened_max = self.happened + events

    def after(self, delay_ms: int, call: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._heap, (self.now_ms + max(0, delay_ms), self._planned, call))

    def run_until(self, end_ms: int, stop: Callable[[], bool] | None = None) -> bool:
        """Run everything due up to `end_ms`; whether `stop` held, which is asked once a virtual second and ends the run.
        Raises TooManyEvents."""
        next_look = self.now_ms
        while self._heap and self._heap[0][0] <= end_ms:
            self.now_ms, _, call = heapq.heappop(self._heap)
            call()
            self.happened += 1
            if self._happened_max is not None and self.happened > self._happened_max:
                raise TooManyEvents(f"more than {self._happened_max:,} events up to {self.now_ms / 1000:,.0f} s")
            if stop is not None and self.now_ms >= next_look:
                next_look = self.now_ms + 1_000
                if stop():
                    return True
        self.now_ms = max(self.now_ms, end_ms)
        return stop is not None and stop()
