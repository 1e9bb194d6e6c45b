"""Times the assignors beside their rivals: `python -m benchmarks.assignors`. One rule: ratios come from one run.

Beside ours, in the same process, one after the other in turns: sorting the shuffled partitions, and aiokafka's own
sticky assignor where it ends within a minute. In a JVM of their own, when Java is there: Kafka's client assignors and
its group coordinator's. Python's garbage collector is off for all Python sides (`--collector on` leaves it on).
Writes a table into docs/benchmarks.md and a plot beside it.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

from benchmarks.assignors_plot import plot
from benchmarks.section import write_section
from orchestrator.partition_assignors import ASSIGNORS, Assignment, Subscription, TopicPartition
from orchestrator.partition_assignors.wire import encode_sticky
from tests.assignors import kafka

ROOT = Path(__file__).resolve().parent.parent
EVENTS = ("first", "nothing", "lost", "joined", "scale-out")
# members, partitions, topics, topics a member reads
SIZES = [
    (400, 4_000, 2, 2),
    (2_100, 2_100, 1, 1),
    (2_000, 20_000, 10, 10),
    (2_000, 200_000, 100, 100),
    (2_000, 1_000_000, 500, 500),
    (10_000, 1_000_000, 500, 500),
    (500, 10_000, 500, 50),
    (2_000, 200_000, 2_000, 100),
]
GROWTH = [(2_000, 125_000 << n, 50, 50) for n in range(4)]
GROWTH_UNEQUAL = [(500 << n, 25_000 << n, 250 << n, 40) for n in range(4)]
MINUTE = 60.0
JAVA_SECONDS = 120.0  # for one size, all assignors and events; what is not done by then is left out

Size = tuple[int, int, int, int]


@dataclass
class Group:
    """One size: topics, members, and who they are after each event."""

    size: Size
    topics: dict[str, int] = field(default_factory=dict)
    members: dict[str, Subscription] = field(default_factory=dict)
    held: dict[str, Subscription] = field(default_factory=dict)

    def __post_init__(self) -> None:
        members, partitions, topics, _ = self.size
        self.random = Random(3)
        self.topics = {f"topic-{i:04}": partitions // topics for i in range(topics)}
        self.members = {f"member-{i:05}": Subscription(self.draw()) for i in range(members)}

    def draw(self) -> frozenset[str]:
        names = list(self.topics)
        return frozenset(self.random.sample(names, min(self.size[3], len(names))))

    def hold(self, assignment: Assignment) -> None:
        self.held = {m: replace(s, owned=tuple(assignment[m]), generation=1) for m, s in self.members.items()}

    def after(self, event: str) -> dict[str, Subscription]:
        if event == "first":
            return self.members
        now = dict(self.held)
        if event == "lost":
            del now["member-00007"]
        elif event == "joined":
            now["member-00007x"] = Subscription(self.draw())
        elif event == "scale-out":
            now |= {f"new-{i:05}": Subscription(self.draw()) for i in range(self.size[0] // 10)}
        return now

    def to_sort(self) -> list[tuple[str, Any]]:
        """The shuffled partitions; with unequal subscriptions the member-topic pairs as well."""
        found: list[tuple[str, Any]] = [TopicPartition(t, p) for t, n in self.topics.items() for p in range(n)]
        if self.size[3] < self.size[2]:
            found = [(t, str(p)) for t, p in found]
            found += [(member, topic) for member, s in self.members.items() for topic in s.topics]
        self.random.shuffle(found)
        return found


class Cluster:
    """Topics as aiokafka's assignor asks for them."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = {topic: set(range(count)) for topic, count in counts.items()}

    def topics(self) -> set[str]:
        return set(self.counts)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self.counts.get(topic)


def cpu_ms(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    result = work()
    took = time.process_time() - start
    del result
    return took * 1000


def in_turns(work: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Medians; every round runs each once, so that a slow moment hits all alike."""
    took: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeat):
        for name, one in work.items():
            took[name].append(cpu_ms(one))
    return {name: statistics.median(found) for name, found in took.items()}


@dataclass
class Row:
    size: Size
    sort: float
    ours: dict[str, float]
    cooperative: dict[str, float]
    moves: dict[str, tuple[int, int]]  # done, least (for unequal ones: those that cannot be avoided)
    peak_mb: dict[str, float]
    aiokafka: dict[str, float] = field(default_factory=dict)
    java: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        return self.size[3] >= self.size[2]


def measure(size: Size, repeat: int) -> Row:
    """All Python sides of one size."""
    group = Group(size)
    sticky, cooperative = ASSIGNORS["sticky"], ASSIGNORS["cooperative-sticky"]
    group.hold(sticky.assign(group.topics, group.members))
    inputs = {event: group.after(event) for event in EVENTS}
    shuffled = group.to_sort()
    work: dict[str, Callable[[], object]] = {"sort": lambda: sorted(shuffled)}
    for event, members in inputs.items():
        work[event] = partial(sticky.assign, group.topics, members)
    work["cooperative"] = lambda: cooperative.assign(group.topics, inputs["joined"])
    took = in_turns(work, repeat)
    moves = {event: moved(group, inputs[event]) for event in EVENTS[1:]}
    peak = {event: peak_mb(partial(sticky.assign, group.topics, inputs[event])) for event in EVENTS[:3]}
    return Row(size, took["sort"], {e: took[e] for e in EVENTS}, {"joined": took["cooperative"]}, moves, peak)


def moved(group: Group, members: dict[str, Subscription]) -> tuple[int, int]:
    """Moves done, and the least possible: with equal subscriptions by counting what quotas let everybody keep."""
    result = ASSIGNORS["sticky"].assign(group.topics, members)
    done = sum(len(set(s.owned).difference(result[m])) for m, s in members.items())
    held = [len(s.owned) for s in members.values()]
    if group.size[3] < group.size[2]:
        lost = [p for m, s in members.items() for p in s.owned if p.topic not in s.topics]
        return done, len(lost)
    floor, over = divmod(sum(group.topics.values()), len(members))
    kept = sum(min(count, floor) for count in held) + min(over, sum(count > floor for count in held))
    return done, sum(held) - kept


def peak_mb(work: Callable[[], object]) -> float:
    """The most memory one call has at a time, its answer included."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


def measure_aiokafka(row: Row, expected: float) -> float:
    """aiokafka's own sticky assignor, first and joined, if it is expected to end in time; seconds of the slower."""
    if expected > MINUTE:
        return expected
    group = Group(row.size)
    group.hold(ASSIGNORS["sticky"].assign(group.topics, group.members))
    cluster = Cluster(group.topics)
    for event in ("first", "joined"):
        members = {
            m: ConsumerProtocolMemberMetadata(0, sorted(s.topics), encode_sticky(s.owned, 1) if s.owned else b"")
            for m, s in group.after(event).items()
        }
        row.aiokafka[event] = cpu_ms(partial(StickyPartitionAssignor.assign, cluster, members))
    return max(row.aiokafka.values()) / 1000


def measure_java(rows: list[Row]) -> str:
    """Kafka's own, in a warm JVM; which Java it was, or why not."""
    if kafka.java("java") is None or kafka.java("javac") is None:
        return "no Java development kit found"
    with tempfile.TemporaryDirectory() as folder:
        classes = kafka.compiled(ROOT / "benchmarks" / "assignors_java" / "Rivals.java", Path(folder))
        java = kafka.java("java") or "java"
        for row in rows:
            print(f"measuring {row.size} in Java", file=sys.stderr)
            command = [java, "-Xmx6g", "-cp", kafka.classpath(classes), "Rivals", ":".join(map(str, row.size))]
            for line in lines_within(command, JAVA_SECONDS):
                words = line.split()
                if len(words) == 6 and words[0].endswith("Assignor"):
                    row.java[words[0], words[4]] = float(words[5])
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    return f"{version}, Kafka {kafka.VERSION}"


def lines_within(command: list[str], seconds: float) -> list[str]:
    """What a program has printed when its time is up; it may not have ended by then."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            print(f"stopped after {seconds:.0f} s: {' '.join(command[-1:])}", file=sys.stderr)
            process.kill()
            process.wait()
        out.seek(0)
        return out.read().splitlines()


def growth(sizes: list[Size], repeat: int) -> list[tuple[Size, float, float]]:
    """First and joined at sizes that double."""
    found = []
    for size in sizes:
        group = Group(size)
        sticky = ASSIGNORS["sticky"]
        group.hold(sticky.assign(group.topics, group.members))
        joined = group.after("joined")
        took = in_turns(
            {
                "first": partial(sticky.assign, group.topics, group.members),
                "joined": partial(sticky.assign, group.topics, joined),
            },
            repeat,
        )
        found.append((size, took["first"], took["joined"]))
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.assignors", allow_abbrev=False, description=__doc__)
    parser.add_argument("--collector", choices=("off", "on"), default="off", help="Python's garbage collector")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--largest", type=int, default=1_000_000, help="leave out sizes with more partitions")
    parser.add_argument("--no-java", action="store_true")
    parser.add_argument("--print", action="store_true", help="print, and leave docs/ alone")
    options = parser.parse_args(argv)
    if options.collector == "off":
        gc.disable()
    rows: list[Row] = []
    expected = 0.0
    for size in [size for size in SIZES if size[1] <= options.largest]:
        print(f"measuring {size}", file=sys.stderr)
        rows.append(measure(size, options.repeat))
        if rows[-1].equal and expected <= MINUTE:
            # Its time grows with the square of members and partitions: ten times the size is out of reach.
            near = not rows[:-1] or size[1] <= 4 * rows[-2].size[1]
            expected = measure_aiokafka(rows[-1], expected if near else MINUTE + 1)
    java = "left out" if options.no_java else measure_java(rows)
    doubling = [s for s in GROWTH if s[1] <= options.largest], [s for s in GROWTH_UNEQUAL if s[1] <= options.largest]
    grown = [growth(sizes, options.repeat) for sizes in doubling]
    text = report(rows, grown, java, options.collector)
    if options.print:
        print(text)
        return 0
    write_section(ROOT / "docs" / "benchmarks.md", "assignors", text)
    (ROOT / "docs" / "assignors.svg").write_text(plot(curves(rows)))
    print(text)
    return 0


def curves(rows: list[Row]) -> dict[str, list[tuple[float, float]]]:
    """Time over partitions for groups with equal subscriptions; one size each."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if not row.equal or row.size[:2] == (10_000, 1_000_000) or row.size[1] == 2_100:
            continue
        found = {
            "ours, first": row.ours["first"],
            "ours, member joined": row.ours["joined"],
            "sorting the partitions": row.sort,
            "aiokafka sticky, first": row.aiokafka.get("first"),
            "Java CooperativeSticky, first": row.java.get(("CooperativeStickyAssignor", "first")),
            "Java CooperativeSticky, joined": row.java.get(("CooperativeStickyAssignor", "joined")),
            "Java Sticky, joined": row.java.get(("StickyAssignor", "joined")),
            "broker Uniform, joined": row.java.get(("UniformAssignor", "joined")),
        }
        for name, value in found.items():
            if value is not None:
                lines.setdefault(name, []).append((row.size[1], value))
    return lines


def report(rows: list[Row], grown: list[list[tuple[Size, float, float]]], java: str, collector: str) -> str:
    """The section of docs/benchmarks.md."""
    machine = f"{os.cpu_count()} x {processor()}, {platform.system()}, Python {platform.python_version()}"
    out = [
        "## Partition assignors",
        "",
        f"`make bench-assignors`, {datetime.date.today().isoformat()}; {machine}; {java}. Milliseconds, median of one "
        f"run; Python: CPU time, garbage collector {collector} for all Python sides; Java: CPU time of the "
        "assigning thread in a warm JVM (its collector's threads are not counted). Trust the "
        "ratios, not the milliseconds.",
        "",
        "![time over size](assignors.svg)",
        "",
    ]
    for equal, title in ((True, "Equal subscriptions"), (False, "Unequal subscriptions")):
        out += [f"### {title}", "", *_times([row for row in rows if row.equal is equal]), ""]
    out += ["### Moves and memory", "", *_moves(rows), ""]
    out += ["### Growth when the input doubles", "", *_growth(grown)]
    return "\n".join(out) + "\n"


def _times(rows: list[Row]) -> list[str]:
    out = [
        "| members x partitions (topics read of all) | event | ours | x sorting | aiokafka sticky | "
        "Java CooperativeSticky | Java Sticky | broker Uniform |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        members, partitions, topics, reads = row.size
        for event in EVENTS:
            ours = row.ours[event]

            def beside(value: float | None, ours: float = ours) -> str:
                return "-" if value is None else f"{value:,.1f} ({value / ours:,.2g} x ours)"

            java = [
                beside(row.java.get((name, event)))
                for name in ("CooperativeStickyAssignor", "StickyAssignor", "UniformAssignor")
            ]
            size = f"{members:,} x {partitions:,} ({reads:,} of {topics:,})" if event == "first" else ""
            out.append(
                f"| {size} | {event} | **{ours:,.1f}** | {ours / row.sort:.2f} | "
                f"{beside(row.aiokafka.get(event))} | {' | '.join(java)} |"
            )
        cooperative = row.cooperative["joined"]
        out.append(f"| | joined, cooperative | {cooperative:,.1f} | {cooperative / row.sort:.2f} | - | - | - | - |")
    return out


def _moves(rows: list[Row]) -> list[str]:
    out = [
        "Least: what quotas force (equal), or what is no longer subscribed (unequal). MB: most memory of one call.",
        "",
        "| members x partitions (topics read) | lost | joined | scale-out | MB first | MB nothing | MB lost |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        moves = " | ".join(f"{done:,} of least {least:,}" for done, least in (row.moves[e] for e in EVENTS[2:]))
        peaks = " | ".join(f"{row.peak_mb[event]:,.1f}" for event in EVENTS[:3])
        out.append(f"| {row.size[0]:,} x {row.size[1]:,} ({row.size[3]:,}) | {moves} | {peaks} |")
    return out


def _growth(grown: list[list[tuple[Size, float, float]]]) -> list[str]:
    out = ["| members x partitions (topics read) | first | x before | joined | x before |", "|---|---|---|---|---|"]
    for series in grown:
        before: tuple[float, float] | None = None
        for size, first, joined in series:
            ratios = ("-", "-") if before is None else (f"{first / before[0]:.2f}", f"{joined / before[1]:.2f}")
            label = f"{size[0]:,} x {size[1]:,} ({size[3]:,})"
            out.append(f"| {label} | {first:,.1f} | {ratios[0]} | {joined:,.1f} | {ratios[1]} |")
            before = first, joined
    return out


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
