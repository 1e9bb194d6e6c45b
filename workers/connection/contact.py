"""When a coordinator last received a heartbeat of this worker: a commit that no fence protects depends on it.

One rule: contact is as old as the last answered heartbeat was when it was *sent*. A coordinator promises to take no member for
silent sooner than `patience` after their last heartbeat (docs/decisions/57). In the first half of that time a commit at least
once may begin, and in the rest its requests are still sent; any other commit takes a transaction, which a fence stops. The
clock is never set, and goes on while the process is stopped or its machine suspended. Written by the thread of the uplink, read by the record loop.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from orchestrator.model import Settings
from state.log.protocol import AT_LEAST_ONCE, GroupLog, Guarantee


class Contact:
    """Of one transactional id: contact under another does not count for this one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sent: deque[float] = deque()  # of the statuses of this connection that are not answered
        self._answered = 0
        self._acknowledged_at = -math.inf
        self._patience_s = 0.0

    def opened(self) -> None:
        """Another connection."""
        self._sent.clear()
        self._answered = 0

    def promised(self, patience_ms: int) -> None:
        self._patience_s = patience_ms / 1000

    def sent(self) -> None:
        """The next status of this connection is sent now."""
        self._sent.append(self._clock())

    def acknowledged(self, statuses: int) -> None:
        """The coordinator has so many statuses of this connection."""
        while self._sent and self._answered < statuses:
            self._answered += 1
            self._acknowledged_at = self._sent.popleft()

    def may_begin(self) -> bool:
        return self._clock() - self._acknowledged_at < self._patience_s / 2

    def may_write(self) -> bool:
        return self._clock() - self._acknowledged_at < self._patience_s


def patient(settings: Settings, guarantee: Guarantee, log: GroupLog) -> Settings:
    """A coordinator's settings for an app: where nothing fences its commits, an ended connection is no silence yet. Three
    heartbeats give a worker the time to hear of its last one, and half of them to end a commit."""
    if guarantee != AT_LEAST_ONCE or log.fences(guarantee):
        return settings
    return replace(settings, disconnect_grace_ms=max(settings.disconnect_grace_ms, settings.three_heartbeats_ms))
