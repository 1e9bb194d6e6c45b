"""One setting: its names, its help, what makes a value valid, and where it would do nothing.

One rule: a setting is declared once, as the annotation of the field that holds its value (`row`); the field gives type and
default. Its flag, its variable, its key in files and in scenarios are derived. Fields with rows: the group's in model.py,
an instance's in instance_settings.py; what is no field of either stands in cli/settings.py. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from orchestrator.durations import UNITS_MS, parse_duration_ms
from orchestrator.errors import WrongUse

PREFIX = "ORCHESTRATOR_"
SHOWN = 40  # characters of a value that an error repeats


# ---------------------------------------------------------------- rules of validity


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


# ---------------------------------------------------------------- where a setting acts


@dataclass(frozen=True, slots=True)
class Need:
    """What a setting acts on. `holds` looks at the values in effect, by name of setting, and at two facts of the app and
    its log: `has tables`, `embedded log`. `otherwise`: why the setting does nothing without it, and what to do."""

    holds: Callable[[Mapping[str, Any]], bool]
    otherwise: str


LEARNERS = Need(
    lambda values: values["protocol"] == "learner",
    "only the protocol learner has learners; use --protocol learner, or leave it out",
)
COPIES = Need(
    lambda values: values["has tables"] and (values["protocol"] == "learner" or values["standbys"] > 0),
    "there are neither learners nor standbys; use --protocol learner or --standbys with an app that has tables",
)
TABLES = Need(
    lambda values: bool(values["has tables"]), "the app has no tables, so there is no state to copy or restore"
)
STANDBYS = Need(
    lambda values: values["standbys"] > 0, "zones keep standbys apart from their task; give --standbys 1 or more, too"
)
GIVEN_WEIGHTS = Need(
    lambda values: values["weights"] == "given", "weights are measured; use --weights given, or leave it out"
)
SPARK = Need(lambda values: values["on"] == "spark", "instances are processes of this machine; give --on spark, too")
OPEN_ADDRESS = Need(
    lambda values: bool(values["open address"]),
    "the instances listen to this machine alone, which needs no TLS; give --listen with an address that others reach",
)
OPEN_PORT = Need(
    lambda values: bool(values["open address"]) and values["on"] != "spark",
    "no port is open to other machines here; give --listen with one that is, on this machine",
)
METRICS = Need(
    lambda values: bool(values["metrics-port"]), "metrics are not served; give --metrics-port, too, or leave it out"
)
EMBEDDED_LOG = Need(lambda values: bool(values["embedded log"]), "Kafka's brokers decide how they write; leave it out")


# ---------------------------------------------------------------- a setting


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `commit-interval` is --commit-interval, ORCHESTRATOR_COMMIT_INTERVAL, and that key of a file.

    `default` is written as a user would write it; "" stands for none. `field` names the field that holds the value, if it
    has one. `is_path`: instances are given it absolute. `hidden`: for tests; help does not show it. `alone`:
    what the flag means without a value, where it may stand alone. `least`: what instances go by where the value is smaller.
    """

    name: str
    default: str
    help: str
    parse: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    field: str = ""
    need: Need | None = None
    is_path: bool = False
    hidden: bool = False
    alone: str | None = None
    least: int = 0

    @property
    def variable(self) -> str:
        return PREFIX + self.name.replace("-", "_").upper()

    @property
    def option(self) -> str:
        """Its attribute among the parsed options of a command."""
        return self.name.replace("-", "_")

    @property
    def key(self) -> str:
        """How a scenario file and `explain` call a setting of the group."""
        return self.field.removesuffix("_ms")

    def read(self, text: str, where: str) -> Any:
        """The value. Raises WrongUse naming where it was written."""
        # As `--log "$LOG"` has it where the variable is not set, or blank: the default may be another place.
        if not text or (self.parse is str and text.isspace()):
            raise WrongUse(f"{where.rstrip()} has an empty text; write a value, or leave it out")
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

    def in_effect(self, text: str) -> str:
        """What instances that are configured with this go by, as a user writes it. Raises WrongUse."""
        return written(self.field, self.least) if self.least and self.read(text, self.name) < self.least else text


def row(
    name: str,
    help: str,
    parse: Callable[[str], Any] = str,
    choices: tuple[str, ...] = (),
    *,
    need: Need | None = None,
    is_path: bool = False,
    hidden: bool = False,
    least: int = 0,
) -> Setting:
    """Returns what annotates a field that is a setting; `rows_of` adds the field's name and its default."""
    return Setting(name, "", help, parse, choices, need=need, is_path=is_path, hidden=hidden, least=least)


def rows_of(fields: type, defaults: object) -> tuple[Setting, ...]:
    """Returns the settings that a class declares, in the order of its fields; `defaults` is an instance of it."""
    found: list[Setting] = []
    for field, hint in get_type_hints(fields, include_extras=True).items():
        for setting in getattr(hint, "__metadata__", ()):
            if isinstance(setting, Setting):
                found.append(replace(setting, field=field, default=written(field, getattr(defaults, field))))
    return tuple(found)


def written(field: str, value: object) -> str:
    """A value as a user writes it: 10000 of a field in ms is `10s`; nothing at all is ""."""
    if not field.endswith("_ms"):
        return "" if value in ("", ()) else str(value)
    assert isinstance(value, int)
    unit = max(
        (unit for unit, size in UNITS_MS.items() if value % size == 0 and (value or unit == "s")),
        key=UNITS_MS.__getitem__,
    )
    return f"{value // UNITS_MS[unit]}{unit}"
