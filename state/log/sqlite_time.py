"""The time that retention and compactions of a SQLite log go by: the wall clock, where it can be believed.

One rule: what they remove does not come again, so a clock that is ahead for a moment, or at the start of a process, removes nothing.
Asked by state/log/sqlite.py in its reading thread.
"""

from __future__ import annotations

import sqlite3

from state.clocks import monotonic_s, wall_ms
from state.steady_clock import SteadyClock

LASTS_S = 300.0  # some rounds of upkeep


class LogTime:
    """Of the log of one file. Not for several threads."""

    def __init__(self) -> None:
        self._clock = SteadyClock(monotonic_s, wall_ms, "upkeep goes by it", lasts_s=LASTS_S, looks_s=LASTS_S)

    def now_ms(self, db: sqlite3.Connection) -> int:
        """What is older than that by so much may go."""
        now_ms, newest_ms = self._clock.wall_ms(), _newest_ms(db)
        return now_ms if self._clock.is_likely(now_ms, newest_ms) else newest_ms


def _newest_ms(db: sqlite3.Connection) -> int:
    """When the last batch was appended; 0 where there is none."""
    row = db.execute("select time_ms from batches order by id desc limit 1").fetchone()
    return int(row[0]) if row else 0
