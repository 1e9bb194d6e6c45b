"""Settings: the table of all of them, and where a value comes from. A row is what orchestrator/setting.py says.

One rule: flag, then environment, then orchestrator.toml, then [tool.orchestrator] of pyproject.toml (both in the current
folder), then the default. An unknown key of a file is an error; an unknown variable is a warning.
Deeds (how many instances, undo, force) are no settings: they come from the command line alone.
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from orchestrator.durations import parse_size_bytes
from orchestrator.errors import WrongUse
from orchestrator.instance_settings import INSTANCE
from orchestrator.setting import PREFIX, SPARK, Setting
from orchestrator.settings import GROUP

FILE, PROJECT = "orchestrator.toml", "pyproject.toml"
COMMAND_LINE_ONLY = frozenset(
    {"to", "by", "instances", "force", "undo", "apply", "current", "plan", "timeout", "follow", "wait"}
)
# What Kubernetes puts into every container for a service called `orchestrator` or `orchestrator-...`.
KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)")


NAME, HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"), "%h"


def instance_name(text: str) -> str:
    """The name of an instance; `%h` stands for the name of the host. Raises WrongUse."""
    name = socket.gethostname().partition(".")[0] if text == HOST else text
    if not NAME.fullmatch(name):
        raise WrongUse(f"'{name[:80]}' is no name of an instance; write up to 63 letters, digits, - and _")
    return name


MASTERS = re.compile(r"local(\[(\d+|\*)(, ?\d+)?\])?|local-cluster\[\d+, ?\d+, ?\d+\]|(spark|k8s)://.+|yarn")


def spark_master(text: str) -> str:
    """A URL of Spark's cluster. Raises WrongUse for what Spark would refuse, after seconds and in a page."""
    if not MASTERS.fullmatch(text):
        raise WrongUse(
            f"'{text[:80]}' is no master of Spark; write local[2], local-cluster[1,2,1024], spark://HOST:PORT, "
            "k8s://URL or yarn"
        )
    return text


PLACE = ("log", "kafka-config", "state-dir")  # where an application lives
ACCESS = (
    "secret-file",
    "tls-cert",
    "tls-key",
    "tls-ca",
)  # what a process of the group, or a client of it, proves itself with
SPARK_ROWS = (
    Setting("on", "processes", "where instances live", choices=("processes", "spark")),
    Setting(
        "master",
        "",
        "Spark's master; by default local[2,4], and of `run` local with a slot for each instance",
        spark_master,
        need=SPARK,
    ),
    Setting(
        "task-memory",
        "256MiB",
        "memory for the tables of a task on Spark; what exceeds it is kept on the executor's disk",
        parse_size_bytes,
    ),
)
TABLE: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "log", "", "sqlite:PATH or kafka://HOST:PORT; by default .orchestrator/<application>.db, looked for upwards"
        ),
        Setting(
            "kafka-config",
            "",
            "properties file of client settings for a log on Kafka: security, credentials, certificates",
        ),
        Setting("state-dir", ".orchestrator/state", "where stores live"),
        Setting(
            "name",
            "",
            "run one instance, by this name, beside a fleet and others; %h, or no name: the host's",
            instance_name,
            alone=HOST,
        ),
        *SPARK_ROWS,
        *GROUP,
        *INSTANCE,
    )
}


def refuse_idle(flags: Iterable[str], values: Mapping[str, Any]) -> None:
    """Raises WrongUse for a setting of the command line that does nothing beside the other `values` in effect. What the
    environment or a file gives serves several commands, and may be idle in some."""
    for name in flags:
        need = TABLE[name].need
        if need is not None and not need.holds(values):
            raise WrongUse(f"--{name} has no effect here: {need.otherwise}")


@dataclass(frozen=True, slots=True)
class Given:
    """A value as text, and the place that gave it."""

    text: str
    source: str

    def shown(self, setting: Setting) -> str:
        """How an error about it begins."""
        if self.source == setting.variable:
            return f"{self.source}={self.text}" if self.text else self.source
        return f"{self.source}: {setting.name}" + (f" = {self.text}" if self.text else "")


class Sources:
    """What the environment and the files of a folder give. Making one checks both."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._files = [
            (FILE, _keys(folder / FILE, ())),
            (f"{PROJECT} [tool.orchestrator]", _keys(folder / PROJECT, ("tool", "orchestrator"))),
        ]
        for where, keys in self._files:
            for key in keys:
                _known(where, key)

    def given(self, setting: Setting) -> Given | None:
        """The first place that gives the setting, in order; None where the default holds."""
        text = self._environment.get(setting.variable)
        if text is not None and not is_kubernetes(setting.variable, text):
            return Given(text, setting.variable)
        for where, keys in self._files:
            if setting.name in keys:
                return Given(keys[setting.name], where)
        return None

    def strange(self) -> list[str]:
        """A warning for each ORCHESTRATOR_ variable that means nothing."""
        known = {setting.variable: setting for setting in TABLE.values()}
        found: list[str] = []
        for name in sorted(self._environment):
            if not name.startswith(PREFIX) or name in known or is_kubernetes(name, self._environment[name]):
                continue
            close = get_close_matches(name, known, 1)
            deed = name.removeprefix(PREFIX).lower()
            hint = f"did you mean {close[0]}?" if close else "`orchestrator config show` lists them"
            if deed in COMMAND_LINE_ONLY:
                hint = f"--{deed} comes from the command line alone"
            found.append(f"{name} is no setting and has no effect; {hint}")
        return found


def is_kubernetes(name: str, value: str) -> bool:
    """Whether Kubernetes made the variable for a service whose name begins with `orchestrator`."""
    return bool(KUBERNETES.search(name)) or (name.endswith("_PORT") and value.startswith(("tcp://", "udp://")))


def _known(where: str, key: str) -> None:
    if key in TABLE:
        return
    if key.replace("_", "-") in COMMAND_LINE_ONLY:
        raise WrongUse(f"{where}: '{key}' is not a setting; --{key} comes from the command line alone")
    close = get_close_matches(key.replace("_", "-").lower(), TABLE, 1)
    hint = f"did you mean '{close[0]}'?" if close else "`orchestrator config show` lists them"
    raise WrongUse(f"{where}: there is no setting '{key}'; {hint}")


def _keys(path: Path, below: tuple[str, ...]) -> dict[str, str]:
    """Keys and values as text; {} where there is no file, or no such section in it."""
    try:
        found: Any = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise WrongUse(f"{path.name} cannot be read: {error.strerror}; correct it or move it away") from None
    except UnicodeDecodeError:
        raise WrongUse(f"{path.name} is not UTF-8 text; correct it or move it away") from None
    except tomllib.TOMLDecodeError as error:
        raise WrongUse(f"{path.name} is not TOML: {error}; correct it") from None
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        raise WrongUse(f"{path.name} has a number that is too long, or is nested too deeply; correct it") from None
    for part in below:
        found = found.get(part, {}) if isinstance(found, dict) else {}
    if not isinstance(found, dict):
        raise WrongUse(f"{path.name}: [{'.'.join(below)}] is not a table; write keys and values below it")
    texts: dict[str, str] = {}
    for key, value in found.items():
        if isinstance(value, dict):
            raise WrongUse(
                f"{path.name}: [{'.'.join((*below, key))}] is a section, and settings have none; write them above, as on the command line"
            )
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise WrongUse(f"{path.name}: {key} is neither text nor a whole number; write it as on the command line")
        texts[key] = str(value)
    return texts


def current() -> Sources:
    """Of this process: its environment and its current folder."""
    return Sources(Path.cwd(), os.environ)
