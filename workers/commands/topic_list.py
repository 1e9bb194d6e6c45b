"""`orchestrator topics list|describe|create`: the topics of an app, what they are to it, and what lies in them.

One rule: a verb that looks changes nothing, and needs no code: it goes by what the log keeps of the app. Positions and ends
are offsets: on Kafka the markers of transactions count as well, so `records` is a bound and not a count.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import PLACE
from orchestrator.durations import UNITS_MS, show_duration
from orchestrator.errors import WrongUse
from pipeline.loading import load
from state.log.protocol import GroupLog, Partition, TopicInfo
from workers.commands.show import show_json, table
from workers.commands.status import sizes_of, total_if_known
from workers.commands.topic_rights import topics_of
from workers.first_start import refuse_cut_off
from workers.fleet.client import described_topics, log_of
from workers.log.logs import log_url, open_log
from workers.prepare import prepare, refuse_half_done
from workers.renamed_tables import what_begins_empty

INPUT, OUTPUT, BOTH, REKEY, CHANGELOG = "input", "output", "input, output", "re-key", "changelog"
OWN = (REKEY, CHANGELOG)


def list_(argv: list[str]) -> int:
    """Runs `orchestrator topics list`; its exit code. Raises WrongUse."""
    parser = Parser("topics list", "Show an app's topics: what they are to it, and what lies in them.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE)
    args = parser.parse_args(argv)
    facts = asyncio.run(_listed(args))
    if args.json:
        show_json(facts)
        return 0
    heads = ("topic", "role", "partitions", "records", "retention")
    rows = [(row["topic"], row["role"], row["partitions"], row["records"], _retention(row)) for row in facts["topics"]]
    print(table(rows, heads))
    return 0


def describe(argv: list[str]) -> int:
    """Runs `orchestrator topics describe`; its exit code. Raises WrongUse."""
    parser = Parser("topics describe", "Show each partition of an app's topic: from where to where, and what is read.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE)
    args = parser.parse_args(argv)
    facts = asyncio.run(_described(args))
    if args.json:
        show_json(facts)
        return 0
    print(f"{facts['topic']}: {', '.join(_heading(facts))}")
    rows = [(row["partition"], row["start"], row["end"], row["position"]) for row in facts["partitions"]]
    print(table(rows, ("partition", "start", "end", "position")))
    return 0


def create(argv: list[str]) -> int:
    """Runs `orchestrator topics create`; its exit code. Raises WrongUse."""
    parser = Parser("topics create", "Create the topics of an app that are missing, as its first start would.")
    parser.add_argument("app", metavar="MODULE:APP")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE)
    args = parser.parse_args(argv)
    facts = asyncio.run(_created(args))
    if args.json:
        show_json(facts)
    elif facts["created"]:
        print("\n".join(f"{name}: {count} partitions" for name, count in facts["created"].items()))
    else:
        print("nothing to do: all topics are there")
    return 0


async def _listed(args: Any) -> dict[str, Any]:
    async with log_of(args) as (application, log, _):
        roles = roles_of(await described_topics(log, application, args.app))
        there = await log.topics(list(roles))
        rows = [_facts(name, roles[name], there.get(name)) for name in sorted(roles)]
        partitions = [one for info in there.values() for one in _partitions(info)]
        sizes = await sizes_of(log, partitions)
    for row in rows:
        row["records"] = total_if_known(sizes, [one for one in partitions if one.topic == row["topic"]])
    return {"application": application, "topics": rows}


async def _described(args: Any) -> dict[str, Any]:
    async with log_of(args) as (application, log, _):
        roles = roles_of(await described_topics(log, application, args.app))
        info = (await log.topics([args.topic])).get(args.topic)
        if args.topic not in roles or info is None:
            raise WrongUse(f"'{application}' has no topic '{args.topic}'; it has {', '.join(sorted(roles))}")
        partitions = _partitions(info)
        starts, ends = await log.starts(partitions), await log.ends(partitions)
        positions = await log.positions(application, partitions, settled=False)
    rows = [
        {"partition": one.number, "start": starts[one], "end": ends[one], "position": positions.get(one)}
        for one in partitions
    ]
    return {"application": application, **_facts(args.topic, roles[args.topic], info), "partitions": rows}


async def _created(args: Any) -> dict[str, Any]:
    app = load(args.app)
    url = log_url(args, app.id, existing=False)
    refuse_cut_off(url, app.id, args.state_dir)
    log: GroupLog = await open_log(url, create=True)
    try:
        await refuse_half_done(log, app.id)
        before = await log.topics([*app.topology().topics])
        for line in await what_begins_empty(log, app):
            print(f"warning: {line}", file=sys.stderr)
        prepared = await prepare(log, app, runs=False)
    finally:
        await log.close()
    made = {name: info.partitions for name, info in prepared.topics.items() if name not in before}
    return {"application": app.id, "created": made}


def roles_of(described: dict[str, Any]) -> dict[str, str]:
    """What each topic is to the app, by its name in the log."""
    topics = topics_of(described)
    read, written = set(topics.read), set(topics.written)
    return {
        **dict.fromkeys(read - written, INPUT),
        **dict.fromkeys(written - read, OUTPUT),
        **dict.fromkeys(read & written, BOTH),
        **dict.fromkeys(topics.repartition, REKEY),
        **dict.fromkeys(topics.changelogs, CHANGELOG),
    }


def _facts(name: str, role: str, info: TopicInfo | None) -> dict[str, Any]:
    if info is None:
        return {
            "topic": name,
            "role": f"{role}, missing",
            **dict.fromkeys(("kind", "id", "partitions", "retention_ms")),
        }
    facts = {"topic": name, "role": role, "kind": info.kind, "id": info.topic_id, "partitions": info.partitions}
    return {**facts, "retention_ms": info.retention.ms, "retention_bytes": info.retention.bytes}


def _heading(facts: dict[str, Any]) -> Iterator[str]:
    """Role and kind, where they say different things; a changelog is compacted, and has no retention."""
    yield from dict.fromkeys((facts["role"], facts["kind"]))
    yield f"id {facts['id']}"
    kept = _retention(facts)
    yield "compacted" if kept is None else f"retention {kept}"


def _retention(row: dict[str, Any]) -> str | None:
    if row["partitions"] is None or row["kind"] == "changelog":
        return None
    given = [span(row["retention_ms"])] if row["retention_ms"] is not None else []
    given += [f"{row['retention_bytes']} bytes"] if row["retention_bytes"] is not None else []
    return " or ".join(given) or "for ever"


def span(ms: int) -> str:
    for unit in ("d", "h"):
        if ms and ms % UNITS_MS[unit] == 0:
            return f"{ms // UNITS_MS[unit]} {unit}"
    return show_duration(ms)


def _partitions(info: TopicInfo) -> list[Partition]:
    return [Partition(info.name, number) for number in range(info.partitions)]
