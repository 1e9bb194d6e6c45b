"""The floor under a hand-over: its calls of the log alone, one after another, in a process that does nothing else.

One rule: what a moved task waits for that no order of ours can leave out is in it, and nothing else: the commit by which the
owner before lets go, the owner record, the settled end of its changelog and its position, and the first commit of the next
owner. Beside a fleet on the same log it shows what the machine made of these calls at that time, and of a commit every 100 ms.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from state.log.group_store import Lease, OwnerRecord
from state.log.protocol import GroupLog, NewRecord, Partition, TaskCommit, TopicSpec
from workers.log.logs import open_log

NAME, INPUT, CHANGELOG = "bare", "bare-input", "bare-changelog"
COMMIT_S = 0.1  # as a worker commits by default
MOVES_EVERY = 3  # commits
FLUSH = 8
Span = tuple[float, float]


class _Commit(NamedTuple):
    """When it ended (monotonic seconds); of a first one after a hand-over the milliseconds since the last one before it."""

    at: float
    took_ms: float | None


class Bare:
    """What was done so far, read from the file of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _commits(self) -> list[_Commit]:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [_Commit(*json.loads(line)) for line in lines]

    def hand_overs(self, spans: list[Span]) -> list[float]:
        """What those within the spans took, in milliseconds."""
        within = [one for one in self._commits() if any(first <= one.at <= last for first, last in spans)]
        return [one.took_ms for one in within if one.took_ms is not None]

    def longest(self, spans: list[Span]) -> list[float]:
        """Milliseconds of each span: the longest time between two commits, hand-overs left out, that touches it."""
        steady = list(pairwise(self._commits()))
        gaps = [(a.at, b.at) for a, b in steady if b.took_ms is None]
        return [max((b - a for a, b in gaps if a <= last and b >= first), default=0.0) * 1e3 for first, last in spans]


@asynccontextmanager
async def beside(url: str, folder: Path) -> AsyncIterator[Bare]:
    """Commits and bare hand-overs in a process of their own, until this is left."""
    path = folder / "bare.jsonl"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.bare_moves", url, str(path), stdin=subprocess.PIPE
    )
    try:
        yield Bare(path)
    finally:
        assert process.stdin is not None
        process.stdin.close()  # its end ends the process
        await process.wait()


class _Loop:
    """Two writers that hand one scope to each other."""

    def __init__(self, log: GroupLog, lease: Lease) -> None:
        self._log = log
        self._lease = lease
        self._epoch = self._commits = 0

    async def begin(self) -> None:
        for writer in ("a", "b"):
            await self._log.open_writer(NAME, writer)
        await self._grant()

    def _writer(self) -> str:
        return "ab"[self._epoch % 2]

    async def _grant(self) -> None:
        self._epoch += 1
        owner = OwnerRecord("0_0", self._epoch, self._writer(), self._writer(), self._lease.term)
        await self._log.record_owners(self._lease, [owner])

    async def commit(self) -> _Commit:
        self._commits += 1
        written = {Partition(CHANGELOG, 0): [NewRecord(b"key", b"%d" % self._commits, 1_000)]}
        task = TaskCommit("0_0", self._epoch, written, {Partition(INPUT, 0): self._commits})
        await self._log.commit(NAME, self._writer(), [task])
        return _Commit(time.monotonic(), None)

    async def hand_over(self) -> _Commit:
        let_go = time.monotonic()
        await self._grant()
        await asyncio.gather(
            self._log.ends([Partition(CHANGELOG, 0)], settled=True),
            self._log.positions(NAME, [Partition(INPUT, 0)]),
        )
        at = (await self.commit()).at
        return _Commit(at, (at - let_go) * 1e3)


async def _run(url: str, path: Path) -> None:
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    log = await open_log(url, create=False)
    try:
        for topic in (INPUT, CHANGELOG):
            await log.create_topic(TopicSpec(topic, 1))
        lease = await log.acquire(NAME, NAME, "", None)
        assert lease is not None
        loop = _Loop(log, lease)
        await loop.begin()
        with path.open("a") as written:
            number = 0
            while not ended.done():
                number += 1
                began = time.monotonic()
                written.write(json.dumps(await loop.commit()) + "\n")
                if number % MOVES_EVERY == 0:
                    written.write(json.dumps(await loop.hand_over()) + "\n")
                if number % FLUSH == 0:
                    written.flush()
                await asyncio.sleep(max(0.0, began + COMMIT_S - time.monotonic()))
    finally:
        await log.close()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], Path(sys.argv[2])))
