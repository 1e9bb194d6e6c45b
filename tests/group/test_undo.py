"""A scale-down that is taken back. Law: what was answered is in the log, so no later coordinator goes on with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from orchestrator.coordinator import admin
from orchestrator.coordinator.ledger import NotCoordinator
from orchestrator.coordinator.requests import ScaleDownRequest, StatusRequest, UndoRequest
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import connect
from orchestrator.group.scale_down import ScaleDowns
from orchestrator.model import Settings, Task, TaskId
from orchestrator.simulator.ledger import KeptLedger
from tests.group.coordinators import CREDENTIALS, ask, joined, listening


class Slow(KeptLedger):
    """A log that takes no change of operations until it is `free`."""

    def __init__(self) -> None:
        super().__init__([])
        self.rows: list[Mapping[str, object]] = []
        self.asked, self.free = asyncio.Event(), asyncio.Event()

    async def put_operations(self, facts: Sequence[Mapping[str, object]]) -> None:
        self.asked.set()
        await self.free.wait()
        self.rows = [*facts]


async def test_it_is_answered_once_the_log_has_forgotten_it() -> None:
    """It was answered before: with a log that took no writes, the coordinator that came next had the instances leave."""
    ledger = Slow()
    ledger.free.set()
    coordinator = Coordinator("bench", Settings(), ledger, [Task(TaskId(0, n)) for n in range(4)], admin.HANDLERS)
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    async with asyncio.timeout(30):
        members = [await joined(address, name) for name in ("S1", "S2")]
        link, other = await connect(address, CREDENTIALS), await connect(address, CREDENTIALS)
        assert (await ask(link, ScaleDownRequest(to="1")))["outcome"] == "running"
        assert len(ledger.rows) == 1
        ledger.free.clear()
        ledger.asked.clear()
        undoing = asyncio.create_task(ask(link, UndoRequest()))
        await ledger.asked.wait()
        assert (await ask(other, StatusRequest()))["scale"] is not None
        assert not undoing.done()
        ledger.free.set()
        assert (await undoing)["outcome"] == "rolled back"
        assert ledger.rows == []
        assert (await ask(other, StatusRequest()))["scale"] is None
        for one in (*members, link, other):
            await one.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await services.close()


class Lost(KeptLedger):
    """A log that knows of a leaver of before, and whose lease another has by the time that it is to forget that."""

    async def scale_downs(self) -> ScaleDowns:
        return ScaleDowns((), {"S1": "one", "S2": "two"})

    async def put_leavers(self, leavers: Mapping[str, str]) -> None:
        raise NotCoordinator("another has the lease")


async def test_one_that_finds_the_lease_lost_ends_the_term_at_once() -> None:
    """The loops may wait for a log that takes none of their writes."""
    coordinator = Coordinator("bench", Settings(), Lost([]), [Task(TaskId(0, n)) for n in range(4)], admin.HANDLERS)
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    async with asyncio.timeout(30):
        members = [await joined(address, name) for name in ("S1", "S2")]
        link = await connect(address, CREDENTIALS)
        assert (await ask(link, ScaleDownRequest(to="1")))["outcome"] == "running"
        undoing = asyncio.create_task(ask(link, UndoRequest()))
        await serving
        assert not coordinator.group.fenced, "it ended later, by what the loops write"
        await asyncio.gather(undoing, return_exceptions=True)
        for one in (*members, link):
            await one.close()
        await services.close()
