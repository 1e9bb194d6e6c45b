"""`orchestrator history APP`: what moved, when, why and for how long, from the journals of the instances on this machine.

One rule: it reads files, and asks neither the log nor the group: it works while nothing runs, and shows what this machine saw.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Parser, checked
from orchestrator.cli.settings import PLACE
from orchestrator.clocks import wall_ms
from orchestrator.durations import show_duration
from orchestrator.errors import WrongUse
from orchestrator.names import counted
from orchestrator.setting import some_time
from workers.commands.run import state_dir
from workers.commands.show import show_json, shown_time
from workers.fleet.client import application_of
from workers.journal import read_journals
from workers.log.logs import NoLog, default_log

_LONG_MS = 1_000  # a copy of less was restored for the move


def run(argv: list[str]) -> int:
    """Runs `orchestrator history`; its exit code. Raises WrongUse where there is no journal."""
    parser = Parser("history", "Show what the instances on this machine have written down: moves, starts, ends.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("--since", type=checked(some_time), metavar="DURATION", help="only what is younger, 10m")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE)
    args = parser.parse_args(argv)
    application = application_of(args.app)
    folder = _state(args, application) / application
    if not any(folder.glob("*/journal.jsonl")):
        raise WrongUse(f"no instance of '{application}' has written a journal in {folder}; name its --state-dir")
    after_ms = 0 if args.since is None else wall_ms() - args.since
    found = [event for event in events(read_journals(folder)) if event["at_ms"] >= after_ms]
    if args.json:
        show_json({"application": application, "state_dir": str(folder.parent), "events": found})
    else:
        print("\n".join(map(line, found)) or "nothing happened in that time")
    return 0


def _state(args: Any, application: str) -> Path:
    """The state folder: the one that was named, else the one beside the log, else that of the current folder."""
    try:
        url = args.log or default_log(application, Path.cwd(), existing=True)
    except NoLog:
        return Path(args.state_dir).absolute()
    return Path(state_dir(args, url))


class _Life:
    """Which log the lines of a task are of: in another one its epochs begin anew. Lines name their log; those of older versions
    do not, and there the order of epochs and the instances tell."""

    def __init__(self) -> None:
        self._number, self._log_id = 0, ""
        self._starts: dict[int, str] = {}  # by epoch: the instance
        self._moves: dict[int, tuple[str, str]] = {}

    def of(self, row: Mapping[str, Any]) -> int:
        """The number of the life that a line is of; they come in order of time."""
        epoch, log_id = int(row["epoch"]), row.get("log_id", "")
        if not self._fits(row, epoch, log_id):
            self._number, self._log_id, self._starts, self._moves = self._number + 1, "", {}, {}
        self._log_id = log_id or self._log_id
        if row["what"] == "started":
            self._starts[epoch] = row["instance"]
        else:
            self._moves[epoch] = row["from"], row["to"]
        return self._number

    def _fits(self, row: Mapping[str, Any], epoch: int, log_id: str) -> bool:
        if log_id and self._log_id:
            return log_id == self._log_id
        if row["what"] == "started":
            move = self._moves.get(epoch)
            return epoch > max(self._starts, default=-1) and (move is None or move[1] == row["instance"])
        ends = row["from"], row["to"]
        return self._moves.get(epoch, ends) == ends and self._starts.get(epoch, row["to"]) == row["to"]


def events(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What happened, oldest first. A move is one event, of the coordinator's lines of it (the last one knows the most) and the
    new owner's; a start without a move is one of its own: a task without an owner before, or a coordinator elsewhere."""
    found: list[dict[str, Any]] = []
    moved: dict[tuple[str, int, int], dict[str, Any]] = {}
    started: dict[tuple[str, int, int], Mapping[str, Any]] = {}
    lives: defaultdict[str, _Life] = defaultdict(_Life)
    for row in rows:
        if row["what"] in ("started", "handed over"):
            key = row["task"], int(row["epoch"]), lives[row["task"]].of(row)
        match row["what"]:
            case "started":
                started[key] = row
            case "handed over":
                if key not in moved:
                    moved[key] = {"at_ms": row["at_ms"], "what": "moved"}
                    found.append(moved[key])
                known = {name: row[name] for name in ("task", "epoch", "from", "to", "why", "gap_ms", "pause_ms")}
                moved[key].update({**known, "coordinator": row["instance"]})
            case "instance" | "instance ended":
                what = "instance started" if row["what"] == "instance" else "instance ended"
                found.append({"at_ms": row["at_ms"], "what": what, "instance": row["instance"], "pid": row["pid"]})
    for key, event in moved.items():
        event.update(_restored(started.get(key)))
    for key, row in started.items():
        if key not in moved:
            task, epoch, _ = key
            event = {"at_ms": row["at_ms"], "what": "started", "task": task, "epoch": epoch, "to": row["instance"]}
            found.append({**event, **_restored(row)})
    return sorted(found, key=lambda event: int(event["at_ms"]))


def _restored(row: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the new owner wrote of how it came by the state; null where its journal is not on this machine."""
    if row is None:
        return {"restored_from": None, "restored_offsets": None, "opened_ms": None, "level_ms": None}
    restored = max(0, row["position"] - row["restored_from"])
    known = {"opened_ms": row["opened_ms"], "level_ms": row.get("level_ms")}  # of an older version: not there
    return {"restored_from": row["source"], "restored_offsets": restored, **known}


def line(event: Mapping[str, Any]) -> str:
    """An event as people read it."""
    at = shown_time(event["at_ms"])
    if "instance" in event:
        return f"{at}  {event['instance']}  {event['what'].removeprefix('instance ')}, process {event['pid']}"
    parts = []
    if event["what"] == "moved":
        parts.append(event["why"] or "the reason is not known")
        parts += [f"{name} {event[f'{name}_ms']} ms" for name in ("pause", "gap") if event[f"{name}_ms"] is not None]
    if event["restored_offsets"] is not None and event["restored_from"] != "stateless":
        restored = counted(event["restored_offsets"], "offset")
        level_ms, opened_ms = event["level_ms"], event["opened_ms"]
        ready_ms = opened_ms if level_ms is None else level_ms
        since_ms = opened_ms - ready_ms
        followed = f", a copy for {show_duration(since_ms)} from then on" if since_ms >= _LONG_MS else ""
        parts.append(f"{restored} restored from {event['restored_from']}, ready after {ready_ms} ms{followed}")
    where = f"{event['from']} -> {event['to']}" if event["what"] == "moved" else f"-> {event['to']}"
    return f"{at}  {event['task']}  {where}  {'; '.join(parts)}".rstrip()
