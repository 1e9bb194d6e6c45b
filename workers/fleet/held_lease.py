"""The coordinator's lease, held by a command that must be alone with an application: a backfill, a reset, a copy of its log.

One rule: while it is held no instance is given a task; a command that loses it stops before it writes. At the end the lease is
given back, so that the next coordinator does not wait for a beat.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from orchestrator.clocks import monotonic_ms, wall_ms
from orchestrator.coordinator.election import Election, Seen
from orchestrator.errors import RefusedBySafety
from state.errors import LeaseLost, LogUnavailable, StateError
from state.log.group_store import GroupStore, Lease
from workers.fleet.presence import FLEET, FRESH_MS, is_fresh, is_here, named_of, this_process
from workers.instance.ledger import give_back, is_given_back

BEAT_S, GIVE_BACK_S = 0.5, 1.0


class Held:
    """The lease while it is held."""

    def __init__(self, log: GroupStore, lease: Lease, *, is_patient: bool = False) -> None:
        self._log = log
        self.lease = lease
        self._passed_over = (LogUnavailable,) if is_patient else ()
        self.is_done = self.is_lost = False

    async def beat(self) -> None:
        """Renew it for ever. Raises LeaseLost, and what the log says where it cannot be used."""
        while True:
            await asyncio.sleep(BEAT_S)
            with contextlib.suppress(*self._passed_over):
                await self.check()

    def done(self) -> None:
        """What the lease was held for is in the log, whole: what becomes of it ends nothing any more."""
        self.is_done = True

    async def check(self) -> None:
        """Raises LeaseLost, at once, where another process has it. A new holder deals no task for the time of a join."""
        try:
            self.lease = await self._log.renew(self.lease)
        except LeaseLost:
            self.is_lost = True
            raise

    async def give_back(self) -> None:
        """Note that no further beat will come. What a log refuses now is found out by the beat that stands still."""
        with contextlib.suppress(StateError, TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S):
                await give_back(self._log, self.lease)


@asynccontextmanager
async def start_refused(log: GroupStore, application: str, root: Path, command: str) -> AsyncIterator[None]:
    """The fleet's place in the log is taken meanwhile, so that no fleet and no named instance starts, on any machine. Raises
    RefusedBySafety."""
    process = {**this_process(), "command": command}
    seen = await log.metadata(application, FLEET, "fleet")

    async def take(before: bytes | None) -> bool:
        facts = {**process, "state_dir": str(root), "instances": [], "after_leave": "", "at_ms": wall_ms()}
        return await log.replace_metadata(application, FLEET, "fleet", before, json.dumps(facts).encode())

    async def keep_fresh() -> None:
        """On another machine a note that is old does not show whether its process is there."""
        while True:
            await asyncio.sleep(FRESH_MS / 4000)
            with contextlib.suppress(StateError):
                if (found := await own()) is not None:
                    await take(found)

    async def own() -> bytes | None:
        found = await log.metadata(application, FLEET, "fleet")
        return found if found is not None and process.items() <= json.loads(found).items() else None

    if not await take(seen):
        raise RefusedBySafety(f"'{application}' is started at this moment; stop it, then run {command} again")
    keeping = asyncio.create_task(keep_fresh())
    try:
        notes = await named_of(log, application)
        if named := sorted(name for name, note in notes.items() if is_here(note) or is_fresh(note)):
            raise RefusedBySafety(f"'{application}' runs as {', '.join(named)}; stop it, then run {command} again")
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        if (found := await own()) is not None:
            await log.replace_metadata(application, FLEET, "fleet", found, None)


@asynccontextmanager
async def lease_held(
    log: GroupStore, application: str, holder: str, *, is_patient: bool = False
) -> AsyncIterator[Held]:
    """The coordinator's lease, for as long as the block takes; `holder` is the command's name. `is_patient`: all that the block
    writes asks for the lease itself, so a beat that the log does not take now (full, locked, away) ends nothing. Raises
    RefusedBySafety where an instance or another command has it, or takes it meanwhile; what else the log says to a beat."""
    held = Held(log, await _acquired(log, application, holder), is_patient=is_patient)
    beating = asyncio.create_task(held.beat())
    body = asyncio.current_task()
    assert body is not None
    beating.add_done_callback(
        lambda task: None if task.cancelled() or held.is_done else body.cancel("the lease is lost")
    )
    try:
        yield held
    except (asyncio.CancelledError, LeaseLost) as error:
        lost: BaseException | None = error
        if isinstance(error, asyncio.CancelledError):
            lost = beating.exception() if beating.done() and not beating.cancelled() else None
            if lost is None:
                raise
            body.uncancel()
            if not isinstance(lost, LeaseLost):
                raise lost from None
        raise RefusedBySafety(
            f"an instance of '{application}' took over while {holder} was at work ({lost}); "
            f"stop it and run {holder} again"
        ) from None
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await held.give_back()


async def _acquired(log: GroupStore, application: str, holder: str) -> Lease:
    """The lease, once it has stood still as long as a candidate waits, or was given back."""
    election = Election()
    first = await log.lease(application)
    while True:
        found = await log.lease(application)
        if found != first:
            break
        seen = None if found is None else Seen(found.term, found.beat)
        if election.look(seen, monotonic_ms()) or await is_given_back(log, found):
            taken = await log.acquire(application, holder, "", found)
            if taken is not None:
                return taken
            break
        await asyncio.sleep(0.1)
    found = await log.lease(application)
    by = "another process" if found is None else found.holder
    raise RefusedBySafety(
        f"'{application}' is running ({by} holds its lease); {holder} needs it stopped: "
        "stop all its instances, and wait for another backfill or reset to end"
    )
