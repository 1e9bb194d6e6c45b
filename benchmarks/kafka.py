"""What a record costs on a real broker, beside the embedded log: `make bench-kafka`.

One rule: a row is a ratio of figures of one run. The same count over the same records, in turns, on a broker of this
machine and on the embedded log; CPU time is that of the worker's process between its first commit and its last one. The
broker's own is its own, as with every client of Kafka.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from datetime import date
from itertools import product
from pathlib import Path

from benchmarks import fetch_path, kafka_apps, stream
from benchmarks.fetch_path import COLUMNS, GETMANY, RECORDS, WAYS
from benchmarks.kafka_apps import FORMS, PARTITIONS
from benchmarks.rivals import ABSENT, QUIX, STREAMS, WARM, Count, Rivals
from benchmarks.section import write_section
from benchmarks.stream import HOT_KEYS, RIVAL_RECORDS, WAIT_S, Input, cpu_s, of_rivals, worker_of
from pipeline.values.partitioner import partition_of
from state.log.kafka import broker
from state.log.protocol import NewRecord, Partition, TopicSpec
from workers.log.logs import open_log

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
EMBEDDED = {"record": "record", "batch": "batch", "columns": "columns"}  # the same count in benchmarks/stream_apps.py
CHUNK = 20_000
# What is asked of each form: its share of the embedded log, of at least once, and of aiokafka's getmany.
BARS = {
    "record": (0.85, 0.90, None),
    "batch": (0.85, 0.90, None),
    "columns": (0.85, None, None),
    RECORDS: (None, None, 1.3),
    COLUMNS: (None, None, 2.5),
}
Rates = dict[tuple[str, str], list[float]]


async def write_input(url: str, one: Input) -> None:
    log = await open_log(url, create=True)
    await log.create_topic(TopicSpec(one.name, PARTITIONS))
    made: dict[Partition, list[NewRecord]] = {}
    for number in range(one.records):
        key = b"key-%012d" % (number * 7_919 % one.keys)
        place = Partition(one.name, partition_of(key, PARTITIONS))
        made.setdefault(place, []).append(NewRecord(key, b"x" * 100, 1_000 + number))
        if number % CHUNK == CHUNK - 1 or number == one.records - 1:
            await log.append(made)
            made = {}
    await log.close()


def run_worker(folder: Path, url: str, topic: str, form: str, run: str) -> float:
    """Returns the records per CPU-second of a worker."""
    app = f"benchmarks.kafka_apps:{form.replace('-', '_')}"
    command = [sys.executable, "-m", "orchestrator", "run", app, "--log", url, "--state-dir", str(folder / run)]
    around = {**os.environ, kafka_apps.RUN: run, kafka_apps.TOPIC: topic}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=around) as fleet:
        try:
            return asyncio.run(_rate(url, topic, f"{form}-{run}", fleet))
        finally:
            fleet.send_signal(signal.SIGTERM)
            fleet.wait(30)


async def _rate(url: str, topic: str, application: str, fleet: subprocess.Popen[bytes]) -> float:
    """Watches the positions of the application; what the worker does before its first commit, its start, is left out."""
    log, deadline = await open_log(url, create=False), time.monotonic() + WAIT_S
    inputs = [Partition(topic, number) for number in range(PARTITIONS)]
    begun: tuple[int, float] | None = None
    try:
        end = sum((await log.ends(inputs)).values())
        while time.monotonic() < deadline and fleet.poll() is None:
            await asyncio.sleep(0.02)
            done = sum((await log.positions(application, inputs)).values())
            if done and begun is None:
                begun = done, cpu_s(worker_of(fleet.pid))
            if done >= end and begun is not None:
                return (end - begun[0]) / (cpu_s(worker_of(fleet.pid)) - begun[1])
    finally:
        await log.close()
    raise SystemExit(f"the worker of {application} has not processed its input in {WAIT_S:g} s")


def measure(inputs: list[Input], rounds: int, asked: Collection[str]) -> tuple[Rates, Rates]:
    """Records per CPU-second by input and form, on the broker and on the embedded log; the rivals that are `asked` for have their names."""
    on_kafka: Rates = {}
    embedded: Rates = {}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        rivals = Rivals(asked, folder / "rivals")
        # Its records are of 1970: a broker would remove them half a minute after its start.
        made = broker.prepare(folder / "broker", settings={"log.retention.ms": "-1"})
        made.launch()
        try:
            for one in inputs:
                url, source = f"kafka://{made.address}", folder / f"{one.name}.db"
                asyncio.run(write_input(url, one))
                asyncio.run(stream.write_input(source, one))
                for turn in range(rounds):
                    for way in WAYS:
                        address = made.address.removeprefix("kafka://")
                        rate = fetch_path.run(way, address, one.name, PARTITIONS, one.records)
                        _note(on_kafka, one, way, "kafka", rate)
                    for form in FORMS:
                        rate = run_worker(folder, url, one.name, form, f"{one.name}-{turn}")
                        _note(on_kafka, one, form, "kafka", rate)
                        if form in EMBEDDED:
                            place = folder / f"{one.name}-{form}-{turn}"
                            place.mkdir()
                            rate = stream.run_worker(place, source, EMBEDDED[form]).rate
                            _note(embedded, one, form, "embedded", rate)
        finally:
            made.stop(kill=True)
        for one, (name, guarantee) in product(inputs, of_rivals(rivals)):
            keys = None if one.keys == one.records else one.keys
            rival = rivals.rate(name, Count("plain", min(one.records, RIVAL_RECORDS), keys, guarantee))
            if rival is not None:
                _note(on_kafka, one, f"{name}, {guarantee} once", "kafka", rival)
    return on_kafka, embedded


def _note(rates: Rates, one: Input, form: str, log: str, rate: float) -> None:
    rates.setdefault((one.name, form), []).append(rate)
    print(f"{one.name:8} {form:28} {log:8} {rate:12,.0f} records per CPU-second", flush=True)


def _shown(share: float | None, bar: float | None) -> str:
    """A share, and its bar where that is missed."""
    if share is None:
        return ""
    return f"{share:.2f}" if bar is None or share >= bar else f"{share:.2f} (bar {bar:.2f})"


def text(on_kafka: Rates, embedded: Rates, records: int, rounds: int) -> str:
    absent = [ABSENT[name] for name in (QUIX, STREAMS) if not any(form.startswith(name) for _, form in on_kafka)]
    lines = [
        "## A record on a broker",
        "",
        f"`make bench-kafka`, {date.today()}; {platform.machine()}, {platform.system()}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f}, one broker {broker.VERSION} on the same two cores; {records:,} records, 16-byte "
        f"keys, 100-byte values, commits every 100 ms; records per CPU-second of the worker's process, median of {rounds}. Bars: "
        "0.85 of the embedded log; exactly once costs 10 % over at least once at most; our reader has its records in hand "
        "for 1.3 times aiokafka's getmany, and 2.5 times as columns, where nothing is done with either. A bar that is missed "
        f"stands beside its share. Other frameworks: {RIVAL_RECORDS:,} records, once, each on a broker of its own, Kafka Streams behind "
        f"{WARM:,} that warm it up. {' '.join(absent)}",
        "",
        "| input | form | records per CPU-second | of the embedded log | of at least once | of getmany |",
        "|---|---|---|---|---|---|",
    ]
    for (name, form), found in on_kafka.items():
        rate = statistics.median(found)
        beside = embedded.get((name, form))
        least = on_kafka.get((name, {"record": "least", "batch": "least-batch"}.get(form, "")))
        others = (beside, least, on_kafka[name, GETMANY])
        shares = [rate / statistics.median(other) if other else None for other in others]
        shown = [_shown(*pair) for pair in zip(shares, BARS.get(form, (None, None, None)), strict=True)]
        lines.append(f"| {name} | {form} | {rate:,.0f} | {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="What a record costs on a real broker, beside the embedded log.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rivals", default="quix,streams", help="those that are measured where they are here")
    parser.add_argument("--dry", action="store_true", help="print alone; docs/benchmarks.md stays")
    args = parser.parse_args()
    inputs = [Input("hot", args.records, HOT_KEYS), Input("unique", args.records, args.records)]
    on_kafka, embedded = measure(inputs, args.rounds, args.rivals.split(","))
    found = text(on_kafka, embedded, args.records, args.rounds)
    print(found)
    if not args.dry:
        write_section(DOCS, "kafka", found)


if __name__ == "__main__":
    main()
