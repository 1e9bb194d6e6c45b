"""`orchestrator query APP TABLE KEY`: read a key from the store of the instance that runs its task."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.errors import NotThere, WrongUse
from pipeline.partitioner import partition_of
from state.log.protocol import Log
from workers.client import Client, description, log_of
from workers.commands.run import add_place
from workers.commands.show import show_json
from workers.values import from_text, shown


def run(argv: list[str]) -> int:
    parser = Parser("query", "Read a key of a table.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("table", metavar="TABLE")
    parser.add_argument("key", metavar="KEY", help="as typed for str keys, as JSON for others")
    parser.add_argument("--json", action="store_true")
    add_place(parser)
    args = parser.parse_args(argv)
    facts = asyncio.run(_query(args.app, args.table, args.key, args.log))
    if args.json:
        show_json(facts)
    elif facts["found"]:
        print(json.dumps(facts["value"]))
    if not facts["found"]:
        if args.json:
            return NotThere.exit_code
        raise NotThere(f"table '{args.table}' has no key {args.key}; it is read from {facts['task']}")
    return 0


async def _query(app: str, table: str, key: str, url: str | None) -> dict[str, Any]:
    async with log_of(app, url) as (application, log, _):
        described = await description(log, application)
        client = Client(log, application)
        try:
            return await query(client, described, table, key, log)
        finally:
            await client.close()


async def query(client: Client, described: dict[str, Any], table: str, key: str, log: Log) -> dict[str, Any]:
    """The JSON shape of cli.md. A table with a route of its own is looked for in every task."""
    facts = described["tables"].get(table)
    if facts is None:
        known = ", ".join(sorted(described["tables"])) or "none"
        raise WrongUse(f"'{described['id']}' has no table '{table}'; it has {known}")
    data = from_text(facts["key_codec"], key)
    number, count = facts["subtopology"], facts["partitions"]
    partitions = range(count) if facts["routed"] or facts["local"] else [partition_of(data, count)]
    answer: dict[str, Any] = {}
    for partition in partitions:
        answer = await client.ask("query", {"task": f"{number}_{partition}", "table": table, "key": data})
        if answer["value"] is not None:
            break
    return {
        "key": shown(facts["key_codec"], data),
        "value": shown(facts["value_codec"], answer["value"]),
        "found": answer["value"] is not None,
        "task": answer["task"],
        "instance": answer["instance"],
        "role": answer["role"],
        "restore_lag": answer["restore_lag"],
    }
