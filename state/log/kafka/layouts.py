"""Where the partitions of a topic are, as an answer of a broker has it.

One rule: it is what was known at a moment, and never asked for here. Place: `topics.py` keeps one for each topic, until a broker
says that it is old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_NOWHERE = (-1, -1, ())  # a partition that the answer leaves out


@dataclass(frozen=True, slots=True)
class Layout:
    """The leader of each partition, -1 where there is none at the moment, and its epoch, which grows with each election. `alone`:
    the partitions with one replica in sync, which nobody leads while that one's broker is away. `as_of`: the connections that had been
    made anew by then."""

    topic_id: bytes
    leaders: tuple[int, ...]
    epochs: tuple[int, ...]
    alone: frozenset[int]
    as_of: int


def layout_of(topic_id: bytes, partitions: Sequence[Any], as_of: int) -> Layout:
    """Of the partitions of a metadata answer: code, number, leader, epoch, replicas, those in sync, and more."""
    numbered = {number: (leader, epoch, in_sync) for _, number, leader, epoch, _, in_sync, *_ in partitions}
    placed = [numbered.get(number, _NOWHERE) for number in range(len(numbered))]
    alone = frozenset(number for number, (_, _, in_sync) in enumerate(placed) if len(in_sync) == 1)
    return Layout(topic_id, tuple(one[0] for one in placed), tuple(one[1] for one in placed), alone, as_of)
