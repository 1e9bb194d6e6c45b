"""Where the instances of a fleet live: the port, and processes on this machine (Spark executors: `pipeline/spark/hosting.py`).

One rule: a host starts what it is asked to start, and ends it; it decides nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Protocol

import msgspec

from workers.spec import BOUNCE, InstanceSpec, encode_spec


class Handle(Protocol):
    """A started instance."""

    async def wait(self) -> int:
        """Its exit code: 0 left or stopped, below 0 killed by that signal or HOST_GOES, else failed. Raises
        OrchestratorError where the host is gone."""

    def stop(self) -> None:
        """SIGTERM: a bounce, or with on_stop=leave it hands everything over first."""

    def bounce(self) -> None:
        """A bounce, whatever SIGTERM means to it."""

    def kill(self) -> None:
        """At once."""


class Host(Protocol):
    """Where instances live."""

    async def start(self, spec: InstanceSpec) -> Handle:
        """Raises OrchestratorError where the host is gone, OSError where it cannot start one now."""


class ProcessHandle:
    """An instance as a child process; its pipe is its leash: when this process is gone, the instance stops."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def wait(self) -> int:
        return await self._process.wait()

    def stop(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()

    def bounce(self) -> None:
        assert self._process.stdin is not None
        if self._process.returncode is None:
            self._process.stdin.write(BOUNCE)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()


class ProcessHost:
    """Instances as processes on this machine."""

    async def start(self, spec: InstanceSpec) -> ProcessHandle:
        home = str(Path(__file__).resolve().parent.parent.parent)
        paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # what lies in the current folder hides nothing of ours
            "-m",
            "workers.instance.instance",
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C goes to the fleet, which stops its instances in order
        )
        assert process.stdin is not None
        process.stdin.write(encode_spec(msgspec.structs.replace(spec, is_watched=True)).encode() + b"\n")
        return ProcessHandle(process)
