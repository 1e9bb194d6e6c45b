"""`orchestrator config show [APP]`: every setting, its value, and the place that gave it; of an app what was set for its group."""

from __future__ import annotations

import json

from orchestrator.cli.arguments import Parser
from orchestrator.cli.commands import LIVE_SETTINGS, place_called
from orchestrator.cli.settings import PLACE, TABLE, Given, current


def run(argv: list[str]) -> int:
    parser = Parser("config", "Show every setting, its value, and where it comes from.")
    parser.add_argument("verb", choices=["show"], metavar="show")
    parser.add_argument("app", metavar="APP", nargs="?", help="with what was set for its group (`settings set`)")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE)
    args = parser.parse_intermixed_args(argv)
    live: dict[str, str] = place_called(LIVE_SETTINGS)(args) if args.app else {}
    sources = current()
    rows: list[tuple[str, str, str]] = []
    for setting in TABLE.values():
        given = Given(flag, "command line") if (flag := parser.given.get(setting.name)) else sources.given(setting)
        if given is not None:
            setting.read(given.text, given.shown(setting))
        elif setting.hidden:
            continue
        if setting.name in live:  # above flags, variables and files, also after a restart
            rows.append((setting.name, live[setting.name], f"settings set, of the group of {args.app}"))
            continue
        text, source = (given.text, given.source) if given else (setting.default, "default")
        value = setting.in_effect(text)
        rows.append((setting.name, value, source if value == text or not given else f"the least; {source}: {text}"))
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
