"""`orchestrator scale-down APP --to P%`: mark leavers; they hand everything over and shut themselves down.

One rule: the coordinator keeps the operation and its deadline in the log; a closed laptop undoes nothing early or late.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.durations import parse_duration_ms, show_duration
from orchestrator.errors import OrchestratorError, RefusedBySafety, TimedOut, WrongUse
from orchestrator.shares import parse_amount
from workers.client import Client, log_of
from workers.commands.run import add_place
from workers.commands.show import show_json

POLL_S = 0.1


def run(argv: list[str]) -> int:
    parser = Parser("scale-down", "Let instances hand over what they run and shut themselves down.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("--to", help="how many stay: a count, or a share such as 80%%")
    parser.add_argument("--by", help="how many leave: a count, or a share")
    parser.add_argument("--instances", help="which leave: a,b")
    parser.add_argument("--current", type=int, help="refuse unless that many run now")
    parser.add_argument("--plan", action="store_true", help="show what would happen, change nothing")
    parser.add_argument("--apply", metavar="ID", help="do exactly that plan, or nothing")
    parser.add_argument("--wait", action="store_true", help="return when the leavers have shut down")
    parser.add_argument("--follow", action="store_true", help="attach to a scale-down that runs")
    parser.add_argument("--undo", action="store_true", help="take a running scale-down back")
    parser.add_argument("--timeout", type=parse_duration_ms, help="after that the mark is taken back (exit 4)")
    parser.add_argument("--force", action="store_true", help="with --timeout: stop the leavers instead")
    parser.add_argument("--json", action="store_true")
    add_place(parser)
    args = parser.parse_args(argv)
    _check(args)
    return asyncio.run(_run(args))


def _check(args: Any) -> None:
    amounts = [name for name in ("to", "by", "instances") if getattr(args, name) is not None]
    if len(amounts) > 1:
        raise WrongUse(f"--{amounts[0]} and --{amounts[1]} exclude each other; give one")
    if args.undo or args.follow:
        if amounts or args.plan or args.apply:
            raise WrongUse("--undo and --follow go alone")
        return
    if not amounts:
        raise WrongUse("how many: give --to, --by or --instances")
    if args.plan and args.apply:
        raise WrongUse("--plan and --apply exclude each other; give one")
    if args.force and args.timeout is None:
        raise WrongUse("--force goes with --timeout; say how long the leavers may take")
    for name in ("to", "by"):
        value = getattr(args, name)
        if value is not None:
            parse_amount(value, f"--{name}")


async def _run(args: Any) -> int:
    async with log_of(args.app, args.log) as (application, log, _):
        client = Client(log, application)
        try:
            if args.undo:
                answer = await client.ask("undo")
                return _end(args, {"from": None, "to": None, "leaving": [], **answer}, 0)
            if args.follow:
                return await _follow(args, client)
            wishes = {
                "to": args.to,
                "by": args.by,
                "instances": args.instances,
                "current": args.current,
                "plan": args.apply,
                "timeout_ms": args.timeout,
                "force": args.force,
            }
            if args.plan:
                return _end(args, await client.ask("plan", wishes), 0)
            before = await client.ask("status")
            started = time.monotonic()
            answer = await client.ask("scale-down", wishes)
            if answer["outcome"] == "nothing to do" or not args.wait:
                return _end(args, answer, 0)
            outcome = await wait_for_end(args, client, answer["plan"])
            after = await client.ask("status")
            return _end(args, {**answer, **_result(answer, outcome, before, after, started)}, 0, outcome)
        except (KeyboardInterrupt, asyncio.CancelledError):
            print(
                f"the scale-down goes on; follow it with `orchestrator scale-down {application} --follow`, or take it "
                f"back with `orchestrator scale-down {application} --undo`",
                file=sys.stderr,
            )
            raise KeyboardInterrupt from None
        finally:
            await client.close()


async def _follow(args: Any, client: Client) -> int:
    status = await client.ask("status")
    if status["scale"] is None:
        return _end(args, {"outcome": "nothing to do", "leaving": []}, 0)
    started = time.monotonic()
    answer = {"plan": status["scale"]["id"], "leaving": status["scale"]["leaving"], "moves": []}
    outcome = await wait_for_end(args, client, answer["plan"])
    after = await client.ask("status")
    return _end(args, {**answer, **_result(answer, outcome, status, after, started)}, 0, outcome)


async def wait_for_end(args: Any, client: Client, plan: str) -> str:
    """Until the operation is over: "done", "rolled back" or "forced"."""
    shown: tuple[int, int] | None = None
    while True:
        status = await client.ask("status", retry_s=30)
        scale = status["scale"]
        if scale is None or scale["id"] != plan:
            last = status["last_outcome"]
            return str(last[1]) if last and last[0] == plan else "done"
        present = {i["id"] for i in status["instances"]}
        progress = (scale["moves_left"], sum(1 for name in scale["leaving"] if name in present))
        if progress != shown and not args.json:
            print(f"{progress[0]} tasks to move, {progress[1]} instances still leaving", file=sys.stderr, flush=True)
            shown = progress
        await asyncio.sleep(POLL_S)


def _result(answer: Any, outcome: str, before: Any, after: Any, started: float) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "elapsed_s": round(time.monotonic() - started, 3),
        "hand_overs": after["hand_overs"],
        "moved": _moved(before, after),
    }


def _moved(before: Any, after: Any) -> int:
    old = {t["id"]: t["active"] for t in before["tasks"]}
    return sum(1 for t in after["tasks"] if old.get(t["id"]) != t["active"])


def _end(args: Any, facts: dict[str, Any], code: int, outcome: str | None = None) -> int:
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
    if args.json:
        show_json(facts)
    else:
        print(_text(facts))
    if outcome == "rolled back":
        raise TimedOut("the leavers did not get ready in time; the mark is taken back and they stay")
    if outcome == "forced":
        print("the leavers were stopped; their tasks went to the best copies", file=sys.stderr)
    return code


def _text(facts: dict[str, Any]) -> str:
    outcome = facts["outcome"]
    if outcome == "planned":
        lines = [
            f"plan {facts['plan']}: {facts['from']} -> {facts['to']} instances, {', '.join(facts['leaving'])} leave"
        ]
        for move in facts["moves"]:
            size = "unknown size" if move["bytes"] is None else f"{move['bytes']} bytes"
            how = "a ready copy waits" if move["ready_copy"] else "has to be learned"
            lines.append(f"  {move['task']}  from {move['from']}  {size}  {how}")
        return "\n".join(lines)
    if outcome == "nothing to do":
        return "nothing to do"
    if outcome == "running":
        return f"{facts['from']} -> {facts['to']} instances; {', '.join(facts['leaving'])} are leaving"
    if outcome == "rolled back" and facts["from"] is None:
        return "taken back; the leavers stay"
    gap = facts["hand_overs"]["max_ms"]
    pause = "no pause was measured" if gap is None else f"longest pause {show_duration(gap)}"
    sizes = f"{facts['from']} -> {facts['to']} instances" if facts["from"] else f"{', '.join(facts['leaving'])} left"
    return f"{sizes}; {facts.get('moved', 0)} tasks moved; {pause}; the other tasks never paused"


__all__ = ["OrchestratorError", "RefusedBySafety", "run"]
