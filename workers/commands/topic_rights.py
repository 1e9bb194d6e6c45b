"""`orchestrator topics acls APP`: the rights that an app needs on a Kafka with an authorizer.

One rule: the list is computed from the app alone, so that the rights can be given before its first start: MODULE:APP needs
no cluster. The application's id alone is looked up in the log. What is printed is what Kafka's own tool takes.
"""

from __future__ import annotations

import asyncio
import shlex
from itertools import groupby
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import PLACE
from orchestrator.errors import WrongUse
from pipeline.loading import load
from state.log.kafka.rights import (
    CLUSTER,
    Right,
    Topics,
    needed,
    needed_to_look,
    needed_to_produce,
    needed_to_repartition,
    needed_to_reset,
)
from workers.commands.show import show_json
from workers.fleet.client import description, log_of
from workers.log.logs import NoLog

PURPOSES = {
    "run": needed,
    "produce": needed_to_produce,
    "look": needed_to_look,
    "reset": needed_to_reset,
    "repartition": needed_to_repartition,
}


def run(argv: list[str]) -> int:
    """Runs `orchestrator topics acls`; its exit code. Raises WrongUse."""
    parser = Parser(
        "topics acls", "Show the rights that an app needs on a Kafka with ACLs, as commands that give them."
    )
    parser.add_argument("app", metavar="APP")
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=tuple(PURPOSES),
        default="run",
        help="run (instances and what changes them), produce, look (status, explain, query, consume), reset, or repartition "
        "[default run]",
    )
    parser.add_argument(
        "--create", action="store_true", help="with the right to create inputs and outputs that are missing"
    )
    parser.add_argument("--principal", metavar="USER", default="User:NAME", help="whom the commands give the rights")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE)
    args = parser.parse_args(argv)
    if not all(args.principal.partition(":")):
        raise WrongUse(
            f"--principal {args.principal}: Kafka takes no such name; write its type first, such as User:{args.principal.strip(':')}"
        )
    if args.create and args.purpose != "run":
        raise WrongUse(f"--create has no effect with --for {args.purpose}: only instances create topics; leave it out")
    prefix, brokers = _place(args.log)
    application, topics = _described(args)
    rights = (
        needed(application, topics, prefix, create=args.create)
        if args.purpose == "run"
        else PURPOSES[args.purpose](application, topics, prefix)
    )
    if args.json:
        show_json({"application": application, "for": args.purpose, "acls": [_facts(right) for right in rights]})
    else:
        print("\n".join(commands(rights, args.principal, brokers)))
    return 0


def _place(url: str) -> tuple[str, str]:
    """The prefix of names on the cluster, and its brokers. Raises WrongUse."""
    if not url:
        return "", "HOST:PORT"
    if not url.startswith("kafka://"):
        raise WrongUse(f"--log {url}: only a log on Kafka has ACLs; name one with kafka://HOST:PORT")
    from state.log.kafka.url import parse

    options = parse(url)
    return options.prefix, ",".join(f"{host}:{port}" for host, port in options.brokers)


def _described(args: Any) -> tuple[str, Topics]:
    """The application and its topics: from its code, or by its id from the log. Raises WrongUse."""
    if ":" in args.app:
        app = load(args.app)
        return app.id, topics_of(app.describe())
    if not args.log:
        raise NoLog(f"'{args.app}' is looked up in the log: name it with --log, or the code with MODULE:APP")
    return args.app, topics_of(asyncio.run(_kept(args)))


async def _kept(args: Any) -> dict[str, Any]:
    async with log_of(args) as (application, log, _):
        return await description(log, application)


def topics_of(described: dict[str, Any]) -> Topics:
    """The topics of an application, from its description."""
    repartition = {name for name, topic in described["topics"].items() if topic["kind"] == "repartition"}
    read = {name for sub in described["subtopologies"] for name in sub["sources"]}
    read |= {name for name, topic in described["topics"].items() if topic.get("is_global")}
    written = {name for name, topic in described["topics"].items() if topic["written"] or name not in read}
    changelogs = {table["changelog_topic"] for table in described["tables"].values()}
    return Topics(read - repartition, written - repartition, changelogs, repartition)


def _facts(right: Right) -> dict[str, Any]:
    pattern = "prefixed" if right.prefixed else "literal"
    return {"resource": right.resource, "name": right.name, "pattern": pattern, "operation": right.operation}


def commands(rights: list[Right], principal: str, brokers: str) -> list[str]:
    """A command of Kafka's own tool for each resource."""
    lines = []
    for (resource, name, prefixed), listed in groupby(rights, key=lambda one: (one.resource, one.name, one.prefixed)):
        words = ["kafka-acls", "--bootstrap-server", brokers, "--add", "--allow-principal", principal]
        for right in listed:
            words += ["--operation", right.operation]
        words += [f"--{resource}"] if resource == CLUSTER else [f"--{resource}", name]
        if prefixed:
            words += ["--resource-pattern-type", "prefixed"]
        lines.append(shlex.join(words))
    return lines
