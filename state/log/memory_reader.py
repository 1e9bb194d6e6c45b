"""The incremental reader of the log in memory.

One rule: it keeps positions and no records; what can be read is the log's to say, at each poll.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from state.log.protocol import Fetched, Partition


class Source(Protocol):
    """What it needs of a log."""

    def fetch(self, partition: Partition, position: int, max_bytes: int, epoch: int = -1) -> Fetched | None: ...

    async def changed(self, deadline: float) -> None: ...

    def wake(self) -> None: ...


class MemoryReader:
    """See `state.log.protocol.Reader`."""

    def __init__(self, log: Source) -> None:
        self._log = log
        self._positions: dict[Partition, int] = {}
        self._read: dict[Partition, tuple[int, int]] = {}  # where the last fetch ended, and in which epoch

    def add(self, partition: Partition, position: int) -> None:
        self._positions[partition] = position
        self._log.wake()

    def _epoch(self, partition: Partition, position: int) -> int:
        """Under which it has read what comes before `position`; -1: not known."""
        at, epoch = self._read.get(partition, (-1, -1))
        return epoch if at == position else -1

    def drop(self, partition: Partition) -> None:
        self._positions.pop(partition, None)

    async def poll(self, *, max_bytes_per_partition: int = 1 << 20, wait_ms: int = 0) -> list[Fetched]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        await asyncio.sleep(0)  # a poll that always has data must not starve the loop
        while True:
            taken = [
                got
                for partition, position in self._positions.items()
                if (
                    got := self._log.fetch(
                        partition, position, max_bytes_per_partition, self._epoch(partition, position)
                    )
                )
                is not None
            ]
            for one in taken:
                self._positions[one.partition] = one.next_position
                self._read[one.partition] = one.next_position, one.epoch
            if taken or loop.time() >= deadline:
                return taken
            await self._log.changed(deadline)

    async def close(self) -> None:
        self._positions.clear()
