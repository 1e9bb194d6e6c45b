"""Changelogs and snapshots as a rehearsal needs them: positions over time, no bytes. One rule: positions count records.

A changelog holds the live records of its task and grows by one for each input record. While the task runs nowhere the
input waits; its next owner works that off at once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Changelog:
    """One task's. `live`: records that a restore from nothing has to read, however long the log once was."""

    live: int
    rate: int
    base: int = 0
    since_ms: int | None = None
    stopped_ms: int = 0
    snapshot: int = 0

    def __post_init__(self) -> None:
        self.base = self.snapshot = self.live

    def end(self, now_ms: int) -> int:
        if self.since_ms is None:
            return self.base
        return self.base + self.rate * (now_ms - self.since_ms) // 1000

    def start(self, now_ms: int) -> None:
        """The task has an owner from now on."""
        if self.live:
            self.base += self.rate * (now_ms - self.stopped_ms) // 1000
        self.since_ms = now_ms

    def stop(self, now_ms: int) -> None:
        """The task has no owner from now on."""
        self.base = self.end(now_ms)
        self.since_ms, self.stopped_ms = None, now_ms

    def take_snapshot(self, now_ms: int) -> None:
        self.snapshot = self.end(now_ms)

    def oldest(self, now_ms: int) -> int:
        """Where a replay from nothing begins: compaction left as many records as there are live ones."""
        return max(0, self.end(now_ms) - self.live)
