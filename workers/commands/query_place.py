"""Where a table is read from: the instance that runs its task, found by the coordinator.

One rule: an answer of an instance that is still restoring is taken only when waiting has not helped.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from orchestrator.clocks import monotonic_s
from orchestrator.coordinator.requests import LocateRequest, ScanRequest, StoreRequest
from orchestrator.coordinator.secret import Right
from orchestrator.errors import OrchestratorError, WrongUse
from workers.fleet.client import FIND_S, Client

POLL_S = 0.05


async def ask_where_it_is(client: Client, request: StoreRequest | ScanRequest) -> dict[str, Any]:
    """Ask the coordinator where the task is, and the instance that it names. Between two owners there is no instance to ask for
    a moment, one that has handed the task over is not asked again, and one that is still restoring does not know yet.
    Raises WrongUse."""
    deadline = monotonic_s() + FIND_S
    while True:
        try:
            place = await client.ask(LocateRequest(request.task))
            asked = msgspec.structs.replace(request, member=place["member"])
            found: dict[str, Any] = await client.ask_instance(place["address"], asked)
            if not found["restore_lag"] or monotonic_s() > deadline:
                return found
        except WrongUse as error:  # a new coordinator learns the other versions of the app one by one
            client.require(
                Right.READ
            )  # which raises where it is this side's own secret, or certificate, that cannot be used
            if monotonic_s() > deadline:
                raise WrongUse(f"no version of the app that runs has table '{request.table}': {error}") from None
        except OrchestratorError as error:
            if error.exit_code != 1 or monotonic_s() > deadline:
                raise
        await asyncio.sleep(POLL_S)
