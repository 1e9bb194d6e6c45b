"""`orchestrator scale-down APP --to P%`: mark leavers; they hand everything over and shut themselves down.

One rule: the coordinator keeps the operation and its deadline in the log; a closed laptop undoes nothing early or late.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from typing import Any

from orchestrator.cli.arguments import Parser, checked
from orchestrator.cli.settings import ACCESS, PLACE
from orchestrator.clocks import monotonic_s
from orchestrator.coordinator.requests import PlanRequest, ScaleDownRequest, StatusRequest, UndoRequest
from orchestrator.errors import TimedOut, WrongUse
from orchestrator.group.scale_plan import parse_amount
from orchestrator.names import counted
from orchestrator.setting import some_time, whole_number
from state.log.group_store import GroupStore
from workers.commands.on_their_way import missing, not_joined, who_runs
from workers.commands.show import CLEAR, show_json
from workers.fleet.client import Client, client_of
from workers.fleet.presence import fleet_of, named_of

POLL_S, SHUT_DOWN_S, TIMED_S, BAR = 0.1, 15.0, 5.0, 30
NEARLY = 0.9  # of a timeout: the coordinator began to count before this command did
NONE_RUNS = "no scale-down runs"


def run(argv: list[str]) -> int:
    parser = Parser("scale-down", "Let instances hand over what they run and shut themselves down.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("--to", help="how many stay: a count, or a share such as 80%%", metavar="N|P%")
    parser.add_argument("--by", help="how many leave: a count, or a share", metavar="N|P%")
    parser.add_argument("--instances", metavar="A,B", help="which leave")
    parser.add_argument("--current", type=checked(whole_number), help="refuse unless that many run now")
    parser.add_argument("--plan", action="store_true", help="show what would happen, change nothing")
    parser.add_argument("--apply", metavar="ID", help="do exactly that plan, or nothing")
    parser.add_argument("--wait", action="store_true", help="return when the leavers have shut down")
    parser.add_argument("--follow", action="store_true", help="attach to a scale-down that runs")
    parser.add_argument("--undo", action="store_true", help="take a running scale-down back")
    parser.add_argument(
        "--timeout", type=checked(some_time), metavar="DURATION", help="after that the mark is taken back (exit 4)"
    )
    parser.add_argument("--force", action="store_true", help="with --timeout: stop the leavers instead")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE, *ACCESS)
    return do(parser.parse_args(argv))


def do(args: Any) -> int:
    """What the options say. Raises WrongUse."""
    _check(args)
    if args.instances is not None:
        args.instances = ",".join(name.strip() for name in args.instances.split(","))
    return asyncio.run(_run(args))


def _check(args: Any) -> None:
    amounts = [name for name in ("to", "by", "instances") if getattr(args, name) is not None]
    if len(amounts) > 1:
        raise WrongUse(f"--{amounts[0]} and --{amounts[1]} exclude each other; give one")
    if args.undo and args.follow:
        raise WrongUse("--undo and --follow exclude each other; give one")
    if args.undo or args.follow:
        others = (args.plan, args.apply, args.force, args.wait, args.current is not None, args.timeout is not None)
        if amounts or any(others):
            raise WrongUse("--undo and --follow concern a scale-down that runs; leave the other options out")
        return
    changing = {"apply": args.apply, "wait": args.wait, "timeout": args.timeout is not None, "force": args.force}
    if args.plan and any(changing.values()):
        raise WrongUse(
            f"--plan changes nothing, so it excludes --{next(name for name in changing if changing[name])}; give one"
        )
    if amounts and args.apply:
        raise WrongUse(f"--apply does exactly what its plan says, so it excludes --{amounts[0]}; leave one out")
    if not amounts and not args.apply:
        raise WrongUse("how many: give --to, --by or --instances")
    if args.force and args.timeout is None:
        raise WrongUse("--force goes with --timeout; say how long the leavers may take")
    if args.instances is not None and not all(name.strip() for name in args.instances.split(",")):
        raise WrongUse(f"--instances {args.instances}: write names with commas between, such as i3,i4")
    for name in ("to", "by"):
        value = getattr(args, name)
        if value is not None:
            parse_amount(value, f"--{name}")


async def _run(args: Any) -> int:
    async with client_of(args) as (application, log, client):
        if args.undo:
            return _end(args, {"leaving": [], "why": NONE_RUNS, **await client.ask(UndoRequest())})
        if args.follow:
            return await _follow(args, client, log, application)
        if args.to is not None or args.by is not None or args.apply:  # a plan is of those that it counted
            status, fleet = await who_runs(application, log, client)
            if late := sorted(not_joined(status, fleet)):
                print(f"not counted: {missing(late)}", file=sys.stderr, flush=True)
        if args.plan:
            answer = await client.ask(PlanRequest(args.to, args.by, args.instances, args.current))
            return _end(args, {**answer, "why": _why_nothing(args, answer)})
        before = await client.ask(StatusRequest())
        request = ScaleDownRequest(
            *(args.to, args.by, args.instances, args.current),
            plan=args.apply,
            timeout_ms=args.timeout,
            force=args.force,
            request=secrets.token_hex(8),
        )
        answer = await client.ask(request)
        if answer["outcome"] == "nothing to do" or not args.wait:
            return _end(args, {**answer, "why": _why_nothing(args, answer)})
        return await _see_through(args, client, log, application, answer, before)


async def _follow(args: Any, client: Client, log: GroupStore, application: str) -> int:
    status = await client.ask(StatusRequest())
    if status["scale"] is None:
        return _end(args, {"outcome": "nothing to do", "leaving": [], "why": NONE_RUNS})
    scale = status["scale"]
    plans = [one["id"] for one in status["scales"]]
    since = {"since": status["scale_since"], "term": status["term"]}
    answer = {"plan": scale["id"], "plans": plans, "leaving": scale["leaving"], **since}
    return await _see_through(args, client, log, application, answer, status)


async def _see_through(args: Any, client: Client, log: GroupStore, application: str, answer: Any, before: Any) -> int:
    """Show progress until the scale-down is over. An interrupt ends the showing, and nothing else."""
    started = monotonic_s()
    try:
        outcome, after = await wait_for_end(client, answer, Progress(quiet=args.json))
        if outcome in ("done", "forced"):
            await _shut_down(log, application, answer["leaving"])
    except (asyncio.CancelledError, SystemExit):  # the second where SIGTERM comes while this very coroutine runs
        print(
            f"the scale-down goes on; follow it with `orchestrator scale-down {application} --follow`, or take it "
            f"back with `orchestrator scale-down {application} --undo`",
            file=sys.stderr,
        )
        raise
    if outcome == "done":
        after = await _all_timed(client, answer, before, after)
    moved, disturbed = counts(before, after)
    result = {"outcome": outcome, "elapsed_s": round(monotonic_s() - started, 3), "moved": moved}
    if outcome in ("done", "forced"):
        result["moves"] = arrived(answer.get("moves", []), after)
    return _end(args, {**answer, **result, "disturbed": disturbed, "hand_overs": after["hand_overs"]})


async def wait_for_end(client: Client, answer: Any, progress: Progress) -> tuple[str, Any]:
    """Until what was asked for is over: "done", "rolled back" or "forced", and the last status."""
    plans = answer.get("plans", [answer["plan"]])
    while True:
        status = await client.ask(_since(answer), retry_s=30)
        present = {i["id"] for i in status["instances"]}
        left = sum(1 for name in answer["leaving"] if name in present)
        running = [scale for scale in status["scales"] if scale["id"] in plans]
        if not running:
            progress.end()
            # A coordinator that is gone took the word with it.
            ended = [status["outcomes"].get(plan, "rolled back" if left else "done") for plan in plans]
            return next((o for o in ("rolled back", "forced") if o in ended), "done"), status
        progress.show(sum(scale["moves_left"] for scale in running), left)
        await asyncio.sleep(POLL_S)


def _since(answer: Any) -> StatusRequest:
    return StatusRequest(hand_overs_since=answer["since"], of_term=answer["term"])


async def _all_timed(client: Client, answer: Any, before: Any, after: Any) -> Any:
    """The status once the new owners have reported when they began, so that the longest pause is among those that are known: the last
    leaver may be gone before that. A coordinator that came meanwhile has not seen all."""
    deadline = monotonic_s() + TIMED_S
    while after["term"] == answer["term"] and after["hand_overs"]["count"] < counts(before, after)[0]:
        if monotonic_s() >= deadline:
            break
        await asyncio.sleep(POLL_S)
        after = await client.ask(_since(answer), retry_s=30)
    return after


class Progress:
    """A bar on a terminal, lines otherwise; on stderr, since stdout is for the answer."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar = sys.stderr.isatty()
        self._total = 0
        self._shown: tuple[int, int] | None = None

    def show(self, moves_left: int, instances_left: int) -> None:
        if self._quiet or self._shown == (moves_left, instances_left):
            return
        self._shown = moves_left, instances_left
        self._total = max(self._total, moves_left)
        text = f"{counted(moves_left, 'task')} to move, {counted(instances_left, 'instance')} still leaving"
        if self._bar:
            full = BAR if not self._total else BAR * (self._total - moves_left) // self._total
            print(f"\r[{'#' * full}{'.' * (BAR - full)}] {text}\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._bar and self._shown is not None:
            print(CLEAR, end="", file=sys.stderr, flush=True)


async def _shut_down(log: GroupStore, application: str, leaving: list[str]) -> None:
    """The group has let them go; wait until the fleet that started them has seen their processes end."""
    deadline = monotonic_s() + SHUT_DOWN_S
    while monotonic_s() < deadline:
        if not set(leaving) & await _ending(log, application):
            return
        await asyncio.sleep(POLL_S)
    print("some of the leavers' processes have not ended yet", file=sys.stderr)


async def _ending(log: GroupStore, application: str) -> set[str]:
    """Instances whose processes end once they have left."""
    fleet, named = await fleet_of(log, application), await named_of(log, application)
    parents = [*([fleet] if fleet is not None else []), *named.values()]
    return {name for parent in parents if parent.get("after_leave") != "park" for name in parent["instances"]}


def counts(before: Any, after: Any) -> tuple[int, int]:
    """How many tasks have another owner, and how many of the others stopped meanwhile (their epoch grew). Those of partitions
    that came meanwhile did neither."""
    old = {t["id"]: (t["active"], t["epoch"]) for t in before["tasks"]}
    there = [(old[t["id"]], t) for t in after["tasks"] if t["id"] in old]
    moved = sum(1 for (active, _), t in there if active != t["active"])
    disturbed = sum(1 for (active, epoch), t in there if active == t["active"] and epoch != t["epoch"])
    return moved, disturbed


def arrived(moves: list[dict[str, Any]], after: Any) -> list[dict[str, Any]]:
    """The moves with the instances that the tasks have gone to. Before they move, only that of a task with a copy is known, and
    it may go elsewhere."""
    now = {t["id"]: t["active"] for t in after["tasks"]}
    return [{**move, "to": now.get(move["task"]) or move["to"]} for move in moves]


def _end(args: Any, facts: dict[str, Any]) -> int:
    """Print the answer; exit code 0, or TimedOut where it was taken back."""
    known: dict[str, Any] = {
        "plan": None,
        "from": None,
        "to": None,
        "leaving": [],
        "staying": [],
        "moves": [],
        "outcome": None,
        "elapsed_s": 0.0,
        "hand_overs": {"count": 0, "p50_ms": None, "p99_ms": None, "max_ms": None},
    }
    facts = {**known, **facts}
    for name in ("since", "term", "plans"):
        facts.pop(name, None)
    if facts["outcome"] != "nothing to do":
        facts.pop("why", None)
    if args.json:
        show_json(facts)
    else:
        print(_text(facts))
    if facts["outcome"] == "rolled back" and not args.undo:
        raise TimedOut(
            "the leavers did not get ready in time; the mark is taken back and they stay"
            if args.timeout is not None and facts["elapsed_s"] * 1_000 >= NEARLY * args.timeout
            else "it was taken back, with `--undo` or by a --timeout of who began it; the leavers stay"
        )
    if facts["outcome"] == "forced":
        print("the leavers were stopped; their tasks went to the best copies", file=sys.stderr)
    return 0


def _why_nothing(args: Any, facts: dict[str, Any]) -> str:
    """Why a scale-down changes nothing."""
    run = f"{counted(facts['from'], 'instance')} {'runs' if facts['from'] == 1 else 'run'}"
    if args.by is not None:
        return (
            f"{run}, and --by {args.by} of that is less than one"
            if facts["from"] > 1
            else f"{run}, and one always stays"
        )
    if args.to is not None:
        return f"{run}, and --to {args.to} lets all of them stay"
    return f"{run}, and none of them is to leave"


def _sizes(facts: dict[str, Any]) -> str:
    return f"{facts['from']} -> {counted(facts['to'], 'instance')}"


def _text(facts: dict[str, Any]) -> str:
    outcome = facts["outcome"]
    if outcome == "planned":
        verb = "leaves" if len(facts["leaving"]) == 1 else "leave"
        lines = [f"plan {facts['plan']}: {_sizes(facts)}, {', '.join(facts['leaving'])} {verb}"]
        for move in facts["moves"]:
            size = "unknown size" if move["bytes"] is None else counted(move["bytes"], "byte")
            how = "a ready copy waits" if move["ready_copy"] else "has to be learned"
            lines.append(f"  {move['task']}  from {move['from']}  {size}  {how}")
        return "\n".join(lines)
    if outcome == "nothing to do":
        return f"nothing to do: {facts['why']}"
    if outcome == "running":
        verb = "is" if len(facts["leaving"]) == 1 else "are"
        return f"{_sizes(facts)}; {', '.join(facts['leaving'])} {verb} leaving"
    if outcome == "rolled back":
        return "taken back; the leavers stay"
    gap = facts["hand_overs"]["max_ms"]
    pause = "no pause was measured" if gap is None else f"longest pause {gap} ms"
    sizes = _sizes(facts) if facts["from"] else f"{', '.join(facts['leaving'])} left"
    disturbed = facts.get("disturbed", 0)
    others = f"{counted(disturbed, 'other task')} paused too" if disturbed else "the other tasks never paused"
    return f"{sizes}; {counted(facts.get('moved', 0), 'task')} moved; {pause}; {others}"
