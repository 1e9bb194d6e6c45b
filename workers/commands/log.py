"""`orchestrator log VERB`: which verb is whose; and `log backup APP FILE`: a copy of an embedded log, while its apps run or not.

One rule: the backup is the log at one moment. What an app does when it is run on an older copy: docs/failures.md.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.arguments import Parser
from orchestrator.cli.commands import place_called
from orchestrator.errors import WrongUse
from state.log.sqlite_backup import backup
from workers.commands.show import show_json
from workers.fleet.client import application_of
from workers.fleet.presence import FLEET, NAMED
from workers.log.logs import default_log, log_path

VERBS: dict[str, tuple[str, str]] = {
    "backup": ("workers.commands.log:backed_up", "copy an embedded log to a file, while its apps run or not"),
    "copy": ("workers.commands.log_copy:run", "move an app that is stopped to another log, such as Kafka"),
}


def run(argv: list[str]) -> int:
    """Runs `orchestrator log`; its exit code. Raises WrongUse."""
    if argv and argv[0] in VERBS:
        return int(place_called(VERBS[argv[0]][0])(argv[1:]))
    rows = "; ".join(f"{verb}: {text}" for verb, (_, text) in VERBS.items())
    parser = Parser("log", f"Copies of logs. {rows}. `orchestrator log VERB --help` lists the options of a verb.")
    parser.add_argument("verb", metavar="VERB", choices=tuple(VERBS), help=", ".join(VERBS))
    parser.settings("log")
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
    application = application_of(args.app)
    url = args.log or default_log(application, Path.cwd(), existing=True)
    source = log_path(url)
    if source is None:
        raise WrongUse(
            f"{url.partition('?')[0]} is no embedded log: brokers keep copies by replication, and `log copy` moves an app"
        )
    if not (folder := Path(args.file).parent).is_dir():
        raise WrongUse(f"{args.file}: there is no folder {folder}; make it first")
    size = backup(source, Path(args.file), forget=(FLEET, NAMED))
    if args.json:
        show_json({"application": application, "log": str(source), "file": args.file, "bytes": size})
    else:
        print(f"{source} copied to {args.file}, {size:,} bytes")
    return 0
