"""Who counts in `benchmarks/structured_streaming.py`: a fleet of ours, and a driver of Spark with its query. Each is started, grows from
one core's worth to two, and is stopped, in the way its own pages say.

One rule: both are processes of the operating system whose whole tree is counted, the driver's Java and its Python workers included.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import streaming_apps
from benchmarks.processes import tree_cpu_s
from benchmarks.streaming_apps import PARTITIONS, name_of

STREAMING_PYTHON = "STREAMING_PYTHON"
READY_S, STOP_S = 180.0, 30.0
JAVA_WARM_S = 40.0  # Java compiles what runs often, and a micro-batch a second is not often


@dataclass(frozen=True, slots=True)
class Place:
    """A broker, and a folder for state."""

    address: str
    folder: Path

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"


@dataclass(frozen=True, slots=True)
class Job:
    """One run: its name, the topic it reads and the one it writes."""

    name: str
    topic: str
    out: str


class SideFailed(Exception):
    """A side did not come up, or ended; its last lines."""


@dataclass(slots=True)
class Side:
    """What both have. `label` names the row."""

    label: str
    form: str
    guarantee: str
    frequent: bool = False  # commits more often, which is of no use to a backlog
    warm_s: float = 10.0  # under the load before what is measured

    async def start(self, place: Place, job: Job, cores: int) -> None:
        raise NotImplementedError

    async def grow(self) -> str:
        """From one to two; how."""
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    def cpu_s(self) -> float:
        raise NotImplementedError

    def last_words(self) -> str:
        """The end of what it wrote, for one that failed."""
        raise NotImplementedError


@dataclass(slots=True)
class Ours(Side):
    flags: tuple[str, ...] = ()
    _place: Place | None = None
    _job: Job | None = None
    _fleet: Process | None = None

    async def start(self, place: Place, job: Job, cores: int) -> None:
        self._place, self._job = place, job
        around = {streaming_apps.RUN: job.name, streaming_apps.TOPIC: job.topic, streaming_apps.OUT: job.out}
        words = ("run", f"benchmarks.streaming_apps:{self.form}", "--instances", str(cores), *self.flags)
        with self._log().open("ab") as out:
            self._fleet = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "orchestrator",
                *words,
                *self._where(),
                stdout=out,
                stderr=out,
                env={**os.environ, **around},
            )

    async def grow(self) -> str:
        words = ("scale-up", self._name(), "--by", "1", "--wait")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "orchestrator", *words, *self._where(), stdout=PIPE, stderr=PIPE
        )
        _, errors = await process.communicate()
        if process.returncode:
            raise SideFailed(f"{' '.join(words)}: {errors.decode().strip()}")
        return "`scale-up --by 1`, while it runs"

    async def stop(self) -> None:
        if self._fleet is not None and self._fleet.returncode is None:
            self._fleet.send_signal(signal.SIGTERM)
            await asyncio.wait_for(self._fleet.wait(), STOP_S)

    def cpu_s(self) -> float:
        return tree_cpu_s(self._fleet.pid) if self._fleet is not None else 0.0

    def last_words(self) -> str:
        return self._log().read_text()[-2_000:]

    def application(self) -> str:
        return self._name()

    def _name(self) -> str:
        return name_of(self.form, self._job.name if self._job else "0")

    def _log(self) -> Path:
        assert self._place is not None
        return self._place.folder / f"{self._name()}.log"

    def _where(self) -> tuple[str, ...]:
        assert self._place is not None
        return ("--log", self._place.url, "--state-dir", str(self._place.folder / "state" / self._name()))


@dataclass(slots=True)
class _Driver:
    """A process of `benchmarks/streaming_job.py`, which reads commands and answers, a line each."""

    process: Process
    log: Path

    async def says(self, what: str, within_s: float) -> str:
        """Waits for that answer; the version of Spark."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(within_s):
                while line := await self.process.stdout.readline():
                    if line.startswith(b"{") and (said := json.loads(line))["what"] == what:
                        return str(said["version"])
        except TimeoutError:
            raise SideFailed(f"Spark did not say {what} within {within_s:.0f} s: {self.last_words()}") from None
        raise SideFailed(f"Spark ended before it said {what}: {self.last_words()}")

    def last_words(self) -> str:
        return self.log.read_text()[-2_000:]

    async def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        await self.process.stdin.drain()

    def let_go(self) -> None:
        """The query stops, then Spark."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def end(self) -> None:
        if self.process.returncode is None:
            self.let_go()
            try:
                await asyncio.wait_for(self.process.wait(), STOP_S)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()


@dataclass(slots=True)
class Streaming(Side):
    python: str = ""
    version: str = ""
    driver_start_s: float = 0.0
    _place: Place | None = None
    _job: Job | None = None
    _drivers: list[_Driver] = field(default_factory=list)

    async def start(self, place: Place, job: Job, cores: int) -> None:
        self._place, self._job = place, job
        await (await self._driver(cores)).tell(f"run {job.topic} {job.out}")

    async def warm_up(self, place: Place, topic: str, cores: int) -> None:
        """A driver that has counted a topic, and is asked to `drain` others."""
        self._place, self._job = place, Job(f"{self.form}-drain", topic, f"{topic}-out-{self.form}")
        await self._driver(cores)
        await self.drain(topic, self._job.out, READY_S)

    async def drain(self, topic: str, out: str, within_s: float) -> None:
        await self._drivers[-1].tell(f"drain {topic} {out}")
        await self._drivers[-1].says("drained", within_s)

    async def grow(self) -> str:
        """The second driver is up before the first one's query stops; it goes on at the checkpoint."""
        first = self._drivers[-1]
        began = time.monotonic()
        second = await self._driver(2)
        self.driver_start_s = time.monotonic() - began
        first.let_go()
        await first.says("stopped", STOP_S)
        assert self._job is not None
        await second.tell(f"run {self._job.topic} {self._job.out}")
        await first.end()
        return "another driver from its checkpoint"

    async def stop(self) -> None:
        for driver in self._drivers:
            await driver.end()

    def cpu_s(self) -> float:
        return sum(tree_cpu_s(driver.process.pid) for driver in self._drivers if driver.process.returncode is None)

    def last_words(self) -> str:
        return self._drivers[-1].last_words() if self._drivers else ""

    async def _driver(self, cores: int) -> _Driver:
        assert self._place is not None and self._job is not None
        log = self._place.folder / f"{self._job.name}-{len(self._drivers)}.log"
        words = [str(Path(__file__).with_name("streaming_job.py")), self.form, "--broker", self._place.address]
        words += ["--checkpoints", str(self._place.folder / f"checkpoints-{self._job.name}")]
        words += ["--cores", str(cores), "--partitions", str(PARTITIONS)]
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(self.python, *words, stdin=PIPE, stdout=PIPE, stderr=errors)
        made = _Driver(process, log)
        self._drivers.append(made)
        self.version = await made.says("ready", READY_S)
        return made


def ours() -> list[Side]:
    return [
        Ours("ours, a call for each record", "record", "exactly once"),
        Ours("ours, commits every 20 ms", "record", "exactly once", frequent=True, flags=("--commit-interval", "20ms")),
        Ours("ours, `batch=True`", "batch", "exactly once"),
        Ours("ours, `columns=True`", "columns", "exactly once"),
    ]


def spark(python: str | None) -> list[Side]:
    """Nothing where no Python that has it is named."""
    if python is None:
        return []
    rows = [
        ("Spark, `groupBy().count()`, RocksDB", "groupby"),
        ("Spark, `groupBy().count()`, state in memory", "groupby-memory"),
        ("Spark, `applyInPandasWithState`, RocksDB", "python"),
    ]
    return [Streaming(label, form, "at least once", warm_s=JAVA_WARM_S, python=python) for label, form in rows]
