"""What a backfill costs beside one plain process over the same file: `make bench-backfill` (Linux, Java).

One rule: a row is one run of both, each a command of its own from its start to its end, and both leave the same entries in the
changelogs of a log of their own. The plain process reads the file in its order, gives each record to the TaskProcess of
its task, keeps the tables in dicts, and appends the final values; it has no Spark, no snapshot and no promise if it dies.
CPU seconds are those of a command and of all that it started, Java included.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.processes import TICKS, children
from benchmarks.section import write_section
from benchmarks.stream_apps import APPS, JSON, TOPIC
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from pipeline.values.partitioner import partition_of
from state.log.protocol import NewRecord
from state.log.sqlite import open_sqlite
from workers.commands.consume import read_all
from workers.prepare import Prepared, prepare

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
STREAM_APPS = Path(__file__).with_name("stream_apps.py")
HOT_KEYS = 20_000
WRITE_ROWS, RUN_RECORDS, APPEND_RECORDS = 200_000, 2_000, 20_000
LOOK_S = 0.05
BECOME_PARENT_OF_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
FORMS = {"count": "record", "JSON sum": "structs", "count, columns": "columns"}
BUSY = " Others used the machine meanwhile, one run more than the next: the ratios of seconds say little, those of CPU seconds more."
STAGES = ("start", "read", "encode", "shuffle", "processors", "write")


class Input(NamedTuple):
    """So many rows of so many keys, as JSON or 100 bytes."""

    rows: int
    keys: int
    json: bool


class Cost(NamedTuple):
    """Of one command: seconds by the clock, CPU seconds, and what it printed."""

    wall_s: float
    cpu_s: float
    printed: str


def write_input(path: Path, one: Input) -> None:
    value = b'{"amount": 7, "note": "' + b"x" * 76 + b'"}' if one.json else b"x" * 100
    schema = pa.schema([("key", pa.string()), ("value", pa.binary()), ("timestamp_ms", pa.int64())])
    with pq.ParquetWriter(path, schema) as file:
        for first in range(0, one.rows, WRITE_ROWS):
            numbers = range(first, min(first + WRITE_ROWS, one.rows))
            keys = [f"key-{number * 7_919 % one.keys:012d}" for number in numbers]
            times = [1_000 + number for number in numbers]
            file.write_table(pa.table([keys, [value] * len(keys), times], schema=schema))


# ---- one plain process


async def plain(app_id: str, source: Path, log_path: Path) -> None:
    app = APPS[app_id]
    log = await open_sqlite(log_path, create=True)
    prepared = await prepare(log, app)
    (sub,) = prepared.topology.subtopologies
    stores = [{table: DictStore() for table in sub.tables} for _ in range(sub.partitions)]
    tasks = [TaskProcess(app, sub, number, stores[number], prepared.counts()) for number in range(sub.partitions)]
    waiting: list[list[tuple[str, SourceRecord]]] = [[] for _ in tasks]

    def run(number: int) -> None:
        task = tasks[number]
        task.run(waiting[number])
        for table, writes in task.collect().writes.items():
            stores[number][table].write(writes)
        task.mark_applied()
        waiting[number] = []

    offset = 0
    for batch in pq.ParquetFile(source).iter_batches(RUN_RECORDS * sub.partitions):
        keys, values, times = (batch.column(name).to_pylist() for name in ("key", "value", "timestamp_ms"))
        for key, value, at_ms in zip(keys, values, times, strict=True):
            data = key.encode()
            offset += 1
            waiting[partition_of(data, sub.partitions)].append((TOPIC, SourceRecord(offset, at_ms, data, value)))
        for number in range(sub.partitions):
            run(number)
    await _append(log, prepared, stores)
    await log.close()


async def _append(log: Any, prepared: Prepared, stores: Sequence[Mapping[str, DictStore]]) -> None:
    for task in prepared.tasks():
        for table, store in stores[task.id.partition].items():
            changelog = prepared.changelog(task.id, table)
            made = [NewRecord(key, store.data[key], 0) for key in sorted(store.data)]
            for first in range(0, len(made), APPEND_RECORDS):
                await log.append({changelog: made[first : first + APPEND_RECORDS]})


# ---- both, from outside


class Meter:
    """CPU seconds of all processes below this one, whoever waits for them: each is looked at until it is gone."""

    def __init__(self) -> None:
        self._spent: dict[tuple[int, str], float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def cpu_s(self) -> float:
        return sum(self._spent.values())

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            self._look(os.getpid())

    def _look(self, parent: int) -> None:
        with suppress(OSError):  # it is gone
            for pid in children(parent):
                with suppress(OSError, IndexError):
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    self._spent[pid, fields[19]] = (int(fields[11]) + int(fields[12])) / TICKS
                self._look(pid)


def cost(command: Sequence[str]) -> Cost:
    """Raises SystemExit where the command fails. What its processes leave running is waited for as well."""
    begun = time.monotonic()
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors, Meter() as meter:
        first = subprocess.Popen(command, stdout=printed, stderr=errors)
        wall = 0.0
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            if pid == first.pid:
                first.returncode = os.waitstatus_to_exitcode(status)
                wall = time.monotonic() - begun
        for file in (printed, errors):
            file.seek(0)
        if first.returncode:
            raise SystemExit(f"{' '.join(command)}: {errors.read().decode()}")
        return Cost(wall, meter.cpu_s, printed.read().decode())


def run_plain(app_id: str, source: Path, folder: Path) -> Cost:
    return cost([sys.executable, "-m", "benchmarks.backfill", "--plain", app_id, str(source), str(folder / "plain.db")])


def run_spark(app_id: str, source: Path, folder: Path, cores: int) -> Cost:
    app = f"{STREAM_APPS}:{app_id.replace('-', '_')}"  # the file alone: its package is most of this repository
    where = ["--log", f"sqlite:{folder / 'spark.db'}", "--snapshots", str(folder / "snapshots")]
    words = ["backfill", app, f"{TOPIC}={source}", *where, "--master", f"local[{cores}]", "--json"]
    return cost([sys.executable, "-m", "orchestrator", *words])


async def entries(path: Path, app_id: str) -> dict[bytes | None, bytes | None]:
    """The final values in a log."""
    log = await open_sqlite(path, create=False)
    try:
        (table,) = APPS[app_id].tables.values()
        return {record.key: record.value for _, record in await read_all(log, table.changelog)}
    finally:
        await log.close()


def compare(app_id: str, folder: Path) -> int:
    """How many final values both have. Raises SystemExit where they differ."""
    one, other = (asyncio.run(entries(folder / name, app_id)) for name in ("plain.db", "spark.db"))
    if one != other:
        raise SystemExit(f"{app_id}: the plain process and the backfill give different answers")
    return len(one)


# ---- the table


class Row(NamedTuple):
    name: str
    rows: int
    plain: Cost
    spark: Cost

    @property
    def profile(self) -> dict[str, float]:
        facts = json.loads(self.spark.printed)
        return {"start": facts["seconds"]["start of Spark"], **facts.get("profile", {})}


def warm(cores: int) -> None:
    """Two small backfills: Java keeps its classes for those that come later, which is what each but a first one finds."""
    for _ in range(2):
        with tempfile.TemporaryDirectory() as place:
            source = Path(place) / "history.parquet"
            write_input(source, Input(1_000, 10, False))
            run_spark("record", source, Path(place), cores)


def measure(sizes: Sequence[int], forms: Mapping[str, str], cores: int) -> list[Row]:
    ctypes.CDLL(None).prctl(BECOME_PARENT_OF_ORPHANS, 1, 0, 0, 0)
    warm(cores)
    found = []
    for rows in sizes:
        for is_json in sorted({app_id in JSON for app_id in forms.values()}):
            chosen = {name: app_id for name, app_id in forms.items() if (app_id in JSON) == is_json}
            with tempfile.TemporaryDirectory() as place:
                source = Path(place) / "history.parquet"
                write_input(source, Input(rows, HOT_KEYS, is_json))
                for name, app_id in chosen.items():
                    with tempfile.TemporaryDirectory(dir=place) as made:
                        folder = Path(made)
                        one = Row(
                            name, rows, run_plain(app_id, source, folder), run_spark(app_id, source, folder, cores)
                        )
                        kept = compare(app_id, folder)
                    found.append(one)
                    print(f"{line(one)} {kept} entries", flush=True)
                    print(f"  {json.loads(one.spark.printed)['seconds']} {one.profile}", flush=True)
    return found


def line(one: Row) -> str:
    plain_, spark = one.plain, one.spark
    return (
        f"| {one.name} | {one.rows:,} | {plain_.wall_s:.1f} | {plain_.cpu_s:.1f} | {spark.wall_s:.1f} | {spark.cpu_s:.1f} | "
        f"{plain_.wall_s / spark.wall_s:.2f} | {plain_.cpu_s / spark.cpu_s:.2f} |"
    )


def text(rows: Sequence[Row], cores: int) -> str:
    profiles = [
        f"| {one.name} | {one.rows:,} | {' | '.join(f'{one.profile.get(stage, 0.0):.1f}' for stage in STAGES)} |"
        for one in rows
    ]
    return "\n".join(
        [
            "## Backfill, beside one plain process",
            "",
            f"`make bench-backfill`, {date.today()}; {platform.machine()}, {platform.system()}, Python "
            f"{platform.python_version()}, load average {os.getloadavg()[0]:.1f}; local[{cores}] beside one process that reads the same Parquet file and "
            f"calls the same processors, {HOT_KEYS:,} keys, 16-byte keys, 100-byte values; each from the start of its command "
            "to its end, Java's start included, not the first of its machine; CPU seconds of all processes. Both leave the same final values. Ratios above 1: the "
            f"backfill is ahead.{BUSY if os.getloadavg()[0] > cores + 1 else ''}",
            "",
            "| app | rows | plain: seconds | CPU | Spark: seconds | CPU | plain / Spark, seconds | plain / Spark, CPU |",
            "|---|---|---|---|---|---|---|---|",
            *map(line, rows),
            "",
            f"Where a backfill spends its time. `start` and `write` are seconds by the clock; the others are seconds of the {cores} "
            "slots together.",
            "",
            f"| app | rows | {' | '.join(STAGES)} |",
            f"|---|---|{'---|' * len(STAGES)}",
            *profiles,
            "",
        ]
    )


def main() -> None:
    if sys.argv[1:2] == ["--plain"]:
        app_id, source, log_path = sys.argv[2:]
        asyncio.run(plain(app_id, Path(source), Path(log_path)))
        return
    parser = argparse.ArgumentParser(description="What a backfill costs beside one plain process.")
    parser.add_argument("--rows", default="1000000,5000000")
    parser.add_argument("--forms", default=",".join(FORMS.values()))
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--dry", action="store_true", help="print alone; docs/benchmarks.md stays")
    args = parser.parse_args()
    forms = {name: app_id for name, app_id in FORMS.items() if app_id in args.forms.split(",")}
    found = text(measure([int(rows) for rows in args.rows.split(",")], forms, args.cores), args.cores)
    print(found)
    if not args.dry:
        write_section(DOCS, "backfill", found)


if __name__ == "__main__":
    main()
