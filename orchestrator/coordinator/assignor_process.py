"""Long placements, off the coordinator's loop: in a process of their own (assignor_main.py), or where that fails in steps on it.

One rule: `assign_tasks` always comes back with the target assignment, whatever becomes of the process. A process that cannot be started,
dies, is silent or sends a malformed frame costs one line in the log and this assignment's time on the loop; a new one is not
started more often than once a minute. Used by shell.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from orchestrator.clocks import monotonic_s
from orchestrator.coordinator.assignor_codec import RequestEncoder
from orchestrator.coordinator.assignor_main import frame, measured
from orchestrator.errors import ProtocolError
from orchestrator.task_assignor.assign import assign_in_steps
from orchestrator.task_assignor.view import TargetAssignment, View

log = logging.getLogger("orchestrator.assignor_process")
START_EVERY_S = 60.0
ANSWER_S = 30.0  # an assignment of 200,000 tasks takes about one
BUFFER_BYTES = 1 << 20

T = TypeVar("T")


class AssignorProcess:
    """One coordinator's placements, one at a time."""

    def __init__(self, *, start_every_s: float = START_EVERY_S, answer_s: float = ANSWER_S) -> None:
        self.start_every_s = start_every_s
        self.answer_s = answer_s
        self._process: asyncio.subprocess.Process | None = None
        self._encoder = RequestEncoder()
        self._may_start_at = 0.0

    @property
    def pid(self) -> int | None:
        """Of the assignor process, if there is one."""
        return self._process.pid if self._process is not None else None

    async def assign(self, view: View) -> TargetAssignment:
        """Where every task belongs, as `assign_tasks` says."""
        if self._process is not None or monotonic_s() >= self._may_start_at:
            try:
                return await self._ask(view)
            except (OSError, asyncio.IncompleteReadError, ProtocolError, OverflowError) as error:
                what = "no answer in time" if isinstance(error, TimeoutError) else repr(error)
                log.warning("the assignor process failed (%s); builder %d tasks here", what, len(view.tasks))
                await self.close()
        return await in_turns(assign_in_steps(view))

    async def close(self) -> None:
        """Kill the process, and wait until it is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        # asyncio tells of its end once its pipes are read to theirs, and one with much that is unread is paused.
        while process.stdout is not None and await process.stdout.read(BUFFER_BYTES):
            pass
        await process.wait()

    async def _ask(self, view: View) -> TargetAssignment:
        process = self._process or await self._start()
        assert process.stdin is not None and process.stdout is not None
        request = frame(await in_turns(self._encoder.request(view)))
        async with asyncio.timeout(self.answer_s):
            process.stdin.write(request)
            await process.stdin.drain()
            length = measured(int.from_bytes(await process.stdout.readexactly(4), "big"))
            answer = await process.stdout.readexactly(length)
        return await in_turns(self._encoder.target(view, answer))

    async def _start(self) -> asyncio.subprocess.Process:
        self._may_start_at = monotonic_s() + self.start_every_s
        self._encoder = RequestEncoder()
        # It finds what this process found, also where that is not installed but sent somewhere (a Spark executor);
        # what happens to lie in the working directory it does not find (-P).
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "orchestrator.coordinator.assignor_main"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is for the coordinator, whose end is this one's end
            limit=BUFFER_BYTES,
        )
        return self._process


async def in_turns(steps: Iterator[T | None]) -> T:
    """The result, which is the first that is not None; between two steps everything else on the loop has its turn."""
    for found in steps:
        if found is not None:
            return found
        await asyncio.sleep(0)
    raise AssertionError("the steps ended without a result")
