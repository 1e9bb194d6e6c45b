"""Tasks whose state cannot be opened here for now: no space, no permission, a changelog that has lost what they need.

One rule: such a task is tried again every few seconds, here or on another instance, and as long as it is, `status` shows why it does not
come. A failure is shown for a while after it, as between two tries the task has no run that could say it. Asked by worker.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from orchestrator.model import TaskId
from state.errors import ChangelogCut, DirectoryUnusable, StateError
from workers.tasks.stores import CAPACITY_RETRY_S

SHOWN_S = 3 * CAPACITY_RETRY_S  # a try, and what it takes the group to place the task again


@dataclass(frozen=True, slots=True)
class _Held:
    why: str
    until: float


class Unopened:
    """Those of one worker; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[TaskId, _Held] = {}

    def hold(self, task: TaskId, error: StateError) -> bool:
        """The state of a task failed with this error. Returns whether it is of those that may pass by themselves."""
        passes = isinstance(error, DirectoryUnusable | ChangelogCut)
        if passes:
            self._held[task] = _Held(str(error), self._clock() + SHOWN_S)
        return passes

    def notices(self, processing: Collection[TaskId]) -> list[str]:
        """A line for each task that cannot be opened, given those that process now."""
        now = self._clock()
        self._held = {task: held for task, held in self._held.items() if now < held.until and task not in processing}
        return [f"{task} does not run: {held.why}" for task, held in sorted(self._held.items())]
