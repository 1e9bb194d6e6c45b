"""`orchestrator log VERB`: which verb is whose; `log backup APP FILE`: a copy of an embedded log, while its apps run or not; and
`log check APP`: whether its file is whole.

One rule: the backup is the log at one moment. What an app does when it is run on an older copy: docs/failures.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.cli.commands import place_called
from orchestrator.errors import WrongUse
from state.log.sqlite_backup import backup
from state.log.sqlite_check import are_of_indexes, problems
from workers.commands.show import show_json
from workers.fleet.client import application_of
from workers.fleet.presence import FLEET, NAMED
from workers.log.logs import default_log, log_path

VERBS: dict[str, tuple[str, str]] = {
    "backup": ("workers.commands.log:backed_up", "copy an embedded log to a file, while its apps run or not"),
    "check": ("workers.commands.log:checked", "look whether the file of an embedded log is whole"),
    "copy": ("workers.commands.log_copy:run", "move an app that is stopped to another log, such as Kafka"),
}


def run(argv: list[str]) -> int:
    """Runs `orchestrator log`; its exit code. Raises WrongUse."""
    if argv and argv[0] in VERBS:
        return int(place_called(VERBS[argv[0]][0])(argv[1:]))
    rows = "; ".join(f"{verb}: {text}" for verb, (_, text) in VERBS.items())
    parser = Parser(
        "log",
        f"Copies of logs, and whether they are whole. {rows}. `orchestrator log VERB --help` lists the options of a verb.",
    )
    parser.usage = "%(prog)s VERB [option ...]"
    parser.add_argument("verb", metavar="VERB", choices=tuple(VERBS), help=", ".join(VERBS))
    parser.settings("log")
    if not any(word in VERBS for word in argv):
        parser.parse_args(argv)
    raise WrongUse("orchestrator log: write the verb first, and options behind it")


def backed_up(argv: list[str]) -> int:
    """Runs `orchestrator log backup`; its exit code. Raises WrongUse."""
    parser = Parser("log backup", "Copy an embedded log to a file; apps that use it go on meanwhile.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("file", metavar="FILE", help="the copy; it must not be there yet")
    parser.add_argument("--json", action="store_true")
    parser.settings("log")
    args = parser.parse_args(argv)
    application, source = (
        application_of(args.app),
        _embedded(args, "brokers keep copies by replication, and `log copy` moves an app"),
    )
    if not (folder := Path(args.file).parent).is_dir():
        raise WrongUse(f"{args.file}: there is no folder {folder}; make it first")
    size = backup(source, Path(args.file), forget=(FLEET, NAMED))
    if args.json:
        show_json({"application": application, "log": str(source), "file": args.file, "bytes": size})
    else:
        print(f"{source} copied to {args.file}, {size:,} bytes")
    return 0


def checked(argv: list[str]) -> int:
    """Runs `orchestrator log check`; its exit code. Raises WrongUse."""
    parser = Parser("log check", "Look whether the file of an embedded log is whole; apps that use it go on meanwhile.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("--json", action="store_true")
    parser.settings("log")
    args = parser.parse_args(argv)
    application, source = application_of(args.app), _embedded(args, "brokers check what they keep")
    found = problems(source)
    if args.json:
        show_json({"application": application, "log": str(source), "problems": found})
    else:
        print("\n".join(found) or f"{source} is whole")
    if not found:
        return 0
    way = (
        f"an index lacks rows that may be there: stop what uses it, and have SQLite make its indexes anew (`sqlite3 {source} reindex`)"
        if are_of_indexes(found)
        else "restore it from a backup"
    )
    print(f"error: the log {source} is damaged; {way}", file=sys.stderr)
    return 1


def _embedded(args: Any, instead: str) -> Path:
    """The file of the log that is meant. Raises WrongUse where it is none."""
    url = args.log or default_log(application_of(args.app), Path.cwd(), existing=True)
    source = log_path(url)
    if source is None:
        raise WrongUse(f"{url.partition('?')[0]} is no embedded log: {instead}")
    return source
