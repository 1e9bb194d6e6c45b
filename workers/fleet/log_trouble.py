"""What a fleet says of a log that it cannot use: a line when that begins, and one when it is over.

One rule: an outage has two lines, however often the log refuses. Place: `fleet.py` tells it how its own reads and writes went.
"""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.clocks import monotonic_ms


class LogTrouble:
    """Of one fleet; `say` prints a line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._since_ms: int | None = None

    def met(self, error: Exception) -> None:
        if self._since_ms is None:
            self._since_ms = monotonic_ms()
            self._say(f"the fleet cannot use the log now ({error}); its instances go on, and it tries again")

    def over(self) -> None:
        if self._since_ms is not None:
            self._say(f"the fleet can use the log again after {(monotonic_ms() - self._since_ms) / 1000:.1f} s")
            self._since_ms = None
