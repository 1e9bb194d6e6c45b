"""The wall clock as tasks follow it that have no records: a step ahead is believed once it has lasted.

One rule: stream time never goes back, so a clock that is wrong for a moment (a bad time server, a machine that is set right)
must take no task ahead: all its records would be late from then on. Used by idle.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("orchestrator.worker")
LASTS_S = 60.0
STEP_MS = 1_000  # more than a clock is moved by that is kept right


class SteadyClock:
    """`clock`: seconds of a clock that is never set; `wall_ms`: of the one that people read. A step back is believed at once."""

    def __init__(self, clock: Callable[[], float], wall_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._wall_ms = wall_ms
        self._between_ms = wall_ms() - clock() * 1000
        self._stepped_s: float | None = None  # when a step ahead was first seen that is not believed yet

    def wall_ms(self) -> int:
        """Returns the time to go by; to be asked often, for what lies between two calls is taken for one step."""
        now_s, wall_ms = self._clock(), self._wall_ms()
        ahead_ms = wall_ms - now_s * 1000 - self._between_ms
        if ahead_ms <= STEP_MS or (self._stepped_s is not None and now_s - self._stepped_s >= LASTS_S):
            self._between_ms += ahead_ms
            self._stepped_s = None
            return wall_ms
        if self._stepped_s is None:
            self._stepped_s = now_s
            log.warning(
                "the wall clock went ahead by %.0f s at once: tasks without records (idle=) follow it once it has stayed there for %.0f s",
                ahead_ms / 1000,
                LASTS_S,
            )
        return int(now_s * 1000 + self._between_ms)
