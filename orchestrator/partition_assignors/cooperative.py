"""The sticky rule for groups that do not stop (KIP-429). One rule: no member is given what another still reports.

A partition that changes owner is left out of this assignment: its owner sees that it is gone, gives it up and rejoins,
and the rebalance after that hands it over. In between it has no owner, never two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, get_args

from orchestrator.partition_assignors.collector import collector_paused
from orchestrator.partition_assignors.model import Assignment, AssignorError, PartitionRacks, Subscription
from orchestrator.partition_assignors.reading import checked_topics, read
from orchestrator.partition_assignors.sticky import Prefer, sticky_plan


@dataclass(frozen=True, slots=True)
class CooperativeStickyAssignor:
    """Sticky, in two steps where something moves."""

    prefer: Prefer = "balance"
    name: ClassVar[str] = "cooperative-sticky"
    protocols: ClassVar[tuple[str, ...]] = ("cooperative", "eager")

    def __post_init__(self) -> None:
        if self.prefer not in get_args(Prefer):
            raise AssignorError(f"prefer={self.prefer!r} is unknown; {self.name}; use one of {get_args(Prefer)}")

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        members: Mapping[str, Subscription],
        partition_racks: PartitionRacks | None = None,
    ) -> Assignment:
        with collector_paused():
            group = read(partitions_per_topic, members, partition_racks)
            return sticky_plan(group, partition_racks, self.prefer).assignment(group, withhold=True)


@dataclass(frozen=True, slots=True)
class ConstrainedCooperativeStickyAssignor:
    """`cooperative-sticky` for groups whose members all subscribe to the same topics; refuses any other group, so that
    a group meant to be equal does not slide into the slower rule unseen."""

    name: ClassVar[str] = "constrained-cooperative-sticky"
    protocols: ClassVar[tuple[str, ...]] = ("cooperative", "eager")

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        members: Mapping[str, Subscription],
        partition_racks: PartitionRacks | None = None,
    ) -> Assignment:
        first: tuple[str, frozenset[str]] | None = None
        for member in sorted(members, key=str):  # one that is no text is refused below
            topics = checked_topics(member, members[member])
            if first is None:
                first = member, topics
            elif topics != first[1]:
                differs = min(topics ^ first[1])
                has, lacks = (member, first[0]) if differs in topics else (first[0], member)
                raise AssignorError(
                    f"subscriptions differ: member {has!r} reads topic {differs!r}, member {lacks!r} does not; "
                    f"{self.name}; give all members the same topics or use cooperative-sticky"
                )
        return CooperativeStickyAssignor().assign(partitions_per_topic, members, partition_racks)
