"""What every log refuses, in the same words. Pure: the logs look up, this says what is wrong with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from state.errors import (
    InvalidRecord,
    PositionOutOfRange,
    RecordTooLarge,
    StateError,
    TopicMismatch,
    UnfitRecord,
    UnknownTopic,
)
from state.log.entries import Entries
from state.log.group_store import AppMetadata, Lease, MetadataKind
from state.log.protocol import FOR_EVER, NewRecord, Partition, TaskCommit, TopicInfo, TopicSpec

KINDS = ("plain", "changelog", "repartition")


def topic_spec(spec: TopicSpec) -> None:
    """Raises StateError for a topic that cannot be."""
    if not spec.name:
        raise StateError("a topic needs a name")
    if spec.partitions < 1:
        raise StateError(f"topic {spec.name} needs at least one partition, not {spec.partitions}")
    if spec.kind != "plain" and spec.retention != FOR_EVER:
        raise StateError(f"topic {spec.name} is of kind {spec.kind!r} and has no retention; leave it out")
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


def plain(found: TopicInfo | None, name: str) -> TopicInfo:
    """The topic, which may have a retention. Raises UnknownTopic, StateError."""
    if found is None:
        raise unknown(Partition(name, 0), None)
    if found.kind != "plain":
        raise StateError(
            f"topic {name} is a {found.kind} topic and has no retention: a changelog keeps the last record of each key, and a "
            "repartition topic what is not consumed yet"
        )
    return found


def unknown(partition: Partition, partitions: int | None) -> UnknownTopic:
    """`partitions` is how many the topic has, None where there is no such topic."""
    if partitions is None:
        return UnknownTopic(f"the log has no topic {partition.topic}: create it first, or check its name")
    return UnknownTopic(
        f"topic {partition.topic} has no partition {partition.number}: it has {partitions}, numbered from 0"
    )


def out_of_range(partition: Partition, position: int, start: int, end: int) -> PositionOutOfRange:
    if position < start:
        text = (
            f"position {position} of {partition} lies before its start {start}: the records between were removed "
            "(retention, or a trim); go on from its start, or restore what was read before"
        )
    else:
        text = (
            f"position {position} of {partition} lies past its end {end}: "
            "it comes from another log or an earlier topic of that name, or the log lost records; start again from the log's own positions"
        )
    return PositionOutOfRange(text, partition, start, end)


def lost(partition: Partition, position: int, start: int, end: int) -> PositionOutOfRange:
    text = (
        f"position {position} of {partition} lies behind {end}, where the records end that the log has kept of those "
        "before it: a replica that lagged became the leader, or a broker was restored"
    )
    return PositionOutOfRange(text, partition, start, end)


def too_large(partition: Partition, index: int, size: int, limit: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"a record of {size} bytes is too large for {partition}, which takes {limit}", partition, index
    )


def keys(topic: TopicInfo, partition: Partition, records: Sequence[NewRecord]) -> None:
    """Raises InvalidRecord for a record that compaction could not keep."""
    if topic.kind == "changelog" and lack_keys(records):
        index = next(number for number, record in enumerate(records) if record.key is None)
        raise InvalidRecord(
            f"a record without a key cannot go into {partition}, which keeps the last record of each key",
            partition,
            index,
        )


def lack_keys(records: Sequence[NewRecord]) -> bool:
    """Whether a record has no key. Entries of a table have one each, and no records are made of them to see that."""
    return not isinstance(records, Entries) and any(record.key is None for record in records)


def of_scope(error: UnfitRecord, tasks: Sequence[TaskCommit]) -> UnfitRecord:
    """The same for a commit: the index counts the records of its scope."""
    index = error.index
    for task in tasks:
        count = len(task.records.get(Partition(*error.partition), ()))
        if index < count:
            return type(error)(error.what, error.partition, index, task.scope)
        index -= count
    raise AssertionError(f"{error}: none of the {len(tasks)} tasks has record {error.index}")


def merged(tasks: Sequence[TaskCommit]) -> Mapping[Partition, Sequence[NewRecord]]:
    """The records of all tasks by partition, in the order of the tasks."""
    if len(tasks) == 1:
        return tasks[0].records
    found: dict[Partition, Sequence[NewRecord]] = {}
    for task in tasks:
        for partition, records in task.records.items():
            before = found.get(partition)
            found[partition] = records if before is None else [*before, *records]
    return found


def lease_lost(lease: Lease, found: Lease | None) -> str:
    if found is None:
        return f"{lease.holder} coordinates {lease.application} no more (term {lease.term}): the lease has no holder"
    return (
        f"{lease.holder} coordinates {lease.application} no more (term {lease.term}): "
        f"{found.holder} does, at term {found.term}; nothing was written"
    )


def author(kind: MetadataKind, lease: Lease | None) -> None:
    """Raises StateError where a kind of metadata is written by the wrong author."""
    if kind.under_lease and lease is None:
        raise StateError(f"metadata of kind {kind.name!r} is the coordinator's: write it under its lease")
    if lease is not None and not kind.under_lease:
        raise StateError(f"metadata of kind {kind.name!r} is shared by all processes: write it without a lease")


def metadata_changed(metadata: AppMetadata) -> str:
    return (
        f"{metadata.kind.name} {metadata.key!r} of {metadata.application} was written by another process meanwhile; "
        "nothing was written; stop one of the two, and start again from what the log has"
    )


def held_open(partition: Partition, waited_s: float, held_back_s: float = 0.0) -> str:
    """`held_back_s`: for how long a broker made this client wait for an answer, by a quota."""
    if held_back_s:
        return (
            f"{partition} could not be read to its end within {waited_s:.0f} s: brokers hold requests of this client back, for {held_back_s:.0f} s each "
            "(a quota of its client.id, or user): raise that, or use a client.id of its own, and try again"
        )
    return (
        f"a transaction has held {partition} open for {waited_s:.0f} s, and nothing behind it can be read: "
        "try again once its writer is fenced"
    )


def transactional_id(name: str) -> None:
    """Raises StateError for an empty one."""
    if not name:
        raise StateError("a transactional id needs a name")


def ids_to_fence(transactional_ids: Collection[str]) -> None:
    """Raises StateError where one is empty."""
    if "" in transactional_ids:
        raise StateError("a transactional id to fence is empty: an owner record without one needs no fence")


def fenced(transactional_id: str) -> str:
    return f"transactional id {transactional_id} was fenced: all it owned belongs to others now; drop it and join again"


def initialised_elsewhere(name: str, timeout_s: float) -> str:
    """Of an id that no fence was written for. `name`: as the brokers know it."""
    return (
        f"another program has initialised transactional id {name}, or its transaction was open for longer than {timeout_s:g} s: drop "
        "it and join again; where that recurs, look for a program that uses ids of this name"
    )


def forgotten(name: str) -> str:
    """Of an id that committed nothing for long."""
    return (
        f"the brokers have forgotten transactional id {name}, which committed nothing for as long as they keep one "
        "(transactional.id.expiration.ms): drop it and join again"
    )


def not_sent(why: str = "") -> str:
    return (
        f"a commit at least once was cut short{f' ({why})' if why else ''}: its records may be in the log, and are "
        "processed again from the last positions"
    )


def not_opened(transactional_id: str) -> str:
    return f"transactional id {transactional_id or '(none)'} was not opened by this process: open it before a commit"


def refused(transactional_id: str, scopes: Iterable[str]) -> str:
    listed = ", ".join(sorted(set(scopes)))
    return f"transactional id {transactional_id} does not own {listed} at the epoch it names; nothing was written"
