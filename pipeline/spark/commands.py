"""`orchestrator backfill` and `orchestrator verify`. One rule: progress goes to standard error, the answer to output."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.errors import WrongUse
from orchestrator.names import counted
from pipeline.files.shape import Shape, shape_of
from pipeline.loading import load
from pipeline.spark.backfill import backfill as run_backfill
from pipeline.spark.verifying import Check
from pipeline.spark.verifying import verify as run_verify
from workers.commands.produce import add_shape
from workers.commands.show import show_json, table
from workers.log.logs import log_url

SNAPSHOTS = ".orchestrator/snapshots"


def spark_parser(command: str, description: str) -> Parser:
    """What the commands that compute from history have in common."""
    parser = Parser(command, description)
    parser.add_argument("app", metavar="MODULE:APP")
    parser.add_argument(
        "history",
        nargs="*",
        metavar="TOPIC=PATTERN",
        help="files of records before those in the log (Parquet, JSON lines, CSV: key, value, timestamp_ms)",
    )
    add_shape(parser)
    parser.setting("master", default="local[2]", help="Spark's master")
    parser.settings("task-memory", "log", "kafka-config")
    parser.add_argument("--allow-outside", action="store_true", help="also for apps with resources or local tables")
    parser.add_argument("--json", action="store_true")
    return parser


def backfill(argv: list[str]) -> int:
    """Compute an app's tables and outputs from its history. Raises WrongUse."""
    parser = spark_parser(
        "backfill", "Compute tables and outputs from history on Spark; live instances go on from there."
    )
    parser.setting("snapshots", default=SNAPSHOTS, help="folder for the snapshot")
    parser.add_argument(
        "--snapshot-only", action="store_true", help="tables in the snapshot alone: the changelogs need it for ever"
    )
    args = parser.parse_intermixed_args(argv)
    history = history_of(args.history)
    shape = shape_given(args, history)
    url = log_url(args, load(args.app).id, existing=not history)
    facts = asyncio.run(
        run_backfill(
            args.app,
            url,
            Path(args.snapshots),
            master=args.master,
            history=history,
            say=say,
            allow_outside=args.allow_outside,
            memory_bytes=args.task_memory,
            snapshot_only=args.snapshot_only,
            shape=shape,
        )
    )
    if args.json:
        show_json(facts)
    else:
        print(_line(facts, args.app, args.snapshots))
    return 0


def verify(argv: list[str]) -> int:
    """Compare live tables and outputs with what Spark computes from the same inputs."""
    parser = spark_parser(
        "verify", "Compute everything again on Spark and compare each key and output with the live ones."
    )
    parser.setting("snapshots", help="folder of the snapshot of a backfill with --snapshot-only")
    args = parser.parse_intermixed_args(argv)
    history = history_of(args.history)
    shape = shape_given(args, history)
    app = load(args.app)
    url = log_url(args, app.id, existing=True)
    checks = asyncio.run(
        run_verify(
            args.app,
            url,
            master=args.master,
            snapshots=Path(args.snapshots) if args.snapshots else None,
            history=history,
            shape=shape,
            say=say,
            allow_outside=args.allow_outside,
            memory_bytes=args.task_memory,
        )
    )
    if args.json:
        show_json({"application": app.id, "checks": checks})
    else:
        print(shown(checks))
    return 0 if all(check["ok"] for check in checks) else 1


def shown(checks: list[Check]) -> str:
    """Checks as a table for people."""
    rows = [("ok" if c["ok"] else "DIFFERS", c["check"], c["expected"], c["found"]) for c in checks]
    return table(rows, ("", "check", "expected", "found"))


def shape_given(args: Any, history: dict[str, list[str]]) -> Shape:
    """Raises WrongUse for columns without files."""
    shape = shape_of(args.key, args.value, args.timestamp)
    if shape.flat and not history:
        raise WrongUse("--key, --value and --timestamp name columns of files; name the files as TOPIC=PATTERN")
    return shape


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def history_of(given: list[str]) -> dict[str, list[str]]:
    """`payments=history/*.parquet` (a shell may have expanded the pattern: what follows without `=` goes with it).
    Raises WrongUse."""
    found: dict[str, list[str]] = {}
    topic = ""
    for word in given:
        name, equals, pattern = word.partition("=")
        if equals and "/" not in name and pattern:
            topic = name
        elif topic:
            pattern = word
        else:
            raise WrongUse(f"'{word}' is not TOPIC=PATTERN, for example payments=history/*.parquet")
        found.setdefault(topic, []).append(pattern)
    return found


def _line(facts: dict[str, Any], app: str, snapshots: str) -> str:
    tables = ", ".join(f"{name} {count}" for name, count in facts["tables"].items()) or "none"
    outputs = ", ".join(f"{name} {count}" for name, count in facts["outputs"].items()) or "none"
    return (
        f"snapshot {facts['snapshot']}: {counted(facts['records_in'], 'record')} in {counted(facts['tasks'], 'task')}, "
        f"{facts['seconds']['total']:.1f} s\n"
        f"entries of tables: {tables}\noutputs: {outputs}\n"
        f"go on from it with `orchestrator run {app} --snapshots {snapshots}`"
    )
