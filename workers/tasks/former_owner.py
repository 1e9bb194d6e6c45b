"""What the owner before left of a task's inputs, as the log has it, for the timing of a hand-over.

One rule: it decides nothing; a log that cannot say leaves the times unknown. Asked by a task that begins to process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from state.errors import UnknownTopic
from state.log.protocol import Log, Partition


class Left(NamedTuple):
    """When each input was committed last (wall ms), and where it ends; nothing of either where that is not known."""

    times_ms: Mapping[Partition, int]
    ends: Mapping[Partition, int]

    @property
    def last_ms(self) -> int:
        """Of the last commit; 0: not known."""
        return max(self.times_ms.values(), default=0)

    def is_awaited(self, committed: Mapping[Partition, int]) -> bool:
        """Whether there is anything to read behind these positions."""
        return any(self.ends.get(one, 0) > position for one, position in committed.items())


async def ask(log: Log, application: str, inputs: Sequence[Partition]) -> Left:
    try:
        return Left(*await asyncio.gather(log.committed_ms(application, inputs), log.ends(inputs)))
    except UnknownTopic:
        return Left({}, {})


async def ends(log: Log, inputs: Sequence[Partition]) -> Mapping[Partition, int]:
    """Where the inputs end, for one that knows the rest."""
    try:
        return await log.ends(inputs)
    except UnknownTopic:
        return {}
