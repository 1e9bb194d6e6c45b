"""Names of a line of JSON stand there once: of a name that stands there twice decoders keep the last value, and the first one would be lost.

One rule: what the line has besides its names and values is counted, which is quick; only where that might hide a second one is the
line read again to know. In the flow: `text` and `json_lines` have decoded a line -> here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
    for name in names:
        found = line.count(name)
        if found > 1 and found - sum(part.count(name) for part in inside) > 1:
            return refuse_twice(line)
    return None


def refuse_twice(line: bytes) -> None:
    """Raises NotThis where the object of this line has a name twice."""
    names: list[str] = []

    def kept(pairs: list[tuple[str, Any]]) -> None:  # that of the line itself comes last
        names[:] = [name for name, _ in pairs]

    json.loads(line, object_pairs_hook=kept, parse_int=len, parse_float=len)
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise NotThis(f"'{twice}' stands in the line twice, and one of the two would be lost")
