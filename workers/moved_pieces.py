"""A new version of an app that has a topic or a table in another subtopology than the version before: such an upgrade cannot be rolled.

One rule: what both versions run has one number, or they do not run at once. A task is fenced by its own owner record alone, so tasks of
two numbers would both read that topic, and both write that changelog. Asked by `prepare`, before it writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from orchestrator.coordinator.election import LEASE_TIMEOUT_MS, Election, Seen
from state.log.group_store import GroupStore
from workers.errors import AppRefused

LOOK_S = 0.1
# Longer than a candidate waits: where the coordinator was killed, another instance of the version before takes its place by then.
STILL_MS = LEASE_TIMEOUT_MS + 2_000


async def refuse_beside_others(
    log: GroupStore, application: str, moved: Sequence[str], moved_now: Callable[[], Awaitable[Sequence[str]]]
) -> None:
    """Raises AppRefused where something has moved, and a group runs that has the version before. Takes as long as
    a beat is waited for where something has moved and nothing runs, unless there never was a group. `moved_now` is asked where there is
    a beat: it may be of this version, whose first instance has begun meanwhile."""
    if moved and await _is_coordinated(log, application) and (left := await moved_now()):
        raise AppRefused(
            f"'{application}': {', '.join(left)} in this version, and instances of the version before run: tasks of both would process "
            "the same records, so this upgrade cannot be rolled; stop all instances of that version first, and start this one then: "
            "positions and state go on under its tasks"
        )


async def _is_coordinated(log: GroupStore, application: str) -> bool:
    """Whether the lease of the group has a beat, by the clock of the loop. One that was given back stands still, until another
    instance takes it."""
    election, clock = Election(STILL_MS), asyncio.get_running_loop()
    while (found := await log.lease(application)) is not None:
        seen = Seen(found.term, found.beat)
        if election.has_moved(seen):
            return True
        if election.look(seen, int(clock.time() * 1000)):
            return False
        await asyncio.sleep(LOOK_S)
    return False
