"""Who may be the coordinator. A pure machine over what a candidate sees of the lease.

One rule: a lease is taken only after its beat stood still for the lease timeout on the candidate's own monotonic
clock, and then by compare-and-set at the next term. No wall clock is compared.
"""

from __future__ import annotations

from dataclasses import dataclass

LEASE_TIMEOUT_MS = 3_000


@dataclass(frozen=True, slots=True)
class Seen:
    """The lease as read: term and beat, or nothing where there is none."""

    term: int
    beat: int


class Election:
    """One candidate's memory of the lease."""

    def __init__(self, timeout_ms: int = LEASE_TIMEOUT_MS) -> None:
        self.timeout_ms = timeout_ms
        self._seen: Seen | None = None
        self._since_ms: int | None = None

    def has_moved(self, seen: Seen | None) -> bool:
        """Whether a beat of the same term has come since the last look: its holder was there a moment ago."""
        before = self._seen
        return before is not None and seen is not None and before.term == seen.term and before.beat != seen.beat

    def look(self, seen: Seen | None, now_ms: int) -> bool:
        """Whether to try to take the lease now, having seen it as `seen`."""
        if seen is None:
            return True
        if seen != self._seen or self._since_ms is None:
            self._seen, self._since_ms = seen, now_ms
            return False
        return now_ms - self._since_ms >= self.timeout_ms
