"""What can be set, as rows of a table: name, default, help, and what makes a value valid; and the rows of the group.

One rule: a setting of the group is a field of model.Settings and one row here. Its flag, its variable, its key in files, its
key in scenario files and the value that the group gets are derived from the row. Imported by cli/ and simulator/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from orchestrator.durations import UNITS_MS, parse_duration_ms
from orchestrator.errors import WrongUse
from orchestrator.member.load_meter import UNITS
from orchestrator.model import Protocol, Settings

PREFIX = "ORCHESTRATOR_"
SHOWN = 40  # characters of a value that an error repeats


def whole_number(text: str) -> int:
    """A count of 1 or more. Raises WrongUse."""
    return _number(text, 1)


def natural_number(text: str) -> int:
    """A count of 0 or more. Raises WrongUse."""
    return _number(text, 0)


def some_time(text: str) -> int:
    """A duration above zero, in ms. Raises WrongUse."""
    found = parse_duration_ms(text)
    if found < 1:
        raise WrongUse(f"'{text}' is no time at all; write a duration such as 100ms")
    return found


def _number(text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise WrongUse(f"'{text[:SHOWN]}' is not a whole number of {least} or more")
    if len(text) > 9:  # Python does not even read a number of 5,000 digits
        raise WrongUse(f"'{text[:SHOWN]}' is too much; write a whole number of at most 9 digits")
    if int(text) < least:
        raise WrongUse(f"'{text}' is not a whole number of {least} or more")
    return int(text)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `commit-interval` is --commit-interval, ORCHESTRATOR_COMMIT_INTERVAL, and that key of a file.
    `default` is written as a user would write it; "" stands for none. `field`: which of model.Settings it is, if any."""

    name: str
    default: str
    help: str
    parse: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    field: str = ""

    @property
    def variable(self) -> str:
        return PREFIX + self.name.replace("-", "_").upper()

    @property
    def key(self) -> str:
        """How a scenario file and `explain` call a setting of the group."""
        return self.field.removesuffix("_ms")

    def read(self, text: str, where: str) -> Any:
        """The value. Raises WrongUse naming where it was written."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise WrongUse(f"{where}: it is not UTF-8; write it in UTF-8, or rename what it names") from None
        try:
            value = self.parse(text)
        except (ValueError, WrongUse) as error:
            raise WrongUse(f"{where}: {error}") from None
        if self.choices and value not in self.choices:
            raise WrongUse(f"{where}: '{text[:SHOWN]}' is not one of {', '.join(self.choices)}")
        return value


def _row(name: str, field: str, help: str, parse: Callable[[str], Any] = str, choices: tuple[str, ...] = ()) -> Setting:
    """A setting of the group; its default is that of the field."""
    value = getattr(Settings(), field)
    return Setting(name, _written(value) if field.endswith("_ms") else str(value), help, parse, choices, field)


def _written(ms: int) -> str:
    """A duration in its largest whole unit: 10000 -> `10s`."""
    unit = max(
        (unit for unit, size in UNITS_MS.items() if ms % size == 0 and (ms or unit == "s")), key=UNITS_MS.__getitem__
    )
    return f"{ms // UNITS_MS[unit]}{unit}"


GROUP: tuple[Setting, ...] = (
    _row(
        "protocol",
        "protocol",
        "how tasks change hands: eager, cooperative or learner",
        choices=tuple(protocol.value for protocol in Protocol),
    ),
    _row("ready", "ready", "when a learner takes over: eager or conservative", choices=("eager", "conservative")),
    _row("standbys", "standbys", "standby copies of each task", natural_number),
    _row(
        "weights",
        "weights",
        "what a task weighs: given (1, or --task-weights), or measured by rate (records) or bytes (of state)",
        choices=("given", *UNITS),
    ),
    _row(
        "balancing-factor",
        "balancing_factor",
        "a task moves when its host stays above by more than so many",
        whole_number,
    ),
    _row("heartbeat", "heartbeat_ms", "time between heartbeats", some_time),
    _row("session-timeout", "session_timeout_ms", "silence after which a member is dead", some_time),
    _row("disconnect-grace", "disconnect_grace_ms", "wait before warm copies take over", parse_duration_ms),
    _row(
        "rejoin-grace", "rejoin_grace_ms", "how long a new coordinator waits for owners to come back", parse_duration_ms
    ),
    _row("release-timeout", "release_timeout_ms", "time to release a task, after which its owner is fenced", some_time),
    _row("learner-timeout", "learner_timeout_ms", "time without progress after which a learner is given up", some_time),
    _row("initial-delay", "initial_delay_ms", "how long a new group waits for more members to join", parse_duration_ms),
    _row("max-learners", "max_learners_per_instance", "learners that restore at one time, an instance", whole_number),
    _row(
        "acceptable-recovery-lag",
        "acceptable_recovery_lag",
        "how far a copy may be behind to be ready",
        natural_number,
    ),
    _row(
        "acceptable-recovery-time",
        "acceptable_recovery_time_ms",
        "or, where it comes no closer, the longest pause to take over with",
        parse_duration_ms,
    ),
)
BY_KEY: Mapping[str, Setting] = {setting.key: setting for setting in GROUP}


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
    values = {setting.field: getattr(options, setting.name.replace("-", "_")) for setting in GROUP}
    return group_settings(values, dashes="--")
