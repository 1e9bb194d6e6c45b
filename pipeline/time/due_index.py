"""What is due next, of a store whose keys are in the order of their times. One rule: it looks only as far as it must.

A heap holds the next keys of the index, up to where it has read; whatever is written before that place is put in, what
is written behind it is found when the reading gets there. So what is due costs what is due, after a restart too, and
nothing of it is kept in memory alone. What has gone meanwhile is left out when it comes up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import islice

AHEAD = 1_000  # how many keys are read at once, and about how many are held


class DueIndex:
    """`scan(start, stop)` gives the index's keys in order, `is_there(key)` whether one still counts. `stop` is behind all
    keys of the index."""

    def __init__(
        self,
        scan: Callable[[bytes, bytes], Iterator[bytes]],
        is_there: Callable[[bytes], bool],
        start: bytes,
        stop: bytes,
    ) -> None:
        self._scan = scan
        self._is_there = is_there
        self._start = start
        self._stop = stop
        self._read_to = start
        self._heap: list[bytes] = []
        self._held: set[bytes] = set()

    def reset(self) -> None:
        """What it holds may be wrong: it reads again."""
        self._read_to = self._start
        self._heap.clear()
        self._held.clear()

    def added(self, key: bytes) -> None:
        """A key was written."""
        if key >= self._read_to or key in self._held:
            return
        heapq.heappush(self._heap, key)
        self._held.add(key)
        if len(self._heap) > 2 * AHEAD:
            self._heap = heapq.nsmallest(AHEAD, self._heap)  # sorted, which is a heap
            self._held = set(self._heap)
            self._read_to = self._heap[-1] + b"\x00"

    def first(self) -> bytes | None:
        """The first key that counts; None where there is none."""
        while (key := self.lowest()) is not None:
            if self._is_there(key):
                return key
            self.drop()
        return None

    def lowest(self) -> bytes | None:
        """The first key that it has: none that counts comes before; None where it has none."""
        if not self._heap and self._read_to < self._stop:
            self._load()
        return self._heap[0] if self._heap else None

    def drop(self) -> None:
        """The lowest key has come up."""
        self._held.discard(heapq.heappop(self._heap))

    def _load(self) -> None:
        found = list(islice(self._scan(self._read_to, self._stop), AHEAD))
        self._read_to = self._stop if len(found) < AHEAD else found[-1] + b"\x00"
        self._heap = found
        self._held = set(found)


class MovingIndex(DueIndex):
    """Of what comes due later than its key says, and ever later: `moved` gives the key that it would have, None where it
    does not count any more. A key that came up
    too early waits, in memory, at the place where it was found to stand."""

    def __init__(
        self,
        scan: Callable[[bytes, bytes], Iterator[bytes]],
        moved: Callable[[bytes], bytes | None],
        start: bytes,
        stop: bytes,
    ) -> None:
        super().__init__(scan, lambda key: moved(key) is not None, start, stop)
        self._moved = moved
        self._later: list[tuple[bytes, bytes]] = []  # where it stands, and its key

    def reset(self) -> None:
        super().reset()
        self._later.clear()

    def lowest(self) -> bytes | None:
        lowest, later = super().lowest(), self._later
        return min(lowest, later[0][0]) if lowest is not None and later else later[0][0] if later else lowest

    def first(self, before: bytes | None = None) -> bytes | None:
        """The first key that counts, by where it stands; None where there is none, or none that stands before a place."""
        while True:
            lowest, later = super().lowest(), self._later
            if later and (lowest is None or later[0][0] <= lowest):
                if before is not None and later[0][0] >= before:
                    return None
                place, key = later[0]
                moved = self._moved(key)
                if moved == place:
                    return key
                if moved is None:
                    heapq.heappop(later)
                else:
                    heapq.heapreplace(later, (moved, key))
            elif lowest is None or (before is not None and lowest >= before):
                return None
            else:
                self.drop()
                moved = self._moved(lowest)
                if moved is not None:
                    heapq.heappush(later, (moved, lowest))
