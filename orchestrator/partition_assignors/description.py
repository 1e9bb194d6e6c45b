"""A group written down, for `orchestrator assign` and the example tables. One rule: what is wrong is named with its
line.

Text form, one thing a line, `#` starts a comment:

    topic t0 2
    member C0 topics t0 t1 owned t0-0 t1-1 generation 5 instance i0 rack a
    replicas t0-0 a b

JSON form: {"topics": {"t0": 2}, "members": {"C0": {"topics": ["t0"], "owned": ["t0-0"], "generation": 5,
"instance_id": "i0", "rack": "a"}}, "replicas": {"t0-0": ["a", "b"]}}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.partition_assignors.model import AssignorError, Subscription, TopicPartition

DIGITS_MAX = 18
PARTITIONS_MAX = 10_000_000  # an assignment of so many takes a few seconds, and a GB or two of memory


class DescriptionError(AssignorError):
    """The description cannot be read; the message names the line."""


@dataclass(slots=True)
class Description:
    """What an assignor is given."""

    topics: dict[str, int] = field(default_factory=dict)
    members: dict[str, Subscription] = field(default_factory=dict)
    replicas: dict[TopicPartition, tuple[str, ...]] = field(default_factory=dict)


def read_description(text: str, source: str) -> Description:
    """Read either form; `source` is how messages call the text."""
    return _from_json(text, source) if text.lstrip().startswith("{") else read_lines(text.splitlines(), source)


def parse_partition(text: str) -> TopicPartition:
    """`t0-3`; the topic may hold dashes, but `t0--3` is taken for a slip, not for a topic that ends with one.
    Raises ValueError."""
    topic, _, number = text.rpartition("-")
    if not topic or topic.endswith("-") or not (number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX):
        raise ValueError(f"{_shown(text)} is no partition")
    return TopicPartition(topic, int(number))


def read_lines(lines: Iterable[str], source: str, first: int = 1) -> Description:
    """The text form. Raises ValueError, DescriptionError."""
    found = Description()
    for number, line in enumerate(lines, start=first):
        words = line.partition("#")[0].split()
        if not words:
            continue
        reader = _LINES.get(words[0])
        try:
            if reader is None:
                raise ValueError(f"{words[0]!r} is unknown")
            reader(found, words[1:])
        except ValueError as error:
            hint = _FORMS.get(words[0], "begin with topic, member or replicas")
            raise DescriptionError(f"{error}; {source} line {number}; {hint}") from error
    return found


def _topic_line(found: Description, words: list[str]) -> None:
    if len(words) != 2:
        raise ValueError("a topic line has a name and a number of partitions")
    name, count = words
    if name in found.topics:
        raise ValueError(f"topic {name!r} is there twice")
    _add_topic(found, name, _whole(count, "partition count"))


def _add_topic(found: Description, name: str, count: int) -> None:
    found.topics[name] = count
    if sum(found.topics.values()) > PARTITIONS_MAX:
        raise ValueError(f"with {count} partitions of topic {_shown(name)} there are more than {PARTITIONS_MAX:,}")


def _member_line(found: Description, words: list[str]) -> None:
    if not words:
        raise ValueError("a member line has an id")
    name, rest = words[0], words[1:]
    if name in found.members:
        raise ValueError(f"member {name!r} is there twice")
    parts: dict[str, list[str]] = {}
    current: list[str] | None = None
    for word in rest:
        if word in _PARTS:
            if word in parts:
                raise ValueError(f"{word!r} is there twice")
            current = parts[word] = []
        elif current is None:
            raise ValueError(f"{word!r} stands where one of {', '.join(_PARTS)} is expected")
        else:
            current.append(word)
    found.members[name] = Subscription(
        topics=frozenset(parts.get("topics", ())),
        owned=tuple(parse_partition(word) for word in parts.get("owned", ())),
        generation=_whole(_one(parts, "generation", "-1"), "generation", lowest=-1),
        instance_id=_one(parts, "instance", "") or None,
        rack=_one(parts, "rack", "") or None,
    )


def _replicas_line(found: Description, words: list[str]) -> None:
    if len(words) < 2:
        raise ValueError("a replicas line has a partition and its racks")
    partition = parse_partition(words[0])
    if partition in found.replicas:
        raise ValueError(f"replicas of {partition} are there twice")
    found.replicas[partition] = tuple(words[1:])


_PARTS = ("topics", "owned", "generation", "instance", "rack")
_LINES: dict[str, Callable[[Description, list[str]], None]] = {
    "topic": _topic_line,
    "member": _member_line,
    "replicas": _replicas_line,
}
_FORMS = {
    "topic": "write: topic NAME PARTITIONS",
    "member": "write: member ID topics T.. [owned T-N..] [generation N] [instance ID] [rack R]",
    "replicas": "write: replicas T-N RACK..",
}


def _whole(text: str, what: str, lowest: int = 0) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{what} {_shown(text)} is no whole number")
    if len(digits) > DIGITS_MAX:
        raise ValueError(f"{what} {_shown(text)} is too large")
    number = int(text)
    if number < lowest:
        raise ValueError(f"{what} {number} is below {lowest}")
    return number


def _shown(text: str) -> str:
    """A word in a message, which is one line that can be read."""
    return repr(text if len(text) <= 60 else text[:60] + "...")


def _one(parts: Mapping[str, list[str]], name: str, default: str) -> str:
    words = parts.get(name)
    if words is None:
        return default
    if len(words) != 1:
        raise ValueError(f"{name!r} takes one word, not {len(words)}")
    return words[0]


def _from_json(text: str, source: str) -> Description:
    try:
        document: Any = json.loads(text, object_pairs_hook=_no_twice, parse_int=_json_whole)
    except json.JSONDecodeError as error:
        raise DescriptionError(f"{error.msg}; {source} line {error.lineno}; write one JSON object") from error
    except RecursionError:
        raise DescriptionError(f"it is nested too deeply; {source}; see --help for the form") from None
    except _Twice as error:
        raise DescriptionError(
            f"key {error.key!r} is there twice; {source} line {_line(text, [error.key])}; name it once"
        ) from error
    found = Description()
    for path, value in _entries(document, text, source):
        try:
            _refuse_halves([path, value])
            _json_entry(found, path, value)
        except ValueError as error:
            raise DescriptionError(f"{error}; {source} line {_line(text, path)}; see --help for the form") from error
    return found


def _json_whole(text: str) -> int | float:
    """Nothing here has so many digits; Python does not even read 5,000 of them."""
    return int(text) if len(text) <= DIGITS_MAX + 1 else float(text)


class _Twice(ValueError):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Twice(key)
        found[key] = value
    return found


def _entries(document: dict[str, Any], text: str, source: str) -> Iterator[tuple[list[str], Any]]:
    for section, entries in document.items():
        line = _line(text, [section])
        if section not in ("topics", "members", "replicas"):
            raise DescriptionError(f"key {section!r} is unknown; {source} line {line}; use topics, members, replicas")
        if not isinstance(entries, dict):
            raise DescriptionError(f"{section!r} is no object; {source} line {line}; write {{name: value}}")
        for key, value in entries.items():
            yield [section, key], value


def _refuse_halves(value: Any) -> None:
    """JSON can escape half a character, which no file or terminal takes."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object[error.start : error.end]!r} is no text") from None


def _json_entry(found: Description, path: list[str], value: Any) -> None:
    section, key = path
    if section == "topics":
        if type(value) is not int or value < 0:
            raise ValueError(f"partition count {value!r} of topic {key!r} is not 0 or more")
        _add_topic(found, key, value)
    elif section == "replicas":
        partition = parse_partition(key)
        if partition in found.replicas:  # t-0 and t-00
            raise ValueError(f"replicas of {partition} are there twice")
        found.replicas[partition] = tuple(_texts(value, f"replicas of {key!r}"))
    else:
        found.members[key] = _json_member(key, value)


def _json_member(name: str, value: Any) -> Subscription:
    if not isinstance(value, dict):
        raise ValueError(f"member {name!r} is no object")
    if unknown := sorted(value.keys() - {"topics", "owned", "generation", "instance_id", "rack"}):
        raise ValueError(f"key {unknown[0]!r} of member {name!r} is unknown")
    generation = value.get("generation", -1)
    if type(generation) is not int or generation < -1:
        raise ValueError(f"generation {generation!r} of member {name!r} is not -1 or more")
    for key in ("instance_id", "rack"):
        if not isinstance(value.get(key), str | None):
            raise ValueError(f"{key} {value[key]!r} of member {name!r} is not text")
    return Subscription(
        topics=frozenset(_texts(value.get("topics", []), f"topics of member {name!r}")),
        owned=tuple(map(parse_partition, _texts(value.get("owned", []), f"owned of member {name!r}"))),
        generation=generation,
        instance_id=value.get("instance_id"),
        rack=value.get("rack"),
    )


def _texts(value: Any, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{what}: {value!r} is no list of texts")
    return value


def _line(text: str, path: list[str]) -> int:
    """The line on which the keys of a path stand, one after the other."""
    at = 0
    for key in path:
        at = max(at, text.find(json.dumps(key), at), text.find(json.dumps(key, ensure_ascii=False), at))
    return text.count("\n", 0, at) + 1
