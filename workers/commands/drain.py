"""`orchestrator drain APP INSTANCE --wait`: let one instance hand over and leave (a preStop hook)."""

from __future__ import annotations

from argparse import Namespace

from orchestrator.cli.arguments import Parser, checked
from orchestrator.cli.settings import ACCESS, PLACE
from orchestrator.setting import some_time
from workers.commands import scale_down


def run(argv: list[str]) -> int:
    parser = Parser("drain", "Let one instance hand over everything and shut itself down.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("instance", metavar="INSTANCE")
    parser.add_argument("--wait", action="store_true")
    parser.add_argument(
        "--timeout", type=checked(some_time), metavar="DURATION", help="after that the mark is taken back (exit 4)"
    )
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE, *ACCESS)
    args = parser.parse_args(argv)
    not_asked = dict.fromkeys(("to", "by", "current", "apply"))
    no = dict.fromkeys(("plan", "follow", "undo", "force"), False)
    return scale_down.do(Namespace(instances=args.instance, **not_asked, **no, **vars(args)))
