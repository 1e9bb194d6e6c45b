"""How many records the next turn of a task takes. Pure.

One rule: a turn is kept short (TURN_S) by its size only as far as its size makes it long. A batch is one call, which nothing else keeps
short; but one that asks something outside costs as much for one record as for hundreds, and made small it would only be called
more often. What a record adds is the slope of lately seen turns of different sizes. In the flow: record_loop.py (workers/worker) -> here.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import combinations
from statistics import median

from workers.calls.blame import TURN_S

FIRST, SEEN, LONG_S = 32, 12, 1.0


class TurnSize:
    """`records` is the size of the next turn. It grows while what its records add to it takes less than half of TURN_S, or of what a call
    takes without them where that is more, and shrinks where it takes more than that."""

    __slots__ = ("_fixed_s", "_is_odd", "_per_record_s", "_seen", "records")

    def __init__(self) -> None:
        self.records = FIRST
        self._seen: deque[tuple[int, float]] = deque(maxlen=SEEN)
        self._per_record_s: float | None = None  # what a record adds; None where nothing is known
        self._fixed_s = 0.0  # what is left of a turn without any
        self._is_odd = False  # the last turn took far longer than what is known of others lets expect

    def ended(self, records: int, took_s: float, most: int) -> None:
        """A turn of so many records (one or more) took so long; the next takes `most` of them at most."""
        if self._is_held_up(records, took_s):
            # Others wait for one that is very long. Were it its records, the next one is shorter; were it not, it grows again.
            self.records = self.records if took_s <= LONG_S else max(1, records // 4)
            return
        self._seen.append((records, took_s))
        if took_s < TURN_S / 2:
            self._grow(records, most)
        elif not self._learn():
            if self._per_record_s is None or records >= self.records:  # else it was as small as what waited
                self._try_another(records, took_s, most)
        elif self._per_record_s is not None:
            allowed_s, added_s = max(TURN_S, self._fixed_s), self._per_record_s * records
            if added_s > allowed_s:
                self.records = max(1, int(allowed_s / self._per_record_s))
            elif added_s < allowed_s / 2:
                self._grow(records, most)

    def _grow(self, records: int, most: int) -> None:
        """By what a turn has had: one of a single record says nothing of hundreds."""
        self.records = min(most, max(self.records, 2 * records))

    def _is_held_up(self, records: int, took_s: float) -> bool:
        """Once it may be anything, as a busy machine; twice in a row it is another kind of work, of which nothing is known."""
        known_s = math.inf if self._per_record_s is None else 2 * (self._fixed_s + self._per_record_s * records)
        was_odd, self._is_odd = self._is_odd, took_s > max(TURN_S, known_s)
        if self._is_odd and was_odd:
            self._seen.clear()
            self._per_record_s, self._is_odd = None, False
        return self._is_odd

    def _learn(self) -> bool:
        """By the slopes between any two turns, as Theil and Sen have it, of which one that was held up has few: the middle one says what a turn
        takes without records, and the lower quartile what they add, as a size that matters shows in most of them. False where nothing
        is known, or for as long as is looked at all turns were of one size."""
        slopes = sorted((b - a) / (n - m) for (m, a), (n, b) in combinations(self._seen, 2) if n != m)
        if slopes:
            self._per_record_s = max(0.0, slopes[len(slopes) // 4])
            middle = max(0.0, median(slopes))
            self._fixed_s = max(0.0, median(took - middle * records for records, took in self._seen))
        return bool(slopes) or (self._per_record_s is not None and len(self._seen) < SEEN)

    def _try_another(self, records: int, took_s: float, most: int) -> None:
        """A size of which something can be learned: the one that would be right if the records were all that takes time."""
        right = records // 2 if self._per_record_s is not None else int(records * TURN_S / took_s)
        self.records = max(1, right) if took_s > TURN_S and records > 1 else min(most, 2 * records)
