"""`orchestrator scale-up APP --by N`: more instances from the fleet that `orchestrator run` started."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from orchestrator.cli.arguments import Parser, checked
from orchestrator.cli.settings import ACCESS, PLACE
from orchestrator.clocks import monotonic_s
from orchestrator.coordinator.requests import ScaleDownRequest, StatusRequest
from orchestrator.coordinator.secret import Right
from orchestrator.errors import OrchestratorError, RefusedBySafety, TimedOut, WrongUse
from orchestrator.group.scale_plan import Amount, parse_amount, target_size
from orchestrator.names import counted
from orchestrator.setting import some_time, whole_number
from state.errors import StateError
from state.log.group_store import GroupStore
from workers.commands.on_their_way import JOINS_WITHIN_S, POLL_S, missing, not_joined, who_runs
from workers.commands.run import INSTANCES_MAX
from workers.commands.show import show_json, warn_of_idle
from workers.fleet.client import Client, client_of
from workers.fleet.fleet import GRANTED, REQUEST, WITHDRAWN
from workers.fleet.presence import FLEET, fleet_of

logger = logging.getLogger("orchestrator.scale_up")
PERCENT_MAX = 100_000


class LeftAgain(OrchestratorError):
    """Another operator has had the new instances leave."""

    def __init__(self, names: list[str]) -> None:
        what = "has left again" if len(names) == 1 else "have left again"
        super().__init__(
            f"{', '.join(names)} {what}: another command had {'it' if len(names) == 1 else 'them'} leave (scale-down, drain), or the "
            "fleet has ended; look at `orchestrator status` and `orchestrator history`, and decide again"
        )


def run(argv: list[str]) -> int:
    """Runs `orchestrator scale-up`; its exit code. Raises WrongUse."""
    parser = Parser("scale-up", "Add instances; they learn their tasks first and then take them over.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument(
        "--to", help="how many there should be: a count, or a share of what runs such as 150%%", metavar="N|P%"
    )
    parser.add_argument("--by", help="how many more: a count, or a share", metavar="N|P%")
    parser.add_argument("--current", type=checked(whole_number), help="refuse unless that many run now")
    parser.add_argument("--wait", action="store_true", help="return when the new ones have taken over")
    parser.add_argument(
        "--timeout",
        type=checked(some_time),
        metavar="DURATION",
        default=600_000,
        help="how long to wait, 10 min by default (exit 4)",
    )
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE, *ACCESS)
    args = parser.parse_args(argv)
    if (args.to is None) == (args.by is None):
        raise WrongUse("--to and --by exclude each other; give one" if args.to else "how many: give --to or --by")
    _amounts(args)
    facts = asyncio.run(_run(args))
    if args.json:
        show_json(facts)
    else:
        print(_text(facts))
    return 0


def _amounts(args: Any) -> tuple[Amount | None, Amount | None]:
    to = None if args.to is None else parse_amount(args.to, "--to", percent_max=PERCENT_MAX)
    by = None if args.by is None else parse_amount(args.by, "--by")
    return to, by


async def _run(args: Any) -> dict[str, Any]:
    async with client_of(args) as (application, log, client):
        while (facts := await _scaled(args, application, log, client)) is None:
            pass
        return facts


async def _scaled(args: Any, application: str, log: GroupStore, client: Client) -> dict[str, Any] | None:
    """The answer; None where the fleet has changed since its instances were counted, by another operator: count again."""
    before, fleet = await who_runs(application, log, client)
    client.require(Right.SCALE)  # the request goes through the log
    current = size_now(before, fleet)
    if args.current is not None and args.current != current:
        raise RefusedBySafety(
            f"{counted(current, 'instance')} {'runs' if current == 1 else 'run'}, not {args.current}; look at `status` and decide again"
        )
    to, by = _amounts(args)
    size = target_size(current, to=to, by=by, grow=True)
    if size - current > INSTANCES_MAX:
        raise WrongUse(f"{size - current} more instances are too many; write at most {INSTANCES_MAX}")
    since = StatusRequest(hand_overs_since=before["hand_overs"]["count"], of_term=before["term"])
    if size <= current:
        none = await client.ask(since)
        facts = _facts(current, current, [], "nothing to do", 0.0, none)
        return {
            **facts,
            "why": f"{counted(current, 'instance')} {'runs' if current == 1 else 'run'}, and --to {args.to} asks for no more",
        }
    if fleet is None:
        raise RefusedBySafety(
            f"no fleet of '{application}' runs here that could start more: its instances have names of their own, or run elsewhere; start more with "
            "`orchestrator run MODULE:APP --name NAME`, or ask where its fleet runs"
        )
    warn_of_idle(size * max((row["workers"] for row in before["instances"]), default=1), len(before["tasks"]))
    started = monotonic_s()
    deadline = started + args.timeout / 1000
    added = await _ask_fleet(log, application, size - current, deadline, fleet["instances"])
    if added is None:
        return None
    outcome, after = "running", before
    if args.wait:
        after = await wait_stable(client, added, deadline, since, lambda: fleet_of(log, application))
        outcome = "done"
    return _facts(current, size, added, outcome, monotonic_s() - started, after)


def size_now(status: dict[str, Any], fleet: dict[str, Any] | None) -> int:
    """How many instances stay: the members that do not leave, and those that the fleet has started and that have not joined
    yet."""
    return sum(1 for row in status["instances"] if row["state"] != "leaving") + len(not_joined(status, fleet))


async def _ask_fleet(
    log: GroupStore, application: str, count: int, deadline: float, beside: list[str]
) -> list[str] | None:
    """The names of what was started `beside` the instances of the fleet; None where these are others by now. However the waiting ends, a request that no fleet has taken is withdrawn."""
    key, request = secrets.token_hex(4), json.dumps({"add": count, "beside": beside}).encode()
    await log.put_metadata(application, FLEET, REQUEST + key, request)
    try:
        while (found := await log.metadata(application, FLEET, GRANTED + key)) is None:
            if await fleet_of(log, application) is None:
                raise RefusedBySafety(f"the fleet of '{application}' has ended; start it with `orchestrator run`")
            if monotonic_s() > deadline:
                break
            await asyncio.sleep(POLL_S)
    finally:
        withdrawn = await _withdraw(log, application, REQUEST + key, request)
    if found is None:
        raise TimedOut(
            "the fleet did not answer in time; nothing was started"
            if withdrawn
            else f"the fleet did not answer in time, but may start them yet; look at `orchestrator status {application}`"
        )
    await _forget(log, application, GRANTED + key)
    answer = json.loads(found)
    added: list[str] = answer["added"]
    return None if answer.get("changed") else added


async def _withdraw(log: GroupStore, application: str, key: str, request: bytes) -> bool:
    """Whether no fleet will grant it. The fleet takes a request in the same way: one of both comes first."""
    try:
        if not await log.replace_metadata(application, FLEET, key, request, WITHDRAWN):
            return False
    except StateError as error:
        logger.info("the request for more instances is not withdrawn: %s", error)
        return False
    await _forget(log, application, key)
    return True


async def _forget(log: GroupStore, application: str, key: str) -> None:
    """A note that stays is never read: the answer is no less true."""
    try:
        await log.put_metadata(application, FLEET, key, None)
    except StateError as error:
        logger.info("a note of scale-up stays: %s", error)


async def wait_stable(
    client: Client,
    added: list[str],
    deadline: float,
    since: StatusRequest,
    fleet: Callable[[], Awaitable[dict[str, Any] | None]],
) -> Any:
    """Until the new instances are there and nothing moves any more. Raises TimedOut, once they leave again, and LeftAgain."""
    aloud_s: float | None = monotonic_s() + 2 * JOINS_WITHIN_S
    leaving: set[str] = set()
    while True:
        status = await client.ask(since, retry_s=30)
        present = {i["id"] for i in status["instances"]}
        if set(added) <= present and status["stable"]:
            return status
        absent = [name for name in added if name not in present]
        leaving |= {i["id"] for i in status["instances"] if i["state"] == "leaving"}
        if absent and (gone := await _gone(absent, leaving, fleet)):
            raise LeftAgain(gone)
        if aloud_s is not None and monotonic_s() > aloud_s:
            aloud_s = None
            if absent:
                print(f"waiting: {missing(absent)}", file=sys.stderr, flush=True)
        if monotonic_s() > deadline:
            raise TimedOut(await _withdrawn(client, [name for name in added if name in present]))
        await asyncio.sleep(POLL_S)


async def _gone(
    absent: list[str], leaving: set[str], fleet: Callable[[], Awaitable[dict[str, Any] | None]]
) -> list[str]:
    """Those that will not come: they have left, or their fleet has them no more. One that crashed is its fleet's, and comes back."""
    facts = await fleet()
    kept = set() if facts is None else set(facts["instances"])
    return [name for name in absent if name in leaving or name not in kept]


async def _withdrawn(client: Client, added: list[str]) -> str:
    """Have them leave; what to say of it."""
    if not added:
        return "the new instances have not come yet; those that come stay, look at `orchestrator status`"
    try:
        await client.ask(ScaleDownRequest(instances=",".join(added)), retry_s=30)
    except OrchestratorError as error:
        return f"the new instances are not ready yet, and stay: {error}"
    return f"the new instances are not ready yet: {', '.join(added)} leave again; give it longer with --timeout"


def _facts(before: int, to: int, added: list[str], outcome: str, elapsed: float, status: Any) -> dict[str, Any]:
    return {
        "from": before,
        "to": to,
        "added": added,
        "outcome": outcome,
        "elapsed_s": round(elapsed, 3),
        "hand_overs": status["hand_overs"],
    }


def _text(facts: dict[str, Any]) -> str:
    if facts["outcome"] == "nothing to do":
        return f"nothing to do: {facts['why']}"
    text = f"{facts['from']} -> {counted(facts['to'], 'instance')}; {', '.join(facts['added'])} started"
    if facts["outcome"] == "done":
        gap = facts["hand_overs"]["max_ms"]
        text += f"; balanced after {facts['elapsed_s']:.1f} s"
        text += "" if gap is None else f"; longest pause {gap} ms"
    return text
