"""The time that retention and compactions of a SQLite log go by: the wall clock, where it can be believed.

One rule: what they remove does not come again, so a clock that is ahead for a moment, or further ahead of what was written than an hour when a process begins, removes nothing.
Asked by state/log/sqlite.py.
"""

from __future__ import annotations

from state.clocks import monotonic_s, wall_ms
from state.steady_clock import STEP_MS, SteadyClock

LASTS_S = 300.0  # some rounds of upkeep


class LogTime:
    """Of the log of one file. Not for several threads."""

    def __init__(self, newest_ms: int) -> None:
        """`newest_ms`: when the last batch was appended before this process, whose own go by its clock; 0 where there is none, and
        nothing to lose."""
        self._newest_ms = newest_ms
        self._clock = SteadyClock(monotonic_s, wall_ms, "upkeep goes by it", lasts_s=LASTS_S)

    def now_ms(self) -> int:
        """What is older than that by so much may go."""
        now_ms = self._clock.wall_ms()
        is_likely = not self._newest_ms or self._clock.is_likely(now_ms, self._newest_ms)
        return now_ms if is_likely else self._newest_ms

    def is_sure(self) -> bool:
        """Whether that is what the wall clock shows: what is done now may be noted with it. An earlier time makes old of it what is new."""
        return wall_ms() - self.now_ms() <= STEP_MS
