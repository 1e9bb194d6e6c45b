"""What a backfill of a large history takes of memory and disk: `make bench-large`, and `make bench-large HISTORY=100000000` (Linux, Java).

One rule: a row is one run of the command on the embedded log, looked at from outside while it runs, and its answer is checked:
the sum of every key. Memory is what the kernel counts for a process and for no other (PSS), at its peak. What may grow with the
history is on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.processes import children
from orchestrator import App, Record, Sink, Table
from state.log.sqlite import open_sqlite
from workers.commands.consume import read_all

TOPIC, PARTITIONS = "events", 8
STEP = 7_919
WRITE_ROWS = 1_000_000
KEY_DIGITS, VALUE_DIGITS = 12, 20
LOOK_S = 0.5
MIB = 1 << 20

sums = App("sums", partitions=PARTITIONS)
sums_events = sums.topic(TOPIC, key=str, value=bytes)
sums_table = sums.table("sums", key=str, value=int, default=int)

passing = App("passing", partitions=PARTITIONS)
passing_events = passing.topic(TOPIC, key=str, value=bytes)
passing_table = passing.table("sums", key=str, value=int, default=int)
passing_out = passing.topic("out", key=str, value=bytes)


@sums.processor(sums_events, sums_table)
def add_up(event: Record[str, bytes], sums: Table[str, int]) -> None:
    sums[event.key] += int(event.value)


@passing.processor(passing_events, passing_table, passing_out)
def add_up_and_send(event: Record[str, bytes], sums: Table[str, int], out: Sink[str, bytes]) -> None:
    sums[event.key] += int(event.value)
    out.send(event.key, event.value)


# ---- the history


def keys_of(numbers: Any, keys: int) -> Any:
    return numbers * STEP % keys


def digits(numbers: Any, count: int) -> pa.Array:
    """Each number as so many digits."""
    tens = 10 ** np.minimum(np.arange(count)[::-1], 18)
    text = (numbers[:, None] // tens % 10 + ord("0")).astype(np.uint8)
    text[:, : max(0, count - 18)] = ord("0")
    starts = np.arange(len(numbers) + 1, dtype=np.int32) * count
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(starts), pa.py_buffer(text.tobytes())])


def write_history(path: Path, rows: int, keys: int, *, scattered: bool) -> None:
    """The value of a row is its number. `scattered`: its time is anywhere, else rows lie in the order of time."""
    schema = pa.schema([("key", pa.string()), ("value", pa.binary()), ("timestamp_ms", pa.int64())])
    with pq.ParquetWriter(path, schema) as file:
        for first in range(0, rows, WRITE_ROWS):
            numbers = np.arange(first, min(first + WRITE_ROWS, rows), dtype=np.int64)
            times = 1_000 + (numbers * STEP % rows if scattered else numbers)
            columns = [digits(keys_of(numbers, keys), KEY_DIGITS).cast(pa.string()), digits(numbers, VALUE_DIGITS)]
            file.write_table(pa.table([*columns, times], schema=schema))


def expected(rows: int, keys: int) -> dict[bytes, int]:
    """The sum of each key; floats of numpy are exact as far as these go."""
    found = np.zeros(keys)
    for first in range(0, rows, WRITE_ROWS):
        numbers = np.arange(first, min(first + WRITE_ROWS, rows), dtype=np.int64)
        found += np.bincount(keys_of(numbers, keys), weights=numbers, minlength=keys)
    return {b"%0*d" % (KEY_DIGITS, key): int(total) for key, total in enumerate(found.tolist())}


async def check(path: Path, app: App, rows: int, keys: int) -> None:
    """Raises SystemExit where the log has another answer."""
    log = await open_sqlite(path, create=False)
    try:
        (table,) = app.tables.values()
        entries = await read_all(log, table.changelog)
        wanted = {key: table.value_codec.encode(total) for key, total in expected(rows, keys).items() if total}
        if {record.key: record.value for _, record in entries} != wanted or len(entries) != len(wanted):
            raise SystemExit(f"{app.id}: the backfill gives another answer than the sums of its history")
    finally:
        await log.close()


# ---- what it takes


class Peaks(NamedTuple):
    """MiB at most: of a process of each kind, of all together, and of each folder."""

    memory: dict[str, float]
    disk: dict[str, float]


def kind_of(pid: int, first: int) -> str:
    if pid == first:
        return "driver"
    words = Path(f"/proc/{pid}/cmdline").read_bytes()
    return "Java" if words.partition(b"\0")[0].endswith(b"java") else "worker" if b"pyspark" in words else "other"


def pss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def below(pid: int) -> list[int]:
    found = [pid]
    with suppress(OSError):
        for child in children(pid):
            found += below(child)
    return found


def size_mib(folder: Path) -> float:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(place) / name).stat().st_blocks * 512
    return total / MIB


def watched(command: list[str], folders: dict[str, Path], environment: dict[str, str]) -> tuple[str, float, Peaks]:
    """Runs a command: what it printed, how long it took, and its peaks. Raises SystemExit where it fails."""
    peaks = Peaks({}, {})

    def higher(of: dict[str, float], name: str, value: float) -> None:
        of[name] = max(of.get(name, 0.0), value)

    begun = time.monotonic()
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(command, stdout=printed, env=environment)
        while process.poll() is None:
            total = 0.0
            for pid in below(process.pid):
                with suppress(OSError):
                    taken = pss_mib(pid)
                    total += taken
                    higher(peaks.memory, kind_of(pid, process.pid), taken)
            higher(peaks.memory, "all", total)
            for name, folder in folders.items():
                higher(peaks.disk, name, size_mib(folder))
            time.sleep(LOOK_S)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        printed.seek(0)
        return printed.read().decode(), time.monotonic() - begun, peaks


def run(rows: int, keys: int, app: App, *, scattered: bool, cores: int, more: list[str]) -> str:
    """One row of the table."""
    with tempfile.TemporaryDirectory(prefix="large-history-") as made:
        place = Path(made)
        folders = {name: place / name for name in ("history", "spark", "snapshots", "log")}
        for folder in folders.values():
            folder.mkdir()
        source, log = folders["history"] / "history.parquet", folders["log"] / "log.db"
        write_history(source, rows, keys, scattered=scattered)
        words = ["backfill", f"benchmarks.large_history:{app.id}", f"{TOPIC}={source}", "--log", f"sqlite:{log}"]
        words += ["--snapshots", str(folders["snapshots"]), "--master", f"local[{cores}]", "--json", *more]
        environment = {**os.environ, "TMPDIR": str(folders["spark"])}
        printed, took, peaks = watched([sys.executable, "-m", "orchestrator", *words], folders, environment)
        facts = json.loads(printed)
        assert facts["records_in"] == rows, facts
        asyncio.run(check(log, app, rows, keys))
        print(f"  {facts['seconds']} {facts['profile']}", flush=True)
        memory = " | ".join(f"{peaks.memory.get(name, 0):.0f}" for name in ("driver", "Java", "worker", "all"))
        disk = " | ".join(f"{peaks.disk[name]:,.0f}" for name in folders)
        name = f"{app.id}{', times anywhere' if scattered else ''}"
        return f"| {name} | {rows:,} | {keys:,} | {took:.0f} | {memory} | {disk} |"


HEAD = """\
| app | rows | keys | seconds | driver | Java | largest worker | all | history | Spark's folder | snapshots and work | log |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description="What a backfill of a large history takes of memory and disk, in MiB.")
    parser.add_argument("--rows", default="1000000,10000000")
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--outputs", action="store_true", help="the app sends each record on as well")
    parser.add_argument("--scattered", action="store_true", help="rows do not lie in the order of time")
    parser.add_argument("--more", default="", help="more words for the command")
    args = parser.parse_args()
    app = passing if args.outputs else sums
    found = [HEAD]
    for rows in args.rows.split(","):
        found.append(run(int(rows), args.keys, app, scattered=args.scattered, cores=args.cores, more=args.more.split()))
        print(found[-1], flush=True)
    print("\n".join(found))


if __name__ == "__main__":
    main()
