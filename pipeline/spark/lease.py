"""The coordinator's lease, held by a job that must be alone.

One rule: while it is held no instance is given a task; whoever loses it stops before it writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.clocks import monotonic_ms
from orchestrator.coordinator.election import Election, Seen
from orchestrator.errors import RefusedBySafety
from state.errors import LeaseLost
from state.log.group_store import GroupStore, Lease

HOLDER = "backfill"
BEAT_S = 0.5


class Held:
    """The lease while it is held."""

    def __init__(self, log: GroupStore, lease: Lease) -> None:
        self._log = log
        self.lease = lease

    async def beat(self) -> None:
        """Renew it for ever. Raises LeaseLost."""
        while True:
            await asyncio.sleep(BEAT_S)
            await self.check()

    async def check(self) -> None:
        """Raises LeaseLost, at once, where it is somebody else's. Who takes it deals no task for the time of a join."""
        self.lease = await self._log.renew(self.lease)


@asynccontextmanager
async def lease_held(log: GroupStore, application: str) -> AsyncIterator[Held]:
    """The coordinator's lease, for as long as the block takes. Raises RefusedBySafety where somebody has it."""
    held = Held(log, await _acquired(log, application))
    beating = asyncio.create_task(held.beat())
    body = asyncio.current_task()
    assert body is not None
    beating.add_done_callback(lambda task: None if task.cancelled() else body.cancel("the lease is lost"))
    try:
        yield held
    except (asyncio.CancelledError, LeaseLost) as error:
        lost: BaseException | None = error
        if isinstance(error, asyncio.CancelledError):
            lost = beating.exception() if beating.done() and not beating.cancelled() else None
            if lost is None:
                raise
            body.uncancel()
        raise RefusedBySafety(
            f"an instance of '{application}' took over while backfill was at work ({lost}); nothing was written; "
            "stop it and run backfill again"
        ) from None
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def _acquired(log: GroupStore, application: str) -> Lease:
    """The lease, once it has stood still as long as a candidate waits."""
    election = Election()
    first = await log.lease(application)
    while True:
        found = await log.lease(application)
        if found != first:
            break
        seen = None if found is None else Seen(found.term, found.beat)
        if election.look(seen, monotonic_ms()):
            taken = await log.acquire(application, HOLDER, "", found)
            if taken is not None:
                return taken
            break
        await asyncio.sleep(0.1)
    found = await log.lease(application)
    holder = "somebody" if found is None else found.holder
    raise RefusedBySafety(
        f"'{application}' is running ({holder} holds its lease); backfill needs it stopped: "
        "stop all its instances, and wait for another backfill to end"
    )
