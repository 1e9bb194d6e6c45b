"""Commits at least once, exactly once, and their requests alone, on one broker in one run: `python -m benchmarks.guarantees`.

One rule: they take turns, a block of commits each, so that what else the machine does falls upon both. It prints the
ratio, and how far the blocks of one guarantee lie apart. A commit is what a worker with so many tasks writes in an interval:
for each task a changelog, a position and, but in one row, an output. Beside them the requests of a transaction alone, which is
what no commit can be without (benchmarks/bare_commit.py).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path

from benchmarks.bare_commit import BareCommits
from benchmarks.section import write_section
from state.log.group_store import OwnerRecord
from state.log.kafka import broker
from state.log.kafka.cluster import KafkaOptions
from state.log.kafka.log import open_kafka
from state.log.protocol import AT_LEAST_ONCE, EXACTLY_ONCE, Guarantee, NewRecord, Partition, TaskCommit, TopicSpec

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
APP, WRITER = "bench", "w"
GUARANTEES: tuple[Guarantee, ...] = (EXACTLY_ONCE, AT_LEAST_ONCE)
BARE = "bare"
PAUSE_S = 0.1  # as a worker commits


@dataclass(frozen=True)
class Shape:
    """What a commit has: so many tasks, records of each, and whether these go to an output, too."""

    tasks: int
    records: int
    has_outputs: bool = True

    @property
    def name(self) -> str:
        return f"{self.tasks} x {self.records}{'' if self.has_outputs else ', changelogs alone'}"


SHAPES = (Shape(1, 10), Shape(8, 16, has_outputs=False), Shape(8, 100), Shape(8, 1_000), Shape(64, 100))


@dataclass
class Block:
    """One block of commits: their latencies, and the CPU time of this process within them."""

    ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0


def tasks_of(shape: Shape, number: int) -> list[TaskCommit]:
    rows = [NewRecord(b"key-%d" % (one % 50), b"x" * 80, 1_000) for one in range(shape.records)]

    def records(task: int) -> dict[Partition, list[NewRecord]]:
        kept = {Partition("t-changelog", task): rows[:50]}
        return {Partition("out", task): rows, **kept} if shape.has_outputs else kept

    return [TaskCommit(f"0_{task}", 1, records(task), {Partition("in", task): number}) for task in range(shape.tasks)]


async def block(commit: Callable[[], Awaitable[object]], commits: int) -> Block:
    """CPU time is that within a commit: between them the log looks at what others write."""
    found = Block()
    for _ in range(commits):
        cpu, began = time.process_time(), time.perf_counter()
        await commit()
        found.ms.append((time.perf_counter() - began) * 1000)
        found.cpu_s += time.process_time() - cpu
        await asyncio.sleep(PAUSE_S)
    return found


async def measure(port: int, shape: Shape, rounds: int, commits: int) -> dict[str, list[Block]]:
    prefix = f"b{shape.tasks}x{shape.records}{'' if shape.has_outputs else 'c'}-"
    log = await open_kafka(KafkaOptions([("127.0.0.1", port)], prefix=prefix))
    bare = BareCommits(port, prefix, tasks_of(shape, 1))
    found: dict[str, list[Block]] = {name: [] for name in (*GUARANTEES, BARE)}
    try:
        for name, kind in (("out", "plain"), ("t-changelog", "changelog"), ("in", "plain")):
            await log.create_topic(TopicSpec(name, shape.tasks, kind))
        lease = await log.acquire(APP, "c", "a:1", None)
        assert lease is not None
        await log.open_writer(APP, WRITER)
        await log.record_owners(lease, [OwnerRecord(f"0_{one}", 1, "m", WRITER, 1) for one in range(shape.tasks)])
        await bare.open()
        for turn in range(rounds + 1):
            tasks = tasks_of(shape, turn)
            ways: list[tuple[str, Callable[[], Awaitable[object]]]] = [
                (guarantee, partial(log.commit, APP, WRITER, tasks, guarantee=guarantee)) for guarantee in GUARANTEES
            ]
            ways.append((BARE, bare.commit))
            for name, commit in ways if turn % 2 else reversed(ways):
                made = await block(commit, commits)
                if turn:  # the first warms up
                    found[name].append(made)
    finally:
        bare.close()
        await log.close()
    return found


def row(shape: Shape, found: dict[str, list[Block]]) -> str:
    cells: list[str] = [shape.name]
    p50, cpu = {}, {}
    for name, blocks in found.items():
        latencies = sorted(ms for one in blocks for ms in one.ms)
        p50s = [statistics.median(one.ms) for one in blocks]
        p99 = latencies[int(len(latencies) * 0.99)]
        p50[name] = statistics.median(p50s)
        cpu[name] = statistics.median(one.cpu_s * 1000 / len(one.ms) for one in blocks)
        cells.append(f"{p50[name]:.1f} ({min(p50s):.1f}-{max(p50s):.1f}) / {p99:.0f}")
        cells.append(f"{cpu[name]:.1f}")
    cells += [f"{p50[EXACTLY_ONCE] / p50[other]:.2f}" for other in (AT_LEAST_ONCE, BARE)]
    return f"| {' | '.join(cells)} |"


def text(rows: list[str], rounds: int, commits: int) -> str:
    return "\n".join(
        [
            "## Commits on Kafka: at least once, exactly once, and the requests alone",
            "",
            f"`python -m benchmarks.guarantees`, {date.today()}; {platform.machine()}, {platform.system()}, Python "
            f"{platform.python_version()}, one broker {broker.VERSION} on the same two cores. {rounds} blocks of {commits} "
            f"commits of each, in turns, {PAUSE_S * 1000:.0f} ms apart. A row's records go to an output of each task, up to 50 of them to its "
            "changelog, too. Milliseconds p50 / p99; in brackets the lowest and the highest p50 of a block: what lies within them is noise. CPU "
            "is the client's alone, in milliseconds of a commit: no processing, no store. The requests alone are those of a transaction, with "
            "records that were built before. Load average of the machine at the end: "
            f"{os.getloadavg()[1]:.1f} (other processes ran beside it).",
            "",
            "| tasks x records | exactly once: ms | CPU | at least once: ms | CPU | the requests alone: ms | CPU | exactly once of at least "
            "once | of the requests alone |",
            "|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Commits at least once against exactly once.")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--commits", type=int, default=60)
    parser.add_argument("--dry", action="store_true", help="print alone; docs/benchmarks.md stays")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = broker.prepare(Path(folder) / "broker")
        made.launch()
        try:
            rows = []
            for shape in SHAPES:
                rows.append(row(shape, asyncio.run(measure(made.port, shape, args.rounds, args.commits))))
                print(rows[-1], flush=True)
        finally:
            made.stop(kill=True)
    if not args.dry:
        write_section(DOCS, "guarantees", text(rows, args.rounds, args.commits))


if __name__ == "__main__":
    main()
