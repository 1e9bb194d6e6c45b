"""Times a large group: `python -m benchmarks.group`. One rule: ratios come from one run.

Rounds of the real core from a change to rest, step by step; the learner assignor beside sorting its tasks, and beside
Kafka Streams' own in a warm JVM; the real coordinator's heartbeats beside an aiohttp endpoint, and the longest pause of
its loop. Writes a table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import itertools
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random

from benchmarks.assignors import in_turns, lines_within, processor
from benchmarks.group_rounds import Steps, TimedRound
from benchmarks.heartbeats import (
    CREDENTIALS,
    Crash,
    Measured,
    Server,
    Settled,
    Watch,
    ask,
    beats_of_rival,
    status_of,
)
from benchmarks.section import write_section
from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import Connection
from orchestrator.coordinator.heartbeat_delta import DeltaEncoder
from orchestrator.coordinator.transport import connect
from orchestrator.model import JoinRequest, Settings, Task, TaskId
from orchestrator.task_assignor.assign import assign_tasks
from orchestrator.task_assignor.view import MemberView, View
from tests.assignors import kafka

ROOT = Path(__file__).resolve().parent.parent
# instances, tasks, learners that an instance may restore at a time
ROUNDS = [(1_000, 10_000, 2), (2_000, 200_000, 25)]
BEATING = [(1_000, 10_000), (10_000, 100_000), (2_000, 200_000)]
PLACEMENTS = [(100, 1_000), (200, 2_000), (1_000, 10_000), (2_000, 20_000), (2_000, 200_000)]
RIVAL_SIZE = (200, 2_000)
EVENTS = ("first", "nothing", "lost", "joined")
CONNECTIONS = 200
PROBE_S = 0.005


@dataclass
class Change:
    """A round: what happened, and the steps that it took."""

    what: str
    steps: Steps
    hand_overs: int


def rounds(instances: int, tasks: int, learners: int) -> list[Change]:
    """From rest to rest, several times."""
    made = TimedRound(instances, tasks, Settings(max_learners_per_instance=learners))
    found = []

    def change(what: str, begin: Callable[[], None]) -> None:
        before = made.handed_over
        begin()
        found.append(Change(what, made.timed_run(), made.handed_over - before))

    change("all join, their tasks with them", lambda: None)

    def beat() -> None:
        for node in made.nodes.values():
            node.report()

    change("a heartbeat of each, nothing new", beat)
    change("one crashes", lambda: made.crash(7))
    change("one joins, until it has its share", lambda: made.join(instances))
    return found


def views(clients: int, tasks: int) -> dict[str, View]:
    """What the assignor sees in the usual events."""
    ids = sorted(TaskId(n % 10, n // 10) for n in range(tasks))
    members = {name: MemberView(name, name) for name in (f"stream-{n:05}" for n in range(clients))}
    first = View({task: Task(task) for task in ids}, members)
    held = replace(first, active=assign_tasks(first).active)
    gone = "stream-00007"
    return {
        "first": first,
        "nothing": held,
        "lost": replace(
            held,
            members={name: member for name, member in members.items() if name != gone},
            active={task: name for task, name in held.active.items() if name != gone},
            former={task: name for task, name in held.active.items() if name == gone},
        ),
        "joined": replace(held, members={**members, "stream-x": MemberView("stream-x", "stream-x")}),
    }


def placements(repeat: int) -> dict[tuple[int, int], dict[str, float]]:
    """Milliseconds of a placement by event, and of sorting its shuffled tasks."""
    found = {}
    for clients, tasks in PLACEMENTS:
        print(f"assigning {tasks} tasks on {clients}", file=sys.stderr)
        shuffled = [TaskId(n % 10, n // 10) for n in range(tasks)]
        Random(3).shuffle(shuffled)
        work: dict[str, Callable[[], object]] = {"sort": partial(sorted, shuffled)}
        work |= {event: partial(assign_tasks, view) for event, view in views(clients, tasks).items()}
        found[clients, tasks] = in_turns(work, repeat if tasks < 100_000 else 5)
    return found


def rivals() -> tuple[dict[tuple[str, str], float], str]:
    """Kafka Streams' assignor and the broker's at one size, in a warm JVM; and which Java, or why not."""
    if kafka.java("java") is None or kafka.java("javac") is None:
        return {}, "no Java development kit found"
    print("measuring in Java", file=sys.stderr)
    found = {}
    more = Path(f"{kafka.jars('kafka-streams')}/*")
    with tempfile.TemporaryDirectory() as folder:
        classes = kafka.compiled(ROOT / "benchmarks" / "placement_java" / "TaskRivals.java", Path(folder), more)
        java = kafka.java("java") or "java"
        command = [java, "-Xmx4g", "-cp", kafka.classpath(classes, more), "TaskRivals", ":".join(map(str, RIVAL_SIZE))]
        for line in lines_within(command, 180):
            words = line.split()
            if len(words) == 5 and words[0].endswith("Assignor"):
                found[words[0], words[3]] = float(words[4])
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    return found, f"{version}, Kafka {kafka.VERSION}"


@dataclass
class Beats:
    """Heartbeats per CPU second of the real coordinator and of its rival; what its loop felt while a member crashed."""

    instances: int
    tasks: int
    ours: float
    rival: float
    pause_rest_ms: float
    pause_round_ms: float
    round_s: float
    wait_p99_ms: float


async def beats(instances: int, tasks: int, seconds: float) -> Beats:
    """200 connections; all other members are inside the server."""
    print(f"heartbeats, {instances} instances with {tasks} tasks", file=sys.stderr)
    held = [TaskId(0, n) for n in range(tasks // instances)]
    other, server = Server.start("rival"), Server.start("serve", instances, tasks, CONNECTIONS)
    try:
        links = [await joined(server.address, number, instances, tasks) for number in range(CONNECTIONS)]
        workers = [Talking(link, tasks_of(number, instances, tasks)) for number, link in enumerate(links)]
        control = await connect(server.address, CREDENTIALS)
        await settled(control)
        runs = []
        for _ in range(3):
            ours = await beats_of_ours(control, workers, seconds)
            runs.append((ours, await beats_of_rival(other.address, CONNECTIONS, held, seconds)))
        await ask(control, Watch())
        await asyncio.sleep(2)
        rest = (await ask(control, Measured()))["pause_ms"]
        prober = await connect(server.address, CREDENTIALS)
        said = made_ahead(workers, instances)
        begin = time.monotonic()
        await ask(control, Crash(f"stream-{instances - 1:05}"))
        busy = asyncio.create_task(beat_on(said, instances))
        waits: list[float] = []
        probing = asyncio.create_task(probe(prober, waits))
        await settled(control)
        took = time.monotonic() - begin
        worst = (await ask(control, Measured()))["pause_ms"]
        for task in (busy, probing):
            task.cancel()
        p99 = statistics.quantiles(waits, n=100)[98]
        ours, rival = (statistics.median(one) for one in zip(*runs, strict=True))
        return Beats(instances, tasks, ours, rival, rest, worst, took, p99)
    finally:
        server.stop()
        other.stop()


def made_ahead(
    workers: list[Talking], instances: int
) -> list[tuple[Connection, messages.FullStatus | messages.StatusDelta]]:
    """What the whole group says in three heartbeats, over the connections there are."""
    return [(worker.link, worker.next()) for _ in range(3 * instances // len(workers)) for worker in workers]


async def beat_on(said: list[tuple[Connection, messages.FullStatus | messages.StatusDelta]], instances: int) -> None:
    """As many heartbeats a second as the whole group sends, one every three seconds each."""
    begin = time.monotonic()
    for number, (link, beat) in enumerate(said):
        ahead = begin + 3 * number / instances - time.monotonic()
        if ahead > 0:
            await asyncio.sleep(ahead)
        link.send(beat)


async def probe(link: Connection, waits: list[float]) -> None:
    """A question every five milliseconds: how long each waited for its answer, from when it was due. It stands in line
    with the heartbeats, so that is what a heartbeat waits."""
    begin = time.monotonic()
    for due in itertools.count(begin, PROBE_S):
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await ask(link, Settled())
        waits.append(1000 * (time.monotonic() - due))


async def settled(control: Connection) -> None:
    """Until nothing moves and nothing is computed."""
    while not (await ask(control, Settled()))["settled"]:  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(0.02)


async def joined(address: str, number: int, instances: int, tasks: int) -> Connection:
    """A worker of the group at rest, with the tasks that a round at rest gave it."""
    name = f"stream-{number:05}"
    status = status_of(tasks_of(number, instances, tasks))
    link = await connect(address, CREDENTIALS)
    link.send(messages.Join(messages.VERSION, "bench", JoinRequest(name, name, f"{name}#1", f"{name}#1"), status))
    await link.receive_down()
    return link


def tasks_of(number: int, instances: int, tasks: int) -> list[TaskId]:
    """What a round at rest gave to a worker."""
    return [TaskId(n % 10, n // 10) for n in by_task(tasks)[number::instances]]


@cache
def by_task(tasks: int) -> list[int]:
    return sorted(range(tasks), key=lambda n: (n % 10, n // 10))


class Talking:
    """A worker's end of its connection: what it says next."""

    def __init__(self, link: Connection, tasks: list[TaskId]) -> None:
        self.link, self.tasks, self.beats = link, tasks, 0
        self.speaker = DeltaEncoder(status_of(tasks))
        self.speaker.changes = True

    def next(self) -> messages.FullStatus | messages.StatusDelta:
        self.beats += 1
        return self.speaker.say(status_of(self.tasks, self.beats))


async def beats_of_ours(control: Connection, workers: list[Talking], seconds: float) -> float:
    """One heartbeat of everybody, then the next: never two of one worker in one packet. What the workers say is made
    before the clock starts: the server does not wait for its clients, as that of the rival does not."""
    took, heard, end = 0.0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        rounds_of_beats = [[(worker.link, worker.next()) for worker in workers] for _ in range(20)]
        before = await ask(control, Measured())
        for beats in rounds_of_beats:
            for link, beat in beats:
                link.send(beat)
            await ask(control, Settled())  # so that nothing piles up
        after = await ask(control, Measured())
        took, heard = took + after["cpu"] - before["cpu"], heard + after["beats"] - before["beats"]
    return heard / took


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group", allow_abbrev=False, description=__doc__)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--largest", type=int, default=200_000, help="leave out rounds with more tasks")
    parser.add_argument("--no-java", action="store_true")
    parser.add_argument("--print", action="store_true", help="print, and leave docs/ alone")
    options = parser.parse_args(argv)
    sizes = [size for size in ROUNDS if size[1] <= options.largest]
    placed = placements(options.repeat)
    java, which = ({}, "Java left out") if options.no_java else rivals()
    made = []
    for size in sizes:
        print(f"rounds of {size[0]} instances with {size[1]} tasks", file=sys.stderr)
        made.append((size, rounds(*size)))
    heard = [asyncio.run(beats(*size, 3)) for size in BEATING if size[1] <= options.largest]
    text = report(made, placed, java, which, heard)
    if not options.print:
        write_section(ROOT / "docs" / "benchmarks.md", "group", text)
    print(text)
    return 0


def report(
    made: list[tuple[tuple[int, int, int], list[Change]]],
    placed: dict[tuple[int, int], dict[str, float]],
    java: dict[tuple[str, str], float],
    which: str,
    heard: list[Beats],
) -> str:
    """The section of docs/benchmarks.md."""
    machine = f"{os.cpu_count()} x {processor()}, {platform.system()}, Python {platform.python_version()}"
    out = [
        "## Large groups",
        "",
        f"`make bench-group`, {datetime.date.today().isoformat()}; {machine}; {which}. CPU milliseconds, medians; Python "
        "with its garbage collector on. Trust the ratios, not the milliseconds.",
        "",
        "### The learner assignor",
        "",
        "| clients x tasks | sorting the tasks | " + " | ".join(f"{event} (x sorting)" for event in EVENTS) + " |",
        "|---|---|" + "---|" * len(EVENTS),
    ]
    for (clients, tasks), took in placed.items():
        cells = [f"{took[event]:,.1f} ({took[event] / took['sort']:.1f})" for event in EVENTS]
        out.append(f"| {clients:,} x {tasks:,} | {took['sort']:,.1f} | {' | '.join(cells)} |")
    if java:
        out += ["", *_beside(placed[RIVAL_SIZE], java)]
    out += ["", "### From a change to rest, in the core", ""]
    for (instances, tasks, learners), changes in made:
        out += [f"{instances:,} instances x {tasks:,} tasks, at most {learners} learners an instance:", ""]
        out += [*_rounds(changes), ""]
    return "\n".join([*out, "### The coordinator on loopback", "", *_heard(heard)]) + "\n"


def _beside(ours: dict[str, float], java: dict[tuple[str, str], float]) -> list[str]:
    names = ("HighAvailabilityTaskAssignor", "broker-StickyTaskAssignor")
    clients, tasks = RIVAL_SIZE
    out = [f"| {clients:,} x {tasks:,} | ours | Kafka Streams HighAvailability | broker Sticky |", "|---|---|---|---|"]
    for event in EVENTS:
        cells = [f"{took:,.1f} ({took / ours[event]:,.2g} x ours)" for took in (java[name, event] for name in names)]
        out.append(f"| {event} | **{ours[event]:,.1f}** | {' | '.join(cells)} |")
    return out


def _rounds(changes: list[Change]) -> list[str]:
    out = ["| change | owners recorded | step | how many | CPU ms in all | longest ms |", "|---|---|---|---|---|---|"]
    for change in changes:
        label = f"{change.what} | {change.hand_overs:,}"
        for name, (count, total, longest) in change.steps.took.items():
            out.append(f"| {label} | {name} | {count:,.0f} | {total:,.1f} | {longest:,.2f} |")
            label = " | "
    return out


def _heard(heard: list[Beats]) -> list[str]:
    out = [
        f"{CONNECTIONS} workers have a connection; the others are inside the server. The pause is the longest time in "
        "which the loop served nobody: at rest for two seconds, and from the crash of a member until its tasks have "
        "owners again. The wait is that of a question asked every 5 ms of such a round, while as many heartbeats come as the "
        "whole group sends. The workers are busy: every end and every fact of every task is new with each heartbeat, on both "
        "sides. The rival is an aiohttp endpoint that decodes the same status, whole, as JSON (msgspec) and keeps it; "
        "ours receive what changed (docs/decisions/25) and end as whole statuses in the group, too.",
        "",
        "| instances x tasks | heartbeats per CPU s | aiohttp | ratio | of a core, a beat every 3 s | pause at rest ms "
        "| pause in a round ms | p99 wait in a round ms | round s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in heard:
        out.append(
            f"| {one.instances:,} x {one.tasks:,} | {one.ours:,.0f} | {one.rival:,.0f} | **{one.ours / one.rival:.1f}** "
            f"| {100 * one.instances / 3 / one.ours:.1f} % | {one.pause_rest_ms:,.0f} | {one.pause_round_ms:,.0f} "
            f"| {one.wait_p99_ms:,.0f} | {one.round_s:.1f} |"
        )
    return out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
