"""When copies that a worker restores give way: to the commit under way, to a task that is taken over here, and to whatever
else the machine has to do.

One rule: a restore holds the interpreter for milliseconds at a time, and a commit or a hand-over waits for some answers,
each of them behind it; so copies pause meanwhile, and never for longer than a bound. A learner that is ready is about to be
granted its task. The worker reports to it what begins and ends; the restore loop asks it between two pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from orchestrator.model import Role, TaskId

TAKE_OVER_S = 1.0  # from ready to granted, and from granted to the first commit
COMMIT_S = 0.05
RESTS, REST_MOST_S = 2.0, 0.02  # of a piece that had to wait for a processor: so many times as long, so long at most


class GivingWay:
    """See the module text."""

    def __init__(self) -> None:
        self._until: dict[TaskId, float] = {}  # of tasks that are about to process here
        self._no_commit = asyncio.Event()
        self._no_commit.set()

    def expect(self, task: TaskId) -> None:
        """A learner is ready: one that is not granted soon is waited for once."""
        self._until.setdefault(task, _now() + TAKE_OVER_S)

    def changes_role(self, task: TaskId, role: Role) -> None:
        """A copy is granted its task, or is one again."""
        if role is Role.ACTIVE:
            self._until[task] = _now() + TAKE_OVER_S
        else:
            self.over(task)

    def over(self, task: TaskId) -> None:
        """It has committed, has nothing to commit, or is not held any more."""
        self._until.pop(task, None)

    def expects(self, task: TaskId) -> bool:
        """Whether this task is about to process here, or has not committed yet."""
        return self._until.get(task, 0.0) > _now()

    def expects_any(self) -> bool:
        now = _now()
        return any(until > now for until in self._until.values())

    def rest_s(self, waited_s: float, least_s: float) -> float:
        """How long a copy rests behind a piece that waited so long for a processor: none is in a hurry, and who else waits may be.
        A task that is taken over here does not wait for the end of a rest."""
        return least_s if self.expects_any() else max(least_s, min(REST_MOST_S, waited_s * RESTS))

    def commit_began(self) -> None:
        self._no_commit.clear()

    def commit_ended(self) -> None:
        self._no_commit.set()

    async def commit_over(self) -> None:
        """Returns once no commit is under way: one that lasts is not waited for."""
        if not self._no_commit.is_set():
            try:
                async with asyncio.timeout(COMMIT_S):
                    await self._no_commit.wait()
            except TimeoutError:
                return


def waits(pieces: Iterator[int], not_running_s: Callable[[], float]) -> Iterator[float]:
    """Has each piece done, and gives the seconds in which it did not run: others want the processors, too."""
    while True:
        before = not_running_s()
        if next(pieces, None) is None:
            return
        yield not_running_s() - before


def _now() -> float:
    return asyncio.get_running_loop().time()
