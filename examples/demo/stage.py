"""What every step of the tour has: the options, the processes, the log, the checks, and waits for a condition.

One rule: it knows no step. The steps (tour.py, killing.py) are given it; what they find stays here for the report.
"""

from __future__ import annotations

import asyncio
import random
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from typing import Any

from examples.demo.options import Options
from examples.demo.processes import Processes
from examples.demo.show import Show
from examples.flights import app
from orchestrator.clocks import monotonic_s
from orchestrator.coordinator.requests import StatusRequest
from orchestrator.errors import OrchestratorError, TimedOut
from state.log.protocol import Partition
from state.log.sqlite import SqliteLog
from workers.fleet.client import Client


class Stage:
    """One run of the tour, as its steps share it."""

    def __init__(self, options: Options, processes: Processes, show: Show) -> None:
        self.options = options
        self.processes = processes
        self.show = show
        self.random = random.Random(options.seed)
        self.seconds: dict[str, float] = {}
        self.checks: list[dict[str, Any]] = []
        self.hand_overs: list[dict[str, Any]] = []
        self.moved: set[str] = set()
        self.failpoint = options.folder / "die-now"
        self.inputs: list[Partition] = []
        self.log: SqliteLog
        self.client: Client
        self.fleet: Process
        self.producer: Process

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]], seconds: float) -> None:
        """Wait for a condition. Raises TimedOut; a fleet or producer that died ends the wait at once."""
        deadline = monotonic_s() + seconds
        while not await holds():
            for name in ("fleet", "producer"):
                process: Process | None = getattr(self, name, None)
                if process is not None and process.returncode not in (None, 0):
                    raise OrchestratorError(f"the {name} ended: {self.processes.last_line(name)}")
            if monotonic_s() > deadline:
                raise TimedOut(f"waited {seconds:.0f} s for {what}")
            await asyncio.sleep(0.1)

    async def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = await self.client.ask(StatusRequest(), retry_s=60)
        return answer

    def check(self, check: str, expected: object, found: object, ok: bool) -> None:
        self.checks.append({"check": check, "expected": expected, "found": found, "ok": ok})

    async def processed_more(self, records: int) -> None:
        """Live traffic flows, before the next step and not by the clock."""
        start = await self.processed()

        async def enough() -> bool:
            return await self.processed() >= start + records or self.producer.returncode is not None

        await self.until(f"{records} more live records", enough, 60)

    async def processed(self) -> int:
        positions = await self.log.positions(app.id, self.inputs)
        return sum(offset for p, offset in positions.items() if p.topic in ("flights", "weather"))
