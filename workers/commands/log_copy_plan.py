"""What `orchestrator log copy` copies: the application's topics, where it has positions, what is known of it; and why it cannot.

One rule: everything that would make the copy another application than the source is refused before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import aclosing

import msgspec

from orchestrator.errors import RefusedBySafety
from state.clocks import wall_ms
from state.log import cut_changelogs
from state.log.base import BASE
from state.log.protocol import GroupLog, Partition, Retention, TopicInfo
from workers.commands.produce_input import UNFINISHED
from workers.commands.topic_list import span
from workers.instance.ledger import SETTINGS
from workers.log.copying import records_of
from workers.log.produced import PROGRESS
from workers.prepare import BACKFILLED, BEGINNING, BEGUN, COPY, DESCRIPTION, NUMBERING, REPARTITIONED
from workers.tasks import halts
from workers.topic_identities import SEEN

COPIED = (NUMBERING, DESCRIPTION, PROGRESS, UNFINISHED)  # facts that mean the same on any log


class CopiedTopic(msgspec.Struct, frozen=True):
    """A topic, and how many records of it: of a plan the distance between start and end, else those that were written."""

    name: str
    kind: str
    partitions: int
    records: int

    def numbered(self) -> list[Partition]:
        return [Partition(self.name, number) for number in range(self.partitions)]


class Plan(msgspec.Struct, frozen=True):
    """What is copied: topics, how many positions and facts of the application."""

    topics: list[CopiedTopic]
    positions: int
    metadata: int


async def planned(source: GroupLog, target: GroupLog | None, application: str) -> Plan:
    """Raises RefusedBySafety where it cannot be copied; `target` is None where there is none yet."""
    found = await source.metadata(application, DESCRIPTION, "app")
    described = json.loads(found or b"{}")
    changelogs = {table["changelog_topic"] for table in described["tables"].values()}
    infos = await source.topics(sorted(changelogs | set(described["topics"])))
    await _refuse_bases(source, application, infos)
    of_tables = [info for name, info in infos.items() if name in changelogs]
    await cut_changelogs.refuse(source, application, of_tables, f"a copy of '{application}' has its tables")
    if target is not None:
        await _refuse_topics(source, target, application, infos)
    topics = [
        CopiedTopic(info.name, info.kind, info.partitions, await _distance(source, info))
        for info in sorted(infos.values(), key=lambda info: info.name)
    ]
    kinds = (*COPIED, BEGUN, BEGINNING, halts.HALTS, SETTINGS, REPARTITIONED, BACKFILLED)
    facts = [await source.metadata_of(application, kind) for kind in kinds]
    return Plan(topics, len(await positions_of(source, application, described)), sum(map(len, facts)))


async def positions_of(log: GroupLog, application: str, described: Mapping[str, object]) -> dict[Partition, int]:
    """All positions that the application has."""
    subtopologies: Collection[dict[str, list[str]]] = described["subtopologies"]  # type: ignore[assignment]
    read = {name for sub in subtopologies for name in sub["sources"]}
    read |= set(await log.metadata_of(application, SEEN))
    infos = await log.topics(sorted(read))
    return await log.positions(application, [one for info in infos.values() for one in partitions_of(info)])


def partitions_of(info: TopicInfo) -> list[Partition]:
    return [Partition(info.name, number) for number in range(info.partitions)]


async def _distance(log: GroupLog, info: TopicInfo) -> int:
    partitions = partitions_of(info)
    starts, ends = await log.starts(partitions), await log.ends(partitions)
    return sum(ends[one] - starts[one] for one in partitions)


async def _refuse_bases(source: GroupLog, application: str, infos: Mapping[str, TopicInfo]) -> None:
    """A changelog that goes on from a snapshot is not whole, and the snapshot is of this log's offsets."""
    if based := sorted(name for name in await source.metadata_of(application, BASE) if name in infos):
        raise RefusedBySafety(
            f"{', '.join(based)} of '{application}' goes on from a snapshot of a backfill with --snapshot-only, which is of "
            "this log alone; run the backfill on the new log"
        )


async def _refuse_topics(source: GroupLog, target: GroupLog, application: str, infos: Mapping[str, TopicInfo]) -> None:
    """Raises RefusedBySafety where the target has a topic of that name which cannot be the copy."""
    is_begun = await target.metadata(application, COPY, "from") is not None
    there = await target.topics(sorted(infos))
    for name, other in sorted(there.items()):
        info = infos[name]
        if (other.kind, other.partitions) != (info.kind, info.partitions):
            raise RefusedBySafety(
                f"the target has a topic {name} already, {other.kind} with {other.partitions} partitions; the source's is "
                f"{info.kind} with {info.partitions}: name another target, or put a prefix before its topics"
            )
        if info.kind != "plain" and not is_begun and any((await target.ends(partitions_of(other))).values()):
            raise RefusedBySafety(
                f"the target has records in {name} already, which may be another application's; delete it there, or put a "
                "prefix before the topics of the target"
            )
        if info.kind == "plain" and not is_begun and keeps_less(other.retention, info.retention):
            raise RefusedBySafety(
                f"topic {name} is there already and keeps records for {_shown(other.retention)}, and the source keeps them for "
                f"{_shown(info.retention)}: what lies between would be deleted; set its retention.ms and retention.bytes as the "
                "source has them first (-1: for ever)"
            )
    await _refuse_old(source, target, application, infos, there)


def keeps_less(target: Retention, source: Retention) -> bool:
    """Whether records are removed there that the source keeps."""
    pairs = ((target.ms, source.ms), (target.bytes, source.bytes))
    return any(limit is not None and (kept is None or limit < kept) for limit, kept in pairs)


def _shown(retention: Retention) -> str:
    limits = [span(retention.ms)] if retention.ms is not None else []
    limits += [f"{retention.bytes} bytes a partition"] if retention.bytes is not None else []
    return " or ".join(limits) or "ever"


async def _refuse_old(
    source: GroupLog,
    target: GroupLog,
    application: str,
    infos: Mapping[str, TopicInfo],
    there: Mapping[str, TopicInfo],
) -> None:
    """An embedded log counts retention from when a record was appended, brokers from the time that it has."""
    if source.position_lifetime_ms is not None or target.position_lifetime_ms is None:
        return
    for name, info in infos.items():
        kept = there.get(name, info).retention
        kept_ms = (info.retention if keeps_less(kept, info.retention) else kept).ms  # one that keeps less is set as it
        if info.kind != "plain" or kept_ms is None:
            continue
        before_ms = wall_ms() - kept_ms
        for partition in partitions_of(info):
            async with aclosing(records_of(source, partition)) as found:
                async for record in found:
                    if record.timestamp_ms < before_ms:
                        raise RefusedBySafety(
                            f"{partition}: the record at {record.offset} has a time longer ago than the {span(kept_ms)} "
                            f"that {name} is kept for; the source counts them from when it was appended, brokers from its time, "
                            f"and would delete it at once: first `orchestrator topics set {application} {name} --retention "
                            "forever`, or longer"
                        )
