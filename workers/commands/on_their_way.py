"""Instances that a fleet has started and that are no members: not yet, or no longer.

One rule: who asks for a share of what runs counts once these have joined or ended, for a few seconds; what is still on its way
then is named. Place: `scale-up` and `scale-down` count by it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.clocks import monotonic_s
from orchestrator.coordinator.requests import StatusRequest
from orchestrator.names import counted
from state.log.group_store import GroupStore
from workers.fleet.client import Client
from workers.fleet.presence import fleet_of

POLL_S = 0.1
JOINS_WITHIN_S = 5.0  # an instance that was started joins, and one that left ends, within about two


def not_joined(status: dict[str, Any], fleet: dict[str, Any] | None) -> set[str]:
    """What the fleet has started and is no member: not yet, or no longer, for as long as its process takes to end. An instance that
    left and is parked belongs to its fleet as well, so such a fleet's note counts for nothing. Nor does one that stood still while
    its scale-down ended: it leaves when it goes on."""
    if fleet is None or fleet.get("after_leave") == "park":
        return set()
    leavers = {name for name, start in status.get("leavers", {}).items() if start and start == fleet.get("id")}
    return set(fleet["instances"]) - {row["id"] for row in status["instances"]} - leavers


async def who_runs(application: str, log: GroupStore, client: Client) -> tuple[Any, dict[str, Any] | None]:
    """Status and fleet, once what the fleet has started has joined or ended: one that has just left is not on its way."""
    until_s = monotonic_s() + JOINS_WITHIN_S
    while True:
        status, fleet = await client.ask(StatusRequest(counted=True)), await fleet_of(log, application)
        if not not_joined(status, fleet) or monotonic_s() >= until_s:
            return status, fleet
        await asyncio.sleep(POLL_S)


def missing(names: list[str]) -> str:
    """What to say of those that take longer."""
    one = len(names) == 1
    return (
        f"{counted(len(names), 'instance')} that {'was' if one else 'were'} started {'has' if one else 'have'} not joined yet "
        f"({', '.join(names)}): what `orchestrator run` prints says why; on Spark each takes a free slot"
    )
