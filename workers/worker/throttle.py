"""A token bucket: how many bytes may be read now, so that restores leave the disk and the network to others.

One rule: pure; time comes in. What was read at once beyond what was there is a debt, which is paid before the next read.
"""

from __future__ import annotations

BURST_MS = 500


class TokenBucket:
    """`rate` bytes a second, saved up for half a second at most; 0 is no limit."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._level = rate * BURST_MS / 1000
        self._at_ms: int | None = None

    def step(self, now_ms: int, taken: int = 0) -> int | None:
        """`taken` bytes were read. How many may be read now: 0 for none yet, None for any number."""
        if not self.rate:
            return None
        elapsed = 0 if self._at_ms is None else max(0, now_ms - self._at_ms)
        self._at_ms = now_ms
        self._level = min(self.rate * BURST_MS / 1000, self._level + self.rate * elapsed / 1000) - taken
        return max(0, int(self._level))
