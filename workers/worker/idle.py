"""Quiet inputs: where no record has come for as long as the app's `idle=`, the time of a task follows the wall clock.

One rule: it is a tick among the task's records, in the order of time like any of them, and it is taken at the confirmed end
of all inputs alone (`heads`). Tasks that keep no time are left alone. Asked by the record loop in every round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

from pipeline.records import TICK, SourceRecord
from state.steady_clock import SteadyClock
from workers.tasks.task import TaskRun

TICK_S = 1.0  # between two ticks of a task: each of them is committed


class Idle:
    """`clock` in seconds; `wall_ms` is the time that ticks have, once it has lasted. Without `idle_ms` nothing follows the clock."""

    def __init__(self, idle_ms: int | None, clock: Callable[[], float], wall_ms: Callable[[], int]) -> None:
        self._idle_s = None if idle_ms is None else idle_ms / 1000
        self._clock = clock
        self._wall = SteadyClock(clock, wall_ms, "tasks without records (idle=) follow it")
        self._seen: WeakKeyDictionary[TaskRun, list[int | None]] = WeakKeyDictionary()  # where its inputs were read to
        self._next: WeakKeyDictionary[TaskRun, float] = WeakKeyDictionary()

    @property
    def follows(self) -> bool:
        """Whether the time of any task follows the clock."""
        return self._idle_s is not None

    def tick(self, runs: Iterable[TaskRun]) -> bool:
        """Gives a tick to each task that is quiet; whether there is one."""
        if self._idle_s is None:
            return False
        now_ms = self._wall.wall_ms()
        quiet = [run for run in runs if self._is_quiet(run, self._idle_s, now_ms)]
        for run in quiet:
            run.merger.add(TICK, run.id.partition, [SourceRecord(0, now_ms, None, None)])
            self._next[run] = self._clock() + TICK_S
        return bool(quiet)

    def _is_quiet(self, run: TaskRun, idle_s: float, now_ms: int) -> bool:
        if run.process is None or not run.process.keeps_time:
            return False
        # Without any record there is nothing that could come due, and the first one says what time it is.
        if (time_ms := run.process.stream_time_ms) < 0 or not self._wall.is_likely(now_ms, time_ms):
            return False
        seen = [run.merger.read_to(*partition) for partition in run.inputs]
        if self._seen.get(run) != seen:
            self._seen[run] = seen
            self._next[run] = self._clock() + idle_s
        return len(run.merger) == 0 and self._clock() >= self._next[run]
