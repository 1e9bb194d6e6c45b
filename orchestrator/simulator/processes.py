"""Processes of a simulated cluster: what crashes, stalls and restarts together.

One rule: what runs on a process runs through `after`: never while it is dead, and behind everything that waited while it
was stalled, so that connections keep their order. Members and coordinators (nodes.py, coordinator.py) run on processes.
"""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.simulator.scheduler import Scheduler


class Process:
    """`life` grows with every end and every start, so that a call planned in a former life is dropped."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.alive = True
        self.stalled = False
        self.waiting: list[Callable[[], None]] = []
        self.life = 0

    def clock(self) -> int:
        """Its monotonic clock, ms."""
        return self.scheduler.now_ms

    def after(self, delay_ms: int, call: Callable[[], None]) -> None:
        """Run on this process: not when it is dead, later when it is stalled."""

        def run() -> None:
            if not self.alive:
                return
            if self.stalled or self.waiting:
                self.waiting.append(call)
            else:
                call()

        self.scheduler.after(delay_ms, run)

    def kill(self) -> None:
        self.alive, self.stalled = False, False
        self.waiting.clear()
        self.life += 1

    def start(self) -> None:
        self.alive = True
        self.life += 1

    def catch_up(self) -> None:
        """Everything that waited comes now."""
        while self.waiting and self.alive and not self.stalled:
            self.waiting.pop(0)()
