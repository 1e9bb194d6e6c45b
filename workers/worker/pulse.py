"""The beat of a worker: what is done every so often is done at one moment, so that a process at rest wakes once for all.

One rule: it gives the time and does no work; each waiter is woken at least once in its own period.
"""

from __future__ import annotations

import asyncio


class Pulse:
    """Begins with the first call."""

    def __init__(self) -> None:
        self._began: float | None = None

    def left_s(self, period_s: float) -> float:
        """Seconds to the next beat of this period; never 0."""
        now = asyncio.get_running_loop().time()
        if self._began is None:
            self._began = now
        return period_s - (now - self._began) % period_s

    async def next(self, period_s: float) -> None:
        await asyncio.sleep(self.left_s(period_s))
