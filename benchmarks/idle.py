"""What rest costs, and how soon a record is processed that comes then: `make bench-idle`.

One rule: every figure is of whole processes of the operating system: CPU time of all that `orchestrator run` started,
itself included, and the time from a write in another process to the answer that a third party can read. What a fleet does
while it starts is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchmarks.idle_apps import ANSWERS, PARTITIONS, QUESTIONS
from benchmarks.processes import family, usage
from benchmarks.section import write_section
from pipeline.values.partitioner import partition_of
from state.log.batches import decode
from state.log.protocol import NewRecord, Partition
from state.log.sqlite import SqliteLog, open_sqlite

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
START_S, SETTLE_S, ANSWER_S = 60.0, 5.0, 10.0
COMMIT = "20ms"  # of the fleets whose answers are timed: the default is 100 ms
BARS = {1: 0.01, 4: 0.03}  # of a core, by instances


@dataclass(frozen=True, slots=True)
class Rest:
    """A fleet that has nothing to do: its share of a core and its wake-ups a second, by kind of process."""

    instances: int
    share: float
    wakes: float
    by_kind: dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Answers:
    """Milliseconds from before a write until the record was processed, and until its answer could be read."""

    processed: list[float]
    answered: list[float]


@asynccontextmanager
async def fleet(folder: Path, instances: int, *flags: str) -> AsyncIterator[tuple[int, SqliteLog]]:
    """The process id of a fleet all of whose tasks run, and its log."""
    log_path = folder / "log.db"
    command = [sys.executable, "-m", "orchestrator", "run", "benchmarks.idle_apps:idle", "--instances", str(instances)]
    command += ["--log", f"sqlite:{log_path}", "--state-dir", str(folder / "state"), *flags]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    try:
        log = await _opened(log_path, process)
        try:
            await _answers_everywhere(log)
            yield process.pid, log
        finally:
            await log.close()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _opened(path: Path, process: asyncio.subprocess.Process) -> SqliteLog:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.returncode is None:
        if path.exists():
            log = await open_sqlite(path, create=False)
            if len(await log.topics([QUESTIONS, ANSWERS])) == 2:
                return log
            await log.close()
        await asyncio.sleep(0.1)
    raise SystemExit("the fleet has not begun")


async def _answers_everywhere(log: SqliteLog) -> None:
    """Every task has answered: all of them run."""
    made: dict[Partition, list[NewRecord]] = {}
    number = 0
    while len(made) < PARTITIONS:
        key = b"key-%d" % number
        made.setdefault(Partition(QUESTIONS, partition_of(key, PARTITIONS)), [NewRecord(key, b"0", 1_000)])
        number += 1
    await log.append(made)
    partitions, deadline = [Partition(QUESTIONS, number) for number in range(PARTITIONS)], time.monotonic() + START_S
    while sum((await log.positions("idle", partitions)).values()) < PARTITIONS:
        if time.monotonic() > deadline:
            raise SystemExit("not every task of the fleet runs")
        await asyncio.sleep(0.1)


# ---- rest


async def rest(instances: int, seconds: float) -> Rest:
    with tempfile.TemporaryDirectory() as root:
        async with fleet(Path(root), instances) as (pid, log):
            await log.close()  # the benchmark's own reader is not to be counted
            await asyncio.sleep(SETTLE_S)
            before, began = {one.pid: usage(one.pid) for one in family(pid)}, time.monotonic()
            await asyncio.sleep(seconds)
            found: dict[str, tuple[float, float]] = {}
            took = time.monotonic() - began
            for one in family(pid):
                now, then = usage(one.pid), before[one.pid]
                share, wakes = found.get(one.kind, (0.0, 0.0))
                found[one.kind] = share + (now.cpu_s - then.cpu_s) / took, wakes + (now.wakes - then.wakes) / took
    return Rest(instances, sum(s for s, _ in found.values()), sum(w for _, w in found.values()), found)


# ---- a record that comes then


async def answers(instances: int, count: int) -> Answers:
    """One record after the other, each some time after the answer to the one before, so that the fleet rests between."""
    found = Answers([], [])
    with tempfile.TemporaryDirectory() as root:
        async with fleet(Path(root), instances, "--commit-interval", COMMIT) as (_, log):
            chance = random.Random(1)
            for number in range(count):
                await asyncio.sleep(0.05 + chance.random() * 0.1)
                processed, answered = await _one(log, b"key-%d" % number)
                found.processed.append(processed)
                found.answered.append(answered)
    return found


async def _one(log: SqliteLog, key: bytes) -> tuple[float, float]:
    number = partition_of(key, PARTITIONS)
    place = Partition(ANSWERS, number)
    reader = log.reader()
    try:
        reader.add(place, (await log.ends([place]))[place])
        began = time.monotonic_ns()
        await log.append({Partition(QUESTIONS, number): [NewRecord(key, b"1", 2_000)]})
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            for part in await reader.poll(wait_ms=1_000):
                ended = time.monotonic_ns()
                for record in decode(part.data, part.position):
                    if record.key == key and record.value is not None:
                        return (int.from_bytes(record.value, "big") - began) / 1e6, (ended - began) / 1e6
    finally:
        await reader.close()
    raise SystemExit(f"no answer in {ANSWER_S:g} s")


# ---- the run


def text(rests: list[Rest], timed: list[tuple[int, Answers]], seconds: float) -> str:
    lines = [
        "## At rest",
        "",
        f"`make bench-idle`, {date.today()}; {platform.machine()}, {platform.system()}, Python "
        f"{platform.python_version()}; {PARTITIONS} tasks with a table each, no records, default settings, {seconds:g} s; CPU time "
        "of all processes of the fleet.",
        "",
        "| instances | of a core | bar | wake-ups a second | of these: workers | instances | `run` |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in rests:
        kinds = [one.by_kind.get(kind, (0.0, 0.0)) for kind in ("worker", "instance", "run")]
        shown = " | ".join(f"{share:.2%}, {wakes:,.0f}" for share, wakes in kinds)
        lines.append(
            f"| {one.instances} | {one.share:.2%} | {BARS.get(one.instances, 0):.0%} | {one.wakes:,.0f} | {shown} |"
        )
    lines += [
        "",
        f"A record that comes then, written by another process, commits every {COMMIT}, in milliseconds from before it is "
        "written (bars: processed p50 5; answered p50 12, p99 25):",
        "",
        "| instances | records | processed p50 | p99 | answer can be read p50 | p99 |",
        "|---|---|---|---|---|---|",
    ]
    for instances, found in timed:
        figures = [_percentiles(found.processed), _percentiles(found.answered)]
        shown = " | ".join(f"{p50:.1f} | {p99:.1f}" for p50, p99 in figures)
        lines.append(f"| {instances} | {len(found.processed)} | {shown} |")
    return "\n".join([*lines, ""])


def _percentiles(found: list[float]) -> tuple[float, float]:
    return statistics.median(found), statistics.quantiles(found, n=100)[98]


async def measure(sizes: list[int], seconds: float, count: int) -> str:
    rests = [await rest(size, seconds) for size in sizes] if seconds else []
    timed = [(size, await answers(size, count)) for size in sizes] if count else []
    return text(rests, timed, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="What rest costs, and how soon a record is processed that comes then.")
    parser.add_argument("--instances", default="1,4")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--dry", action="store_true", help="print alone; docs/benchmarks.md stays")
    args = parser.parse_args()
    found = asyncio.run(measure([int(size) for size in args.instances.split(",")], args.seconds, args.records))
    print(found)
    if not args.dry:
        write_section(DOCS, "idle", found)


if __name__ == "__main__":
    main()
