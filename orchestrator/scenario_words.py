"""The words of scenario commands: task names, options, settings. One rule: a word that is not understood is named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace

from orchestrator.durations import parse_duration_ms
from orchestrator.errors import WrongUse
from orchestrator.model import Protocol, Settings, TaskId
from orchestrator.names import natural
from orchestrator.weights import UNITS

CHOICES = {
    "protocol": tuple(p.value for p in Protocol),
    "ready": ("eager", "conservative"),
    "weights": ("given", *UNITS),
}


def task_id(word: str, index: int) -> TaskId:
    """T3 -> 0_3; 1_2 as itself; any other name by its place."""
    if word[:1] in "Tt" and word[1:].isdecimal():
        return TaskId(0, int(word[1:]))
    left, _, right = word.partition("_")
    if left.isdecimal() and right.isdecimal():
        return TaskId(int(left), int(right))
    return TaskId(0, index)


def free_id(taken: Iterable[TaskId]) -> TaskId:
    """An id that no other name has."""
    return TaskId(0, max((task.partition for task in taken), default=-1) + 1)


def event_order(text: str) -> tuple[int, object]:
    return (1 if text.endswith("shuts down") else 0, natural(text))


def some(verb: str, words: list[str]) -> list[str]:
    if not words:
        raise WrongUse(f"{verb} whom: write {verb} S1")
    return words


def number(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise WrongUse(f"{name}={text}: write a whole number of 1 or more")
    return int(text)


def split_options(verb: str, words: list[str], known: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    names = [w for w in words if "=" not in w]
    if len(names) != 1:
        raise WrongUse(f"{verb} takes one name, and {', '.join(k + '=...' for k in known)}")
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            if key not in known or not value:
                raise WrongUse(f"{verb}: unknown option '{word}'; one of {', '.join(k + '=...' for k in known)}")
            options[key] = value
    return names[0], options


def parse_settings(settings: Settings, words: list[str]) -> Settings:
    """`key=value` words over `settings`; times are durations (`30s`). Raises WrongUse."""
    known = {f.name.removesuffix("_ms"): f.name for f in fields(Settings)}
    changed: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        name = known.get(key.replace("-", "_").removesuffix("_ms"))
        if not equals or name is None:
            raise WrongUse(f"config {word}: unknown setting; one of {', '.join(sorted(known))}")
        if key in CHOICES:
            if value not in CHOICES[key]:
                raise WrongUse(f"config {word}: one of {', '.join(CHOICES[key])}")
            changed[name] = Protocol(value) if key == "protocol" else value
        elif name == "check_invariants":
            changed[name] = value == "true"
        elif name.endswith("_ms"):
            changed[name] = parse_duration_ms(value)
        elif value.isdecimal() and (int(value) > 0 or name in ("standbys", "acceptable_recovery_lag")):
            changed[name] = int(value)
        else:
            raise WrongUse(f"config {word}: write a whole number")
    return replace(settings, **changed)  # type: ignore[arg-type]
