"""What waits where another holds the log: a backfill that writes what it has computed, an open transaction of a program that was
killed.

One rule: nothing was done where the log is busy, so it is asked again, and standard error says once what is waited for. Used
by `produce`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from state.errors import LogBusy

BUSY_S, PAUSE_S = 300.0, 0.05  # how long another may hold the log
T = TypeVar("T")


async def when_free(act: Callable[[], Awaitable[T]]) -> T:
    """What `act` gives. Raises LogBusy."""
    clock = asyncio.get_running_loop().time
    until, announced = clock() + BUSY_S, False
    while True:
        try:
            return await act()
        except LogBusy as error:  # nothing was written
            if clock() >= until:
                raise
            if not announced:
                print(f"waiting: {error}", file=sys.stderr, flush=True)
                announced = True
        await asyncio.sleep(PAUSE_S)
