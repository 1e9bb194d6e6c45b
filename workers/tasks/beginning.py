"""What a task asks the log before it begins to process: its halt, where its inputs go on, what the owner before left.

One rule: it is asked after the grant, so all of it is final, and all at once: nobody runs the task meanwhile. A task whose
stores are nearly level asks while the last records of its changelogs are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from state.log.protocol import GroupLog, Partition
from workers.tasks import former_owner, halts
from workers.tasks.former_owner import Left
from workers.tasks.halts import Halt


class Beginning(NamedTuple):
    """The answers."""

    halt: Halt | None
    committed: dict[Partition, int]
    left: Left


async def ask(
    log: GroupLog,
    application: str,
    scope: str,
    inputs: Sequence[Partition],
    positions: Callable[[], Awaitable[dict[Partition, int]]],
    globals_known: Callable[[], Awaitable[None]],
) -> Beginning:
    """Returns once the worker's global tables are known, too."""
    halt, committed, left, _ = await asyncio.gather(
        halts.read(log, application, scope), positions(), former_owner.ask(log, application, inputs), globals_known()
    )
    return Beginning(halt, committed, left)


class Asked:
    """Questions that are under way. A task that needs no answer any more forgets them, and an error of theirs with them."""

    def __init__(self, questions: Coroutine[Any, Any, Beginning]) -> None:
        self._task = asyncio.get_running_loop().create_task(questions)
        self._task.add_done_callback(lambda task: None if task.cancelled() else task.exception())

    async def answers(self) -> Beginning:
        return await self._task

    def forget(self) -> None:
        self._task.cancel()
