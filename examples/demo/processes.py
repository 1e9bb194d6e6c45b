"""The processes that the tour starts. One rule: each in a process group of its own, and all of them end with the tour."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import OrchestratorError

TERM_S = 15.0


class Processes:
    """Starts `python -m ...` with output into files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[tuple[str, asyncio.subprocess.Process]] = []

    async def start(self, name: str, module: str, *words: str) -> asyncio.subprocess.Process:
        """Start a module; stdout and stderr go to `<folder>/<name>.log`."""
        home = str(Path(__file__).resolve().parent.parent.parent)
        paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        with (self._folder / f"{name}.log").open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                *words,
                cwd=self._folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": paths, "ORCHESTRATOR_LOG_LEVEL": "INFO"},
                start_new_session=True,
            )
        self._running.append((name, process))
        return process

    async def run(self, name: str, module: str, *words: str) -> None:
        """Start and wait. Raises OrchestratorError with the last line it said, if it fails."""
        process = await self.start(name, module, *words)
        if await process.wait() != 0:
            raise OrchestratorError(f"{name} failed: {self.last_line(name)}")

    def last_line(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        lines = (
            [line for line in path.read_text(errors="replace").splitlines() if line.strip()] if path.exists() else []
        )
        return lines[-1] if lines else f"it said nothing; see {path}"

    async def stop_all(self) -> None:
        """Ask, wait, then kill what is left, with everything in its group."""
        for _, process in self._running:
            if process.returncode is None:
                process.terminate()
        waiting = [process.wait() for _, process in self._running]
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waiting), TERM_S)
        for _, process in self._running:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
