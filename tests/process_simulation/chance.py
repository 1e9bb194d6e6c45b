"""Chance of one life: independent streams by name, and the order in which ready callbacks run.

One rule: a stream is drawn from by one purpose only, so that leaving out a fault does not change what other parts of a
life draw. The order deviates from first-in-first-out at counted steps; the deviations are kept, so that a life can be
lived again with some of them only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping


def stream(seed: int, name: str) -> random.Random:
    return random.Random(f"{seed}/{name}")


class Order:
    """Which of the ready callbacks runs next. `only` replays these deviations (step -> index) and makes no other."""

    def __init__(self, seed: int, rate: float, only: Mapping[int, int] | None = None) -> None:
        self._random = stream(seed, "order")
        self._rate = rate
        self._only = only
        self.step = 0
        self.deviations: dict[int, int] = {}

    def choose(self, ready: int) -> int:
        """Returns an index below `ready`, the number of callbacks that wait; 0 is the one that waits longest."""
        self.step += 1
        if ready < 2:
            return 0
        if self._only is not None:
            index = min(self._only.get(self.step, 0), ready - 1)
        elif self._random.random() < self._rate:
            index = self._random.randrange(ready)
        else:
            index = 0
        if index:
            self.deviations[self.step] = index
        return index
