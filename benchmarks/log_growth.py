"""What a log that lives for years costs beside a young one: `make bench-log`, and `make bench-log RECORDS=100000000`.

One rule: the same work is done on the same file when it is small and when it is large: append a million records, read them as
a tail is read, open the file, restore a changelog of a million entries into a store, remove a million old records while others
write. A figure is the best of the rounds; what counts is the ratio of large to small.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path

from benchmarks.section import write_section
from state.changelog import apply
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.log.sqlite import SqliteLog, open_sqlite
from state.store.buffered import BufferedStore
from state.store.rocksdb import Budget

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
TOPIC, PARTITIONS = "events", 8
UNIT = 1_000_000
PART = 20_000  # records of an append
OPENS = 5
TRIMMED = 20_000  # records of a partition that go at once, as upkeep removes them
BESIDE = 100  # records of an append beside the removal


@dataclass(slots=True)
class Costs:
    """CPU seconds of this process for a million records, and milliseconds by the clock."""

    append_s: float
    tail_s: float
    restore_s: float
    open_ms: float
    longest_append_ms: float


NAMES = {
    "append_s": "append 1,000,000 records (CPU s)",
    "tail_s": "read the last 1,000,000 (CPU s)",
    "restore_s": "restore 1,000,000 entries (CPU s)",
    "open_ms": "open (ms)",
    "longest_append_ms": "longest append of 100 records while 1,000,000 old ones are removed (ms)",
}


def part(first: int, count: int, keys: int) -> dict[Partition, list[NewRecord]]:
    """Some records in all partitions."""
    made: dict[Partition, list[NewRecord]] = {Partition(TOPIC, number): [] for number in range(PARTITIONS)}
    listed = list(made.values())
    value = b"x" * 100
    for number in range(first, first + count):
        listed[number % PARTITIONS].append(NewRecord(b"key-%012d" % (number * 7_919 % keys), value, 1_000 + number))
    return made


async def append(log: SqliteLog, records: int, first: int) -> float:
    """Returns the CPU seconds; making the records is left out."""
    took = 0.0
    for at in range(first, first + records, PART):
        made = part(at, min(PART, first + records - at), UNIT)
        began = time.process_time()
        await log.append(made)
        took += time.process_time() - began
    return took


async def tail(log: SqliteLog, records: int) -> float:
    reader, left = log.reader(), records
    for partition, end in (await log.ends([Partition(TOPIC, number) for number in range(PARTITIONS)])).items():
        reader.add(partition, end - records // PARTITIONS)
    began = time.process_time()
    while left > 0:
        left -= sum(one.next_position - one.position for one in await reader.poll(max_bytes_per_partition=256 << 10))
    took = time.process_time() - began
    await reader.close()
    return took


async def opening(path: Path) -> float:
    """Milliseconds by the clock, until the log has answered once."""
    found: list[float] = []
    for _ in range(OPENS):
        began = time.monotonic()
        log = await open_sqlite(path, create=False)
        await log.ends([Partition(TOPIC, 0)])
        found.append((time.monotonic() - began) * 1000)
        await log.close()
    return min(found)


async def restore(log: SqliteLog, folder: Path, name: str) -> float:
    """A changelog of its own, written to the end of the file, is read into a new store."""
    partition = Partition(name, 0)
    await log.create_topic(TopicSpec(name, 1, "changelog"))
    for at in range(0, UNIT, PART):
        entries = [NewRecord(b"key-%012d" % number, b"%08d" % number, 1_000) for number in range(at, at + PART)]
        await log.append({partition: entries})
    store = BufferedStore(folder / name, stamp={}, cache=Budget())
    reader = log.reader()
    reader.add(partition, 0)
    began = time.process_time()
    while store.offset < UNIT:
        for one in await reader.poll(max_bytes_per_partition=1 << 20):
            apply(store, one)
    store.flush()
    took = time.process_time() - began
    await reader.close()
    store.close()
    shutil.rmtree(folder / name)
    await log.delete_topic(name)
    return took


async def removal(path: Path, first: int) -> float:
    """The longest append of one process' connection while another removes a million old records; milliseconds by the clock."""
    log, other = await open_sqlite(path, create=False), await open_sqlite(path, create=False)
    partitions = [Partition(TOPIC, number) for number in range(PARTITIONS)]
    starts = await other.starts(partitions)
    done = asyncio.Event()

    async def remove() -> None:
        each = UNIT // PARTITIONS
        for at in range(TRIMMED, each + TRIMMED, TRIMMED):
            await other.trim({partition: start + min(at, each) for partition, start in starts.items()})
        done.set()

    removing, longest = asyncio.create_task(remove()), 0.0
    while not done.is_set():
        began = time.monotonic()
        await log.append(part(first, BESIDE, UNIT))
        longest = max(longest, time.monotonic() - began)
        if removing.done():
            break
    await removing
    await log.close()
    await other.close()
    return longest * 1000


async def costs(path: Path, folder: Path, size: int, rounds: int, say: Callable[[str], None]) -> Costs:
    found: list[Costs] = []
    for turn in range(rounds):
        log = await open_sqlite(path, create=False)
        append_s = await append(log, UNIT, size)
        tail_s = await tail(log, UNIT)
        restore_s = await restore(log, folder, f"changelog-{size}-{turn}")
        await log.close()
        found.append(Costs(append_s, tail_s, restore_s, await opening(path), await removal(path, size)))
        say(f"{size:>12,} records, round {turn + 1}: {found[-1]}")
    return Costs(*(min(getattr(one, field.name) for one in found) for field in fields(Costs)))


async def run(folder: Path, records: int, rounds: int) -> tuple[Costs, Costs, int]:
    """The costs at a million records and at `records`, and the bytes of the file then."""
    path = folder / "log.db"
    log = await open_sqlite(path, create=True)
    await log.create_topic(TopicSpec(TOPIC, PARTITIONS))
    await append(log, UNIT, 0)
    await log.close()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    small = await costs(path, folder, UNIT, rounds, say)
    log = await open_sqlite(path, create=False)
    for at in range(UNIT, records, UNIT):
        await append(log, UNIT, at)
        if at % (10 * UNIT) == 0:
            say(f"{at:,} records")
    await log.close()
    large = await costs(path, folder, records, rounds, say)
    return small, large, path.stat().st_size


def text(small: Costs, large: Costs, records: int, size: int, rounds: int) -> str:
    rows = [
        f"| {title} | {getattr(small, name):,.2f} | {getattr(large, name):,.2f} | "
        f"{getattr(large, name) / getattr(small, name):.2f} |"
        for name, title in NAMES.items()
    ]
    return "\n".join(
        [
            "## A log that has grown",
            "",
            f"`make bench-log`, {date.today()}; {platform.machine()}, {platform.system()}, Python {platform.python_version()}; the same "
            f"work on one file when it had 1,000,000 records and when it had {records:,} ({size / 1e9:.1f} GB); 16-byte keys, 100-byte "
            f"values, {PARTITIONS} partitions; best of {rounds}. Trust the ratios.",
            "",
            f"| | 1,000,000 | {records:,} | ratio |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What a log costs when it has grown.")
    parser.add_argument("--records", type=int, default=10 * UNIT)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="where the log is made; gone at the end")
    parser.add_argument("--dry", action="store_true", help="print alone; docs/benchmarks.md stays")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        small, large, size = asyncio.run(run(Path(folder), args.records, args.rounds))
    found = text(small, large, args.records, size, args.rounds)
    print(found)
    if not args.dry:
        write_section(DOCS, "log", found)


if __name__ == "__main__":
    main()
