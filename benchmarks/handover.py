"""How long a task that moves on purpose is away, and what the others feel: `make bench-handover`.

One rule: a gap is the time between two commits that a third party can read, of a moved task around its move, less what
lies between two commits of that task when nothing moves. Fleets of two grow to four and shrink again, in a loop, under a
steady load with default settings; nothing is left out but the start.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import time
from dataclasses import dataclass, field
from datetime import date
from itertools import count
from pathlib import Path

import msgspec

from benchmarks.bare_moves import Bare, beside
from benchmarks.handover_apps import PARTITIONS
from benchmarks.moving import NAME, Keys, Load, Place, Watch, caught_up, fill, fleet, place_on, verb
from benchmarks.processes import waited_s
from benchmarks.section import write_section
from workers.journal import read_journals
from workers.log.logs import open_log

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
REST_S = 3.0  # between two changes: what is steady is measured in it
AROUND_S = 0.3  # of a move: a commit may come that much before its release or after its start
FIRST = 5  # changes each way that are not counted: in its first minute a broker compiles its code
PLACES = {"embedded": "the embedded log", "kafka": "one broker, on the same two cores"}
ARGUMENTS = {"embedded": "", "kafka": " LOG=kafka"}
EXCESS_BAR_MS, BETWEEN_BAR_MS, STAYING_BAR = 50.0, 10.0, 1.1


@dataclass(slots=True)
class Moves:
    """Milliseconds of one size: gaps in rest, excess of moved tasks over the median gap in rest by direction, and the gaps of
    tasks that stayed while others moved."""

    keys: int
    steady: list[float] = field(default_factory=list)
    up: list[float] = field(default_factory=list)
    down: list[float] = field(default_factory=list)
    staying: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)  # hand-overs of bare_moves.py in rest
    bare_beside: list[float] = field(default_factory=list)  # those while tasks moved
    bare_steady: list[float] = field(default_factory=list)  # gaps of its commits, as those of tasks
    bare_staying: list[float] = field(default_factory=list)
    starved_rest: list[float] = field(
        default_factory=list
    )  # share of each rest in which something waited for a processor
    starved: list[float] = field(default_factory=list)  # the same of each change


@dataclass(frozen=True, slots=True)
class _Change:
    """A scale-up or scale-down, in monotonic seconds and in the wall time of the journals."""

    is_up: bool
    began: float
    ended: float


async def measure(kind: str, many: int, rate: int, moves: int) -> Moves:
    """Loops until at least `moves` tasks have moved each way."""
    found, keys = Moves(many), Keys(many)
    with place_on(kind) as place:
        await fill(place, keys)
        async with fleet(place, 2):
            log = await open_log(place.url, create=False)
            try:
                await caught_up(log, 0)
                watch, load = Watch(log), Load(log, keys, rate)
                loops = [asyncio.create_task(watch.run()), asyncio.create_task(load.run())]
                try:
                    async with beside(place.url, place.folder) as bare:
                        await _loop(place, found, watch, bare, moves)
                finally:
                    for task in loops:
                        task.cancel()
                    await asyncio.gather(*loops, return_exceptions=True)
            finally:
                await log.close()
    return found


async def _loop(place: Place, found: Moves, watch: Watch, bare: Bare, moves: int) -> None:
    wall = time.time() - time.monotonic()
    changes: list[_Change] = []
    rests: list[tuple[float, float]] = []
    for number in count():
        if min(len(found.up), len(found.down)) >= moves:
            return
        for is_up in (True, False):
            at_rest = waited_s()
            await asyncio.sleep(REST_S)
            began, at_change = time.monotonic(), waited_s()
            rests.append((began - REST_S / 2, began))
            words = ("scale-up", NAME, "--to", "4") if is_up else ("scale-down", NAME, "--to", "50%")
            await verb(place, *words, "--wait")
            changes.append(_Change(is_up, began, time.monotonic()))
            if number >= FIRST:
                found.starved_rest.append((at_change - at_rest) / REST_S)
                found.starved.append((waited_s() - at_change) / (changes[-1].ended - began))
        await asyncio.sleep(AROUND_S * 2)
        if number >= FIRST:
            _judge(place.folder, found, watch, changes, rests, wall)
            found.bare += bare.hand_overs(rests)
            found.bare_beside += bare.hand_overs([(change.began, change.ended) for change in changes])
            found.bare_steady += bare.longest([_short(*rest) for rest in rests])
            found.bare_staying += bare.longest([piece for change in changes for piece in _pieces(change)])
        changes.clear()
        rests.clear()


def _judge(
    folder: Path, found: Moves, watch: Watch, changes: list[_Change], rests: list[tuple[float, float]], wall: float
) -> None:
    for first, last in rests:
        for number in range(PARTITIONS):
            found.steady.append(watch.longest(number, *_short(first, last)) * 1e3)
    usual = statistics.median(found.steady)
    rows = read_journals(folder / "state" / NAME)
    for change in changes:
        moved: set[int] = set()
        for number in range(PARTITIONS):
            mine = [row for row in rows if row.get("task") == f"0_{number}"]
            spans = _moves(mine, change, wall)
            for released, started in spans:
                moved.add(number)
                gap = watch.longest(number, released - AROUND_S, started + AROUND_S) * 1e3
                (found.up if change.is_up else found.down).append(gap - usual)
        for number in set(range(PARTITIONS)) - moved:
            found.staying += [watch.longest(number, *piece) * 1e3 for piece in _pieces(change)]


def _short(first: float, last: float) -> tuple[float, float]:
    """A commit may come a little before and after what is looked at."""
    return first, last - AROUND_S


def _pieces(change: _Change) -> list[tuple[float, float]]:
    """Of a change, each as long as what is called rest."""
    pieces = max(1, int((change.ended - change.began) / (REST_S / 2)))
    begun = [change.began + index * REST_S / 2 for index in range(pieces)]
    return [_short(first, first + REST_S / 2) for first in begun]


def _moves(rows: list[dict[str, object]], change: _Change, wall: float) -> list[tuple[float, float]]:
    """Release and start of each move of a task within a change."""
    found: list[tuple[float, float]] = []
    released: float | None = None
    for row in rows:
        at = float(str(row["at_ms"])) / 1e3 - wall
        if not change.began <= at <= change.ended + AROUND_S:
            continue
        if row["what"] == "released":
            released = at
        elif row["what"] == "started" and released is not None:
            found.append((released, at))
            released = None
    return found


# ---- the table


def _points(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else [values[0]] * 99
    return f"{statistics.median(values):.0f} | {cuts[98]:.0f} | {max(values):.0f}"


def text(kind: str, sizes: list[Moves], rate: int) -> str:
    lines = [
        f"## Planned moves: {PLACES[kind]}",
        "",
        f"`make bench-handover{ARGUMENTS[kind]}`, {date.today()}; {platform.machine()}, {platform.system()}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f}; {PARTITIONS} tasks, {rate:,} records a second, default settings; 2 instances "
        f"become 4 and 2 again, in a loop; the first {FIRST} times, about a minute, are not counted. A bare loop beside them, one process on the same log, commits "
        "every 100 ms and makes the log's calls of a hand-over alone three times a second. Milliseconds between two commits that can be read; of a moved task less the median in "
        f"rest (bars: p99 below {EXCESS_BAR_MS:.0f} more, {BETWEEN_BAR_MS:.0f} between the medians of both sizes; tasks that stay: "
        f"{STAYING_BAR} times rest).",
        "",
        "| keys | what | moves or windows | p50 | p99 | longest |",
        "|---|---|---|---|---|---|",
    ]
    for one in sizes:
        rows = [
            ("rest: longest gap of 1.2 s", one.steady),
            ("moved by scale-up: more than in rest", one.up),
            ("moved by scale-down: more than in rest", one.down),
            ("stayed while others moved: longest gap of 1.2 s", one.staying),
            ("bare loop in rest: longest gap of 1.2 s", one.bare_steady),
            ("bare loop while others moved: longest gap of 1.2 s", one.bare_staying),
            ("bare hand-over in rest: from commit to commit", one.bare),
            ("bare hand-over while others moved", one.bare_beside),
        ]
        lines += [f"| {one.keys:,} | {what} | {len(values)} | {_points(values)} |" for what, values in rows if values]
    if len(sizes) > 1:
        middles = [statistics.median(one.up + one.down) for one in sizes]
        lines += ["", f"Between the medians of the sizes: {max(middles) - min(middles):.1f} ms."]
    for one in sizes:
        if one.staying:
            shares = statistics.median(one.staying) / statistics.median(one.steady)
            bare = statistics.median(one.bare_staying) / statistics.median(one.bare_steady)
            starved = [statistics.mean(values) for values in (one.starved_rest, one.starved)]
            what = (
                f"tasks that stay have {shares:.2f} times the gap of rest, the bare loop {bare:.2f} times (medians); something "
                f"waited for a processor in {starved[0]:.0%} of the time of rest, and in {starved[1]:.0%} while instances came and went"
            )
            lines += ["", f"{one.keys:,} keys: {what}."]
    return "\n".join([*lines, ""])


def _kept(path: Path, found: list[Moves]) -> list[Moves]:
    """With the other sizes that runs before have left in the file: one after the other each has the machine for itself."""
    before = msgspec.json.decode(path.read_bytes(), type=list[Moves]) if path.exists() else []
    sizes = {one.keys: one for one in [*before, *found]}
    kept = [sizes[keys] for keys in sorted(sizes)]
    path.write_bytes(msgspec.json.encode(kept))
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description="How long a task that moves on purpose is away.")
    parser.add_argument("--log", default="embedded", choices=sorted(PLACES))
    parser.add_argument("--keys", default="100000,1000000")
    parser.add_argument("--rate", type=int, default=1_500)
    parser.add_argument("--moves", type=int, default=100, help="at least so many each way")
    parser.add_argument(
        "--into", type=Path, help="keeps what was measured in this file, and shows what others of the log left there"
    )
    parser.add_argument("--dry", action="store_true", help="print alone; docs/benchmarks.md stays")
    args = parser.parse_args()
    found = [asyncio.run(measure(args.log, int(keys), args.rate, args.moves)) for keys in args.keys.split(",")]
    if args.into is not None:
        found = _kept(args.into, found)
    shown = text(args.log, found, args.rate)
    print(shown)
    if not args.dry:
        write_section(DOCS, "handover" if args.log == "embedded" else f"handover {args.log}", shown)


if __name__ == "__main__":
    main()
