"""A ticket of a log that takes nothing: executors import it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from state.log.protocol import NewRecord, Partition


@dataclass(frozen=True)
class Refusing:
    error: Exception

    async def write(self, partition: Partition, parts: Callable[[], Iterable[Sequence[NewRecord]]]) -> int:
        raise self.error
