"""Records of a transaction that are built while the broker opens it.

One rule: the first requests are on their way before anything is built; what is built needs no answer of them.
Place: `building.py` plans it from what topics take, `producer.py` begins, writes and ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from state.log.batches import Batch
from state.log.protocol import Partition

Built = Mapping[Partition, Sequence[Batch]]
_TURNS_TO_SEND = 2  # of the loop: each of the first requests is sent by a task of its own


class Unbuilt(NamedTuple):
    """Where records go, and what builds them, which raises UnfitRecord."""

    partitions: Collection[Partition]
    make: Callable[[], Built]

    async def beside(self, beginning: Coroutine[Any, Any, None]) -> Built | Exception:
        """What was built, or why it was not, once the beginning is over. Raises what the beginning raises."""
        begun, built = await asyncio.gather(beginning, self._built(), return_exceptions=True)
        if begun is not None:
            raise begun
        if isinstance(built, Exception | Mapping):
            return built
        raise built

    async def _built(self) -> Built:
        for _ in range(_TURNS_TO_SEND):
            await asyncio.sleep(0)
        return self.make()
