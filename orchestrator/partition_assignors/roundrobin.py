"""Partitions and members in turns. One rule: the ring goes on where it stopped, also from topic to topic.

Members stand in a ring, static ones first by instance id, so that a bounce that changes member ids changes nothing.
A member that does not subscribe to the topic at hand is stepped over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from orchestrator.partition_assignors.collector import collector_paused
from orchestrator.partition_assignors.model import Assignment, PartitionRacks, Subscription, TopicPartition
from orchestrator.partition_assignors.reading import Group, check_owned, read, topic_partitions


def static_order(group: Group) -> list[int]:
    """Members by instance id, those without one after them by member id: numbers are already in id order."""
    instances = [subscription.instance_id for subscription in group.subscriptions]
    return sorted(range(len(instances)), key=lambda m: (instances[m] is None, instances[m] or "", m))


@dataclass(frozen=True, slots=True)
class RoundRobinAssignor:
    """The ring."""

    name: ClassVar[str] = "roundrobin"
    protocols: ClassVar[tuple[str, ...]] = ("eager",)

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        members: Mapping[str, Subscription],
        partition_racks: PartitionRacks | None = None,
    ) -> Assignment:
        with collector_paused():
            return self._assign(read(partitions_per_topic, members, partition_racks))

    @staticmethod
    def _assign(group: Group) -> Assignment:
        check_owned(group)
        ring = static_order(group)
        place = [0] * len(ring)
        for position, member in enumerate(ring):
            place[member] = position
        lists: list[list[TopicPartition]] = [[] for _ in ring]
        at = 0
        positions: list[int] = []
        last: list[int] = []
        for topic, count, readers in zip(group.topics, group.counts, group.subscribers(), strict=True):
            if readers != last:
                last, positions = readers, sorted(place[member] for member in readers)
            partitions = list(topic_partitions(topic, range(count)))
            start = bisect_left(positions, at)
            turn = len(positions)
            for step in range(min(turn, count)):
                lists[ring[positions[(start + step) % turn]]] += partitions[step::turn]
            at = (positions[(start + count - 1) % turn] + 1) % len(ring)
        return dict(zip(group.members, lists, strict=True))
