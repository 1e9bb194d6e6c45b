"""What a record costs a worker, beside a bare loop over the same bytes: `make bench-stream`.

One rule: a row is a ratio of two figures of one run. The bare loop decodes the same batches to keys and values, folds a
dict with one `get` of the store per distinct key and commit, encodes, and writes the same changelog batches and the same
RocksDB store; no log, no group, no promises. Both are measured in CPU time of their own process, in turns.
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
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchmarks.section import write_section
from benchmarks.stream_apps import APPS, JSON, PARTITIONS, TOPIC
from pipeline.values.partitioner import partition_of
from state.log import batches
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.log.sqlite import SqliteLog, open_sqlite
from state.store.rocksdb import Budget, RocksDbStore

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
HOT_KEYS = 20_000
REPARTITION = "rekeying-by-tail-repartition"
COMMIT_RECORDS = 30_000  # of the bare loop: about what a worker commits in 100 ms
WAIT_S = 300.0
TICKS = os.sysconf("SC_CLK_TCK")


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


def run_worker(folder: Path, source: Path, form: str) -> float:
    """Returns the records per CPU-second of a worker, from its first commit to its last one."""
    log = folder / "log.db"
    for suffix in ("", "-wal", "-shm"):
        if (found := Path(f"{source}{suffix}")).exists():
            shutil.copy(found, f"{log}{suffix}")
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


async def _rate(log_path: Path, form: str, fleet: subprocess.Popen[bytes]) -> float:
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
                return (end - begun[0]) / (cpu_s(worker_of(fleet.pid)) - begun[1])
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


# ---- the bare loop


async def bare(folder: Path, source: Path) -> float:
    """Returns the CPU seconds of the loop; run in a process of its own."""
    log = await open_sqlite(source, create=False)
    found: list[tuple[int, bytes]] = []
    reader = log.reader()
    for number in range(PARTITIONS):
        reader.add(Partition(TOPIC, number), 0)
    while parts := await reader.poll(max_bytes_per_partition=256 << 10):
        found += [(part.partition.number, part.data) for part in parts]
    await reader.close()
    await log.close()
    stores = [RocksDbStore(folder / f"bare-{n}", stamp={}, cache=Budget()) for n in range(PARTITIONS)]
    began = time.process_time()
    waiting = 0
    counts: list[dict[bytes, int]] = [{} for _ in stores]
    for number, data in found:
        fold = counts[number]
        for key, _ in batches.pairs(data, 0):
            assert key is not None
            if key in fold:
                fold[key] += 1
            else:
                stored = stores[number].get(key)
                fold[key] = 1 if stored is None else int.from_bytes(stored, "big") + 1
            waiting += 1
        if waiting >= COMMIT_RECORDS:
            _commit(stores, counts)
            waiting = 0
    _commit(stores, counts)
    took = time.process_time() - began
    for store in stores:
        store.close()
    return took


def _commit(stores: list[RocksDbStore], counts: list[dict[bytes, int]]) -> None:
    for store, fold in zip(stores, counts, strict=True):
        if fold:
            writes = {key: value.to_bytes(8, "big") for key, value in fold.items()}
            batches.build([NewRecord(key, value, 1_000) for key, value in writes.items()])
            store.write(writes, store.offset + len(writes))
            fold.clear()


def run_bare(folder: Path, source: Path) -> float:
    code = (
        "import asyncio, sys; from pathlib import Path; from benchmarks.stream import bare; "
        "print(asyncio.run(bare(Path(sys.argv[1]), Path(sys.argv[2]))))"
    )
    done = subprocess.run([sys.executable, "-c", code, folder, source], check=True, capture_output=True, text=True)
    return float(done.stdout)


# ---- the run


def measure(inputs: list[Input], forms: list[str], rounds: int) -> dict[tuple[str, str], list[float]]:
    """Records per CPU second by input and form; "bare" is the bare loop."""
    rates: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as root:
        for one in inputs:
            source = Path(root) / f"{one.name}.db"
            asyncio.run(write_input(source, one))
            for turn in range(rounds):
                for form in ("bare", *(f for f in forms if (f in JSON) == one.json)):
                    folder = Path(root) / f"{one.name}-{form}-{turn}"
                    folder.mkdir()
                    rate = (
                        one.records / run_bare(folder, source) if form == "bare" else run_worker(folder, source, form)
                    )
                    rates.setdefault((one.name, form), []).append(rate)
                    print(f"{one.name:8} {form:14} {rate:12,.0f} records per CPU-second", flush=True)
                    shutil.rmtree(folder)
    return rates


def text(rates: dict[tuple[str, str], list[float]], records: int, rounds: int) -> str:
    rows = [
        f"| {name} | {form} | {statistics.median(found):,.0f} | "
        f"{statistics.median(found) / statistics.median(rates[name, 'bare']):.2f} |"
        for (name, form), found in rates.items()
    ]
    return "\n".join(
        [
            "## A record, beside a bare loop",
            "",
            f"`make bench-stream`, {date.today()}; {platform.machine()}, {platform.system()}, Python "
            f"{platform.python_version()}; {records:,} records, 16-byte keys, 100-byte values, commits every 100 ms, exactly "
            f"once unless it says least; records per CPU-second of the worker's process between its first commit and its last, median of {rounds}. "
            "Trust the ratios.",
            "",
            "| input | form | records per CPU-second | of the bare loop |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What a record costs, beside a bare loop.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forms", default=",".join(APPS))
    parser.add_argument("--inputs", default="hot,unique,json")
    parser.add_argument("--dry", action="store_true", help="print alone; docs/benchmarks.md stays")
    args = parser.parse_args()
    every = [
        Input("hot", args.records, HOT_KEYS),
        Input("unique", args.records, args.records),
        Input("json", args.records, HOT_KEYS, json=True),
    ]
    inputs = [one for one in every if one.name in args.inputs.split(",")]
    rates = measure(inputs, args.forms.split(","), args.rounds)
    found = text(rates, args.records, args.rounds)
    print(found)
    if not args.dry:
        write_section(DOCS, "stream", found)


if __name__ == "__main__":
    main()
