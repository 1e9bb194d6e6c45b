"""Commits at least once against exactly once, on one broker in one run: `python -m benchmarks.guarantees`.

One rule: the two take turns, a block of commits each, so that what else the machine does falls upon both. It prints the
ratio, and how far the blocks of one guarantee lie apart. A commit is what a worker with so many tasks writes in an interval:
for each task an output, a changelog and a position.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from benchmarks.section import write_section
from state.log.group_store import OwnerRecord
from state.log.kafka import broker
from state.log.kafka.cluster import KafkaOptions
from state.log.kafka.log import KafkaLog, open_kafka
from state.log.protocol import AT_LEAST_ONCE, EXACTLY_ONCE, Guarantee, NewRecord, Partition, TaskCommit, TopicSpec

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
APP, WRITER = "bench", "w"
GUARANTEES: tuple[Guarantee, ...] = (EXACTLY_ONCE, AT_LEAST_ONCE)


@dataclass
class Block:
    """One block of commits: their latencies, and the CPU time of this process."""

    ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    records: int = 0

    @property
    def rate(self) -> float:
        return self.records / self.cpu_s


def tasks_of(count: int, records: int, number: int) -> list[TaskCommit]:
    rows = [NewRecord(b"key-%d" % (one % 50), b"x" * 80, 1_000) for one in range(records // count)]
    return [
        TaskCommit(
            f"0_{task}",
            1,
            {Partition("out", task): rows, Partition("t-changelog", task): rows[:50]},
            {Partition("in", task): number},
        )
        for task in range(count)
    ]


async def block(log: KafkaLog, guarantee: Guarantee, commits: int, tasks: list[TaskCommit], pause_s: float) -> Block:
    found = Block()
    cpu = time.process_time()
    for _ in range(commits):
        began = time.perf_counter()
        await log.commit(APP, WRITER, tasks, guarantee=guarantee)
        found.ms.append((time.perf_counter() - began) * 1000)
        found.records += sum(len(rows) for task in tasks for rows in task.records.values())
        await asyncio.sleep(pause_s)
    found.cpu_s = time.process_time() - cpu
    return found


async def measure(port: int, count: int, records: int, rounds: int, commits: int) -> dict[Guarantee, list[Block]]:
    options = KafkaOptions([("127.0.0.1", port)], prefix=f"b{count}x{records}-")
    log = await open_kafka(options)
    found: dict[Guarantee, list[Block]] = {guarantee: [] for guarantee in GUARANTEES}
    try:
        for name, kind in (("out", "plain"), ("t-changelog", "changelog"), ("in", "plain")):
            await log.create_topic(TopicSpec(name, count, kind))
        lease = await log.acquire(APP, "c", "a:1", None)
        assert lease is not None
        await log.open_writer(APP, WRITER)
        await log.record_owners(lease, [OwnerRecord(f"0_{one}", 1, "m", WRITER, 1) for one in range(count)])
        for turn in range(rounds + 1):
            for guarantee in GUARANTEES if turn % 2 else reversed(GUARANTEES):
                made = await block(log, guarantee, commits, tasks_of(count, records, turn), 0.05)
                if turn:  # the first warms up
                    found[guarantee].append(made)
    finally:
        await log.close()
    return found


def row(count: int, records: int, found: dict[Guarantee, list[Block]]) -> str:
    cells: list[str] = [f"{count} x {records // count}"]
    medians: dict[Guarantee, list[float]] = {}
    for guarantee in GUARANTEES:
        blocks = found[guarantee]
        latencies = sorted(ms for one in blocks for ms in one.ms)
        p50s = [statistics.median(one.ms) for one in blocks]
        p99 = latencies[int(len(latencies) * 0.99)]
        rates = [one.rate for one in blocks]
        medians[guarantee] = [statistics.median(p50s), statistics.median(rates)]
        cells.append(f"{statistics.median(p50s):.1f} ({min(p50s):.1f}-{max(p50s):.1f}) / {p99:.0f}")
        cells.append(f"{statistics.median(rates) / 1000:.0f} k ({min(rates) / 1000:.0f}-{max(rates) / 1000:.0f})")
    once, least = medians[EXACTLY_ONCE], medians[AT_LEAST_ONCE]
    cells += [f"{least[0] / once[0]:.2f}", f"{least[1] / once[1]:.2f}"]
    return f"| {' | '.join(cells)} |"


def text(rows: list[str], rounds: int, commits: int) -> str:
    return "\n".join(
        [
            "## Commits on Kafka: at least once against exactly once",
            "",
            f"`python -m benchmarks.guarantees`, {date.today()}; {platform.machine()}, {platform.system()}, Python "
            f"{platform.python_version()}, one broker {broker.VERSION} on the same two cores. {rounds} blocks of {commits} "
            "commits of each, in turns, 50 ms apart. In brackets the lowest and the highest block: what lies within them is "
            "noise. Records are those of outputs and changelogs; CPU time is the client's alone, for building, sealing and "
            "sending: no processing, no store. Load average of the machine at the end: "
            f"{os.getloadavg()[1]:.1f} (other processes ran beside it).",
            "",
            "| tasks x records | exactly once: ms p50 / p99 | records per CPU-s | at least once: ms p50 / p99 | records per "
            "CPU-s | ratio of p50 | ratio of records per CPU-s |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Commits at least once against exactly once.")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--commits", type=int, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = broker.prepare(Path(folder) / "broker")
        made.launch()
        try:
            rows = []
            for count, records in ((1, 10), (8, 800), (8, 8_000), (64, 6_400)):
                found = asyncio.run(measure(made.port, count, records, args.rounds, args.commits))
                rows.append(row(count, records, found))
                print(rows[-1], flush=True)
        finally:
            made.stop(kill=True)
    write_section(DOCS, "guarantees", text(rows, args.rounds, args.commits))


if __name__ == "__main__":
    main()
