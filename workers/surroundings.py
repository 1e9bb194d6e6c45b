"""What surrounds a process of the group: its clock on the wall, chance, its disk, its log, its variables and its
child processes.

One rule: the shell reaches the world through the running loop (sockets, time, threads, signals, pipes) and through a
Surroundings, and through nothing else. REAL is the operating system; a simulation gives a loop and a Surroundings of
its own, and runs the same shell.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orchestrator.clocks import lasting_s, monotonic_s, wall_ms
from orchestrator.coordinator.handshake import Credentials
from pipeline.app import App
from pipeline.loading import load
from state.directory import StateDirectory
from state.log.protocol import GroupLog
from state.store.buffered import BufferedStore
from state.store.protocol import Store
from state.store.rocksdb import Budget
from workers.app_version import app_version, package_version
from workers.calls.blame import CallNote, remove_notes
from workers.connection.credentials import instance_credentials
from workers.connection.thread_line import ThreadLine
from workers.connection.uplink import Line
from workers.end_watch import end_within
from workers.journal import Journal
from workers.log.logs import BUSY_MS, open_log
from workers.spec import InstanceSpec, WorkerSpec, encode_spec

# What a worker is given where the operator has not set it. Arrow's own pool keeps some 30 MB that `malloc` gives back.
_WORKERS_OWN = {"ARROW_DEFAULT_MEMORY_POOL": "system"}


class WorkerProcess(Protocol):
    """A started worker process, as its instance holds it."""

    @property
    def returncode(self) -> int | None:
        """Its exit code (below 0: the signal that killed it); None while it runs."""

    def send(self, request: bytes) -> None:
        """Writes one line to its standard input; nothing happens where it has ended."""

    def kill(self) -> None:
        """Ends it at once; nothing happens where it has ended."""

    def is_stopped(self) -> bool:
        """Whether it is stopped (SIGSTOP); False where the operating system does not tell."""

    async def wait(self) -> int:
        """Returns its exit code once it has ended."""


class ChildProcess:
    """A worker process of the operating system."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def send(self, request: bytes) -> None:
        pipe = self._process.stdin
        if self.returncode is None and pipe is not None and not pipe.is_closing():
            pipe.write(request + b"\n")

    def kill(self) -> None:
        if self.returncode is None:
            self._process.kill()

    def is_stopped(self) -> bool:
        try:
            text = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return False
        return text.rpartition(")")[2].split()[0] in ("T", "t")

    async def wait(self) -> int:
        return await self._process.wait()


async def start_worker(spec: WorkerSpec) -> ChildProcess:
    """Starts `python -m workers.worker.worker_main`; the spec is the first line of its standard input."""
    home = str(Path(__file__).resolve().parent.parent)
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = ChildProcess(
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # what lies in the current folder hides nothing of ours
            "-m",
            "workers.worker.worker_main",
            stdin=asyncio.subprocess.PIPE,
            env={**_WORKERS_OWN, **os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    )
    process.send(encode_spec(spec).encode())
    return process


async def open_instance_log(spec: InstanceSpec) -> GroupLog:
    """Opens the log that the spec names; it is there already. Its calls soon report that it is busy: PatientLog waits."""
    return await open_log(
        spec.log, create=False, synchronous=spec.synchronous, busy_timeout_ms=min(BUSY_MS, spec.log_timeout_ms)
    )


async def open_requests() -> asyncio.StreamReader:
    """What the parent of this process writes to it; its end is the end of the parent."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def on_sigterm(first: Callable[[], None], again: Callable[[], None]) -> None:
    """Calls `first` in the loop that runs when a SIGTERM comes to this process, and `again` at once for each later one: a call of the
    app's may hold the loop. Not with a handler of the loop, which a child that the app forks would share: a SIGTERM to that child
    would be one to this process."""
    loop, own, count = asyncio.get_running_loop(), os.getpid(), 0

    def handle(number: int, frame: object) -> None:
        nonlocal count
        if os.getpid() == own:
            count += 1
            if count > 1:
                again()
            else:
                loop.call_soon_threadsafe(first)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """See the module text. `exit` ends the process at once, without any clean-up; `end_within` sees that it does end
    (end_watch.py), `on_sigterm` what a SIGTERM does, and `freeze` takes its objects out of the collector's: of a process that is the
    group's alone, which OF_A_PROCESS is for."""

    wall_ms: Callable[[], int] = wall_ms
    clock: Callable[[], float] = monotonic_s  # what bounds a turn: read after each record, and by the watch of calls
    contact_clock: Callable[[], float] = lasting_s  # how old contact with the coordinator is: others count on it
    new_line: Callable[[], Line] = ThreadLine
    new_id: Callable[[], str] = lambda: secrets.token_hex(4)
    credentials: Callable[[InstanceSpec], Credentials] = instance_credentials
    open_log: Callable[[InstanceSpec], Awaitable[GroupLog]] = open_instance_log
    open_directory: Callable[[Path, str, str], StateDirectory] = StateDirectory
    open_store: Callable[[Path, Mapping[str, str], Budget], Store] = lambda path, stamp, budget: BufferedStore(
        path, stamp=stamp, cache=budget
    )
    open_journal: Callable[[Path, Mapping[str, object]], Journal] = lambda path, facts: Journal(path, **facts)
    open_note: Callable[[Path], CallNote] = CallNote  # of the call under way: a worker writes it, its parent reads it
    remove_notes: Callable[[Path], None] = remove_notes
    load_app: Callable[[str, Path], App] = load
    app_version: Callable[[App], str] = app_version
    package_version: Callable[[], str] = package_version
    requests: Callable[[], Awaitable[asyncio.StreamReader]] = open_requests
    start_worker: Callable[[WorkerSpec], Awaitable[WorkerProcess]] = start_worker
    exit: Callable[[int], None] = os._exit
    end_within: Callable[[float, int], Callable[[], None]] = lambda limit_s, code: lambda: None
    on_sigterm: Callable[[Callable[[], None], Callable[[], None]], None] = lambda first, again: None
    freeze: Callable[[], None] = lambda: None  # what is there now is there to the end: the collector may leave it out
    not_running_s: Callable[[], float] = lambda: (
        0.0
    )  # how long the calling thread has not run; what is measured is a difference
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)  # the variables of the process


def not_running_s() -> float:
    """Of this thread, so far: it waited for something to do, or for a processor."""
    return monotonic_s() - time.thread_time()


REAL = Surroundings()
OF_A_PROCESS = Surroundings(end_within=end_within, on_sigterm=on_sigterm, freeze=gc.freeze, not_running_s=not_running_s)
