"""The real coordinator with a group that is large enough for the assignor process."""

from __future__ import annotations

import asyncio

from orchestrator.coordinator import messages
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import connect
from orchestrator.group.scale_down import ScaleDowns
from orchestrator.group.state import LONG_ASSIGNMENT
from orchestrator.model import Settings, Task, TaskId
from orchestrator.simulator.ledger import KeptLedger
from tests.group.coordinators import CREDENTIALS, Look, ask, joined, listening


async def test_a_large_group_is_placed_beside_other_requests() -> None:
    tasks = [Task(TaskId(0, n)) for n in range(LONG_ASSIGNMENT + 1)]
    computing: list[bool] = []

    async def look(coordinator: Coordinator, request: Look) -> None:
        computing.append(coordinator.group.computing is not None)

    coordinator = Coordinator("bench", Settings(), KeptLedger([]), tasks, {Look: look})
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    try:
        async with asyncio.timeout(30):
            control = await connect(address, CREDENTIALS)
            link = await joined(address)
            while not computing or not computing[-1]:
                await ask(control, Look())  # answered between two steps of the placement
            while not isinstance(told := await link.receive_down(), messages.Assign) or not told.assignment.active:
                pass
        assert told.assignment.active.keys() == {task.id for task in tasks}
        assert coordinator.assignor_process.pid is not None, "placed on the loop"
        await link.close()
        await control.close()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await services.close()
    assert coordinator.assignor_process.pid is None, "its process is there still"


class WithOperation(KeptLedger):
    """A ledger that knows of a scale-down, by a coordinator that is gone."""

    async def scale_downs(self) -> ScaleDowns:
        return ScaleDowns([{"id": "op-1", "leaving": ["I9"], "deadline_wall_ms": None}])


async def test_a_coordinator_that_takes_up_a_scale_down_places_a_large_group() -> None:
    """What taking it up asks for is done, too: a target that is waited for and that nobody computes stops everything."""
    tasks = [Task(TaskId(0, n)) for n in range(LONG_ASSIGNMENT + 1)]
    coordinator = Coordinator("bench", Settings(), WithOperation([]), tasks, {})
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    try:
        async with asyncio.timeout(30):
            link = await joined(address)
            while not isinstance(told := await link.receive_down(), messages.Assign) or not told.assignment.active:
                pass
        assert told.assignment.active.keys() == {task.id for task in tasks}
        await link.close()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await services.close()
