"""Reads the input once: checks it, sorts it, and numbers it. One rule: after this, order of arrival is forgotten.

Members are numbered in id order, topics in name order, and the partitions of all subscribed topics 0, 1, 2, ... in
(topic, partition) order, so that the rules behind this work on runs of whole numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import cast

from orchestrator.partition_assignors.model import AssignorError, PartitionRacks, Subscription, TopicPartition

# Makes a TopicPartition from a pair without a Python frame per partition: a million of them are the edge's main cost.
_from_pair = cast(
    "Callable[[type[TopicPartition], tuple[str, int]], TopicPartition]",
    tuple.__new__,
)


def topic_partitions(topic: str, partitions: Iterable[int]) -> Iterable[TopicPartition]:
    """The partitions of one topic as public objects."""
    return map(_from_pair, repeat(TopicPartition), zip(repeat(topic), partitions))


@dataclass(frozen=True, slots=True)
class Group:
    """The numbered input."""

    members: list[str]  # by id
    subscriptions: list[Subscription]  # aligned with members
    topics: list[str]  # subscribed by a member, known, not empty; by name
    counts: list[int]  # aligned with topics
    bases: list[int]  # number of the first partition of each topic
    total: int
    kinds: list[tuple[int, ...]]  # distinct effective subscriptions, as topic numbers
    kind_of: list[int]  # aligned with members

    def objects(self, ids: Sequence[int]) -> list[TopicPartition]:
        """Public objects of ascending partition numbers."""
        out: list[TopicPartition] = []
        at, end = 0, len(ids)
        while at < end:
            topic = bisect_right(self.bases, ids[at]) - 1
            base = self.bases[topic]
            stop = bisect_right(ids, base + self.counts[topic] - 1, at)
            whole = stop - at == self.counts[topic]
            partitions = range(stop - at) if whole else [number - base for number in ids[at:stop]]
            out.extend(topic_partitions(self.topics[topic], partitions))
            at = stop
        return out

    def object(self, number: int) -> TopicPartition:
        topic = bisect_right(self.bases, number) - 1
        return TopicPartition(self.topics[topic], number - self.bases[topic])

    def subscribers(self) -> list[list[int]]:
        """Per topic, the members that read it, in id order."""
        found: list[list[int]] = [[] for _ in self.topics]
        readers: list[list[int]] = [[] for _ in self.kinds]
        for member, kind in enumerate(self.kind_of):
            readers[kind].append(member)
        shared = [0] * len(self.topics)
        for kind, topics in enumerate(self.kinds):
            for topic in topics:
                found[topic].extend(readers[kind])
                shared[topic] += 1
        for topic, kinds in enumerate(shared):
            if kinds > 1:
                found[topic].sort()
        return found


def read(
    partitions_per_topic: Mapping[str, int],
    members: Mapping[str, Subscription],
    partition_racks: PartitionRacks | None = None,
) -> Group:
    """Check and number the input; raises AssignorError with the member's id and the offending value."""
    _check_topics(partitions_per_topic)
    if partition_racks is not None:
        _check_racks(partition_racks)
    for member in members:
        if not isinstance(member, str):
            raise AssignorError(f"member id {member!r} is not text; in the members given; use a str")
    names = sorted(members)
    subscriptions = [members[name] for name in names]
    seen: dict[object, int] = {}
    declared: list[frozenset[str]] = []
    raw_kind: list[int] = []
    for name, subscription in zip(names, subscriptions, strict=True):
        if not isinstance(subscription, Subscription):
            raise _no_subscription(name, subscription)
        topics = subscription.topics
        try:
            kind = seen.get(topics)
        except TypeError:  # a set or list, or something unhashable inside
            topics = checked_topics(name, subscription)
            kind = seen.get(topics)
        if kind is None:
            declared.append(checked_topics(name, subscription))
            kind = seen[topics] = len(declared) - 1
        if type(subscription.generation) is not int:
            raise AssignorError(
                f"generation {subscription.generation!r} is not a whole number; member {name!r}; use -1 for unknown"
            )
        for what, value in (("instance id", subscription.instance_id), ("rack", subscription.rack)):
            if value is not None and not isinstance(value, str):
                raise AssignorError(
                    f"{what} {value!r} is not text; member {name!r}; use a str, or None where it has none"
                )
        if not isinstance(subscription.owned, Iterable):
            raise AssignorError(
                f"owned {subscription.owned!r} is no tuple of partitions; member {name!r}; give a tuple"
            )
        raw_kind.append(kind)
    wanted = frozenset[str]().union(*declared)
    known = sorted(topic for topic in wanted if partitions_per_topic.get(topic, 0) > 0)
    counts = [partitions_per_topic[topic] for topic in known]
    bases = list(accumulate(counts, initial=0))
    total = bases.pop()
    number = {topic: i for i, topic in enumerate(known)}
    kinds: dict[tuple[int, ...], int] = {}
    kind_numbers = [
        kinds.setdefault(tuple(sorted(number[topic] for topic in topics if topic in number)), len(kinds))
        for topics in declared
    ]
    return Group(
        members=names,
        subscriptions=subscriptions,
        topics=known,
        counts=counts,
        bases=bases,
        total=total,
        kinds=list(kinds),
        kind_of=[kind_numbers[kind] for kind in raw_kind],
    )


def _no_subscription(member: str, found: object) -> AssignorError:
    return AssignorError(f"{found!r} is no Subscription; member {member!r}; give one")


def checked_topics(member: str, subscription: Subscription) -> frozenset[str]:
    """The topics of one member as a set; raises AssignorError when they are not texts."""
    if not isinstance(subscription, Subscription):
        raise _no_subscription(member, subscription)
    topics = cast("object", subscription.topics)
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise AssignorError(
            f"subscription {topics!r} is not a set of topic names; member {member!r}; give a frozenset or tuple of str"
        )
    for topic in topics:
        if not isinstance(topic, str):
            raise AssignorError(f"topic {topic!r} is not text; subscription of member {member!r}; give topic names")
    return frozenset(topics)


def check_owned(group: Group) -> None:
    """For rules that do not look at what members hold: bad reports are named all the same."""
    for name, subscription in zip(group.members, group.subscriptions, strict=True):
        for owned in subscription.owned:
            checked_owned(name, owned)


def checked_owned(member: str, owned: object) -> TopicPartition:
    """One entry of a member's report; raises AssignorError when it cannot be a partition."""
    if not isinstance(owned, tuple) or len(owned) != 2:
        raise AssignorError(f"owned partition {owned!r} is no (topic, partition); member {member!r}; give pairs")
    topic, partition = owned
    if not isinstance(topic, str):
        raise AssignorError(f"owned topic {topic!r} is not text; member {member!r}; give a topic name")
    if type(partition) is not int or partition < 0:
        raise AssignorError(
            f"owned partition number {partition!r} of topic {topic!r} is not 0 or more; member {member!r}; "
            "report partitions as they are numbered in the topic"
        )
    return owned if type(owned) is TopicPartition else TopicPartition(topic, partition)


def _check_topics(partitions_per_topic: Mapping[str, int]) -> None:
    for topic, count in partitions_per_topic.items():
        if not isinstance(topic, str):
            raise AssignorError(f"topic {topic!r} is not text; in the partition counts; use a str")
        if type(count) is not int or count < 0:
            raise AssignorError(
                f"partition count {count!r} is not 0 or more; topic {topic!r}; leave the topic out when it is unknown"
            )


def _check_racks(partition_racks: PartitionRacks) -> None:
    for partition, racks in cast("Mapping[TopicPartition, object]", partition_racks).items():
        if (
            not isinstance(racks, Iterable)
            or isinstance(racks, str)
            or not all(isinstance(rack, str) for rack in racks)
        ):
            raise AssignorError(f"racks {racks!r} are not a tuple of names; partition {partition}; give a tuple of str")
