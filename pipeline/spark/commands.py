"""`orchestrator backfill` and `orchestrator verify`. One rule: progress goes to standard error, the answer to output; what needs
the extra `spark` is imported once the arguments are read, so that `--help` works without it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.arguments import Parser, checked
from orchestrator.errors import WrongUse
from orchestrator.names import counted
from orchestrator.setting import natural_number
from pipeline.app import App
from pipeline.files.shape import BadFile, Shape, shape_of
from pipeline.loading import load
from pipeline.spark.bad_rows import BadRecords, target_of
from pipeline.spark.ending import run_to_its_end
from workers.commands.cluster import add_cluster, cluster_of
from workers.commands.produce import add_shape
from workers.commands.show import CLEAR, show_json, table
from workers.log.logs import log_url

if TYPE_CHECKING:
    from pipeline.spark.sources import From
    from pipeline.spark.verifying import Check

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
    parser.add_argument(
        "--from",
        dest="sources",
        action="append",
        default=[],
        metavar="TOPIC=SOURCE",
        help="the same from Spark: a query, a table, FORMAT:PATH (orc, avro, delta, ...), log:URL/TOPIC; may be repeated",
    )
    add_shape(parser)
    parser.add_argument("--bad-records", metavar="DIR", help="set rows that are no records aside there, and go on")
    parser.add_argument(
        "--max-bad", type=checked(natural_number), metavar="N", help="stop where there are more such rows than N"
    )
    add_cluster(parser)
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
    parser.add_argument("--dry-run", action="store_true", help="show how much it would read, and change nothing")
    args = parser.parse_intermixed_args(argv)
    from pipeline.spark.backfill import backfill as run_backfill
    from pipeline.spark.planning import plan_text, planned

    app = load(args.app)
    history = history_given(args, app)
    shape = shape_given(args, history)
    bad = bad_given(args, history)
    url = log_url(args, app.id, existing=not history)
    if args.dry_run:
        plan = run_to_its_end(planned(args.app, url, history, shape, cluster_of(args)))
        show_json(plan) if args.json else print(plan_text(plan))
        return 0
    facts = run_to_its_end(
        run_backfill(
            args.app,
            url,
            Path(args.snapshots),
            bad=bad,
            cluster=cluster_of(args),
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
    from pipeline.spark.verifying import verify as run_verify

    app = load(args.app)
    history = history_given(args, app)
    shape = shape_given(args, history)
    url = log_url(args, app.id, existing=True)
    checks = run_to_its_end(
        run_verify(
            args.app,
            url,
            cluster=cluster_of(args),
            snapshots=Path(args.snapshots) if args.snapshots else None,
            history=history,
            shape=shape,
            bad=bad_given(args, history),
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
    """Checks as a table for people, and what they leave out."""
    rows = [("ok" if c["ok"] else "DIFFERS", c["check"], c["expected"], c["found"]) for c in checks]
    left_out = [
        f"{c['check']}: {counted(c['left_out'], 'key')} written after what they are compared with, left out"
        for c in checks
        if c.get("left_out")
    ]
    return "\n".join([table(rows, ("", "check", "expected", "found")), *left_out])


def history_given(args: Any, app: App) -> dict[str, list[str | From]]:
    """What the arguments and --from name, by topic. Raises WrongUse."""
    from pipeline.spark.sources import From, given, is_for_spark

    found: dict[str, list[str | From]] = {}
    for topic, patterns in history_of(args.history).items():
        found[topic] = [From(pattern) if is_for_spark(pattern) else pattern for pattern in patterns]
    read = {topic for sub in app.topology().subtopologies for topic in sub.sources} if args.sources else set()
    inputs = sorted(topic.name for topic in app.topics.values() if topic.topic in read and not topic.is_between)
    for text in args.sources:
        topic, source = given(text, inputs)
        found.setdefault(topic, []).append(source)
    return found


def bad_given(args: Any, history: Mapping[str, Any]) -> BadRecords | None:
    """Raises WrongUse for options that would do nothing."""
    if args.bad_records is None:
        if args.max_bad is not None:
            raise WrongUse(f"--max-bad {args.max_bad}: name a folder for these rows, too, with --bad-records DIR")
        return None
    if not history:
        raise WrongUse("--bad-records has no effect here: no history is named that could have such rows")
    folder = Path(args.bad_records)
    if folder.exists() and not folder.is_dir():
        raise WrongUse(f"--bad-records {folder}: it is a file; name a folder, which gets a file for each topic")
    for topic in history:
        refuse_input("--bad-records", target_of(folder.absolute(), topic), history)
    return BadRecords(str(folder.absolute()), -1 if args.max_bad is None else args.max_bad)


def refuse_input(option: str, path: Path, history: Mapping[str, Any]) -> None:
    """Raises WrongUse where a file that is written would take the place of history."""
    from pipeline.files import parts

    for topic, patterns in history.items():
        for pattern in (one for one in patterns if isinstance(one, str)):
            with suppress(BadFile):  # which says so when it is read
                if path.exists() and any(path.samefile(name) for name in parts.files([pattern])):
                    raise WrongUse(f"{option}: {path} is history of '{topic}', and would be replaced; name another one")


def shape_given(args: Any, history: Mapping[str, Any]) -> Shape:
    """Raises WrongUse for columns without files."""
    shape = shape_of(args.key, args.value, args.timestamp, args.headers, args.partition)
    if shape.flat and not history:
        raise WrongUse(
            "--key, --value, --timestamp, --headers and --partition name columns of files; name the files as TOPIC=PATTERN"
        )
    return shape


def say(text: str) -> None:
    """Progress, for people. On a terminal the line that shows how far a job is gives way to it."""
    print(f"{CLEAR if sys.stderr.isatty() else ''}{text}", file=sys.stderr, flush=True)


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
    bad = facts["bad_rows"]
    set_apart = (
        f"{counted(bad, 'row')} of history {'is' if bad == 1 else 'are'} no record, and set aside\n" if bad else ""
    )
    return (
        f"{set_apart}snapshot {facts['snapshot']}: {counted(facts['records_in'], 'record')} in {counted(facts['tasks'], 'task')}, "
        f"{facts['seconds']['total']:.1f} s\n"
        f"entries of tables: {tables}\noutputs: {outputs}\n"
        f"go on from it with `orchestrator run {app} --snapshots {snapshots}`"
    )
