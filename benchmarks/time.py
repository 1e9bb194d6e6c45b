"""What windows, sessions and joins of streams cost a worker, beside a plain count: `make bench-time`.

One rule: a row is a ratio of two figures of one run, in CPU time of the worker's process, measured in turns. All apps count the
same records; the join gets each of them from one of two topics, and each meets one of the other. Where QUIX_PYTHON names a Python
that has quixstreams, the same counts in Quix Streams are measured in turns with ours, each on a broker of its own.
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
from datetime import date
from pathlib import Path

from benchmarks.section import write_section
from benchmarks.stream import DOCS, WAIT_S, cpu_s, worker_of
from benchmarks.time_apps import APPS, BARS, OTHER, PARTITIONS, TOPIC
from pipeline.values.partitioner import partition_of
from state.log.kafka import broker
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.log.sqlite import open_sqlite

KEYS = 20_000
APART_MS = 5  # of the two records of a pair


async def write_input(path: Path, records: int, *, is_joined: bool) -> None:
    """So many records, one a millisecond; of a join half of them in each topic, in pairs."""
    log = await open_sqlite(path, create=True)
    topics = [TOPIC, OTHER] if is_joined else [TOPIC]
    for topic in topics:
        await log.create_topic(TopicSpec(topic, PARTITIONS))
    made: dict[Partition, list[NewRecord]] = {}
    count = records // len(topics)
    for number in range(count):
        key = b"key-%012d" % (number * 7_919 % KEYS)
        for at, topic in enumerate(topics):
            where = Partition(topic, partition_of(key, PARTITIONS))
            at_ms = 1_000 + number * len(topics) + at * APART_MS
            made.setdefault(where, []).append(NewRecord(key, b"x" * 100, at_ms))
        if number % 20_000 == 19_999 or number == count - 1:
            await log.append(made)
            made = {}
    await log.close()


def run_worker(folder: Path, source: Path, form: str) -> float:
    """Returns the records per CPU-second of a worker, from its first commit to its last one."""
    log = folder / "log.db"
    for suffix in ("", "-wal", "-shm"):
        if (found := Path(f"{source}{suffix}")).exists():
            shutil.copy(found, f"{log}{suffix}")
    command = [sys.executable, "-m", "orchestrator", "run", f"benchmarks.time_apps:{form}", "--log", f"sqlite:{log}"]
    with subprocess.Popen([*command, "--state-dir", str(folder / "state")], stdout=subprocess.DEVNULL) as fleet:
        try:
            return asyncio.run(_rate(log, form, fleet))
        finally:
            fleet.send_signal(signal.SIGTERM)
            fleet.wait(30)


async def _rate(path: Path, form: str, fleet: subprocess.Popen[bytes]) -> float:
    log, deadline = await open_sqlite(path, create=False), time.monotonic() + WAIT_S
    topics = [TOPIC, OTHER] if form == "joining" else [TOPIC]
    inputs = [Partition(topic, number) for topic in topics for number in range(PARTITIONS)]
    begun: tuple[int, float] | None = None
    try:
        end = sum((await log.ends(inputs)).values())
        while time.monotonic() < deadline and fleet.poll() is None:
            await asyncio.sleep(0.02)
            done = sum((await log.positions(form, inputs)).values())
            if done and begun is None:
                begun = done, cpu_s(worker_of(fleet.pid))
            if done == end and begun is not None:
                return (end - begun[0]) / (cpu_s(worker_of(fleet.pid)) - begun[1])
    finally:
        await log.close()
    raise SystemExit(f"the worker of {form} has not processed its input in {WAIT_S:g} s")


def run_quix(python: str, folder: Path, form: str, records: int) -> float:
    """Quix Streams on the same records, with a broker of its own: records per CPU-second."""
    made = broker.prepare(folder / "broker")
    made.launch()
    try:
        where = ["--broker", made.address.removeprefix("kafka://"), "--prefix", "quix-", "--records", str(records)]
        command = [python, str(Path(__file__).with_name("quix_time.py"))]
        topics = f"{TOPIC},{OTHER}" if form == "joining" else TOPIC
        subprocess.run([*command, "write", *where, "--topics", topics], check=True, timeout=WAIT_S)
        done = subprocess.run([*command, form, *where], check=True, stdout=subprocess.PIPE, text=True, timeout=WAIT_S)
        return float(done.stdout.split()[-1])
    finally:
        made.stop(kill=True)


def measure(records: int, rounds: int, forms: list[str]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Records per CPU-second by form, ours and Quix's."""
    rates: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    python = os.environ.get("QUIX_PYTHON")
    with tempfile.TemporaryDirectory() as root:
        sources = {is_joined: Path(root) / f"joined-{is_joined}.db" for is_joined in (False, True)}
        for is_joined, source in sources.items():
            asyncio.run(write_input(source, records, is_joined=is_joined))
        for turn in range(rounds):
            for form in ("plain", *forms):
                folder = Path(root) / f"{form}-{turn}"
                folder.mkdir()
                rates.setdefault(form, []).append(run_worker(folder, sources[form == "joining"], form))
                print(f"{form:10} {rates[form][-1]:12,.0f} records per CPU-second", flush=True)
                if python:
                    theirs.setdefault(form, []).append(run_quix(python, folder, form, records))
                    print(f"{form:10} {theirs[form][-1]:12,.0f} in Quix Streams", flush=True)
                shutil.rmtree(folder)
    return rates, theirs


def text(rates: dict[str, list[float]], theirs: dict[str, list[float]], records: int, rounds: int) -> str:
    medians = {form: statistics.median(found) for form, found in rates.items()}
    quix = {form: statistics.median(found) for form, found in theirs.items()}
    rows = [
        f"| {form} | {rate:,.0f} | {rate / medians['plain']:.2f} | {BARS.get(form, '')} |"
        + (f" {quix[form]:,.0f} | {rate / quix[form]:.1f} |" if form in quix else " - | - |")
        for form, rate in medians.items()
    ]
    beside = (
        "Quix Streams exactly once on a broker, the same records, in turns with ours; the broker's time counts for neither, "
        "and ours has the log's in it."
        if quix
        else "Quix Streams was not measured: QUIX_PYTHON names no Python that has quixstreams."
    )
    return "\n".join(
        [
            "## Windows, sessions and joins, beside a plain count",
            "",
            f"`make bench-time`, {date.today()}; {platform.machine()}, {platform.system()}, Python {platform.python_version()}; "
            f"{records:,} records a millisecond apart, {KEYS:,} keys, 100-byte values; tumbling windows of a minute, hopping ones "
            "of a minute every ten seconds (six of them hold each record), sessions with a gap of 30 s, a join within ten "
            f"seconds; exactly once, commits every 100 ms; median of {rounds}. {beside} Trust the ratios.",
            "",
            "| form | records per CPU-second | of the plain count | bar | Quix Streams | ours of theirs |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What windows, sessions and joins cost, beside a plain count.")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forms", default=",".join(form for form in APPS if form != "plain"))
    parser.add_argument("--dry", action="store_true", help="print alone; docs/benchmarks.md stays")
    args = parser.parse_args()
    rates, theirs = measure(args.records, args.rounds, args.forms.split(","))
    found = text(rates, theirs, args.records, args.rounds)
    print(found)
    if not args.dry:
        write_section(DOCS, "time", found)


if __name__ == "__main__":
    main()
