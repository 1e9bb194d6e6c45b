"""What the owner before left of a task's inputs, as the log has it, for the timing of a hand-over.

One rule: it decides nothing; a log that cannot say leaves the times unknown. Asked by a task that begins to process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from state.errors import UnknownTopic
from state.log.protocol import Log, Partition


async def left(log: Log, application: str, committed: Mapping[Partition, int]) -> tuple[int, bool]:
    """When the inputs that stand at `committed` were committed last (wall ms; 0: not known), and whether there is anything
    to read behind them."""
    try:
        times, ends = await asyncio.gather(log.committed_ms(application, list(committed)), log.ends(list(committed)))
    except UnknownTopic:
        return 0, False
    return max(times.values(), default=0), any(ends[p] > position for p, position in committed.items())
