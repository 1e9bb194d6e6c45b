"""Tasks that make no call for a while: a call is made again later, or waits for a client outside.

One rule: nothing of a task that rests is under way, so it is released and stopped at once; its record is not processed.
An operator sees which processor waits, at which record and with which error, and reads of its beginning and its end in
the log. The record loop asks before each turn, and reports what a turn has left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from pipeline.calls.retries import Waiting
from workers.tasks.task import TaskRun

log = logging.getLogger("orchestrator.records")


class Rests:
    """`clock` in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[TaskRun, float] = {}
        self._waiting: dict[TaskRun, Waiting] = {}

    def begin(self, run: TaskRun, delay_s: float) -> None:
        """No call of this task before so long."""
        self._until[run] = self._clock() + delay_s

    def rests(self, run: TaskRun) -> bool:
        until = self._until.get(run) if self._until else None
        if until is None:
            return False
        if self._clock() < until:
            return True
        del self._until[run]
        return False

    def forget(self, run: TaskRun) -> None:
        """The task does not run here any more, or anew."""
        self._until.pop(run, None)
        self._waiting.pop(run, None)

    def look(self, runs: Iterable[TaskRun]) -> None:
        """Log what began to wait, and what waits no more."""
        for run in runs:
            now = run.process.waiting if run.process is not None else None
            before = self._waiting.get(run)
            if now is not None:
                self._waiting[run] = now
                if before is None or before.processor != now.processor:
                    log.warning("%s waits: %s; it goes on by itself", run.id, _described(now))
            elif before is not None:
                del self._waiting[run]
                log.warning("%s goes on: %s waits no more", run.id, before.processor)

    def notices(self) -> list[str]:
        """What an operator should know, a line for each task that waits."""
        return [f"{run.id} waits: {_described(waiting)}" for run, waiting in self._waiting.items()]


def _described(waiting: Waiting) -> str:
    return f"{waiting.processor} at {waiting.record}: {waiting.error}"
