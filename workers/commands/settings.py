"""`orchestrator settings show|set|unset APP [NAME=VALUE ...]`: the settings of a group while it runs.

One rule: what is set here is the group's, above what its instances are configured with, and stays so over every restart until
it is taken back; `config show APP` names it. The coordinator checks and keeps it; nothing is written past it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import ACCESS, PLACE, current
from orchestrator.coordinator.live_settings import SetSettingsRequest, SettingsRequest
from orchestrator.errors import WrongUse
from orchestrator.model import Settings
from orchestrator.setting import written
from orchestrator.settings import BY_NAME, LIVE, live_changes, overlaid
from workers.commands.show import show_json, table
from workers.fleet.client import client_of, description, log_of
from workers.instance.ledger import kept_settings

VERBS = {"show": "what the group goes by", "set": "change it at once", "unset": "go by the instances' own again"}


def run(argv: list[str]) -> int:
    """Runs `orchestrator settings`; its exit code. Raises WrongUse, RefusedBySafety."""
    rows = "; ".join(f"{verb}: {text}" for verb, text in VERBS.items())
    parser = Parser("settings", f"The settings of a group that runs. {rows}.")
    parser.add_argument("verb", metavar="|".join(VERBS), choices=tuple(VERBS))
    parser.add_argument("app", metavar="APP")
    parser.add_argument("changes", nargs="*", metavar="NAME[=VALUE]", help=f"of {', '.join(LIVE)}")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE, *ACCESS)
    args = parser.parse_intermixed_args(argv)
    facts = asyncio.run(_run(args))
    if args.json:
        show_json(facts)
        return 0
    rows_ = [
        (name, value, "settings set" if name in facts["live"] else "instances")
        for name, value in facts["settings"].items()
        if BY_NAME[name].hidden is False
    ]
    print(table(rows_, ("setting", "value", "from")))
    return 0


async def _run(args: Any) -> dict[str, Any]:
    changes = _changes(args)
    async with client_of(args) as (application, log, client):
        if args.verb == "set":
            now = await client.ask(SettingsRequest())
            _refuse_idle(live_changes(changes), now["settings"], await description(log, application))
        answer = await client.ask(SettingsRequest() if args.verb == "show" else SetSettingsRequest(changes))
    return {"application": application, **answer}


def _changes(args: Any) -> str:
    """A line each. Raises WrongUse before the group is asked."""
    if args.verb == "show":
        if args.changes:
            raise WrongUse(f"settings show {args.app}: it takes no settings; write `settings set` to change them")
        return ""
    if not args.changes:
        raise WrongUse(f"settings {args.verb}: which; there are {', '.join(LIVE)}")
    for one in args.changes:
        if "=" in one if args.verb == "unset" else not one.partition("=")[2]:
            raise WrongUse(f"settings {args.verb}: '{one}'; write `set NAME=VALUE`, or `unset NAME`")
    found = "\n".join(f"{one}=" if args.verb == "unset" else one for one in args.changes)
    live_changes(found)
    return found


def _refuse_idle(changes: Mapping[str, str], now: Mapping[str, str], described: Mapping[str, Any]) -> None:
    """As a flag of `run` is refused that does nothing beside the other settings in effect. Raises WrongUse."""
    values: dict[str, Any] = {name: BY_NAME[name].read(text, name) for name, text in {**now, **changes}.items()}
    values["has tables"] = bool(described["tables"])
    for name in changes:
        need = BY_NAME[name].need
        if need is not None and not need.holds(values):
            raise WrongUse(f"settings set: {name} has no effect here: {need.otherwise}")


def kept_of(args: Any) -> dict[str, str]:
    """What `config show APP` shows of the group, which need not run. Raises WrongUse for an app that the log does not know."""

    async def read() -> dict[str, str]:
        async with log_of(args) as (application, log, _):
            await description(log, application)
            return await kept_settings(log, application)

    return asyncio.run(read())


def given_live(flags: Mapping[str, str]) -> dict[str, str]:
    """What the command line, the environment and files give of what can be set for a group that runs, by name: as it was written."""
    sources, found = current(), dict[str, str]()
    for name in LIVE:
        if name in flags:
            found[name] = f"--{name} {flags[name]}"
        elif (given := sources.given(BY_NAME[name])) is not None:
            found[name] = given.shown(BY_NAME[name])
    return found


def passed_over(given: Mapping[str, str], configured: Settings, kept: Mapping[str, str], application: str) -> list[str]:
    """A line for each of `given_live` that gives another value than the group goes by, as it was set while the group ran. A start
    is not refused for it: what a unit file says has to start again."""
    held, lines = overlaid(configured, kept), list[str]()
    for name in (one for one in LIVE if one in given and one in kept):
        field = BY_NAME[name].field
        if getattr(held, field) != getattr(configured, field):
            lines.append(
                f"warning: {given[name]} has no effect: the group goes by `settings set {name}={written(field, getattr(held, field))}`; "
                f"`orchestrator settings unset {application} {name}` gives it back"
            )
    return lines
