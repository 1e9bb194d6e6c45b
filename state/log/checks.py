"""What every log refuses, in the same words. Pure: the logs look up, this says what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from state.errors import PositionOutOfRange, StateError, TopicMismatch, UnknownTopic
from state.log.protocol import Lease, NewRecord, Part, Partition, TopicInfo, TopicSpec

KINDS = ("plain", "changelog", "repartition")


def topic_spec(spec: TopicSpec) -> None:
    if not spec.name:
        raise StateError("a topic needs a name")
    if spec.partitions < 1:
        raise StateError(f"topic {spec.name} needs at least one partition, not {spec.partitions}")
    if spec.kind not in KINDS:
        raise StateError(f"topic {spec.name} cannot be of kind {spec.kind!r}: it is one of {', '.join(KINDS)}")


def mismatch(found: TopicInfo, spec: TopicSpec) -> str:
    return (
        f"topic {spec.name} has {found.partitions} partitions and {spec.partitions} were asked for: "
        "keep the number it has, or use another topic"
    )


def growth(found: TopicInfo | None, name: str, partitions: int) -> TopicInfo:
    """The topic that is to have that many partitions. Raises UnknownTopic, TopicMismatch."""
    if found is None:
        raise unknown(Partition(name, 0), None)
    if partitions < found.partitions:
        raise TopicMismatch(
            f"topic {name} has {found.partitions} partitions and cannot have {partitions}: a partition is never taken "
            "away, because of the records in it; ask for more, or use another topic"
        )
    return found


def unknown(partition: Partition, partitions: int | None) -> UnknownTopic:
    """`partitions` is how many the topic has, None where there is no such topic."""
    if partitions is None:
        return UnknownTopic(f"the log has no topic {partition.topic}: create it first, or check its name")
    return UnknownTopic(
        f"topic {partition.topic} has no partition {partition.number}: it has {partitions}, numbered from 0"
    )


def out_of_range(partition: Partition, position: int, end: int) -> PositionOutOfRange:
    return PositionOutOfRange(
        f"position {position} of {partition} lies past its end {end}: "
        "it comes from another log or an earlier topic of that name; start again from the log's own positions"
    )


def merged(parts: Sequence[Part]) -> Mapping[Partition, Sequence[NewRecord]]:
    """The records of all parts by partition, in the order of the parts."""
    if len(parts) == 1:
        return parts[0].records
    found: dict[Partition, list[NewRecord]] = {}
    for part in parts:
        for partition, records in part.records.items():
            found.setdefault(partition, []).extend(records)
    return found


def lease_lost(lease: Lease, found: Lease | None) -> str:
    if found is None:
        return f"{lease.holder} coordinates {lease.application} no more (term {lease.term}): nobody has the lease"
    return (
        f"{lease.holder} coordinates {lease.application} no more (term {lease.term}): "
        f"{found.holder} does, at term {found.term}; nothing was written"
    )


def fenced(writer: str) -> str:
    return f"writer {writer} was fenced: all it owned belongs to others now; drop it and join again"


def refused(writer: str, scopes: Iterable[str]) -> str:
    listed = ", ".join(sorted(set(scopes)))
    return f"writer {writer or '(none)'} does not own {listed} at the epoch it names; nothing was written"
