"""Contiguous ranges per topic. One rule: each topic is cut for itself, the first members get the larger pieces.

Members stand in static order (instance ids first). n partitions over k members: n // k each, the first n % k one more.
With racks, partitions first go to members beside one of their replicas, as far as those have room; topics with the
same readers and the same number of partitions are co-partitioned and stay together: partition p of all of them goes
to one member. What is left is cut into plain ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from orchestrator.partition_assignors.collector import collector_paused
from orchestrator.partition_assignors.model import Assignment, PartitionRacks, Subscription, TopicPartition
from orchestrator.partition_assignors.reading import Group, check_owned, read, topic_partitions
from orchestrator.partition_assignors.roundrobin import static_order


@dataclass(frozen=True, slots=True)
class RangeAssignor:
    """The ranges."""

    name: ClassVar[str] = "range"
    protocols: ClassVar[tuple[str, ...]] = ("eager",)

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        members: Mapping[str, Subscription],
        partition_racks: PartitionRacks | None = None,
    ) -> Assignment:
        with collector_paused():
            return self._assign(read(partitions_per_topic, members, partition_racks), partition_racks)

    @staticmethod
    def _assign(group: Group, partition_racks: PartitionRacks | None) -> Assignment:
        check_owned(group)
        order = static_order(group)
        place = [0] * len(order)
        for position, member in enumerate(order):
            place[member] = position
        cuts = [
            _Cut(topic, count, sorted(readers, key=place.__getitem__))
            for topic, count, readers in zip(group.topics, group.counts, group.subscribers(), strict=True)
        ]
        if partition_racks:
            _match_racks(group, cuts, partition_racks)
        lists: list[list[TopicPartition]] = [[] for _ in order]
        for cut in cuts:
            cut.take_ranges()
            for member, partitions in cut.taken.items():
                lists[member] += topic_partitions(cut.topic, sorted(partitions))
        return dict(zip(group.members, lists, strict=True))


class _Cut:
    """One topic: who has taken what of it, and who has room for more."""

    def __init__(self, topic: str, count: int, readers: list[int]) -> None:
        self.topic = topic
        self.count = count
        self.readers = readers
        self.piece, self.larger = divmod(count, len(readers))
        self.taken: dict[int, list[int]] = {}
        self.left: Sequence[int] = range(count)

    def room(self, member: int) -> int:
        taken = self.taken.get(member)
        return self.piece + (self.larger > 0) - (len(taken) if taken else 0)

    def take(self, member: int, partitions: Sequence[int]) -> None:
        taken = self.taken.setdefault(member, [])
        taken += partitions
        if len(taken) > self.piece:
            self.larger -= 1

    def take_ranges(self) -> None:
        """Cut what is left: each reader in order takes as much as it has room for."""
        at = 0
        for member in self.readers:
            room = self.room(member)
            if room > 0 and at < len(self.left):
                self.take(member, self.left[at : at + room])
                at += room

    def forget(self, gone: set[int]) -> None:
        self.left = [partition for partition in self.left if partition not in gone]


def _match_racks(group: Group, cuts: Sequence[_Cut], partition_racks: PartitionRacks) -> None:
    """Give partitions to readers beside a replica, as long as they have room."""
    racks = [subscription.rack for subscription in group.subscriptions]
    replicas = {
        cut.topic: [frozenset(partition_racks.get(TopicPartition(cut.topic, p), ())) for p in range(cut.count)]
        for cut in cuts
    }
    needed = [_racks_matter(cut, replicas[cut.topic], racks) for cut in cuts]
    if not any(needed):
        return
    together: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for number, cut in enumerate(cuts):
        together.setdefault((tuple(cut.readers), cut.count), []).append(number)
    for numbers in together.values():
        same = [cuts[number] for number in numbers]
        if len(same) > 1:
            _match_together(same, [replicas[cut.topic] for cut in same], racks)
        elif needed[numbers[0]]:
            _match_alone(same[0], replicas[same[0].topic], racks)


def _racks_matter(cut: _Cut, replicas: Sequence[frozenset[str]], racks: Sequence[str | None]) -> bool:
    """Some reader is in a rack with replicas, and not every partition has a replica in all of those racks."""
    everywhere = frozenset[str]().union(*replicas)
    return any(racks[member] in everywhere for member in cut.readers) and any(where != everywhere for where in replicas)


def _match_alone(cut: _Cut, replicas: Sequence[frozenset[str]], racks: Sequence[str | None]) -> None:
    """Reader by reader: the first partitions beside it."""
    for member in cut.readers:
        rack = racks[member]
        beside = [partition for partition in cut.left if rack is None or rack in replicas[partition]]
        if taken := beside[: max(0, cut.room(member))]:
            cut.take(member, taken)
            cut.forget(set(taken))


def _match_together(
    same: Sequence[_Cut], replicas: Sequence[Sequence[frozenset[str]]], racks: Sequence[str | None]
) -> None:
    """Partition by partition: the first reader beside it in all the topics takes it of all of them."""
    readers = list(same[0].readers)
    given: set[int] = set()
    for partition in range(same[0].count):
        beside = frozenset.intersection(*(where[partition] for where in replicas))
        readers = [member for member in readers if any(cut.room(member) > 0 for cut in same)]
        for member in readers:
            rack = racks[member]
            if (rack is None or rack in beside) and all(cut.room(member) > 0 for cut in same):
                for cut in same:
                    cut.take(member, [partition])
                given.add(partition)
                break
    for cut in same:
        cut.forget(given)
