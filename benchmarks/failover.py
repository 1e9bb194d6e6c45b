"""How long tasks are away when an instance dies, freezes or a fleet restarts: `make bench-failover`.

One rule: as in hand-overs, a gap is the time between two commits that a third party can read, here the longest of the
tasks that the instance had. Three instances with a standby of each task under a steady load; every other setting is the default,
but for the coordinators' lines at INFO. Of these the moment is taken in which a coordinator asks for the fence: what is before it is
detection, what is behind it take-over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.handover import ARGUMENTS, PLACES
from benchmarks.handover_apps import PARTITIONS, TOPIC
from benchmarks.moving import NAME, WAIT_S, Keys, Load, Place, Watch, caught_up, fill, fleet, place_on, verb
from benchmarks.processes import children, parent
from benchmarks.section import held, write_section
from state.log.protocol import GroupLog, NewRecord, Partition, TopicSpec
from workers.log.logs import open_log

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
INSTANCES = 3
GRACE_S, HEARTBEAT_S = 1.0, 1.0
REST_S = 2.0
THAW_S = 20.0  # a frozen process goes on after that
WORKER = "kill -9 of its worker"  # alone: its instance starts another
BARS_S = {
    WORKER: GRACE_S + 0.4,
    "kill -9": GRACE_S + 0.4,
    "kill -9 of the coordinator's": GRACE_S + 1.0,
    "SIGSTOP": 3 * HEARTBEAT_S + GRACE_S,
}
TAKE_OVER_BAR_S = 0.05
LINES = ("--log-format", "json", "--log-level", "WARNING,coordinator=INFO")


class Away(NamedTuple):
    """Seconds: the longest gap of a task that the instance had, and its two parts: from what happened until a coordinator asks for
    the fence, and from then until the next owners of all its tasks have a commit that can be read. None: no line of a coordinator
    says when that was."""

    gap: float
    detection: float | None
    take_over: float | None


@dataclass(slots=True)
class Failures:
    """By what happened to an instance."""

    by_kind: dict[str, list[Away]] = field(default_factory=dict)


async def status(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await verb(place, "status", NAME, "--json"))
    return found


async def warm(place: Place) -> dict[str, Any]:
    """A status in which every instance is there, nothing moves, and each task has a copy that is close."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = await status(place)
        copies = [task["standbys"] for task in found["tasks"]]
        if (
            found["stable"]
            and len(found["instances"]) == INSTANCES
            and all(task["active"] for task in found["tasks"])
            and all(any(copy["restore_lag"] < 1_000 for copy in own) for own in copies)
        ):
            return found
        await asyncio.sleep(0.3)
    raise SystemExit("the fleet is not whole again")


def fence_asked(fleet_log: Path, instance: str, after_s: float) -> float | None:
    """The wall time in seconds at which a coordinator first asked for a fence of a worker of the instance. It writes its line in the
    step that asks: "fenced" of one that is silent or gone, "rejoined" of one whose successor has come before that."""
    for line in fleet_log.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # what `run` itself prints
        if not isinstance(row, dict) or row.get("logger") != "orchestrator.coordinator":
            continue
        member, _, what = row["message"].partition(" ")
        is_of_it = member == instance or member.startswith(f"{instance}.")
        if is_of_it and what in ("fenced", "rejoined") and row["at_ms"] >= after_s * 1000:
            return float(row["at_ms"]) / 1000
    return None


async def fail(place: Place, watch: Watch, kind: str) -> Away:
    """Let it happen once to an instance and its workers, or to its worker alone. Returns when its tasks are back."""
    found = await warm(place)
    await asyncio.sleep(REST_S)
    leading = found["coordinator"]["instance"]
    wants_leader = kind.endswith("coordinator's")
    mine = {task["active"] for task in found["tasks"]}
    victim = next(one for one in found["instances"] if one["id"] in mine and (one["id"] == leading) is wants_leader)
    numbers = [int(task["id"].partition("_")[2]) for task in found["tasks"] if task["active"] == victim["id"]]
    # The status has the process of a worker; that of the instance, in which a coordinator runs, is the one above it.
    instance = parent(victim["pid"])
    pids = [victim["pid"]] if kind == WORKER else [instance, *children(instance)]
    began, wall = time.monotonic(), time.time() - time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP if kind == "SIGSTOP" else signal.SIGKILL)
    deadline = began + WAIT_S
    while any(not watch.seen[number] or watch.seen[number][-1] < began + 0.3 for number in numbers):
        if time.monotonic() > deadline:
            raise SystemExit(f"{kind}: the tasks of {victim['id']} do not come back")
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)
    gap = max(watch.longest(number, began, began + 0.3) for number in numbers)
    asked = fence_asked(place.folder / "fleet.log", victim["id"], began + wall)
    parts: tuple[float | None, float | None] = None, None
    if asked is not None:
        fence = asked - wall
        parts = fence - began, max(watch.first(number, fence) for number in numbers) - fence
    print(f"{kind}: away {gap:.2f} s, detection and take-over {parts}", flush=True)
    if kind == "SIGSTOP":
        await asyncio.sleep(max(0.0, began + THAW_S - time.monotonic()))
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue  # its supervisor ended it
    return Away(gap, *parts)


async def failures(kind: str, keys: Keys, rate: int, rounds: int) -> Failures:
    found = Failures()
    with place_on(kind) as place:
        await fill(place, keys)
        async with fleet(place, INSTANCES, "--standbys", "1", *LINES):
            log = await open_log(place.url, create=False)
            try:
                await caught_up(log, 0)
                watch, load = Watch(log), Load(log, keys, rate)
                beside = [asyncio.create_task(watch.run()), asyncio.create_task(load.run())]
                try:
                    for _ in range(rounds):
                        for what in BARS_S:
                            found.by_kind.setdefault(what, []).append(await fail(place, watch, what))
                finally:
                    for task in beside:
                        task.cancel()
                    await asyncio.gather(*beside, return_exceptions=True)
            finally:
                await log.close()
    return found


# ---- starts


async def starts(kind: str, rounds: int) -> dict[str, list[float]]:
    """Seconds from `run` to the first record that is processed, of a first start, and of the same fleet started again."""
    found: dict[str, list[float]] = {"1 instance, first start": [], "1 instance, restart": []}
    for count in (3,):
        found |= {f"{count} instances, first start": [], f"{count} instances, restart": []}
    for _ in range(rounds):
        for count in (1, 3):
            with place_on(kind) as place:
                log = await open_log(place.url, create=True)
                await log.create_topic(TopicSpec(TOPIC, PARTITIONS))
                try:
                    noun = "instance" if count == 1 else "instances"
                    for what in ("first start", "restart"):
                        found[f"{count} {noun}, {what}"].append(await _first_records(place, log, count))
                finally:
                    await log.close()
    return found


async def _first_records(place: Place, log: GroupLog, instances: int) -> float:
    """A record of each task is written before the start; until all of them are processed."""
    inputs = [Partition(TOPIC, number) for number in range(PARTITIONS)]
    await log.append({place: [NewRecord(b"key-of-%d" % place.number, b"x", 1_000)] for place in inputs})
    ends, began = await log.ends(inputs, settled=True), time.monotonic()
    async with fleet(place, instances):
        while time.monotonic() < began + WAIT_S:
            positions = await log.positions(NAME, inputs)
            if all(positions.get(place, 0) >= end for place, end in ends.items()):
                return time.monotonic() - began
            await asyncio.sleep(0.01)
    raise SystemExit("the fleet has not processed its first records")


# ---- the table


def _row(what: str, values: list[Away]) -> str:
    gaps = [value.gap for value in values]
    detections = [value.detection for value in values if value.detection is not None]
    take_overs = [value.take_over for value in values if value.take_over is not None]
    bars = [f"away {held(BARS_S[what], max(gaps) <= BARS_S[what])}"]
    shown = f"{statistics.median(gaps):.2f} | {max(gaps):.2f}"
    if not take_overs:
        return f"| {what} | {len(values)} | {shown} |  |  |  |  | {bars[0]} |"
    shown += f" | {statistics.median(detections):.2f} | {max(detections):.2f}"
    shown += f" | {statistics.median(take_overs) * 1000:.0f} | {max(take_overs) * 1000:.0f}"
    bars += [
        f"take-over p50 {held(TAKE_OVER_BAR_S, statistics.median(take_overs) <= TAKE_OVER_BAR_S)}",
        f"longest {held(TAKE_OVER_BAR_S, max(take_overs) <= TAKE_OVER_BAR_S)}",
    ]
    known = f"{len(values)}" if len(take_overs) == len(values) else f"{len(values)}, {len(take_overs)} of them split"
    return f"| {what} | {known} | {shown} | {'; '.join(bars)} |"


def text(kind: str, found: Failures, begun: dict[str, list[float]], keys: int, rate: int) -> str:
    lines = [
        f"## What dies, freezes and starts: {PLACES[kind]}",
        "",
        f"`make bench-failover{ARGUMENTS[kind]}`, {date.today()}; {platform.machine()}, {platform.system()}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f}; {PARTITIONS} tasks, {keys:,} keys, {rate:,} records a second, {INSTANCES} instances "
        f"with a standby of each task. Seconds of the task that was away "
        "longest, between two commits that can be read. Detection: until a coordinator asks for the fence, as its line at INFO says; "
        "take-over: from then until a commit of each next owner can be read. Bars: that of a task that is away is for the longest.",
        "",
        "| what happened to an instance | times | p50 | longest | detection p50 | longest | take-over p50, ms | longest | bars |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(what, values) for what, values in found.by_kind.items()]
    lines += [
        "",
        "From `run` until a record of each task is processed (bar: 1.2 of one instance; a restart no slower than a first start):",
        "",
        "| fleet | times | p50 s | longest |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {what} | {len(values)} | {statistics.median(values):.2f} | {max(values):.2f} |"
        for what, values in begun.items()
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="How long tasks are away when something dies, freezes or starts.")
    parser.add_argument("--log", default="embedded", choices=sorted(PLACES))
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--dry", action="store_true", help="print alone; docs/benchmarks.md stays")
    args = parser.parse_args()
    begun = asyncio.run(starts(args.log, args.rounds))
    found = asyncio.run(failures(args.log, Keys(args.keys), args.rate, args.rounds))
    shown = text(args.log, found, begun, args.keys, args.rate)
    print(shown)
    if not args.dry:
        write_section(DOCS, "failover" if args.log == "embedded" else f"failover {args.log}", shown)


if __name__ == "__main__":
    main()
