"""The words of scenario commands: task names, options, settings. One rule: a word that is not understood is named."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from orchestrator.errors import WrongUse
from orchestrator.model import PROTOCOL_ORDER, Protocol, Settings, TaskId
from orchestrator.names import natural
from orchestrator.setting import Setting
from orchestrator.settings import BY_KEY, group_settings


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise WrongUse(f"'{text[:40]}' is not one of true, false")
    return text == "true"


# Every setting of the group by its key, and what only a scenario sets; and those whose flag has another name.
KEYS = {**BY_KEY, "check_invariants": Setting("check-invariants", "false", "", _truth, field="check_invariants")}
BY_NAME = {setting.name.replace("-", "_"): setting for setting in BY_KEY.values()}


def task_id(word: str, index: int) -> TaskId:
    """T3 -> 0_3; 1_2 as itself; any other name by its place."""
    if word[:1] in "Tt" and is_short(word[1:]):
        return TaskId(0, int(word[1:]))
    left, _, right = word.partition("_")
    if is_short(left) and is_short(right):
        return TaskId(int(left), int(right))
    return TaskId(0, index)


def free_id(taken: Iterable[TaskId]) -> TaskId:
    """An id that no other name has."""
    return TaskId(0, max((task.partition for task in taken), default=-1) + 1)


def event_order(text: str) -> tuple[int, object]:
    return (1 if text.endswith("shuts down") else 0, natural(text))


def some(verb: str, words: list[str]) -> list[str]:
    """The words that follow a verb, at least one. Raises WrongUse."""
    if not words:
        raise WrongUse(f"{verb} whom: write {verb} S1")
    return words


def number(name: str, text: str, least: int = 1) -> int:
    """The whole number that stands behind `name=`. Raises WrongUse."""
    if text.isdecimal() and len(text) > 9:
        raise WrongUse(f"{name}={text[:40]}: too much; write a whole number of at most 9 digits")
    if not is_short(text) or int(text) < least:
        raise WrongUse(f"{name}={text}: write a whole number of {least} or more")
    return int(text)


def is_short(text: str) -> bool:
    """Whether it is a number of a size that groups have; Python does not even read one of 5,000 digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 9


def split_options(verb: str, words: list[str], known: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """One name, and options by name. Raises WrongUse."""
    names = [w for w in words if "=" not in w]
    if len(names) != 1:
        raise WrongUse(f"{verb} takes one name, and {', '.join(k + '=...' for k in known)}")
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            if key not in known or not value:
                raise WrongUse(f"{verb}: unknown option '{word}'; one of {', '.join(k + '=...' for k in known)}")
            if key in options:
                raise WrongUse(f"{verb}: {key}= stands there twice; write it once")
            options[key] = value
    return names[0], options


def scale_down_options(words: list[str]) -> dict[str, str]:
    """How many or who, and until when. Raises WrongUse."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in options:
            raise WrongUse(f"scale-down: {word} stands there twice; write it once")
        if word == "--force":
            options[word] = ""
        elif word in ("--to", "--by", "--instances", "--timeout") and rest:
            options[word] = rest.pop(0)
        else:
            raise WrongUse(
                "scale-down --to N or P%, --by N or P%, --instances a,b, or --undo; and --timeout 10m, or that with --force"
            )
    if len(options.keys() & {"--to", "--by", "--instances"}) != 1:
        raise WrongUse("scale-down takes one of --to, --by, --instances")
    if "--force" in options and "--timeout" not in options:
        raise WrongUse("scale-down --force: it stops them at the end of --timeout; give that, too")
    return options


def spoken(text: str) -> tuple[Protocol, ...]:
    """The protocols that a member supports, as `protocols=eager,cooperative` names them. Raises WrongUse."""
    words = text.split(",")
    strange = [word for word in words if word not in BY_KEY["protocol"].choices]
    if strange:
        raise WrongUse(f"protocols={text}: '{strange[0]}' is not one of {', '.join(BY_KEY['protocol'].choices)}")
    return tuple(p for p in PROTOCOL_ORDER if p.value in words)


def parse_settings(settings: Settings, words: list[str]) -> Settings:
    """`key=value` words over `settings`; times are durations (`30s`). Raises WrongUse."""
    changed: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        plain = key.replace("-", "_").removesuffix("_ms")
        setting = KEYS.get(plain) or BY_NAME.get(plain)
        if setting is None:
            close = get_close_matches(plain, [*KEYS, *BY_NAME], 1)
            hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(sorted(KEYS))}"
            raise WrongUse(f"config {word[:60]}: unknown setting; {hint}")
        if not equals:
            raise WrongUse(f"config {word}: no value; write {word}=...")
        changed[setting.field] = setting.read(value, f"config {word[:60]}")
    try:
        return group_settings(changed, settings)
    except WrongUse as error:
        raise WrongUse(f"config: {error}") from None
