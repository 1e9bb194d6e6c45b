"""What a restore takes, from a changelog and from a snapshot, and what tasks beside it feel: `make bench-restore`.

One rule: a restore is timed by the journal of the instance, from the moment in which the first task opens its stores until
the last one has started; its CPU time is that of its workers' processes. State folders are deleted before. What others feel is
measured as in bench-handover. On Kafka, Kafka Streams restores the same counts from the same broker: from the first partition
that begins to the last that has, which leaves out what it does before.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.handover import PLACES
from benchmarks.handover_apps import PARTITIONS, TOPIC
from benchmarks.moving import APP, NAME, WAIT_S, Keys, Load, Place, Watch, caught_up, fill, fleet, place_on, verb
from benchmarks.processes import cpu_s, family
from benchmarks.rivals import streams_classpath
from benchmarks.section import write_section
from state.log.kafka import broker
from workers.journal import read_journals
from workers.log.logs import open_log

RESTORE = Path(__file__).parent / "restore_java" / "Restore.java"
DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
REST_S = 6.0


@dataclass(slots=True)
class Restores:
    """Of one way: seconds by the clock, and CPU seconds of its workers from the first task that opens to the last that runs."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


async def restores(place: Place, rounds: int, *flags: str, workers: int = 1) -> Restores:
    found = Restores()
    for _ in range(rounds):
        _forget(place)
        async with fleet(place, 1, "--workers", str(workers), *flags) as process:
            seconds, cpu = await _one(place, process.pid, workers)
            found.seconds.append(seconds)
            found.cpu.append(cpu)
    return found


def _forget(place: Place) -> None:
    """The state of every instance; the secret of the application stays, which a cluster has the print of."""
    for folder in (place.folder / "state" / NAME).glob("i*"):
        shutil.rmtree(folder)


async def _one(place: Place, fleet_pid: int, count: int) -> tuple[float, float]:
    deadline, begun = time.monotonic() + WAIT_S, 0.0
    while time.monotonic() < deadline:
        workers = [one.pid for one in family(fleet_pid) if one.kind == "worker"]
        rows = [row for row in _journal(place) if row["what"] == "started"]
        if len(workers) == count and not begun and any((place.folder / "state" / NAME).glob("i1/*/counts/CURRENT")):
            begun = sum(map(cpu_s, workers))
        if len({row["task"] for row in rows}) == PARTITIONS:
            first = min(row["at_ms"] - row["opened_ms"] for row in rows)
            return (max(row["at_ms"] for row in rows) - first) / 1e3, sum(map(cpu_s, workers)) - begun
        await asyncio.sleep(0.01)
    raise SystemExit("the tasks do not start")


def _journal(place: Place) -> list[dict[str, Any]]:
    return read_journals(place.folder / "state" / NAME)


def streams_restores(place: Place, rounds: int) -> dict[str, Restores]:
    """Kafka Streams' count of the same input on the same broker; nothing where there is no Java, or no jars."""
    classpath = streams_classpath(place.folder / "classes", RESTORE)
    if classpath is None:
        return {}
    java = [broker.java() or "java", "-Xmx1g", "-cp", classpath, "Restore"]
    where = [place.url.removeprefix("kafka://"), TOPIC, str(PARTITIONS), str(place.folder / "streams")]
    subprocess.run([*java, *where, "fill", "1"], check=True, timeout=WAIT_S * 2)
    found = {"Kafka Streams, its JVM just started": Restores(), "Kafka Streams, once more in the same JVM": Restores()}
    for _ in range(rounds):
        done = subprocess.run(
            [*java, *where, "restore", "2"], check=True, stdout=subprocess.PIPE, text=True, timeout=WAIT_S
        )
        for one, line in zip(found.values(), done.stdout.splitlines()[-2:], strict=True):
            seconds, cpu = map(float, line.split())
            one.seconds.append(seconds)
            one.cpu.append(cpu)
    return found


async def take_snapshot(place: Place) -> None:
    words = ["snapshot", APP, "--log", place.url, "--snapshots", str(place.folder / "snapshots")]
    command = [sys.executable, "-m", "orchestrator", *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, errors = await process.communicate()
    if process.returncode:
        raise SystemExit(errors.decode())


@dataclass(slots=True)
class Beside:
    """Milliseconds: the longest gap of each task in rest, and of those that process while their instance restores others."""

    rest: list[float] = field(default_factory=list)
    restoring: list[float] = field(default_factory=list)
    seconds: float = 0.0


async def beside(place: Place, keys: Keys, rate: int) -> Beside:
    """Two instances; one leaves, and the other restores what that had while it processes its own."""
    found = Beside()
    _forget(place)
    async with fleet(place, 2):
        log = await open_log(place.url, create=False)
        try:
            await caught_up(log, 0)
            watch, load = Watch(log), Load(log, keys, rate)
            running = [asyncio.create_task(watch.run()), asyncio.create_task(load.run())]
            try:
                await _shared(place)
                await asyncio.sleep(REST_S)
                began = time.monotonic()
                stays = {number for number in range(PARTITIONS) if _last(place, number) == "i1"}
                await verb(place, "scale-down", NAME, "--instances", "i2", "--wait")
                ended = time.monotonic()
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
        finally:
            await log.close()
    found.seconds = ended - began
    for number in range(PARTITIONS):
        found.rest.append(watch.longest(number, began - REST_S / 2, began) * 1e3)
        if number in stays:
            found.restoring.append(watch.longest(number, began, ended) * 1e3)
    return found


async def _shared(place: Place) -> None:
    """Both instances run their half."""
    deadline = time.monotonic() + WAIT_S
    while sum(_last(place, number) == "i1" for number in range(PARTITIONS)) != PARTITIONS // 2:
        if time.monotonic() > deadline:
            raise SystemExit("the instances do not share the tasks")
        await asyncio.sleep(0.1)


def _last(place: Place, number: int) -> str:
    """The instance that started the task last."""
    rows = [row for row in _journal(place) if row["what"] == "started" and row["task"] == f"0_{number}"]
    return str(rows[-1]["instance"]) if rows else ""


# ---- the table


async def measure(kind: str, count: int, rate: int, rounds: int) -> str:
    keys = Keys(count)
    with place_on(kind) as place:
        await fill(place, keys)
        async with fleet(place, 1):
            log = await open_log(place.url, create=False)
            await caught_up(log, 0)
            await log.close()
        found = {
            "the changelog": await restores(place, rounds),
            "the changelog, two workers": await restores(place, rounds, workers=2),
        }
        if kind == "kafka":
            found |= await asyncio.to_thread(streams_restores, place, rounds)
        await take_snapshot(place)
        found["a snapshot"] = await restores(place, rounds, "--snapshots", str(place.folder / "snapshots"))
        felt = await beside(place, keys, rate)
    return text(kind, count, rate, found, felt)


def text(kind: str, count: int, rate: int, found: dict[str, Restores], felt: Beside) -> str:
    lines = [
        f"## Restores: {PLACES[kind]}",
        "",
        f"`make bench-restore`, {date.today()}; {platform.machine()}, {platform.system()}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f}; {count:,} keys with a count of 8 bytes in {PARTITIONS} tasks, all restored by one "
        "instance whose state was deleted; it has one worker where no other number stands.",
        "",
        "| from | times | seconds p50 | longest | entries a second | entries a CPU-second |",
        "|---|---|---|---|---|---|",
    ]
    for what, one in found.items():
        middle, cpu = statistics.median(one.seconds), statistics.median(one.cpu)
        lines.append(
            f"| {what} | {len(one.seconds)} | {middle:.2f} | {max(one.seconds):.2f} | {count / middle:,.0f} | {count / cpu:,.0f} |"
        )
    lines += [
        "",
        f"An instance that processes {rate // 2:,} records a second and restores four tasks of another one beside it "
        f"({felt.seconds:.1f} s): longest gap between two commits of its tasks {max(felt.restoring):.0f} ms (median "
        f"{statistics.median(felt.restoring):.0f}), in 3 s of rest {max(felt.rest):.0f} ms (median {statistics.median(felt.rest):.0f}).",
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="What a restore takes.")
    parser.add_argument("--log", default="embedded", choices=sorted(PLACES))
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="print alone; docs/benchmarks.md stays")
    args = parser.parse_args()
    shown = asyncio.run(measure(args.log, args.keys, args.rate, args.rounds))
    print(shown)
    if not args.dry:
        write_section(DOCS, "restore" if args.log == "embedded" else f"restore {args.log}", shown)


if __name__ == "__main__":
    main()
