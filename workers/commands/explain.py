"""`orchestrator explain APP TASK`: why a task is where it is, and what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import ACCESS, PLACE
from orchestrator.coordinator.requests import ExplainRequest
from workers.commands.show import show_json
from workers.fleet.client import client_of
from workers.instance.ledger import kept_settings
from workers.tasks import halts


def run(argv: list[str]) -> int:
    parser = Parser("explain", "Say in sentences why a task is where it is, and what it waits for.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("task", metavar="TASK", help="such as 0_3")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE, *ACCESS)
    args = parser.parse_args(argv)
    facts, live = asyncio.run(_explain(args))
    if args.json:
        show_json(facts)
    else:
        named = [
            f"`settings set {name}={value}`" if name in live else f"--{name} {value}"
            for name, value in facts.get("settings", {}).items()
        ]
        print("\n".join([*facts["why"], *facts["waiting_for"], *([f"set by {', '.join(named)}"] if named else [])]))
    return 0


async def _explain(args: Any) -> tuple[dict[str, Any], Collection[str]]:
    """What the coordinator answers, and the settings of the group that `settings set` has set."""
    async with client_of(args) as (application, log, client):
        facts = await client.ask(ExplainRequest(args.task))
        live = await kept_settings(log, application)
        halt = await halts.read(log, application, args.task)
    if halt is not None and not halt.skip:  # the log's own: whoever owns the task does not process it
        facts["waiting_for"] = [
            f"{args.task} is halted at {halt.record}: {halt.error}",
            f"it goes on with `orchestrator resume {application} {args.task}`, or with --skip behind it",
            *facts["waiting_for"],
        ]
    return facts, live
