"""One machine of a life: an instance by its name, with its own folder of state and its own link, and who starts it again.

One rule: a signal meets every process of the machine at once, as where the machine itself fails; the kernel says which those are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kills.harness import ROOT

END_WITHIN_S = 60.0
TIMES = ("--session-timeout", "3s", "--disconnect-grace", "300ms", "--heartbeat", "300ms", "--commit-interval", "50ms")


class Machine:
    """Its process is None while it is down."""

    def __init__(self, folder: Path, name: str, app: str, url: str, secret: Path, words: Sequence[str]) -> None:
        self.name = name
        self.url = url
        self._app = app
        self._folder = folder
        self._secret = secret
        self._words = words
        self._begun = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.is_busy = False  # an event has it
        self.leaves = False  # for good, until it is started again

    @property
    def log(self) -> Path:
        return self._folder / f"{self.name}.log"

    @property
    def is_up(self) -> bool:
        return self._process is not None

    def stays(self) -> bool:
        return self.is_up and not self.leaves

    def ended(self) -> int | None:
        """The exit code of an instance that has ended by itself; it counts as down from now on."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._process = None
        return code

    def start(self) -> None:
        assert self._process is None, f"{self.name} runs already"
        words = ["run", self._app, "--name", self.name, "--log", self.url, "--secret-file", str(self._secret)]
        words += ["--state-dir", str(self._folder / f"state-{self.name}"), *TIMES, *self._words, "--log-level", "INFO"]
        self._begun = self._announced()
        self.leaves = False
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", *words],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def has_begun(self) -> bool:
        """Whether the process that was started last has said that it runs: it takes signals then."""
        return self._announced() > self._begun

    def _announced(self) -> int:
        return self.log.read_text().count(f"instance {self.name}, ") if self.log.exists() else 0

    def processes(self) -> list[int]:
        """All of the machine, the first one first."""
        return [] if self._process is None else _with_children(self._process.pid)

    def workers(self) -> list[int]:
        return [pid for pid in self.processes() if "worker_main" in _command(pid)]

    def kill(self) -> None:
        """Power off."""
        send(self.processes(), signal.SIGSTOP)  # so that none starts another meanwhile
        send(self.processes(), signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self._process = None

    async def end(self, number: int = signal.SIGTERM) -> int:
        """In order, by a signal, or with 0 for a wait alone; the exit code."""
        process = self._process
        assert process is not None
        if number:
            process.send_signal(number)
        try:
            code = await asyncio.to_thread(process.wait, END_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {END_WITHIN_S:.0f} s; see {self.log}") from None
        self._process = None
        return code


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _with_children(pid: int) -> list[int]:
    children: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += [int(one) for one in thread.read_text().split()]
    return [pid, *(below for child in children for below in _with_children(child))]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
