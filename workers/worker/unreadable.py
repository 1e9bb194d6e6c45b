"""Partitions whose bytes in the log cannot be read: they are tried again every second, and the others go on.

One rule: a damaged read costs the task that reads it, for as long as it lasts. A read that meets damage may have met it
on its way, so it is made again; damage that stays is in `status` until the log is restored. Used by both loops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from state.log.protocol import Partition

log = logging.getLogger("orchestrator.log")
AGAIN_S = 1.0


@dataclass(slots=True)
class _Held:
    position: int
    why: str
    again_at: float
    is_read: bool = False  # asked for again; whether it can be read is not known yet


class Unreadable:
    """What one loop cannot read; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[Partition, _Held] = {}

    def hold(self, partition: Partition, position: int, error: Exception) -> None:
        """A read from `position` failed: it is made again in a second."""
        if partition not in self._held:
            log.error(
                "%s cannot be read at %d (%s); it is tried again, and other partitions go on",
                partition,
                position,
                error,
            )
        self._held[partition] = _Held(position, str(error), self._clock() + AGAIN_S)

    def due(self) -> list[tuple[Partition, int]]:
        """The reads to make again now."""
        now = self._clock()
        found = [(partition, held) for partition, held in self._held.items() if now >= held.again_at]
        for partition, held in found:
            if held.is_read:  # a second has passed since it was read again, and it did not fail
                del self._held[partition]
            held.is_read, held.again_at = True, now + AGAIN_S
        return [(partition, held.position) for partition, held in found if partition in self._held]

    def forget(self, partition: Partition) -> None:
        """The partition is read from elsewhere now, or no more."""
        self._held.pop(partition, None)

    def holds(self, partition: Partition) -> bool:
        return partition in self._held

    def notices(self) -> list[str]:
        """A line for each partition that cannot be read."""
        return [f"{partition} cannot be read at {held.position}: {held.why}" for partition, held in self._held.items()]
