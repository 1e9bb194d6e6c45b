"""Virtual time: a heap of calls. One rule: equal times run in the order they were planned, so a seed replays exactly."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Scheduler:
    """`now` in ms."""

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.trace: list[str] = []

    def after(self, delay_ms: int, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + max(0, delay_ms), self._count, call))

    def run_until(self, end_ms: int, stop: Callable[[], bool] | None = None) -> bool:
        """Run everything due up to `end_ms`; True as soon as `stop` holds (asked once a virtual second)."""
        next_look = self.now
        while self._heap and self._heap[0][0] <= end_ms:
            at, _, call = heapq.heappop(self._heap)
            self.now = at
            call()
            if stop is not None and self.now >= next_look:
                next_look = self.now + 1_000
                if stop():
                    return True
        self.now = max(self.now, end_ms)
        return stop is not None and stop()

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now:>8} {text}")
