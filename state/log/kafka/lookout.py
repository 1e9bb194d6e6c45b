"""Requests that wait long: whether the broker that they went to is still one of the cluster.

One rule: nothing is given up because it is slow. A broker whose machine is gone ends no connection, and what was sent to it
would wait for `request.timeout.ms`, long after the others have taken over what it did. So they are asked, and once they do
not know it any more, all that waits for it fails at once. Used by `connections`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

LOOK_S, SLOW_S = 0.5, 1.0  # a long poll takes a tenth of that
ANSWER_WITHIN_S = 2.0  # the broker that is asked may be gone itself


class Lookout:
    """See the module text. `known_to_others` gives the brokers of the cluster, asked of another than the given ones; None
    where nobody says."""

    def __init__(self, known_to_others: Callable[[Collection[int]], Awaitable[Collection[int] | None]]) -> None:
        self._known_to_others = known_to_others
        self._waiting: dict[asyncio.Timeout, tuple[int, float]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    def begin(self, node: int) -> asyncio.Timeout:
        """A request to this broker, to be sent within the timeout that is returned, which `end` takes."""
        scope = asyncio.timeout(None)
        self._waiting[scope] = node, asyncio.get_running_loop().time()
        if not self._is_closed and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look())
        return scope

    def end(self, scope: asyncio.Timeout) -> None:
        del self._waiting[scope]

    def close(self) -> None:
        self._is_closed = True
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            slow = {node for node, since in self._waiting.values() if loop.time() - since > SLOW_S}
            if not slow:
                continue
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    known = await self._known_to_others(slow)
            except TimeoutError:
                continue
            if known is None:
                continue
            for scope, (node, _) in list(self._waiting.items()):
                if node in slow and node not in known and not scope.expired():
                    scope.reschedule(loop.time())
