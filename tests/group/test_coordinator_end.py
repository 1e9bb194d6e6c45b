"""The end of a coordinator is the end of its sessions, whenever it comes: a worker whose connection stays open waits on it
and looks for no other coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import ConnectionEnded
from orchestrator.coordinator.ledger import NotCoordinator
from orchestrator.coordinator.requests import Request, StatusRequest
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import connect
from orchestrator.errors import OrchestratorError
from orchestrator.model import JoinRequest, MemberStatus, Owner, Settings, Task, TaskId
from orchestrator.simulator.ledger import KeptLedger
from tests.attacks.place import no_lease
from tests.group.coordinators import CREDENTIALS, Look, listening
from workers.instance.instance_stores import InstanceStores


class Unreadable(KeptLedger):
    """A log that cannot be read any more once somebody waits for it."""

    def __init__(self) -> None:
        super().__init__([])
        self.fails = asyncio.Event()

    async def owners(self) -> Sequence[Owner]:
        await self.fails.wait()
        raise OrchestratorError("the log cannot be read")


async def test_an_instance_that_coordinates_no_more_ends_connections_with_requests() -> None:
    """It is asked while the lease still names it: a client looks for the coordinator again, where an answer would say that
    the request is unknown."""
    coordinator = Coordinator("bench", Settings(), KeptLedger([]), [Task(TaskId(0, 0))], {})
    services, address = await listening(coordinator)
    services.add(InstanceStores("i1", {}.get, no_lease))
    async with asyncio.timeout(30):
        await coordinator.close()
        link = await connect(address, CREDENTIALS)
        link.send(messages.ask(1, StatusRequest()))
        with pytest.raises(ConnectionEnded):
            await link.receive_down()
        await link.close()
        await services.close()


async def test_a_request_that_finds_the_lease_lost_ends_its_connection() -> None:
    """What the log refused was not done: a client asks the next coordinator, where an answer would end its command."""

    async def refused(_coordinator: Coordinator, _request: Request) -> None:
        raise NotCoordinator("i1 coordinates bench no more")

    coordinator = Coordinator("bench", Settings(), KeptLedger([]), [Task(TaskId(0, 0))], {Look: refused})
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    async with asyncio.timeout(30):
        link = await connect(address, CREDENTIALS)
        link.send(messages.ask(1, Look()))
        with pytest.raises(ConnectionEnded):
            await link.receive_down()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await link.close()
        await services.close()


async def test_a_coordinator_that_never_began_ends_its_sessions_too() -> None:
    ledger = Unreadable()
    coordinator = Coordinator("bench", Settings(), ledger, [Task(TaskId(0, 0))], {})
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    async with asyncio.timeout(30):
        link = await connect(address, CREDENTIALS)
        link.send(messages.Join(messages.VERSION, "bench", JoinRequest("S1", "S1", "S1#1", "S1#1"), MemberStatus()))
        while len(asyncio.all_tasks()) < 3:  # noqa: ASYNC110 - until its session waits, too
            await asyncio.sleep(0)
        ledger.fails.set()
        with pytest.raises(OrchestratorError, match="cannot be read"):
            await serving
        await coordinator.close()
        with pytest.raises(ConnectionEnded):
            await link.receive()
        await link.close()
        await services.close()
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - nobody waits for its beginning any more
            await asyncio.sleep(0)
