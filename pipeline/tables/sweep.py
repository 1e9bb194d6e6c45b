"""What has expired in a table, found some keys at a time, so that the state does not grow for ever.

One rule: a pass over the table begins when something of it can have expired, and not before: the pass before it has seen how old
the oldest is, and what was written since is younger than its beginning. When a key is found cannot be seen: what has expired
is absent for readers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeline.tables.expiry import STREAM_TIME_KEY, written_ms

KEYS_PER_COMMIT = 500
PASSES = 8  # at most, in the time in which what is written expires: a look into the store makes it write out what waits

Pairs = Callable[[bytes | None], Iterable[tuple[bytes, bytes | None]]]


class Sweep:
    """Of one table of a task."""

    def __init__(self, expire_ms: int) -> None:
        self._expire_ms = expire_ms
        self._from: bytes | None = None  # where the pass under way goes on
        self._due_ms: int | None = None  # when the next one begins; None: with the next commit
        self._began_ms = self._oldest_ms = 0

    def expired(self, pairs: Pairs, stream_ms: int) -> list[bytes]:
        """Keys that are to be removed. `pairs` gives the stored pairs from a key on, in order."""
        if self._from is None:
            if self._due_ms is not None and stream_ms < self._due_ms:
                return []
            self._began_ms = self._oldest_ms = stream_ms
        found: list[bytes] = []
        for seen, (key, raw) in enumerate(pairs(self._from), 1):
            if key != STREAM_TIME_KEY and raw is not None:
                at_ms = written_ms(raw)
                if stream_ms >= at_ms + self._expire_ms:
                    found.append(key)
                elif at_ms < self._oldest_ms:
                    self._oldest_ms = at_ms
            if seen == KEYS_PER_COMMIT:
                self._from = key + b"\x00"
                return found
        self._from = None
        self._due_ms = max(self._oldest_ms + self._expire_ms, self._began_ms + self._expire_ms // PASSES)
        return found
