"""A standalone cluster of two hosts on this machine, one of which can stand still: what Spark's speculation needs. An attempt of
a task is made twice only where another host has a slot. Hosts are addresses of the loopback.

One rule: what was started is gone when it is taken down.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

FIRST, SECOND = "127.0.0.1", "127.0.0.2"
DEADLINE_S = 300.0
SPECULATES = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.task.duration.threshold": "2s",  # for stages of one task
    "spark.locality.wait": "0",
    "spark.driver.host": FIRST,
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    "spark.cores.max": "4",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


class TwoHosts:
    """A worker with two slots on each."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.socket() as found:
            found.bind((FIRST, 0))
            self.port = found.getsockname()[1]
        self._spark = Path(str(find_spec("pyspark").origin)).parent  # type: ignore[union-attr]
        self._master = self._start("Master", "--host", FIRST, "--port", str(self.port), address=FIRST)
        self._workers = [
            self._start("Worker", self.master, "--host", at, "--cores", "2", "--memory", "1g", address=at)
            for at in (FIRST, SECOND)
        ]

    @property
    def master(self) -> str:
        return f"spark://{FIRST}:{self.port}"

    def _start(self, name: str, *words: str, address: str) -> subprocess.Popen[bytes]:
        command = [str(self._spark / "bin/spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}", *words]
        place = ["--work-dir", str(self.home / f"work-{address}")] if name == "Worker" else []
        with (self.home / f"{name}-{address}.log").open("ab") as out:
            return subprocess.Popen(
                [*command, "--webui-port", "0", *place],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "SPARK_LOCAL_IP": address, "SPARK_HOME": str(self._spark)},
                start_new_session=True,
            )

    def take_down(self) -> None:
        for process in (*self._workers, self._master):
            for pid in [*below(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()

    def lose_second(self, when: Callable[[], bool]) -> None:
        """All of the second host is killed, once `when` is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not when():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process = self._workers[1]
        for pid in [process.pid, *below(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pythons(self) -> list[int]:
        """The Python processes of the second host."""
        return [pid for pid in below(self._workers[1].pid) if b"pyspark.daemon" in command_of(pid)]

    @contextlib.contextmanager
    def second_stands_still(self, when: Callable[[], bool] = lambda: True) -> Iterator[set[int]]:
        """All Python of the second host stops as soon as `when` is true, and goes on at the end of the block. Gives the processes
        that were stopped."""
        stopped: set[int] = set()
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.002) and not when():
                continue
            while not over.wait(0.002):
                for pid in self.pythons():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGSTOP)
                        stopped.add(pid)

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield stopped
        finally:
            over.set()
            looking.join()
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


def until_ended(pids: set[int]) -> None:
    """Spark kills the attempts that it does not want any more, and the workers with them."""
    deadline = time.monotonic() + DEADLINE_S
    while any(b"pyspark.daemon" in command_of(pid) and not is_daemon(pid) for pid in pids):
        assert time.monotonic() < deadline, "Spark's workers did not end"
        time.sleep(0.05)


def is_daemon(pid: int) -> bool:
    """Whether it is the process from which the workers of an executor are forked."""
    with contextlib.suppress(OSError):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return b"pyspark.daemon" not in command_of(parent)
    return False


def below(pid: int) -> list[int]:
    """All processes that one has started, and those that these have started."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += [int(child), *below(int(child))]
    return found


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def second_attempts(events: Path) -> int:
    """How many attempts Spark has made because another was slow, by its own log of events."""
    return sum(file.read_text().count('"Speculative":true') for file in events.iterdir())
