"""What happened in a rehearsal, and what is measured of it.

One rule: figures come from who held what and when, not from what the coordinator believed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from orchestrator.model import TaskId


class Doing(StrEnum):
    """What an instance does with a task."""

    RUN = "run"
    RESTORE = "restore"  # it owns the task and has to restore it first: the task is silent
    LEARN = "learn"
    STAND_BY = "stand by"


class Span(NamedTuple):
    """`instance` did it from `begin_ms` to `end_ms`."""

    task: TaskId
    instance: str
    doing: Doing
    begin_ms: int
    end_ms: int


@dataclass(slots=True)
class History:
    """Spans, as they end; and counters."""

    spans: list[Span] = field(default_factory=list)
    restored_bytes: int = 0
    moves: int = 0
    cold: int = 0  # a task that could have stayed warm was given to an instance that was not caught up
    cold_announced: int = 0  # of them: it had announced that it was ready, by its predicted time
    balanced_ms: list[int] = field(default_factory=list)
    _open: dict[tuple[TaskId, str], tuple[Doing, int]] = field(default_factory=dict)

    def now_does(self, task: TaskId, instance: str, doing: Doing | None, now_ms: int) -> None:
        """From now on `instance` does this with the task (None: nothing)."""
        before = self._open.get((task, instance))
        if before is not None:
            if before[0] is doing:
                return
            if now_ms > before[1]:
                self.spans.append(Span(task, instance, before[0], before[1], now_ms))
            del self._open[task, instance]
        if doing is not None:
            self._open[task, instance] = doing, now_ms

    def close(self, now_ms: int) -> None:
        """The rehearsal is over: what is still done ends here."""
        for task, instance in list(self._open):
            self.now_does(task, instance, None, now_ms)


class Measures(NamedTuple):
    """One run in figures. Silences are those after the stable start; `balanced_ms`: of each change, until the group
    was at rest and every task ran."""

    silent_ms: int
    worst_task_ms: int
    delayed_records: int
    rebalances: int
    moves: int
    restored_bytes: int
    balanced_ms: tuple[int, ...]
    double_work_ms: int
    cold: int
    cold_announced: int


def silences(spans: Iterable[Span], tasks: Iterable[TaskId], begin_ms: int, end_ms: int) -> dict[TaskId, int]:
    """For each task the ms in which it ran nowhere."""
    ran: dict[TaskId, list[tuple[int, int]]] = {task: [] for task in tasks}
    for span in spans:
        if span.doing is Doing.RUN and span.end_ms > begin_ms:
            ran[span.task].append((max(begin_ms, span.begin_ms), min(end_ms, span.end_ms)))
    return {task: (end_ms - begin_ms) - _covered(parts) for task, parts in ran.items()}


def _covered(parts: list[tuple[int, int]]) -> int:
    total = until = 0
    for begin, end in sorted(parts):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total


def double_work_ms(spans: Iterable[Span], begin_ms: int) -> int:
    """Task-milliseconds that learners spent after `begin_ms`: they do their owner's writes a second time."""
    learnt = (span for span in spans if span.doing is Doing.LEARN)
    return sum(max(0, span.end_ms - max(begin_ms, span.begin_ms)) for span in learnt)
