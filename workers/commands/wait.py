"""`orchestrator wait APP`: until the group is stable."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.durations import parse_duration_ms
from orchestrator.errors import TimedOut
from workers.client import Client, log_of
from workers.commands.run import add_place
from workers.commands.show import show_json


def run(argv: list[str]) -> int:
    parser = Parser("wait", "Wait until every task runs and nothing moves.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("--instances", type=int, default=1, help="and at least that many instances are there")
    parser.add_argument("--timeout", type=parse_duration_ms, default=60_000)
    parser.add_argument("--json", action="store_true")
    add_place(parser)
    args = parser.parse_args(argv)
    facts = asyncio.run(_wait(args))
    if args.json:
        show_json(facts)
    else:
        print(f"stable: generation {facts['generation']}, {facts['instances']} instances")
    return 0


async def _wait(args: Any) -> dict[str, Any]:
    deadline = time.monotonic() + args.timeout / 1000
    async with log_of(args.app, args.log) as (application, log, _):
        client = Client(log, application)
        try:
            while True:
                status = await client.ask("status", retry_s=args.timeout / 1000)
                if status["stable"] and len(status["instances"]) >= args.instances:
                    return {
                        "application": application,
                        "generation": status["generation"],
                        "instances": len(status["instances"]),
                    }
                if time.monotonic() > deadline:
                    raise TimedOut(f"'{application}' is not stable after {args.timeout / 1000:g} s; see `status`")
                await asyncio.sleep(0.1)
        finally:
            await client.close()
