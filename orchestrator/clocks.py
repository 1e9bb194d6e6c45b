"""The clocks that the shells read. One rule: the pure cores read none; the time comes to them as an argument.

Intervals are measured with `monotonic_ms` on a loop, which may be one of virtual time, and with `monotonic_s` elsewhere;
`wall_ms` is for what people, or another process, read.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

# The seconds of a clock that is never set. Asked after each record, so it is no function of ours.
monotonic_s: Final = time.monotonic


def lasting_s() -> float:
    """Returns the seconds of a clock that is never set, and that goes on while the machine is suspended, where the system has one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def monotonic_ms() -> int:
    """Returns the time of the running loop, which no clock on a wall moves. Called on the loop only."""
    return int(asyncio.get_running_loop().time() * 1000)


def wall_ms() -> int:
    """Returns the milliseconds since 1970 on this machine's wall clock."""
    return time.time_ns() // 1_000_000
