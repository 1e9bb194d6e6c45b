"""What silent workers have left open in the log: on brokers an open transaction hides what others write behind it to shared outputs.

One rule: who is silent keeps its tasks, whose disk may come back, but no open transaction. A worker that reaches the log and not its
coordinator has another one at each look, and goes on; one that has the same at two looks, behind the grace of its connection, is fenced,
and joins again under another id. Runs beside the coordinator, where the log leaves transactions open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from orchestrator.clocks import monotonic_ms
from orchestrator.coordinator.ledger import NotCoordinator
from orchestrator.group.state import GroupState
from orchestrator.group.timeouts import is_calm, silent_writers
from state.errors import StateError
from workers.instance.ledger import LogLedger

log = logging.getLogger("orchestrator.coordinator")
LOOK_S = 0.5


class SilentWriters:
    """Of one term. `group` gives the group as it is."""

    def __init__(self, ledger: LogLedger, group: Callable[[], GroupState]) -> None:
        self._ledger = ledger
        self._group = group
        self._open: Mapping[str, int] = {}  # as the last look found them

    async def run(self) -> None:
        """Looks now and then, until cancelled or the lease is lost. A log that is away is asked again."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
            except NotCoordinator:
                return  # the coordinator's own writes are refused, too
            except StateError as error:
                log.info("transactions that silent workers may have left open: %s", error)

    async def _look(self) -> None:
        group, now_ms = self._group(), monotonic_ms()
        silent = [] if is_calm(group, now_ms) else silent_writers(group, now_ms)
        before, self._open = {one: self._open.get(one, -1) for one in silent}, {}
        if not silent:
            return
        found = await self._ledger.end_left_open(before)
        self._open = found.open
        for one in found.ended:
            log.info("%s is silent and left a transaction open, which hides what others write: it is fenced", one)
