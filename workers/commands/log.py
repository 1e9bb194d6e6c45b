"""`orchestrator log backup APP FILE`: a copy of an embedded log, while its apps run or not.

One rule: the copy is the log at one moment. What an app does when it is run on an older copy: docs/failures.md.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.arguments import Parser
from orchestrator.errors import WrongUse
from state.log.sqlite_backup import backup
from workers.commands.show import show_json
from workers.fleet.client import application_of
from workers.log.logs import default_log, log_path


def run(argv: list[str]) -> int:
    """Runs `orchestrator log`; its exit code. Raises WrongUse."""
    parser = Parser("log", "Copy an embedded log to a file; apps that use it go on meanwhile.")
    parser.add_argument("action", metavar="backup", choices=("backup",))
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
            f"{url.partition('?')[0]} is no embedded log: brokers keep copies by replication, or copy its topics"
        )
    size = backup(source, Path(args.file))
    if args.json:
        show_json({"application": application, "log": str(source), "file": args.file, "bytes": size})
    else:
        print(f"{source} copied to {args.file}, {size:,} bytes")
    return 0
