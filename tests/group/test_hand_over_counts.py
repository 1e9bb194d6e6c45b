"""Hand-overs since a moment that another coordinator has counted to."""

from __future__ import annotations

import asyncio

from orchestrator.coordinator import admin
from orchestrator.coordinator.requests import ScaleDownRequest, StatusRequest
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import connect
from orchestrator.model import Settings, Task, TaskId
from orchestrator.simulator.ledger import KeptLedger
from tests.group.coordinators import CREDENTIALS, ask, joined, listening


async def test_a_count_of_another_term_is_no_count_of_this_one() -> None:
    """`scale-down --wait` that outlived the coordinator reported -22 hand-overs."""
    coordinator = Coordinator("bench", Settings(), KeptLedger([]), [Task(TaskId(0, 0))], admin.HANDLERS)
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    async with asyncio.timeout(30):
        members = [await joined(address, name) for name in ("S1", "S2")]
        link = await connect(address, CREDENTIALS)
        earlier = StatusRequest(hand_overs_since=22, of_term=7)
        assert (await ask(link, earlier))["hand_overs"]["count"] == 0
        begun = await ask(link, ScaleDownRequest(to="1"))
        assert (begun["since"], begun["term"]) == (0, 1)
        for one in (*members, link):
            await one.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await services.close()
