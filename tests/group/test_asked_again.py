"""A scale-down whose answer was lost and that is asked for again. Law: it is one scale-down, under the coordinator that wrote it down
and under the next one; of two requests each counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from orchestrator.coordinator import admin
from orchestrator.coordinator.connection import Connection
from orchestrator.coordinator.requests import ScaleDownRequest, StatusRequest
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import connect
from orchestrator.group.scale_down import ScaleDowns
from orchestrator.model import Settings, Task, TaskId
from orchestrator.simulator.ledger import KeptLedger
from tests.group.coordinators import CREDENTIALS, ask, joined, listening

Rows = list[Mapping[str, object]]
NAMES = ("S1", "S2", "S3", "S4")


class Kept(KeptLedger):
    """What one coordinator has written down is there for the next one."""

    def __init__(self, rows: Rows) -> None:
        super().__init__([])
        self.rows = rows

    async def scale_downs(self) -> ScaleDowns:
        return ScaleDowns([*self.rows])

    async def put_operations(self, facts: Sequence[Mapping[str, object]]) -> None:
        self.rows[:] = facts


@asynccontextmanager
async def coordinating(rows: Rows) -> AsyncIterator[Connection]:
    tasks = [Task(TaskId(0, n)) for n in range(4)]
    coordinator = Coordinator("bench", Settings(), Kept(rows), tasks, admin.HANDLERS)
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    async with asyncio.timeout(30):
        members = [await joined(address, name) for name in NAMES]
        link = await connect(address, CREDENTIALS)
        try:
            yield link
        finally:
            for one in (*members, link):
                await one.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await services.close()


async def leaving(link: Connection) -> list[str]:
    found: dict[str, Any] = await ask(link, StatusRequest())
    return list(found["scale"]["leaving"])


async def test_it_is_done_once_by_the_coordinator_that_has_it() -> None:
    async with coordinating([]) as link:
        first = await ask(link, ScaleDownRequest(by="1", request="a"))
        assert await ask(link, ScaleDownRequest(by="1", request="a")) == first
        assert await leaving(link) == first["leaving"]
        second = await ask(link, ScaleDownRequest(by="1", request="b"))
        assert await leaving(link) == sorted([*first["leaving"], *second["leaving"]])


async def test_it_is_done_once_where_the_next_coordinator_is_asked() -> None:
    """Two instances left, though one was to; one of a plan, or with --current, was refused though it was done."""
    for asked in (ScaleDownRequest(by="1", request="a"), ScaleDownRequest(to="3", current=4, request="a")):
        rows: Rows = []
        async with coordinating(rows) as link:
            first = await ask(link, asked)
        async with coordinating(rows) as link:
            assert await ask(link, asked) == first
            assert await leaving(link) == first["leaving"]
