"""The settings of the group: its rows, and the values that it gets from text.

One rule: a setting of the group is a field of model.Settings, with its row there. Its flag, its variable, its key in
files, its key in scenario files and the value that the group gets are derived. Imported by cli/ and simulator/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from orchestrator.errors import WrongUse
from orchestrator.model import Protocol, Settings
from orchestrator.setting import Setting, rows_of, written

GROUP: tuple[Setting, ...] = rows_of(Settings, Settings())
BY_KEY: Mapping[str, Setting] = {setting.key: setting for setting in GROUP}
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in GROUP}
LIVE = ("protocol", "standbys", "balancing-factor", "max-learners", "release-timeout", "learner-timeout")


def group_settings(values: Mapping[str, Any], base: Settings | None = None, dashes: str = "") -> Settings:
    """Returns the group's settings from values by field, over `base`. Raises WrongUse for those that contradict each
    other, naming each after `dashes`."""
    known = {field.name for field in fields(Settings)} & values.keys()
    given = {name: values[name] for name in known}
    if "protocol" in given:
        given["protocol"] = Protocol(given["protocol"])
    found = replace(base or Settings(), **given)
    if found.session_timeout_ms <= found.heartbeat_ms:
        raise WrongUse(
            f"{dashes}session-timeout is not longer than {dashes}heartbeat: every member would be taken for dead; raise it"
        )
    return found


def group_settings_of(options: object) -> Settings:
    """Returns the group's settings from the options of a command that declared them all. Raises WrongUse."""
    return group_settings({setting.field: getattr(options, setting.option) for setting in GROUP}, dashes="--")


def named_in(sentences: Iterable[str], settings: Settings) -> dict[str, str]:
    """Returns the settings that sentences of `explain` name, `(release_timeout)`, as name and value in effect."""
    keys = {key for sentence in sentences for key in re.findall(r"\(([a-z_]+)(?:=[a-z]+)?\)", sentence)}
    return {row.name: written(row.field, getattr(settings, row.field)) for row in GROUP if row.key in keys}


def live_changes(changes: str) -> dict[str, str]:
    """Returns names and texts of `NAME=VALUE` lines for a group that runs, every value read once. Raises WrongUse."""
    found: dict[str, str] = {}
    for line in changes.splitlines():
        name, equals, text = line.partition("=")
        if not equals:
            raise WrongUse(f"'{line[:80]}': write NAME=VALUE, or NAME= to take a setting back")
        if name not in LIVE:
            why = (
                f"each worker goes by its own; bounce the instances one by one with --{name}"
                if name in BY_NAME
                else f"it is no setting of the group; there are {', '.join(LIVE)}"
            )
            raise WrongUse(f"{name[:80]} cannot be set for a group that runs: {why}")
        if name in found:
            raise WrongUse(f"{name} is given twice: name it once")
        if text:
            BY_NAME[name].read(text, name)
        found[name] = text
    return found


def overlaid(configured: Settings, kept: Mapping[str, str]) -> Settings:
    """Returns what a group goes by that is configured so, with the live settings of its operator above. What another version
    has kept and this one does not know is left out."""
    values = {BY_NAME[name].field: BY_NAME[name].read(text, name) for name, text in kept.items() if name in LIVE}
    return group_settings(values, configured)
