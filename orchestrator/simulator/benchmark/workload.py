"""What is rehearsed: tasks with state and load, instances, and a list of changes; read from a text file.

One rule: a line that is not understood is named. The format, by example (docs/benchmarks.md tells the words):

    tasks 16 state=512MiB rate=500
    instances 4
    at 60s join 2
    at 300s crash I1
    at 330s return I1
    at 600s leave 50%
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.durations import UNITS_MS, parse_duration_ms, parse_size_bytes
from orchestrator.errors import WrongUse
from orchestrator.group.scale_plan import parse_amount
from orchestrator.model import TaskId

VERBS = ("join", "leave", "crash", "return", "failover")
TASKS_MAX = 100_000
INSTANCES_MAX = 5_000
JOIN_PERCENT_MAX = 100_000
AT_DAYS_MAX = 30


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """One task: live bytes of its state (0: stateless) and records a second of its input, each one a write."""

    id: TaskId
    state_bytes: int
    rate: int


@dataclass(frozen=True, slots=True)
class Change:
    """At `at_ms` after the stable start: `join` and `leave` name an amount (`2`, `50%`), `crash` and `return` instances."""

    at_ms: int
    verb: str
    what: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.verb, *self.what))


@dataclass(frozen=True, slots=True)
class Speeds:
    """What things take. Bytes a second are those of one instance, shared by all that it restores at a time."""

    restore_bytes: int = 50 << 20
    snapshot_bytes: int = 200 << 20
    record_bytes: int = 116
    message_ms: int = 2
    commit_ms: int = 30
    log_ms: int = 5
    lease_ms: int = 3_000
    snapshot_every_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything that a run needs beside the protocol."""

    tasks: tuple[TaskLoad, ...]
    instances: int
    workers: int = 1
    changes: tuple[Change, ...] = ()
    speeds: Speeds = field(default_factory=Speeds)


DEFAULT = """\
tasks 16 state=256MiB rate=500
tasks 8 state=1GiB rate=1000
tasks 8 stateless rate=2000
instances 4
at 30s join 2
at 240s crash I2
at 300s return I2
at 480s leave 50%
"""


def parse_workload(text: str) -> Workload:
    """Read a workload. Raises WrongUse naming the line."""
    tasks: list[TaskLoad] = []
    changes: list[Change] = []
    found = Workload((), 0)
    for number, raw in enumerate(text.splitlines(), 1):
        words = raw.split("#", 1)[0].split()
        if not words:
            continue
        try:
            match words[0]:
                case "tasks":
                    tasks += _tasks(words[1:], subtopology=len({t.id.subtopology for t in tasks}))
                case "instances" if found.instances:
                    raise WrongUse("there is an 'instances' line already; write one")
                case "instances":
                    found = _instances(found, words[1:])
                case "speeds":
                    found = replace(found, speeds=_speeds(found.speeds, words[1:]))
                case "at":
                    changes.append(_change(words[1:]))
                case other:
                    raise WrongUse(f"unknown word '{other}'; one of tasks, instances, speeds, at")
        except WrongUse as error:
            raise WrongUse(f"workload, line {number}: {error}") from None
    if not tasks or not found.instances:
        raise WrongUse("workload: at least one 'tasks' and an 'instances' line are needed")
    if len(tasks) > TASKS_MAX:
        raise WrongUse(f"workload: {len(tasks)} tasks; at most {TASKS_MAX}")
    return replace(found, tasks=tuple(tasks), changes=tuple(sorted(changes, key=lambda change: change.at_ms)))


def _options(words: list[str], known: dict[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key not in known or not equals or not value:
            raise WrongUse(f"'{word}' is not understood; one of {', '.join(f'{k}={v}' for k, v in known.items())}")
        if key in options:
            raise WrongUse(f"{key}= stands there twice; write it once")
        options[key] = value
    return options


def _count(what: str, text: str, most: int) -> int:
    if not _is_short(text) or not 0 < int(text) <= most:
        raise WrongUse(f"{what} {text}: write a whole number from 1 to {most}")
    return int(text)


def _is_short(text: str) -> bool:
    """Whether it is a number of a size that can be right; Python does not even read one of 5,000 digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 9


def _tasks(words: list[str], subtopology: int) -> list[TaskLoad]:
    if not words:
        raise WrongUse("tasks N state=SIZE rate=RECORDS_PER_SECOND")
    stateless = "stateless" in words
    options = _options([w for w in words[1:] if w != "stateless"], {"state": "256MiB", "rate": "500"})
    if stateless == ("state" in options):
        raise WrongUse("tasks: write state=SIZE or stateless")
    size = 0 if stateless else max(1, parse_size_bytes(options["state"]))
    rate = options.get("rate", "0")
    if not _is_short(rate) or int(rate) > 10_000_000:
        raise WrongUse(f"rate={rate}: write records a second, such as rate=500")
    count = _count("tasks", words[0], TASKS_MAX)
    return [TaskLoad(TaskId(subtopology, partition), size, int(rate)) for partition in range(count)]


def _instances(found: Workload, words: list[str]) -> Workload:
    if not words:
        raise WrongUse("instances N, or instances N workers=M")
    options = _options(words[1:], {"workers": "1"})
    workers = _count("workers", options.get("workers", "1"), 64)
    return replace(found, instances=_count("instances", words[0], INSTANCES_MAX), workers=workers)


def _speeds(speeds: Speeds, words: list[str]) -> Speeds:
    known = {
        **dict.fromkeys(("restore", "snapshot", "record"), "50MiB"),
        **dict.fromkeys(("message", "commit", "log", "lease", "snapshot_every"), "5ms"),
    }
    for key, value in _options(words, known).items():
        if key in ("restore", "snapshot", "record"):
            speeds = replace(speeds, **{f"{key}_bytes": max(1, parse_size_bytes(value))})
        else:
            speeds = replace(speeds, **{f"{key}_ms": max(1, parse_duration_ms(value))})
    return speeds


def _change(words: list[str]) -> Change:
    if len(words) < 2 or words[1] not in VERBS or (len(words) > 2) is (words[1] == "failover"):
        raise WrongUse("at TIME CHANGE, as in: at 60s join 2, at 300s crash I1, at 330s return I1, at 400s failover")
    at_ms, verb, what = parse_duration_ms(words[0]), words[1], tuple(words[2:])
    if at_ms > AT_DAYS_MAX * UNITS_MS["d"]:
        raise WrongUse(f"at {words[0]}: every heartbeat until then is played; write at most {AT_DAYS_MAX}d")
    if verb in ("join", "leave"):
        if len(what) != 1:
            raise WrongUse(f"{verb} takes one amount, such as 2 or 50%")
        parse_amount(what[0], verb, percent_max=JOIN_PERCENT_MAX if verb == "join" else 100)
    return Change(at_ms, verb, what)
