"""Names of a line of JSON stand there once: of a name that stands there twice decoders keep the last value, and the first one would be lost.

One rule: what the line has besides its names and values is counted, which is quick; only where that might hide a second one is the
line read again to know. In the flow: `text` and `json_lines` have decoded a line -> here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from pipeline.files.shape import NotThis

_SPACES = (b" ", b"\t")


def once(line: bytes, row: Mapping[str, msgspec.Raw]) -> None:
    """Raises NotThis where an object, whose fields these are, has one of them twice."""
    inner = _named(tuple(row)) + b"".join(row.values())
    text = line.strip()
    left = len(text) - len(inner) - max(2 * len(row) + 1, 2)  # without colons, commas and braces
    if left and left != sum(text.count(one) - inner.count(one) for one in _SPACES):
        refuse_twice(line)


@lru_cache(maxsize=256)
def _named(names: tuple[str, ...]) -> bytes:
    return b"".join(map(msgspec.json.encode, names))


def these_once(line: bytes, names: Sequence[bytes], *inside: bytes) -> None:
    """The same for names as JSON has them, which may also stand in values. Raises NotThis."""
    if b"\\" in line and line.count(b"\\") > sum([part.count(b"\\") for part in inside]):
        return refuse_twice(line)  # a name may be written otherwise
    for name in names:
        found = line.count(name)
        if found > 1 and found - sum(part.count(name) for part in inside) > 1:
            return refuse_twice(line)
    return None


def names_once(data: bytes, found: Any) -> None:
    """Raises NotThis where an object anywhere in this JSON, of which `found` was read, has a name twice; looks closely only where it
    may."""
    if b"\\" in data or data.count(b'"') != 2 * _texts(found):
        _pairs(data, _refuse)


def refuse_twice(line: bytes) -> None:
    """Raises NotThis where the object of this line has a name twice."""
    last: list[str] = []

    def kept(names: list[str]) -> None:  # that of the line itself comes last
        last[:] = names

    _pairs(line, kept)
    _refuse(last)


def _texts(found: Any) -> int:
    """How many texts stand in a value, names included."""
    if isinstance(found, dict):
        return len(found) + sum(map(_texts, found.values()))
    if isinstance(found, list):
        return sum(map(_texts, found))
    return int(isinstance(found, str))


def _pairs(data: bytes, look: Callable[[list[str]], None]) -> None:
    json.loads(data, object_pairs_hook=lambda pairs: look([name for name, _ in pairs]), parse_int=len, parse_float=len)


def _refuse(names: Sequence[str]) -> None:
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise NotThis(f"'{twice}' stands in the line twice, and one of the two would be lost")
