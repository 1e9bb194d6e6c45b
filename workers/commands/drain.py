"""`orchestrator drain APP INSTANCE --wait`: let one instance hand over and leave (a preStop hook)."""

from __future__ import annotations

from orchestrator.cli.arguments import Parser, checked
from orchestrator.cli.settings import some_time
from workers.commands import scale_down
from workers.commands.run import add_place


def run(argv: list[str]) -> int:
    parser = Parser("drain", "Let one instance hand over everything and shut itself down.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("instance", metavar="INSTANCE")
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--timeout", type=checked(some_time), metavar="DURATION")
    parser.add_argument("--json", action="store_true")
    add_place(parser)
    args = parser.parse_args(argv)
    words = [args.app, "--instances", args.instance]
    words += ["--wait"] if args.wait else []
    words += ["--json"] if args.json else []
    words += ["--log", args.log] if args.log else []
    words += ["--timeout", f"{args.timeout}ms"] if args.timeout is not None else []
    return scale_down.run(words)
