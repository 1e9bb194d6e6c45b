"""`orchestrator resume APP TASK [--skip]`: a task that a processor halted goes on.

One rule: only the log is changed. The task's owner looks at it once a heartbeat, and an owner that comes later before it
begins.
"""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import ACCESS, PLACE
from orchestrator.coordinator.secret import Right
from orchestrator.errors import RefusedBySafety, WrongUse
from state.log.protocol import GroupLog
from workers.fleet.client import client_of, description
from workers.tasks import halts


def run(argv: list[str]) -> int:
    parser = Parser("resume", "Let a task go on that was halted at a record.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("task", metavar="TASK", help="such as 0_3")
    parser.add_argument(
        "--skip",
        action="store_true",
        help="leave the record, or the call that came due, out instead of trying it again",
    )
    parser.settings(*PLACE, *ACCESS)
    args = parser.parse_args(argv)
    print(asyncio.run(_resume(args)))
    return 0


async def _resume(args: Any) -> str:
    app, task, skip = args.app, args.task, args.skip
    async with client_of(args) as (application, log, client):
        seen = await log.metadata(application, halts.HALTS, task)
        nothing = await _not_halted(log, application, task) if seen is None else ""
        client.require(Right.SCALE)  # nothing is asked of the group: the request is a change of the log
        if seen is None:
            return nothing
        halt = halts.decode(seen)
        if skip and halt.is_due and halt.due is None:
            raise WrongUse(
                f"{task} was halted by an earlier release, which did not say at which call of {halt.record}; "
                "`orchestrator resume` without --skip makes it again, and the halt after that can be skipped"
            )
        if not await halts.take_back(log, application, task, seen, skip=skip):
            raise RefusedBySafety(f"{task} was resumed or halted again meanwhile; look at `orchestrator status {app}`")
        how = "with" if not skip else "without" if halt.is_due else "behind"
        instead = "; it was to go on without it, which is taken back" if halt.skip and not skip else ""
        return f"{task} goes on {how} {halt.record}{instead}"


async def _not_halted(log: GroupLog, application: str, task: str) -> str:
    subtopologies = (await description(log, application))["subtopologies"]
    known = {f"{sub['number']}_{number}" for sub in subtopologies for number in range(sub["partitions"])}
    if task not in known:
        raise WrongUse(f"there is no task {task} in '{application}'; `orchestrator status {application}` lists them")
    return f"nothing to do: {task} is not halted"
