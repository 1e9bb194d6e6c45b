"""What a record costs a worker, beside a bare loop over the same bytes: `make bench-stream`.

One rule: a row is a ratio of two figures of one run, in CPU time of each process, measured in turns. What the bare loops do and
leave out is said in benchmarks/bare_loop.py. The same count in Quix Streams and Kafka Streams is measured in the first turn, where
these are here (benchmarks/rivals.py).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

from benchmarks import bare_loop
from benchmarks.bare_log import copy_log
from benchmarks.bare_loop import BARE, LOOPS, REKEYING, WAITING, WITH_LOG, WITH_RECORDS
from benchmarks.bars import bars
from benchmarks.rivals import ABSENT, EXACTLY, LEAST, QUIX, STREAMS, WARM, Count, Rivals
from benchmarks.section import write_section
from benchmarks.stream_apps import APPS, JSON, PARTITIONS, TOPIC
from pipeline.values.partitioner import partition_of
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.log.sqlite import SqliteLog, open_sqlite

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
HOT_KEYS = 20_000
RIVAL_RECORDS = 200_000
REPARTITION = "rekeying-by-tail-repartition"
WAIT_S = 300.0
TICKS = os.sysconf("SC_CLK_TCK")
OWN_LOOPS = {
    "record": WITH_RECORDS,
    "least": WITH_RECORDS,
    "batch": WITH_RECORDS,
    "columns": WITH_LOG,
    "expiring": WITH_RECORDS,
    "rekeying": REKEYING,
    "waiting": WAITING,
}
PLAIN = "record"  # the form that others are a share of


@dataclass(frozen=True, slots=True)
class Input:
    """What is counted: so many records of so many keys, as JSON or 100 bytes."""

    name: str
    records: int
    keys: int
    json: bool = False


async def write_input(path: Path, one: Input) -> None:
    log = await open_sqlite(path, create=True)
    await log.create_topic(TopicSpec(TOPIC, PARTITIONS))
    value = b'{"amount": 7, "note": "' + b"x" * 76 + b'"}' if one.json else b"x" * 100
    made: dict[Partition, list[NewRecord]] = {}
    for number in range(one.records):
        key = b"key-%012d" % (number * 7_919 % one.keys)
        made.setdefault(Partition(TOPIC, partition_of(key, PARTITIONS)), []).append(
            NewRecord(key, value, 1_000 + number)
        )
        if number % 20_000 == 19_999 or number == one.records - 1:
            await log.append(made)
            made = {}
    await log.close()


# ---- the worker


class Cost(NamedTuple):
    """Records per CPU-second from the first commit to the last one, and the most memory the process had (None: not asked)."""

    rate: float
    peak_mib: float | None = None


def run_worker(folder: Path, source: Path, form: str) -> Cost:
    log = folder / "log.db"
    copy_log(source, log)
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "run",
        f"benchmarks.stream_apps:{form.replace('-', '_')}",
        "--log",
        f"sqlite:{log}",
    ]
    with subprocess.Popen([*command, "--state-dir", str(folder / "state")], stdout=subprocess.DEVNULL) as fleet:
        try:
            return asyncio.run(_rate(log, form, fleet))
        finally:
            fleet.send_signal(signal.SIGTERM)
            fleet.wait(30)


async def _rate(log_path: Path, form: str, fleet: subprocess.Popen[bytes]) -> Cost:
    """Watches the positions of the application; what the worker does before its first commit, its start, is left out."""
    log, deadline = await open_sqlite(log_path, create=False), time.monotonic() + WAIT_S
    inputs = [Partition(TOPIC, number) for number in range(PARTITIONS)]
    others = [Partition(REPARTITION, number) for number in range(PARTITIONS)] if form == "rekeying" else []
    begun: tuple[int, float] | None = None
    try:
        end = sum((await log.ends(inputs)).values())
        while time.monotonic() < deadline and fleet.poll() is None:
            await asyncio.sleep(0.02)
            done = sum((await log.positions(form, inputs)).values())
            if done and begun is None:
                begun = done, cpu_s(worker_of(fleet.pid))
            if done == end and begun is not None and await _are_done(log, form, others):
                worker = worker_of(fleet.pid)
                return Cost((end - begun[0]) / (cpu_s(worker) - begun[1]), peak_mib(worker))
    finally:
        await log.close()
    raise SystemExit(f"the worker of {form} has not processed its input in {WAIT_S:g} s")


async def _are_done(log: SqliteLog, form: str, partitions: list[Partition]) -> bool:
    if not partitions:
        return True
    ends, positions = await log.ends(partitions), await log.positions(form, partitions)
    return all(positions.get(partition, 0) >= end for partition, end in ends.items())


def worker_of(fleet: int) -> int:
    for instance in _children(fleet):
        for worker in _children(instance):
            return worker
    raise SystemExit("the fleet has no worker")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mib(pid: int) -> float:
    """The most memory that the process has had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


# ---- the run


def measure(
    inputs: list[Input], forms: list[str], rounds: int, loops: Sequence[str] = (BARE,), asked: Collection[str] = ()
) -> dict[tuple[str, str], list[Cost]]:
    """By input and form; the bare loops and the rivals that are `asked` for have their names."""
    costs: dict[tuple[str, str], list[Cost]] = {}
    with tempfile.TemporaryDirectory() as root:
        rivals = Rivals(asked, Path(root) / "rivals")
        for one in inputs:
            source = Path(root) / f"{one.name}.db"
            asyncio.run(write_input(source, one))
            for turn in range(rounds):
                for form in (*loops, *(f for f in forms if (f in JSON) == one.json)):
                    folder = Path(root) / f"{one.name}-{form.replace(' ', '-')}-{turn}"
                    folder.mkdir()
                    if form in LOOPS:
                        cost = Cost(one.records / bare_loop.run(form, folder, source))
                    else:
                        cost = run_worker(folder, source, form)
                    _note(costs, one, form, cost)
                    shutil.rmtree(folder)
            for name, guarantee in of_rivals(rivals) if not one.json else ():
                keys = None if one.keys == one.records else one.keys
                rate = rivals.rate(name, Count("plain", min(one.records, RIVAL_RECORDS), keys, guarantee))
                if rate is not None:
                    _note(costs, one, f"{name}, {guarantee} once", Cost(rate))
    return costs


def of_rivals(rivals: Rivals) -> list[tuple[str, str]]:
    """Both guarantees of Kafka Streams; Quix Streams exactly once."""
    return [(name, how) for name in rivals.names for how in ((EXACTLY,) if name == QUIX else (EXACTLY, LEAST))]


def _note(costs: dict[tuple[str, str], list[Cost]], one: Input, form: str, cost: Cost) -> None:
    costs.setdefault((one.name, form), []).append(cost)
    memory = "" if cost.peak_mib is None else f", {cost.peak_mib:,.0f} MiB"
    print(f"{one.name:8} {form:28} {cost.rate:12,.0f} records per CPU-second{memory}", flush=True)


def rates(costs: dict[tuple[str, str], list[Cost]]) -> dict[tuple[str, str], float]:
    """The median of each."""
    return {what: statistics.median(cost.rate for cost in found) for what, found in costs.items()}


def text(costs: dict[tuple[str, str], list[Cost]], records: int, rounds: int) -> str:
    found = rates(costs)
    absent = [ABSENT[name] for name in (QUIX, STREAMS) if not any(form.startswith(name) for _, form in found)]
    rows = []
    for (name, form), rate in found.items():
        peaks = [cost.peak_mib for cost in costs[name, form] if cost.peak_mib is not None]
        memory = f"{max(peaks):,.0f}" if peaks else ""
        shares = [_share(found, name, rate, other) for other in (BARE, OWN_LOOPS.get(form, ""), PLAIN)]
        rows.append(f"| {name} | {form} | {rate:,.0f} | {' | '.join(shares)} | {memory} |")
    return "\n".join(
        [
            "## A record, beside a bare loop",
            "",
            f"`make bench-stream`, {date.today()}; {platform.machine()}, {platform.system()}, Python "
            f"{platform.python_version()}; {records:,} records, 16-byte keys, 100-byte values, commits every 100 ms, exactly "
            "once unless it says least; records per CPU-second of the worker's process between its first commit and its last, "
            f"median of {rounds}. The bare loop is without a log; the one with it reads its input there and commits to it, as "
            "a worker does; the one with keys at hand has decoded them before, and reads, commits and writes alone; the one with records makes each record an object and calls the function of `batch` with a "
            "dict, and promises nothing. Its own loop: of columns the one with the log, of rekeying and waiting those that write "
            "a record again and give the event loop a turn, of the others the one with records. Memory: the most that the worker's process had resident. Other frameworks: "
            f"{RIVAL_RECORDS:,} records, once, on a broker whose time does not count, Kafka Streams behind {WARM:,} that warm "
            f"it up. {' '.join(absent)} Trust the ratios.",
            "",
            "![records per CPU-second](stream.svg)",
            "",
            "| input | form | records per CPU-second | of the bare loop | of its own loop | of record | MiB |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _share(found: dict[tuple[str, str], float], name: str, rate: float, other: str) -> str:
    return f"{rate / found[name, other]:.2f}" if (name, other) in found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description="What a record costs, beside a bare loop.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forms", default=",".join(APPS))
    parser.add_argument("--inputs", default="hot,unique,json")
    parser.add_argument("--rivals", default="quix,streams", help="those that are measured where they are here")
    parser.add_argument("--dry", action="store_true", help="print alone; docs/benchmarks.md stays")
    args = parser.parse_args()
    every = [
        Input("hot", args.records, HOT_KEYS),
        Input("unique", args.records, args.records),
        Input("json", args.records, HOT_KEYS, json=True),
    ]
    inputs = [one for one in every if one.name in args.inputs.split(",")]
    costs = measure(inputs, args.forms.split(","), args.rounds, LOOPS, args.rivals.split(","))
    found = text(costs, args.records, args.rounds)
    print(found)
    if not args.dry:
        write_section(DOCS, "stream", found)
        DOCS.with_name("stream.svg").write_text(
            bars({f"{name}: {form}": rate for (name, form), rate in rates(costs).items()})
        )


if __name__ == "__main__":
    main()
