"""The wall clock for what cannot be taken back: a step ahead is believed once it has lasted.

One rule: a clock that is wrong for a moment (a bad time server, a machine that was just switched on) decides nothing for good: stream
time never goes back, and what retention or a compaction has removed does not come again. Used by the worker's idle.py, and
by the upkeep of a log in one file.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

log = logging.getLogger("orchestrator.clock")
LASTS_S = 60.0
STEP_MS = 1_000  # more than a clock is moved by that is kept right
LOOKS = 5  # at least so many of them show that it lasted
FAR_MS = 3_600_000


class SteadyClock:
    """`clock`: seconds of a clock that is never set; `wall_ms`: of the one that people read; `who` follows it, in a line for people. A
    step back is believed at once, one ahead where every look for `lasts_s` has shown it."""

    def __init__(
        self,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
        who: str,
        *,
        lasts_s: float = LASTS_S,
    ) -> None:
        self._clock = clock
        self._wall_ms = wall_ms
        self._who = who
        self._lasts_s, self._begun_s = lasts_s, clock()
        self._between_ms = wall_ms() - self._begun_s * 1000
        self._stepped_s = -math.inf  # when the step was first seen that is not believed yet,
        self._step_ms, self._looks = 0.0, 0  # how far it went (0: there is none), and how many looks have shown it

    def wall_ms(self) -> int:
        """Returns the time to go by. What lies between two calls is taken for one step."""
        now_s, wall_ms = self._clock(), self._wall_ms()
        ahead_ms = wall_ms - now_s * 1000 - self._between_ms
        if ahead_ms <= STEP_MS:
            return self._follow(ahead_ms, wall_ms)
        if abs(ahead_ms - self._step_ms) > STEP_MS:
            log.warning(
                "the wall clock went ahead by %.0f s at once: %s once it has stayed there for %.0f s",
                *(ahead_ms / 1000, self._who, self._lasts_s),
            )
            self._stepped_s, self._step_ms, self._looks = now_s, ahead_ms, 0
        self._looks += 1
        if self._looks > LOOKS and now_s - self._stepped_s >= self._lasts_s:
            return self._follow(ahead_ms, wall_ms)
        return int(now_s * 1000 + self._between_ms)

    def _follow(self, ahead_ms: float, wall_ms: int) -> int:
        self._between_ms += ahead_ms
        self._step_ms = 0.0
        return wall_ms

    def is_likely(self, now_ms: int, former_ms: int) -> bool:
        """Whether what has that time may be taken to this one: a process that has just begun may have begun with a clock that is
        wrong, and knows nothing better than what was written."""
        return now_ms - former_ms <= FAR_MS or self._clock() - self._begun_s >= self._lasts_s
