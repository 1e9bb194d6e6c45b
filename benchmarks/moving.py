"""A fleet under a steady load, watched from outside: what the benchmarks of hand-overs and of failures stand on.

One rule: time is measured where a third party would: when what a task has committed to its changelog can be read. What
the fleet says of itself (its journals, and the lines of its coordinators) is asked only for which task moved when.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.handover_apps import CHANGELOG, PARTITIONS, TOPIC
from pipeline.values.partitioner import partition_of
from state.log.kafka import broker
from state.log.protocol import GroupLog, NewRecord, Partition, TopicSpec
from workers.log.logs import open_log

APP = "benchmarks.handover_apps:moving"
NAME = "moving"
TURN_S = 0.01  # between two writes of the producer
WAIT_S = 300.0
CHUNK = 20_000


class Keys:
    """So many keys, spread over the partitions as the partitioner spreads them."""

    def __init__(self, count: int) -> None:
        self.of: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        for number in range(count):
            key = b"key-%012d" % number
            self.of[partition_of(key, PARTITIONS)].append(key)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fleet runs: its folder, and the URL of its log."""

    folder: Path
    url: str

    def flags(self) -> list[str]:
        return ["--log", self.url, "--state-dir", str(self.folder / "state")]


@contextmanager
def place_on(kind: str) -> Iterator[Place]:
    """An empty log: "embedded", or "kafka" for one on a broker of its own."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        if kind == "embedded":
            yield Place(folder, f"sqlite:{folder / 'log.db'}")
            return
        made = broker.prepare(folder / "broker")
        made.launch()
        try:
            yield Place(folder, f"kafka://{made.address}")
        finally:
            made.stop(kill=True)


async def fill(place: Place, keys: Keys) -> None:
    """A log whose input has each key once."""
    log = await open_log(place.url, create=True)
    await log.create_topic(TopicSpec(TOPIC, PARTITIONS))
    for number, mine in enumerate(keys.of):
        for first in range(0, len(mine), CHUNK):
            made = [NewRecord(key, b"x" * 100, 1_000) for key in mine[first : first + CHUNK]]
            await log.append({Partition(TOPIC, number): made})
    await log.close()


class Load:
    """A producer of `rate` records a second, spread evenly over partitions and keys."""

    def __init__(self, log: GroupLog, keys: Keys, rate: int) -> None:
        self._log = log
        self._keys = keys
        self._rate = rate
        self.written = 0

    async def run(self) -> None:
        """Until cancelled. A producer that was late writes what is due at once."""
        began = time.monotonic()
        while True:
            due = int((time.monotonic() - began) * self._rate)
            made: dict[Partition, list[NewRecord]] = {}
            for number in range(self.written, due):
                mine = self._keys.of[number % PARTITIONS]
                key = mine[number // PARTITIONS * 7_919 % len(mine)]
                made.setdefault(Partition(TOPIC, number % PARTITIONS), []).append(NewRecord(key, b"x" * 100, 2_000))
            if made:
                await self._log.append(made)
                self.written = due
            await asyncio.sleep(TURN_S)


class Watch:
    """When a commit of each partition could be read, in monotonic seconds."""

    def __init__(self, log: GroupLog) -> None:
        self._log = log
        self.seen: list[list[float]] = [[] for _ in range(PARTITIONS)]

    async def run(self) -> None:
        reader = self._log.reader()
        try:
            places = [Partition(CHANGELOG, number) for number in range(PARTITIONS)]
            for place, end in (await self._log.ends(places)).items():
                reader.add(place, end)
            while True:
                parts = await reader.poll(wait_ms=1_000)
                now = time.monotonic()
                for number in {part.partition.number for part in parts}:
                    self.seen[number].append(now)
        finally:
            await reader.close()

    def longest(self, number: int, first: float, last: float) -> float:
        """Seconds: the longest time between two commits of a partition that touches these moments."""
        seen = self.seen[number]
        begin, end = max(0, bisect_left(seen, first) - 1), min(len(seen), bisect_right(seen, last) + 1)
        times = seen[begin:end]
        return max((b - a for a, b in pairwise(times)), default=0.0)

    def first(self, number: int, after: float) -> float:
        """The moment at which the first commit of a partition after this one could be read; there is one."""
        return self.seen[number][bisect_right(self.seen[number], after)]


@asynccontextmanager
async def fleet(place: Place, instances: int, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = [sys.executable, "-m", "orchestrator", "run", APP, "--instances", str(instances), *place.flags(), *flags]
    with (place.folder / "fleet.log").open("ab") as written:
        process = await asyncio.create_subprocess_exec(*command, stdout=written, stderr=written)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def verb(place: Place, *words: str) -> str:
    """A command of the orchestrator; ends the benchmark where it fails."""
    command = [sys.executable, "-m", "orchestrator", *words, *place.flags()]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}: {errors.decode().strip()}")
    return out.decode()


async def caught_up(log: GroupLog, slack: int) -> None:
    """The fleet has processed all but `slack` records of the input."""
    inputs = [Partition(TOPIC, number) for number in range(PARTITIONS)]
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        ends, positions = await log.ends(inputs, settled=True), await log.positions(NAME, inputs)
        if sum(ends.values()) - sum(positions.values()) <= slack:
            return
        await asyncio.sleep(0.1)
    raise SystemExit("the fleet has not processed its input")
