"""`orchestrator wait APP`: until the group is stable."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from orchestrator.cli.arguments import Parser, checked
from orchestrator.cli.settings import ACCESS, PLACE
from orchestrator.clocks import monotonic_s
from orchestrator.coordinator.handshake import NotTrusted
from orchestrator.coordinator.requests import StatusRequest
from orchestrator.errors import RefusedBySafety, TimedOut, WrongUse
from orchestrator.names import counted
from orchestrator.setting import some_time, whole_number
from state.errors import LogMissing, LogUnavailable, LogUnusable
from state.log.group_store import GroupStore
from workers.commands.show import show_json
from workers.connection.credentials import NoSecret
from workers.fleet.client import client_of, description, log_of
from workers.fleet.presence import may_be_looked_after
from workers.log.logs import NoLog, log_path
from workers.tasks import halts

POLL_S = 0.1
NOT_THERE_YET = LogMissing, NoLog, NoSecret, LogUnavailable  # or a broker that is away for a moment
MAKING_S = 10.0  # a start that has just begun: with a tenth of a core the imports alone take seconds


def run(argv: list[str]) -> int:
    parser = Parser(
        "wait", "Wait until every task has its place and nothing moves. Of tasks that are halted there is a warning."
    )
    parser.add_argument("app", metavar="APP")
    parser.add_argument(
        "--instances", type=checked(whole_number), default=1, help="and at least that many instances are there"
    )
    parser.add_argument(
        "--timeout",
        type=checked(some_time),
        default=60_000,
        metavar="DURATION",
        help="how long, 1 min by default (exit 4)",
    )
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE, *ACCESS)
    args = parser.parse_args(argv)
    facts = asyncio.run(_wait(args))
    if args.json:
        show_json(facts)
    else:
        print(f"stable: generation {facts['generation']}, {counted(facts['instances'], 'instance')}")
    return 0


async def _unknown(args: Any, *, may_be_made: bool) -> str:
    """Raises WrongUse for an application that an embedded log does not know, and which is not being started by a fleet. A
    cluster does not show that: another machine may be starting it. Returns the reason to print at the timeout, or "".
    `may_be_made`: so may a fleet here that has just begun. Neither does a log show it that cannot be read now."""
    try:
        async with log_of(args) as (application, log, url):
            if not await may_be_looked_after(log, application):
                try:
                    await description(log, application)
                except WrongUse as error:
                    if log_path(url) is not None and not may_be_made:
                        raise
                    return str(error)
    except (LogMissing, NoLog, LogUnavailable) as error:
        return str(error)
    except LogUnusable as error:
        if not may_be_made:
            raise
        return str(error)
    return ""


async def _halted(log: GroupStore, application: str) -> list[str]:
    """The tasks that are halted, with a warning of each: they have their places, and process nothing."""
    found = {task: halt for task, halt in (await halts.read_all(log, application)).items() if not halt.skip}
    for task, halt in sorted(found.items()):
        print(
            f"warning: {task} is halted at {halt.record}; `orchestrator resume {application} {task}` tries it again",
            file=sys.stderr,
        )
    return sorted(found)


async def _wait(args: Any) -> dict[str, Any]:
    """Also for a log and a coordinator that are not there yet: a script that waits has often just started them."""
    deadline = monotonic_s() + args.timeout / 1000
    making, seen = monotonic_s() + MAKING_S, "it has not begun"
    while True:
        try:
            async with client_of(args) as (application, group_log, client):
                while True:
                    status = await client.ask(StatusRequest(), retry_s=max(0.0, deadline - monotonic_s()))
                    # One that has been bounced and is not back keeps its tasks, and runs none of them.
                    there = sum(not row.get("silent") for row in status["instances"])
                    seen = (
                        "tasks are moving"
                        if not status["stable"]
                        else f"{counted(there, 'instance')} of {args.instances} {'is' if there == 1 else 'are'} there"
                    )
                    if status["stable"] and there >= args.instances:
                        found = {"application": application, "generation": status["generation"], "instances": there}
                        return {**found, "halted": await _halted(group_log, application)}
                    if monotonic_s() > deadline:
                        break
                    await asyncio.sleep(POLL_S)
        except NOT_THERE_YET as error:
            seen, making = str(error), monotonic_s() + MAKING_S
        except NotTrusted:
            raise
        except RefusedBySafety as error:
            seen = str(error)
            if monotonic_s() > min(making, deadline):
                seen = await _unknown(args, may_be_made=monotonic_s() <= making) or seen
        except LogUnusable as error:  # a log that is being made at this moment has no tables yet
            if monotonic_s() > making:
                raise
            seen = str(error)
        if monotonic_s() > deadline:
            raise TimedOut(f"'{args.app}' is not stable after {args.timeout / 1000:g} s: {seen}")
        await asyncio.sleep(POLL_S)
