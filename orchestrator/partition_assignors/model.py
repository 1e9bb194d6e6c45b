"""The words of partition assignment. One rule: these shapes are public and do not move.

Everything in this package reads `Subscription`s and gives back lists of `TopicPartition`s; nothing here computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class TopicPartition(NamedTuple):
    """One partition of a topic; prints `t0-3`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member reports to the group: what it reads, and what it held at its last assignment."""

    topics: frozenset[str] | tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1  # the generation in which it held them; -1: none or unknown
    instance_id: str | None = None  # static membership
    rack: str | None = None


PartitionRacks = Mapping[TopicPartition, tuple[str, ...]]
Assignment = dict[str, list[TopicPartition]]


class AssignorError(Exception):
    """The input cannot be assigned. The message names the member or topic, the value, and what to do about it."""


class Assignor(Protocol):
    """A pure rule from partitions and members to an assignment; the same input gives the same answer anywhere."""

    @property
    def name(self) -> str:
        """The name under which a group agrees on it."""

    @property
    def protocols(self) -> tuple[str, ...]:
        """`eager`, `cooperative`: the rebalance protocols it can be run under, the preferred one first."""

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        members: Mapping[str, Subscription],
        partition_racks: PartitionRacks | None = None,
    ) -> Assignment:
        """Every member has a key; lists are sorted by topic and partition."""
