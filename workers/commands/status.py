"""`orchestrator status APP`: who runs what."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import ACCESS, PLACE
from orchestrator.coordinator.requests import StatusRequest
from orchestrator.errors import RefusedBySafety
from orchestrator.names import counted
from state.errors import LogUnavailable
from state.log.protocol import AT_LEAST_ONCE, EXACTLY_ONCE, GroupLog, Log, Partition
from workers.commands.show import show_json, table
from workers.fleet.client import Client, client_of, description
from workers.tasks import halts

WATCH_S = 1.0


def run(argv: list[str]) -> int:
    parser = Parser("status", "Show instances and tasks.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--watch", action="store_true", help="look every second, until Ctrl-C")
    parser.settings(*PLACE, *ACCESS)
    args = parser.parse_args(argv)
    if args.watch:
        asyncio.run(watch(args))
    facts = asyncio.run(status(args))
    if args.json:
        show_json(facts)
    else:
        print(text(facts))
    return 0


async def status(args: Any) -> dict[str, Any]:
    """What `status --json` prints, but for the schema."""
    async with client_of(args) as (application, log, client):
        return await _look(application, log, client)


async def _look(application: str, log: GroupLog, client: Client) -> dict[str, Any]:
    described = await description(log, application)
    answer = await client.ask(StatusRequest())
    lease = await log.lease(application)
    halted = await halts.read_all(log, application)
    topics = {sub["number"]: sub["sources"] for sub in described["subtopologies"]}
    for task in answer["tasks"]:
        task["topics"] = topics.get(int(task["id"].partition("_")[0]), [])
        halt = halted.get(task["id"])
        task["halted"] = None
        if halt is not None:
            task["halted"] = {"record": halt.record, "error": halt.error, "at_ms": halt.at_ms, "skip": halt.skip}
    return {
        "application": application,
        "log": client.log_url,
        "generation": answer["generation"],
        "protocol": answer["protocol"],
        "guarantee": weakest(answer["instances"], described),
        "coordinator": {"instance": lease.holder, "address": lease.address, "term": lease.term} if lease else None,
        "stable": answer["stable"],
        "scale": answer["scale"],
        "instances": answer["instances"],
        "tasks": answer["tasks"],
        "input_lag": total(task["input_lag"] for task in answer["tasks"]),
        "records_per_s": total(task.get("records_per_s") for task in answer["tasks"]),
        "versions": answer.get("versions", []),
        "topics": await topics_of(log, described),
        "hand_overs": answer["hand_overs"],
        "last_outcome": answer["last_outcome"],
    }


def total(numbers: Iterable[float | None]) -> float | None:
    """The sum of what is known; None where nothing is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


async def sizes_of(log: Log, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """Offsets from start to end, of the partitions that have a leader now: one broker that is away hides nothing of the others."""
    ends = await log.known_ends(partitions)
    starts = await log.starts(ends)
    return {one: end - starts[one] for one, end in ends.items()}


def total_if_known(sizes: Mapping[Partition, int], partitions: Sequence[Partition]) -> int | None:
    """Their sum; None where there are no partitions, or one is not known."""
    known = [sizes[one] for one in partitions if one in sizes]
    return sum(known) if known and len(known) == len(partitions) else None


async def topics_of(log: Log, described: dict[str, Any]) -> list[dict[str, Any]]:
    """The topics that the app reads and writes, as they are in the log now; one that is gone has no partitions."""
    found = await log.topics(list(described["topics"]))
    partitions = [Partition(name, number) for name, info in found.items() for number in range(info.partitions)]
    sizes = await sizes_of(log, partitions)
    rows: list[dict[str, Any]] = []
    for name, facts in sorted(described["topics"].items()):
        own = [p for p in partitions if p.topic == name]
        rows.append(
            {
                "name": name,
                "kind": facts["kind"],
                "partitions": len(own),
                "offsets": total_if_known(sizes, own),
                **({"is_global": True} if facts.get("is_global") else {}),
                "read_by": [sub["number"] for sub in described["subtopologies"] if name in sub["sources"]],
            }
        )
    return rows


async def watch(args: Any) -> None:
    """Show the group every second, until interrupted: in place on a terminal, else a line each time."""
    async with client_of(args) as (application, log, client):
        begun = False
        while True:
            try:
                facts = await _look(application, log, client)
            except (RefusedBySafety, LogUnavailable) as error:
                if not begun:
                    raise
                print(f"warning: {error}; it is looked for again", file=sys.stderr, flush=True)
            else:
                begun = True
                if args.json:
                    show_json(facts)
                elif sys.stdout.isatty():
                    columns, lines = os.get_terminal_size(sys.stdout.fileno())
                    print(in_place(text(facts), columns or 80, lines or 24), end="", flush=True)
                else:
                    print(line(facts), flush=True)
            await asyncio.sleep(WATCH_S)


def in_place(shown: str, columns: int, lines: int) -> str:
    """The text over what the terminal shows, cut to its size."""
    rows = [row[:columns] for row in shown.split("\n")]
    if len(rows) >= lines:
        rows = [*rows[: lines - 2], f"... {len(rows) - lines + 2} more lines"[:columns]]
    return "\x1b[H" + "".join(f"{row}\x1b[K\n" for row in rows) + "\x1b[J"


def line(facts: dict[str, Any]) -> str:
    """The group in one line."""
    moving = sum(1 for task in facts["tasks"] if task["learners"] or task["active"] is None)
    return (
        f"{datetime.now(UTC):%H:%M:%SZ}  {'stable' if facts['stable'] else 'moving'}  "
        f"{counted(len(facts['instances']), 'instance')}  {counted(len(facts['tasks']), 'task')}, {moving} to move  "
        f"{_known(facts['records_per_s'])} records/s  {_known(facts['input_lag'])} waiting  "
        f"{facts['hand_overs']['count']} handed over"
    )


def _known(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}"


def _rate(number: float | None) -> str:
    return "- records/s" if number is None else f"{counted(round(number), 'record')}/s"


def _waiting(number: int | None) -> str:
    return "- records waiting" if number is None else f"{counted(number, 'record')} waiting"


def weakest(instances: list[dict[str, Any]], described: dict[str, Any]) -> str:
    """What the application promises: no more than the weakest version of it that runs; that of the version that came last
    where none does, or where the coordinator is of a version that does not say."""
    found = {guarantee for one in instances for guarantee in one.get("guarantees", ())}
    if not found:
        return str(described["guarantee"])
    return AT_LEAST_ONCE if AT_LEAST_ONCE in found else EXACTLY_ONCE


def text(facts: dict[str, Any]) -> str:
    where = facts["coordinator"]
    head = (
        f"{facts['application']}  generation {facts['generation']}  {facts['protocol']}  {facts['guarantee']}  "
        f"{'stable' if facts['stable'] else 'moving'}  coordinator on {where['instance'] if where else '-'}"
    )
    sums = f"{_rate(facts['records_per_s'])}  {_waiting(facts['input_lag'])}"
    instances = [
        (i["id"], i["state"], i["load"], i["host"], i["pid"], i.get("app_versions") or None) for i in facts["instances"]
    ]
    tasks = [
        (
            t["id"],
            t["active"],
            t["epoch"],
            t["input_lag"],
            _known(t.get("records_per_s")),
            [f"{c['instance']} ({c['restore_lag']} behind)" for c in t["learners"]],
            [f"{c['instance']} ({c['restore_lag']} behind)" for c in t["standbys"]],
        )
        for t in facts["tasks"]
    ]
    topics = [(t["name"], t["kind"], t["partitions"], t["offsets"], _readers(t)) for t in facts["topics"]]
    return "\n".join(
        [
            head,
            sums,
            *_versions(facts),
            "",
            table(instances, ("instance", "state", "load", "host", "pid", "version")),
            *(f"{i['id']}: {_commits(i, facts)}" for i in facts["instances"] if _commits(i, facts)),
            *(f"{i['id']}: {notice}" for i in facts["instances"] for notice in i["notices"]),
            "",
            table(
                tasks, ("task", "active", "epoch", "waiting", "records/s", "learners (records)", "standbys (records)")
            ),
            "",
            table(topics, ("topic", "kind", "partitions", "offsets", "read by")),
        ]
    )


def _readers(topic: dict[str, Any]) -> str | None:
    """The subtopologies whose tasks read it; the whole of a global table's topic is read by each worker."""
    return ", ".join([*map(str, topic["read_by"]), *(["each worker"] if topic.get("is_global") else [])]) or None


def _versions(facts: dict[str, Any]) -> list[str]:
    """A line for each version of the app with tasks of its own, and for each of this package, where there are several."""
    tasks = [f"a version with {counted(v['tasks'], 'task')} on {', '.join(v['instances'])}" for v in facts["versions"]]
    packages: dict[str, list[str]] = {}
    for instance in facts["instances"]:
        for package in instance.get("package_versions", []):
            packages.setdefault(package, []).append(instance["id"])
    software = [f"stream-orchestrator {package} on {', '.join(on)}" for package, on in sorted(packages.items())]
    return [line for lines in (tasks, software) if len(lines) > 1 for line in lines]


def _commits(instance: dict[str, Any], facts: dict[str, Any]) -> str:
    """Where versions of the app disagree: how this instance commits."""
    found = instance.get("guarantees", [])
    return "" if found in ([], [facts["guarantee"]]) else f"commits {' and '.join(found)}"
