"""The clocks that logs and stores read, as `orchestrator/clocks.py` is for the shells; this package imports nothing of that.

Intervals are measured with `monotonic_s`; `wall_ms` is for what is kept.
"""

from __future__ import annotations

import time
from typing import Final

monotonic_s: Final = time.monotonic  # the seconds of a clock that is never set


def wall_ms() -> int:
    """Returns the milliseconds since 1970 on this machine's wall clock."""
    return time.time_ns() // 1_000_000
