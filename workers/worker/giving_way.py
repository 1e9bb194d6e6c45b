"""When copies that a worker restores give way: to the commit under way, and to a task that is taken over here.

One rule: a restore holds the interpreter for milliseconds at a time, and a commit or a hand-over waits for a dozen answers,
each of them behind it; so copies pause meanwhile, and never for longer than a bound. A learner that is ready is about to be
granted its task. The worker reports to it what begins and ends; the restore loop asks it between two pieces.
"""

from __future__ import annotations

import asyncio

from orchestrator.model import Role, TaskId

TAKE_OVER_S = 1.0  # from ready to granted, and from granted to the first commit
COMMIT_S = 0.05


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


def _now() -> float:
    return asyncio.get_running_loop().time()
