"""Records a second, by task: from what owners have reported over the last seconds.

One rule: two reports of one owner in one epoch are compared, and nothing else; where there are no two, nothing is known.
Pure: the coordinator looks now and then, `status` reads.
"""

from __future__ import annotations

from collections import deque

from orchestrator.group.convergence import holder_of
from orchestrator.group.state import GroupState
from orchestrator.model import TaskId

EVERY_MS, LOOKS = 2_000, 6  # so over about ten seconds
TASKS_MAX = 20_000  # a look touches every task: groups above that go without


class Rates:
    """See the module text. A look is the records by task, with the epoch in which they were counted."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, dict[TaskId, tuple[int, int]]]] = deque(maxlen=LOOKS)

    def look(self, group: GroupState, now_ms: int) -> None:
        """Keep what owners have reported, where the last look is old enough."""
        if len(group.tasks) > TASKS_MAX or (self._looks and now_ms - self._looks[-1][0] < EVERY_MS):
            return
        found: dict[TaskId, tuple[int, int]] = {}
        for task in group.tasks:
            holder, owner = holder_of(group, task), group.owners.get(task)
            known = holder.status.facts_of(task) if holder is not None else None
            if known is not None and owner is not None:
                found[task] = owner.epoch, known.records
        self._looks.append((now_ms, found))

    def of(self, task: TaskId) -> float | None:
        """Returns records a second; None where nothing is known."""
        if not self._looks or task not in self._looks[-1][1]:
            return None
        now_ms, (epoch, records) = self._looks[-1][0], self._looks[-1][1][task]
        for then_ms, found in self._looks:
            before = found.get(task, (-1, 0))
            if before[0] == epoch and before[1] <= records and then_ms < now_ms:
                return (records - before[1]) * 1000 / (now_ms - then_ms)
        return None
