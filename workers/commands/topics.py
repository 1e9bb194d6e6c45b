"""`orchestrator topics VERB`: which verb is whose; and `grow APP TOPIC --partitions N`: more partitions for a topic, while
its apps run or not.

One rule: where the count decides where state lies, it stays. That is asked of every application of the log, from what it
keeps for tools, so no code is needed. Running workers see the new count by themselves (workers/worker/growth.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Parser, checked
from orchestrator.cli.commands import place_called
from orchestrator.cli.settings import PLACE
from orchestrator.errors import RefusedBySafety, WrongUse
from orchestrator.names import counted
from orchestrator.setting import whole_number
from pipeline.definitions.options import PARTITIONS_MAX
from state.log.group_store import GroupStore
from state.log.protocol import GroupLog, Partition
from workers import topic_identities
from workers.commands.run import state_dir
from workers.commands.show import show_json
from workers.fleet.client import description, log_of
from workers.fleet.held_lease import lease_held
from workers.fleet.presence import is_looked_after
from workers.log.written_back import take_as_it_is
from workers.prepare import DESCRIPTION
from workers.same_topics import TOPIC_IDS

VERBS: dict[str, tuple[str, str]] = {
    "list": ("workers.commands.topic_list:list_", "what an app's topics are to it, and what lies in them"),
    "describe": ("workers.commands.topic_list:describe", "each partition of a topic"),
    "create": ("workers.commands.topic_list:create", "create those of an app that are missing"),
    "grow": ("workers.commands.topics:grow", "give a topic more partitions"),
    "set": ("workers.commands.topic_retention:run", "change how long a topic is kept"),
    "reset": ("workers.commands.reset:run", "let an app begin anew, as `orchestrator reset` does"),
    "accept": ("workers.commands.topics:accept", "go on with a topic that was deleted and created again"),
    "acls": ("workers.commands.topic_rights:run", "the rights that an app needs on a Kafka with ACLs"),
}


def run(argv: list[str]) -> int:
    """Runs `orchestrator topics`; its exit code. Raises WrongUse."""
    if argv and argv[0] in VERBS:
        return int(place_called(VERBS[argv[0]][0])(argv[1:]))
    rows = "; ".join(f"{verb}: {text}" for verb, (_, text) in VERBS.items())
    parser = Parser(
        "topics", f"Topics of an app. {rows}. `orchestrator topics VERB --help` lists the options of a verb."
    )
    parser.usage = "%(prog)s VERB [option ...]"
    parser.add_argument("verb", metavar="VERB", choices=tuple(VERBS), help=", ".join(VERBS))
    parser.settings(*PLACE)
    if not any(word in VERBS for word in argv):
        parser.parse_args(argv)
    raise WrongUse("orchestrator topics: write the verb first, and options behind it")


def refuse_too_many(flag: str, partitions: int) -> None:
    """Raises WrongUse."""
    if partitions > PARTITIONS_MAX:
        raise WrongUse(f"{flag} {partitions}: a task for each is too much; write at most {PARTITIONS_MAX}")


def grow(argv: list[str]) -> int:
    """Runs `orchestrator topics grow`; its exit code. Raises WrongUse."""
    parser = Parser("topics grow", "Give a topic more partitions; apps that run take the new ones within seconds.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--partitions",
        type=checked(whole_number),
        required=True,
        metavar="N",
        help="how many it has then; keys are dealt anew, so the order of a key's records holds before and after, not across",
    )
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE)
    args = parser.parse_args(argv)
    refuse_too_many("--partitions", args.partitions)
    facts = asyncio.run(_grow(args))
    if args.json:
        show_json(facts)
    elif facts["outcome"] == "nothing to do":
        print(f"{facts['topic']} has {counted(facts['to'], 'partition')} already")
    else:
        print(f"{facts['topic']}: {facts['from']} -> {facts['to']} partitions")
    return 0


def accept(argv: list[str]) -> int:
    """Runs `orchestrator topics accept`; its exit code. Raises WrongUse."""
    parser = Parser(
        "topics accept",
        "Let an app go on with a topic that was deleted and created again, or lost positions or what a changelog began with: what stores of this machine have of that is written back.",
    )
    parser.add_argument("app", metavar="APP")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE)
    args = parser.parse_args(argv)
    facts = asyncio.run(_accept(args))
    if args.json:
        show_json(facts)
    else:
        done = " already: nothing to do" if facts["outcome"] == "nothing to do" else ""
        print(f"{facts['topic']} is taken as it is at the next start of '{facts['application']}'{done}")
        if facts["written_back"]:
            entries = counted(facts["written_back"], "entry")
            print(
                f"{entries} that it lacked {'was' if facts['written_back'] == 1 else 'were'} written back from state on this machine"
            )
    return 0


async def _accept(args: Any) -> dict[str, Any]:
    async with log_of(args) as (application, log, url):
        described = await description(log, application)
        if await is_looked_after(log, application):
            raise RefusedBySafety(f"'{application}' runs; stop it first")
        await _refuse_lost(log, application, args.topic)
        has_run = await log.metadata(application, TOPIC_IDS, args.topic) is not None
        written = await _written_back(log, described, args.topic, Path(state_dir(args, url)) / application)
        known = await topic_identities.accept(log, application, args.topic) or has_run
        if not (known or args.topic in described["topics"] or _is_internal(described, args.topic)):
            raise WrongUse(
                f"'{application}' has not run on a topic '{args.topic}'; name one as it is called in the log"
            )
    outcome = "done" if known or written else "nothing to do"
    return {"application": application, "topic": args.topic, "outcome": outcome, "written_back": written}


async def _refuse_lost(log: GroupLog, application: str, topic: str) -> None:
    """Raises RefusedBySafety while a committed position lies behind what the log has kept: the next start would be refused for it."""
    info = (await log.topics([topic])).get(topic)
    if info is None:
        return
    positions = await log.positions(application, [Partition(topic, number) for number in range(info.partitions)])
    if reason := await topic_identities.lost_records(log, application, topic, positions):
        raise RefusedBySafety(reason)


async def _written_back(log: GroupLog, described: Mapping[str, Any], topic: str, state: Path) -> int:
    """See written_back.py. Raises RefusedBySafety."""
    info = (await log.topics([topic])).get(topic)
    if info is None or info.kind != "changelog":
        return 0
    if not any((await log.starts([Partition(topic, number) for number in range(info.partitions)])).values()):
        return 0
    async with lease_held(log, described["id"], "topics accept") as held:
        return await take_as_it_is(log, held.lease, described, info, state)


async def _grow(args: Any) -> dict[str, Any]:
    topic, partitions = args.topic, args.partitions
    async with log_of(args) as (application, log, _):
        described = await description(log, application)
        before = (await log.topics([topic])).get(topic)
        if before is None or not (topic in described["topics"] or _is_internal(described, topic)):
            known = ", ".join(sorted(described["topics"]))
            raise WrongUse(f"'{application}' has no topic '{topic}'; it has {known}")
        if partitions != before.partitions:
            await _check(log, topic)
        after = await log.grow_topic(topic, partitions)
    return {
        "application": application,
        "topic": topic,
        "from": before.partitions,
        "to": after.partitions,
        "outcome": "done" if after.partitions > before.partitions else "nothing to do",
    }


async def _check(log: GroupStore, topic: str) -> None:
    """Raises RefusedBySafety where any application lays state by this count."""
    for application, kept in (await log.metadata_of_all(DESCRIPTION, "app")).items():
        problem = refusal(json.loads(kept), topic)
        if problem is not None:
            raise RefusedBySafety(f"'{application}': {problem}")


def refusal(described: Mapping[str, Any], topic: str) -> str | None:
    """Why the topic must not grow, and what to do instead; None where it may."""
    if _is_internal(described, topic):
        return (
            f"{topic} is a topic of its own, laid out as the topics that the app reads with it; it is not grown by hand: "
            "go on from new topics with more partitions, under another id"
        )
    topics = described["topics"]
    for sub in described["subtopologies"]:
        if topic not in sub["sources"]:
            continue
        if sub["tables"]:
            tables = ", ".join(sub["tables"])
            return (
                f"{topic} feeds subtopology {sub['number']}, whose state ({tables}) lies by {sub['partitions']} partitions: "
                "with more of them its keys would be looked for where their state is not; "
                f"rekey {topic} to a topic of its own, or go on from a new topic with more partitions, under another id"
            )
        rekeyed = [name for name in sub["sources"] if topics.get(name, {}).get("kind") == "repartition"]
        if rekeyed:
            return (
                f"{topic} is read together with {rekeyed[0]}, which has as many partitions; "
                "read them with a processor each, or go on from a new topic, under another id"
            )
    return None


def _is_internal(described: Mapping[str, Any], topic: str) -> bool:
    """Whether it is a re-key of the app or the changelog of one of its tables."""
    if any(table["changelog_topic"] == topic for table in described["tables"].values()):
        return True
    return bool(described["topics"].get(topic, {}).get("kind") == "repartition")
