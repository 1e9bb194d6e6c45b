"""Changelogs that begin behind what others deleted: Kafka's `delete-records`, or a `cleanup.policy` of delete for a while.

One rule: nothing of this software removes what a changelog begins with, so a table that is restored from one which begins
later lacks values while its task goes on behind what it had counted. No store is made from it, and none that stands before
its beginning is wiped, until an operator takes it as it is (`orchestrator topics accept`, workers/log/written_back.py). What was
taken is kept as metadata of kind STARTS under the name of the topic. A changelog with a base (base.py) is another case: what is
missing is in a snapshot. Used where stores are opened, and by whatever takes a changelog for a table: snapshots, `repartition`, `log copy`, Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from state.errors import ChangelogCut, StateError
from state.log.base import BASE, of_topic
from state.log.group_store import MetadataKind
from state.log.protocol import GroupLog, Partition, TopicInfo

STARTS = MetadataKind("changelog-starts", under_lease=True)


class Taken(msgspec.Struct, frozen=True):
    """How the topic of this id was taken as it is, by partition: with which beginnings; up to where the store had its changelog
    whose entries were written back; and where the changelog ended before any were, until the app has gone on; `time`: the name of
    the time that this was done, while the ids that the app ran on are not forgotten."""

    topic_id: str = ""
    starts: dict[int, int] = {}
    stores: dict[int, int] = {}
    ends: dict[int, int] = {}
    time: str = ""


_NOTHING = Taken()


def taken(metadata: Mapping[str, bytes], topic: TopicInfo) -> Taken:
    """How this topic was taken; `metadata` is of kind STARTS. Raises StateError for metadata that cannot be read."""
    data = metadata.get(topic.name)
    if data is None:
        return _NOTHING
    try:
        found = msgspec.json.decode(data, type=Taken)
    except msgspec.MsgspecError as error:
        raise StateError(
            f"the log's metadata of a changelog's beginning is damaged ({error}): restore the log from a backup"
        ) from error
    return found if found.topic_id == topic.topic_id else _NOTHING


def refused(application: str, partition: Partition, start: int, who: str) -> ChangelogCut:
    """`who`: what lacks the entries, and what there is of it."""
    return ChangelogCut(
        f"{who}: changelog {partition} begins at {start}, and what was written before was deleted (by a cleanup.policy of delete, "
        f"or kafka-delete-records): values would be missing; put back state or a snapshot that has them; while '{application}' is stopped, "
        f"`orchestrator topics accept {application} {partition.topic}` writes back what stores of its machine have, and takes the rest as it is"
    )


async def refuse(log: GroupLog, application: str, topics: Collection[TopicInfo], what: str) -> None:
    """For what reads these changelogs from their beginnings. Raises ChangelogCut."""
    bases, kept = await log.metadata_of(application, BASE), await log.metadata_of(application, STARTS)
    starts = await log.starts([Partition(one.name, number) for one in topics for number in range(one.partitions)])
    for topic in topics:
        known = taken(kept, topic)
        for number in range(topic.partitions if of_topic(bases, topic) is None else 0):
            one = Partition(topic.name, number)
            if starts[one] > known.starts.get(number, 0):
                raise refused(application, one, starts[one], what)
