"""What a task reads of a snapshot, piece by piece: progress that is reported, and bytes that a copy's budget pays for.

One rule: a piece is read once the one before is paid for, and none for a task that was closed. Used by `workers.tasks.task`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from orchestrator.member.events import Reading
from orchestrator.model import TaskId
from workers.tasks.stores import OnRead


class GivenUp(Exception):
    """The task was closed while a snapshot of it was read."""


def reading(
    task: TaskId,
    end: int,
    report: Callable[[Reading], None],
    spend: Callable[[int], Awaitable[None]],
    is_closed: Callable[[], bool],
) -> OnRead:
    """What is to be called with each piece; it raises GivenUp. `end`: of all changelogs of the task."""

    so_far = 0

    async def read(size: int, position: int) -> None:
        nonlocal so_far
        so_far += size
        report(Reading(task, position, end, so_far))
        await spend(size)
        if is_closed():
            raise GivenUp

    return read
