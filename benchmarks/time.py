"""What windows, sessions and joins of streams cost a worker, beside a plain count: `make bench-time`.

One rule: a row is a ratio of two figures of one run, in CPU time of the worker's process, measured in turns. All apps count the
same records; the join gets each of them from one of two topics, and each meets one of the other. Beside each form runs the bare loop of
that form (benchmarks/bare_time.py): what its entries alone cost. The same counts in Quix Streams and Kafka Streams are measured in
the first turn, where these are here (benchmarks/rivals.py).
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from datetime import date
from pathlib import Path

from benchmarks import bare_time
from benchmarks.bare_log import copy_log
from benchmarks.rivals import ABSENT, QUIX, STREAMS, WARM, Count, Rivals
from benchmarks.section import write_section
from benchmarks.stream import DOCS, WAIT_S, cpu_s, worker_of
from benchmarks.time_apps import APPS, BARS, OTHER, PARTITIONS, TOPIC
from pipeline.values.partitioner import partition_of
from state.log.kafka import broker
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.log.sqlite import open_sqlite

KEYS = 20_000
APART_MS = 5  # of the two records of a pair
OURS, BARE = "ours", "the bare loop"
COMMITS_A_SECOND = 10


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
    copy_log(source, log)
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


def measure(
    records: int, rounds: int, forms: list[str], rivals: Collection[str], rival_records: int
) -> dict[str, dict[str, list[float]]]:
    """Records per CPU-second by whose they are and form: OURS, BARE, and those of the rivals that are here, once."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in (OURS, BARE, QUIX, STREAMS)}

    def note(whose: str, form: str, rate: float | None) -> None:
        if rate is not None:
            found[whose].setdefault(form, []).append(rate)
            print(f"{form:10} {rate:12,.0f} records per CPU-second, {whose}", flush=True)

    with tempfile.TemporaryDirectory() as root:
        others = Rivals(rivals, Path(root) / "rivals")
        sources = {is_joined: Path(root) / f"joined-{is_joined}.db" for is_joined in (False, True)}
        for is_joined, source in sources.items():
            asyncio.run(write_input(source, records, is_joined=is_joined))
        for turn in range(rounds):
            for form in ("plain", *forms):
                folder = Path(root) / f"{form}-{turn}"
                folder.mkdir()
                source = sources[form == "joining"]
                ours = run_worker(folder, source, form)
                note(OURS, form, ours)
                note(BARE, form, bare_time.rate(form, folder / "bare", source, records, int(ours / COMMITS_A_SECOND)))
                for name in others.names if turn == 0 else ():
                    note(name, form, others.rate(name, Count(form, rival_records, KEYS)))
                shutil.rmtree(folder)
    return found


def text(found: dict[str, dict[str, list[float]]], records: int, rounds: int, rival_records: int) -> str:
    medians = {whose: {form: statistics.median(rates) for form, rates in of.items()} for whose, of in found.items()}
    ours = medians[OURS]

    def of_bare(form: str) -> str:
        bare = medians[BARE]
        return f"{bare[form]:,.0f} | {bare[form] / bare['plain']:.2f} | {ours[form] / bare[form]:.2f}"

    def beside(whose: str, form: str) -> str:
        theirs = medians[whose].get(form)
        return " - | - |" if theirs is None else f" {theirs:,.0f} | {found[OURS][form][0] / theirs:.2f} |"

    rows = [
        f"| {form} | {rate:,.0f} | {rate / ours['plain']:.2f} | {BARS.get(form, '')} | {of_bare(form)} |{beside(QUIX, form)}{beside(STREAMS, form)}"
        for form, rate in ours.items()
    ]
    rivals = [name for name in (QUIX, STREAMS) if medians[name]]
    absent = " ".join(ABSENT[name] for name in (QUIX, STREAMS) if not medians[name])
    here = (
        f"{' and '.join(rivals)}, exactly once, on a broker each, {rival_records:,} of the same records, once; ours of theirs is of that turn; the "
        "broker's time does not count, and ours has the log's in it. "
        if rivals
        else ""
    )
    if STREAMS in rivals:
        here += f"Kafka Streams {broker.VERSION} with its caches, commits every 100 ms, one thread, behind {WARM:,} records that warm it up. "
    beside_us = (here + absent).strip()
    return "\n".join(
        [
            "## Windows, sessions and joins, beside a plain count",
            "",
            f"`make bench-time`, {date.today()}; {platform.machine()}, {platform.system()}, Python {platform.python_version()}; "
            f"{records:,} records a millisecond apart, {KEYS:,} keys, 100-byte values; tumbling windows of a minute, hopping ones "
            "of a minute every ten seconds (six of them hold each record), sessions with a gap of 30 s, a join within ten "
            f"seconds; exactly once, commits every 100 ms; median of {rounds}. The bare loop of a form makes its entries by hand, and commits "
            f"them to the log as often; it keeps no promise. {beside_us} Trust the ratios.",
            "",
            "| form | records per CPU-second | of the plain count | bar | bare loop | of the plain one | ours of it "
            "| Quix Streams | ours of theirs | Kafka Streams | ours of theirs |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What windows, sessions and joins cost, beside a plain count.")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forms", default=",".join(form for form in APPS if form != "plain"))
    parser.add_argument("--rivals", default="quix,streams", help="those that are measured where they are here")
    parser.add_argument("--rival-records", type=int, default=100_000)
    parser.add_argument("--dry", action="store_true", help="print alone; docs/benchmarks.md stays")
    args = parser.parse_args()
    measured = measure(args.records, args.rounds, args.forms.split(","), args.rivals.split(","), args.rival_records)
    found = text(measured, args.records, args.rounds, args.rival_records)
    print(found)
    if not args.dry:
        write_section(DOCS, "time", found)


if __name__ == "__main__":
    main()
