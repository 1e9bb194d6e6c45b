"""What waits in time: windows that expire at once, timers that are pending, windows that close. `make bench-expiry`.

One rule: one task on its store on disk, as a worker runs it, without a log: what is measured is what the event loop of a worker
cannot do meanwhile. A pause is the longest of a run of records, a take, the records of its changelog, or a write of the store.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.section import write_section
from benchmarks.stream import DOCS
from orchestrator import App, ClosedWindow, Due, Record, Table, Timers, Tumbling, TumblingTable
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.time.position import BEFORE_DUE, stored
from pipeline.time.timed_view import time_bytes
from state.log import batches
from state.log.entries import Entries
from state.store.buffered import BufferedStore
from state.store.rocksdb import Budget, RocksDbStore

MINUTE_MS = 60_000
TURN = 500  # records of a turn
COMMIT = 10_000  # records of a commit
MINUTE = Tumbling(seconds=60)

expiring = App("expiring", partitions=1)
expiring_beats = expiring.topic("beats", key=str, value=int)
expiring_counts = expiring.table("counts", key=str, value=int, default=int, window=MINUTE)


@expiring.processor(expiring_beats, expiring_counts)
def count(beat: Record[str, int], counts: TumblingTable[str, int]) -> None:
    counts[beat.key] += 1


pending = App("pending", partitions=1)
pending_beats = pending.topic("beats", key=str, value=int)
pending_silent = pending.timers("silent", key=str)


@pending.processor(pending_beats, pending_silent)
def wait(beat: Record[str, int], silent: Timers[str]) -> None:
    silent[beat.key] = beat.value


@pending.when_due(pending_silent)
def fire(due: Due[str]) -> None: ...


closing = App("closing", partitions=1)
closing_beats = closing.topic("beats", key=str, value=int)
closing_counts = closing.table(
    "counts", key=str, value=int, default=int, window=MINUTE, retain=timedelta(days=365 * 100)
)
closing_sums = closing.table("sums", key=int, value=int, default=int, local=True)


@closing.processor(closing_beats, closing_counts)
def count_too(beat: Record[str, int], counts: TumblingTable[str, int]) -> None:
    counts[beat.key] += 1


@closing.when_closed(closing_counts, closing_sums)
def close(window: ClosedWindow[str, int], sums: Table[int, int]) -> None:
    sums[window.start_ms] += window.value


class Task:
    """One task of an app with its stores, and the longest pause that it has made."""

    def __init__(self, app: App, folder: Path, fill: Callable[[RocksDbStore], None] = lambda store: None) -> None:
        self.stores = {name: BufferedStore(folder / name, stamp={}, cache=Budget()) for name in app.tables}
        fill(next(iter(self.stores.values())))
        self.process = TaskProcess(app, app.topology().subtopologies[0], 0, self.stores, {})
        self.longest_s = self.longest_cpu_s = 0.0
        self.commits = 0
        self._offset = 0

    def timed(self, do: Callable[[], Any]) -> Any:
        began, began_cpu = time.perf_counter(), time.thread_time()
        result = do()
        self.longest_s = max(self.longest_s, time.perf_counter() - began)
        self.longest_cpu_s = max(self.longest_cpu_s, time.thread_time() - began_cpu)
        return result

    def pause(self) -> str:
        return f"longest pause {self.longest_cpu_s * 1000:.1f} ms of CPU ({self.longest_s * 1000:.1f} ms by the clock)"

    def run(self, records: Iterator[tuple[str, int, int]]) -> None:
        """Records of (key, time, value), with a commit after some of them and at the end."""
        turn: list[tuple[str, SourceRecord]] = []
        since = 0
        for key, at_ms, value in records:
            raw = SourceRecord(self._offset, at_ms, key.encode(), value.to_bytes(8, "big"))
            turn.append(("beats", raw))
            self._offset += 1
            if len(turn) == TURN:
                self._turn(turn)
                since, turn = since + TURN, []
            if since >= COMMIT:
                self.commit()
                since = 0
        self._turn(turn)
        self.commit()

    def _turn(self, turn: list[tuple[str, SourceRecord]]) -> None:
        """As a worker: a run ends after 50 ms, and goes on."""
        while turn:
            until = time.perf_counter() + 0.05
            turn = turn[self.timed(partial(self.process.run, turn, time.perf_counter, until)) :]
            if turn:
                self.commit()

    def commit(self) -> None:
        changes = self.timed(lambda: self.process.collect(in_parts=True))
        for table, writes in changes.writes.items():
            self.timed(lambda: batches.build(Entries(writes, 1)))  # noqa: B023
            self.timed(lambda: self.stores[table].write(writes, self._offset))  # noqa: B023
        self.process.mark_applied()
        self.commits += 1

    def close(self) -> None:
        for store in self.stores.values():
            store.close()


def expire(folder: Path, entries: int) -> str:
    """One window with so many keys is over; records of other keys go on."""

    def fill(store: RocksDbStore) -> None:
        head, value = b"w" + time_bytes(0), (1).to_bytes(8, "big")
        for first in range(0, entries, 4_000):
            last = min(entries, first + 4_000)
            store.write({head + b"key-%012d" % number: value for number in range(first, last)}, last)
        store.write({STREAM_TIME_KEY: stored((1, BEFORE_DUE, b""), 0)}, entries)
        store.flush()

    task = Task(expiring, folder, fill)
    began = time.perf_counter()
    task.run(iter([("first", 10 * MINUTE_MS, 1)]))
    number = 0
    while task.process.has_completed:
        task.run((f"live-{n}", 10 * MINUTE_MS + number, 1) for n in range(500))
        number += 1
    took_s = time.perf_counter() - began
    left = sum(1 for key, _ in task.stores["counts"].range(b"w", b"w" + time_bytes(1)))
    task.close()
    return (
        f"| {entries:,} window entries expire at once | {left} left after {task.commits:,} commits, {took_s:.0f} s | "
        f"{task.pause()} |"
    )


def timers(folder: Path, number: int) -> str:
    """So many timers are set, in no order of their due times, and come due one after the other."""
    task = Task(pending, folder)
    began = time.process_time()
    task.run((f"key-{n:012d}", 1_000, 10_000 + n * 7_919 % number) for n in range(number))
    set_s, began = time.process_time() - began, time.process_time()
    task.run(iter([("last", 20_000 + number, 30_000 + number)]))
    fired_s = time.process_time() - began
    task.close()
    return (
        f"| {number:,} timers | set: {set_s / number * 1e6:.1f} us each, fired: {fired_s / number * 1e6:.1f} us each | "
        f"{task.pause()} |"
    )


def closes(folder: Path, keys: int, kept: int) -> str:
    """A window of so many keys closes, beside others that are retained."""
    task = Task(closing, folder)
    task.run((f"key-{n:012d}", 1_000, 1) for n in range(kept))
    task.run(iter([("next", 2 * MINUTE_MS, 1)]))
    task.run((f"key-{n:012d}", 4 * MINUTE_MS, 1) for n in range(keys))
    began = time.process_time()
    task.run(iter([("last", 6 * MINUTE_MS, 1)]))
    took_s = time.process_time() - began
    task.close()
    return (
        f"| a window of {keys:,} keys closes, {kept:,} entries retained | {took_s / keys * 1e6:.1f} us a key | "
        f"{task.pause()} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="What expires, comes due and closes costs, and how long it holds up a worker."
    )
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--timers", default="10000,100000,1000000")
    parser.add_argument("--closes", default="1000,10000,100000")
    parser.add_argument("--dry", action="store_true", help="print alone; docs/benchmarks.md stays")
    args = parser.parse_args()
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as root:
        steps: list[Callable[[Path], str]] = [partial(timers, number=int(n)) for n in args.timers.split(",")]
        steps += [partial(closes, keys=int(n), kept=200_000) for n in args.closes.split(",")]
        steps.append(partial(expire, entries=args.entries))
        for number, step in enumerate(steps):
            rows.append(step(Path(root) / str(number)))
            print(rows[-1], flush=True)
    text = "\n".join(
        [
            "## What expires, comes due and closes",
            "",
            f"`make bench-expiry`, {date.today()}; {platform.machine()}, {platform.system()}, Python {platform.python_version()}; one "
            "task on its store on disk, without a log. A turn of calls ends after 50 ms by design; a pause by the clock has what other programs took.",
            "",
            "| what | cost | |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
    if not args.dry:
        write_section(DOCS, "expiry", text)


if __name__ == "__main__":
    main()
