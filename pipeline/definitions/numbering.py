"""Numbers of subtopologies over the versions of an app. One rule: a number once given keeps its meaning.

Pure matching of name sets: a piece keeps the number it has most tables (then topics) in common with. Where a piece was
split, the part with the state keeps the number; where two were joined, one number rests. Resting numbers keep their
names, so going back to the older version gives them back; no number is ever given to a new name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Numbered:
    """Numbers of the pieces asked for, in their order, and the names of every number ever given."""

    given: tuple[int, ...]
    names: Mapping[int, frozenset[str]]

    def kept(self) -> dict[str, Any]:
        """As JSON-able data for the log."""
        return {"subtopologies": [{"number": n, "names": sorted(self.names[n])} for n in sorted(self.names)]}


def number(pieces: Sequence[frozenset[str]], kept: Mapping[str, Any] | None) -> Numbered | None:
    """Numbers for `pieces`; None where nothing at all is in common with what was kept."""
    old = {int(item["number"]): frozenset(item["names"]) for item in (kept or {}).get("subtopologies", ())}
    candidates = [
        (*_likeness(names, old[n]), n, position)
        for position, names in enumerate(pieces)
        for n in sorted(old)
        if names & old[n]
    ]
    if old and not candidates:
        return None
    given: dict[int, int] = {}
    for *_, n, position in sorted(candidates):
        if position not in given and n not in given.values():
            given[position] = n
    following = max(old, default=-1) + 1
    for position in range(len(pieces)):
        if position not in given:
            given[position] = following
            following += 1
    numbers = tuple(given[position] for position in range(len(pieces)))
    return Numbered(numbers, {**old, **dict(zip(numbers, pieces, strict=True))})


def _likeness(new: frozenset[str], old: frozenset[str]) -> tuple[int, int, int]:
    """Smaller is more alike: tables in common, topics in common, names that differ."""
    common = new & old
    tables = sum(1 for name in sorted(common) if name.startswith("table "))
    return -tables, -(len(common) - tables), len(new ^ old)
