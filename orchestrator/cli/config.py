"""`orchestrator config show`: every setting, its value, and the place that gave it."""

from __future__ import annotations

import json
import sys

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import TABLE, current


def run(argv: list[str]) -> int:
    parser = Parser("config", "Show every setting, its value, and where it comes from.")
    parser.add_argument("verb", choices=["show"], metavar="show")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    sources = current()
    for warning in sources.strange():
        print(f"warning: {warning}", file=sys.stderr)
    rows: list[tuple[str, str, str]] = []
    for setting in TABLE.values():
        given = sources.given(setting)
        if given is not None:
            setting.read(given.text, given.shown(setting))
        elif setting.hidden:
            continue
        rows.append((setting.name, given.text if given else setting.default, given.source if given else "default"))
    if args.json:
        shown = [
            {"name": name, "value": value or None, "source": source, "variable": TABLE[name].variable}
            for name, value, source in rows
        ]
        print(json.dumps({"schema": 1, "settings": shown}))
    else:
        wide, wider = (max(len(row[i]) for row in rows) for i in (0, 1))
        print("\n".join(f"{name:{wide}}  {value or '-':{wider}}  {source}" for name, value, source in rows))
    return 0
