"""`orchestrator snapshot APP`, taken on Spark, and `list|verify|prune`: what lies in a folder of snapshots.

One rule: only the files of the folder are looked at, and a snapshot that changelogs go on from is never removed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Parser, checked
from orchestrator.cli.commands import JOBS, place_called
from orchestrator.errors import OrchestratorError, WrongUse
from orchestrator.setting import whole_number
from state import manifest, snapshot
from state.errors import SnapshotUnusable
from state.manifest import SnapshotManifest
from workers.commands.show import show_json, shown_time, table

ACTIONS = ("list", "verify", "prune")


class SnapshotDamaged(OrchestratorError):
    """Snapshots are not what their manifests say."""


def run(argv: list[str]) -> int:
    """Runs `orchestrator snapshot`; its exit code. Raises WrongUse, SnapshotDamaged."""
    if argv and not argv[0].startswith("-") and argv[0] not in ACTIONS:
        return int(place_called(JOBS["snapshot"])(argv))
    parser = Parser(
        "snapshot",
        "Take a snapshot of APP's tables while it runs; or list the snapshots of a folder, verify their files, remove the older.",
    )
    parser.add_argument("action", metavar="APP|list|verify|prune", choices=ACTIONS)
    parser.add_argument("name", nargs="?", metavar="SNAPSHOT", help="verify: that one alone")
    parser.setting("snapshots", default=".orchestrator/snapshots", help="the folder")
    parser.add_argument(
        "--keep", type=checked(whole_number), metavar="N", help="prune: how many stay of each application, the newest"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_intermixed_args(argv)
    root = Path(args.snapshots)
    if not root.is_dir():
        raise WrongUse(f"there is no folder {root}; name the folder of snapshots with --snapshots")
    if args.name and args.action != "verify":
        raise WrongUse(f"{args.action} is of all snapshots of the folder; leave out {args.name}")
    if (args.keep is None) == (args.action == "prune"):
        raise WrongUse("prune needs --keep N, how many stay" if args.keep is None else "--keep is for prune")
    facts = {"list": _list, "verify": _verify, "prune": _prune}[args.action](root, args)
    if args.json:
        show_json(facts)
    else:
        print(_text(args.action, facts))
    if damaged := facts.get("damaged"):
        raise SnapshotDamaged("; ".join(f"snapshot {name}: {why}" for name, why in damaged.items()))
    return 0


def _list(root: Path, args: Any) -> dict[str, Any]:
    found, unusable = manifest.listing(root)
    return {"snapshots": [_facts(root, one) for one in found], "unusable": unusable}


def _verify(root: Path, args: Any) -> dict[str, Any]:
    found, unusable = manifest.listing(root)
    names = [args.name] if args.name else [*(one.snapshot for one in found), *unusable]
    verified: list[dict[str, Any]] = []
    damaged: dict[str, str] = {}
    for name in names:
        try:
            verified.append(_facts(root, snapshot.verify(root, name)))
        except SnapshotUnusable as error:
            damaged[name] = str(error)
    return {"verified": verified, "damaged": damaged}


def _prune(root: Path, args: Any) -> dict[str, Any]:
    return {"removed": manifest.prune(root, args.keep)}


def _facts(root: Path, one: SnapshotManifest) -> dict[str, Any]:
    size = sum(path.stat().st_size for path in (root / one.snapshot).rglob("*") if path.is_file())
    return {
        "snapshot": one.snapshot,
        "application": one.application,
        "time_ms": one.time_ms,
        "tasks": len(one.scopes),
        "bytes": size,
        "base": one.base,
    }


def _text(action: str, facts: dict[str, Any]) -> str:
    if action == "prune":
        return f"removed: {', '.join(facts['removed']) or 'none'}"
    rows = [
        (one["snapshot"], one["application"], shown_time(one["time_ms"]), one["tasks"], one["bytes"], _use(one))
        for one in facts["snapshots" if action == "list" else "verified"]
    ]
    none = "no snapshot is whole" if facts.get("damaged") else "no snapshot"
    lines = [table(rows, ("snapshot", "application", "made", "tasks", "bytes", "use")) if rows else none]
    lines += [f"{name} cannot be used: {why}" for name, why in facts.get("unusable", {}).items()]
    if action == "verify" and not facts["damaged"]:
        lines.append(f"{len(rows)} verified: every file is as its manifest says")
    return "\n".join(lines)


def _use(one: dict[str, Any]) -> str:
    return "changelogs go on from it" if one["base"] else "a copy"
