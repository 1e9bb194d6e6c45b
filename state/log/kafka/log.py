"""The log on Apache Kafka: both ports on one cluster, several hosts, nothing of ours to install beside the brokers.

One rule: what Kafka answers early is waited for where a decision depends on it, and what it promises late is promised as
such: see `offsets.py` (settled ends), `facts_topic.py` (facts), `lease.py` (the coordinator), `seeding.py` (backfills),
`writers.py` (commits).
The consumer group of the application's name holds its positions, its facts are the topic `<application>-orchestrator`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from state.errors import LeaseLost, LogUnusable, StateError, UnknownTopic
from state.log import checks, compaction
from state.log.group_store import AppMetadata, Lease, MetadataKind, OwnerRecord
from state.log.kafka import facts, permits, rights
from state.log.kafka.appender import Appender
from state.log.kafka.broker_settings import lifetimes_ms
from state.log.kafka.cluster import Cluster, KafkaOptions, open_cluster
from state.log.kafka.codes import KafkaRefused, is_denied
from state.log.kafka.facts import EVERYBODYS, PARTITIONS, TOPIC_SUFFIX, UNDER_LEASE
from state.log.kafka.facts_topic import FactsTopic
from state.log.kafka.fences import Fences
from state.log.kafka.lease import Leases
from state.log.kafka.members import refuse_members
from state.log.kafka.seeding import Contents, Seeds
from state.log.kafka.writers import Writers
from state.log.protocol import (
    EXACTLY_ONCE,
    Compacted,
    Guarantee,
    Intended,
    LeftOpen,
    MayWrite,
    NewRecord,
    Partition,
    Parts,
    Reader,
    Retention,
    Spread,
    TaskCommit,
    TopicInfo,
    TopicSpec,
    always,
    no_parts,
)

_LOOK_S = 0.5  # how long a look at metadata waits for a transaction that is open


class FactsGone(LogUnusable):
    """The topic with an application's facts is gone, or is another one than this process has read."""


async def open_kafka(options: KafkaOptions) -> KafkaLog:
    """Raises LogUnavailable where no broker answers, AccessRefused, BadClientConfig."""
    cluster = await open_cluster(options)
    try:
        return KafkaLog(cluster, options, *await lifetimes_ms(cluster.connections))
    except BaseException:
        await cluster.close()
        raise


class KafkaLog:
    """See the module text and `state.log.protocol.GroupLog`."""

    def __init__(self, cluster: Cluster, options: KafkaOptions, position_ms: int, writer_ms: int) -> None:
        self._cluster = cluster
        self.position_lifetime_ms: int | None = position_ms
        self.writer_lifetime_ms: int | None = writer_ms
        self.leaves_open = True
        self.log_id = cluster.connections.cluster_id
        self._writers = Writers(cluster, options.transaction_timeout_s)
        self._appender = Appender(cluster)
        self.leases = Leases(cluster)
        self._fences = Fences(self.leases, self._writers)
        self.seeds = Seeds(cluster, self.leases, options)
        self._facts: dict[str, FactsTopic] = {}
        self._facts_ids: dict[str, bytes] = {}  # of the topics, as this process has read them first
        self._opening: dict[str, asyncio.Lock] = {}

    async def close(self) -> None:
        for topic in self._facts.values():
            await topic.close()
        await self._cluster.close()

    async def _facts_of(self, application: str) -> FactsTopic | None:
        """The application's facts, followed from now on; None where it has none yet."""
        return await self._open_facts(application, create=False)

    async def _made_facts(self, application: str) -> FactsTopic:
        found = await self._open_facts(application, create=True)
        assert found is not None
        return found

    async def _open_facts(self, application: str, *, create: bool) -> FactsTopic | None:
        found = self._facts.get(application)
        if found is not None and not found.has_failed:
            return found
        async with self._opening.setdefault(application, asyncio.Lock()):
            if (found := self._facts.get(application)) is not None and found.has_failed:
                del self._facts[application]  # its tail ended: read anew
                await found.close()
            if application not in self._facts:
                await self._refuse_other_facts(application)
                opened = await FactsTopic.opened(self._cluster, application, create=create)
                if opened is None:
                    return None
                self._facts_ids[application] = opened.topic_id
                self._facts[application] = opened
            return self._facts[application]

    async def _refuse_other_facts(self, application: str) -> None:
        """Raises FactsGone where the topic with the facts was deleted since this process has read it: a new one would begin
        its terms anew, beside members that obey an older one."""
        before, name = self._facts_ids.get(application), facts.topic_of(application)
        if before is None:
            return
        found = (await self._cluster.topics.refresh([name])).get(name)
        if found is None or found.topic_id != before:
            raise FactsGone(
                f"topic {name} was deleted {'and created again ' if found else ''}while application '{application}' ran: it "
                "holds who may write; stop every instance, and see docs/kafka.md, Refusals, before you start again"
            )

    # ------------------------------------------------------------------ topics

    async def create_topic(self, spec: TopicSpec) -> TopicInfo:
        return await self._cluster.topics.create(spec)

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        return await self._cluster.topics.grow(name, partitions)

    async def delete_topic(self, name: str) -> None:
        await self._cluster.topics.delete(name)

    async def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        return await self._cluster.topics.infos(names)

    async def names(self) -> list[str]:
        return await self._cluster.topics.listed()

    async def ends(self, partitions: Collection[Partition], *, settled: bool = False) -> dict[Partition, int]:
        offsets = self._cluster.offsets
        return await (offsets.settled(partitions) if settled else offsets.ends(partitions))

    async def known_ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._cluster.offsets.known_ends(partitions)

    async def written(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._cluster.offsets.watermarks(partitions)

    async def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._cluster.offsets.starts(partitions)

    async def forgotten(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {}

    def epoch(self, partition: Partition) -> int:
        return self._cluster.topics.known_epoch(partition)

    async def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, int]:
        return await self._cluster.offsets.epoch_ends(epochs)

    def reader(self) -> Reader:
        return self._cluster.reader()

    # ------------------------------------------------------------------ writing

    async def append(
        self,
        records: Mapping[Partition, Sequence[NewRecord]],
        *,
        metadata: AppMetadata | None = None,
        seen: bytes | None = None,
    ) -> dict[Partition, int]:
        if metadata is None:
            return await self._appender.append(records)
        checks.author(metadata.kind, None)
        topic = await self._made_facts(metadata.application)
        return await self._appender.append_with(records, metadata, seen, topic)

    async def open_writer(self, application: str, transactional_id: str) -> None:
        await self._writers.open(application, transactional_id, await self._facts_of(application))

    async def check_rights(self, application: str, wanted: Intended) -> None:
        changes = [
            ("deleting", rights.DELETE, wanted.deleted),
            ("growing", rights.ALTER, wanted.grown),
            ("trimming", rights.DELETE, wanted.trimmed),
        ]
        await permits.check_topics(self._cluster, changes)
        if wanted.forgets:
            await self._cluster.offsets.check_may_forget(application)
        if wanted.seeds:
            await self.seeds.check_may_seed(application)

    async def check_alone(self, application: str) -> None:
        await refuse_members(self._cluster, application)

    def fences(self, guarantee: Guarantee) -> bool:
        return guarantee == EXACTLY_ONCE

    async def commit(
        self,
        application: str,
        transactional_id: str,
        tasks: Sequence[TaskCommit],
        *,
        guarantee: Guarantee = EXACTLY_ONCE,
        may_write: MayWrite = always,
    ) -> dict[Partition, int]:
        topic = await self._facts_of(application)
        if guarantee == EXACTLY_ONCE:
            return await self._writers.commit(application, transactional_id, tasks, topic)
        return await self._writers.commit_unfenced(application, transactional_id, tasks, topic, may_write)

    async def fence(self, lease: Lease, transactional_ids: Collection[str]) -> dict[str, frozenset[str]]:
        checks.ids_to_fence(transactional_ids)
        return await self._fences.fence(await self._facts_of(lease.application), lease, transactional_ids)

    async def end_left_open(self, lease: Lease, transactional_ids: Mapping[str, int]) -> LeftOpen:
        checks.ids_to_fence(transactional_ids)
        return await self._fences.end_left_open(await self._facts_of(lease.application), lease, transactional_ids)

    # ------------------------------------------------------------------ positions

    async def positions(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        return await self._cluster.offsets.committed(application, partitions, settled=settled)

    async def lost(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        return await self._cluster.offsets.lost(application, partitions, settled=settled)

    async def set_elsewhere(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        return await self._cluster.offsets.set_elsewhere(application, partitions, settled=settled)

    async def committed_ms(self, application: str, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._cluster.offsets.committed_ms(application, partitions)

    async def seed_positions(
        self,
        lease: Lease,
        positions: Mapping[Partition, int],
        records: Mapping[Partition, Sequence[NewRecord]],
        *,
        metadata: Sequence[AppMetadata] = (),
        parts: Parts = no_parts,
        spread: Spread | None = None,
    ) -> bool:
        for one in metadata:
            checks.author(one.kind, lease)
        noted = [facts.metadata_record(one.kind, one.key, one.value) for one in metadata]
        topic = await self._facts_of(lease.application)
        return await self.seeds.seed(topic, lease, Contents(records, parts, noted, positions, spread))

    async def forget_positions(self, lease: Lease, partitions: Collection[Partition]) -> None:
        """The lease is checked before and after: no request of Kafka removes offsets in a transaction."""
        topic = await self._facts_of(lease.application)
        self.leases.check(topic, lease)
        await self._cluster.offsets.forget(lease.application, partitions)
        await self.leases.renew(topic, lease) if topic is not None else None

    # ------------------------------------------------------------------ lease and owners

    async def lease(self, application: str) -> Lease | None:
        topic = await self._facts_of(application)
        if topic is None:
            return None
        topic.check()
        return topic.view.lease()

    async def acquire(self, application: str, holder: str, address: str, seen: Lease | None) -> Lease | None:
        topic = await self._made_facts(application)
        await topic.require_kept()
        return await self.leases.acquire(topic, holder, address, seen)

    async def renew(self, lease: Lease) -> Lease:
        topic = await self._facts_of(lease.application)
        if topic is None:
            raise LeaseLost(checks.lease_lost(lease, None))
        return await self.leases.renew(topic, lease)

    async def owners(self, application: str) -> dict[str, OwnerRecord]:
        topic = await self._facts_of(application)
        if topic is None:
            return {}
        topic.check()
        return topic.view.owners()

    async def record_owners(self, lease: Lease, records: Sequence[OwnerRecord]) -> None:
        written = [facts.owner_record(record) for record in records]
        await self.leases.write(await self._facts_of(lease.application), lease, lambda: written)

    # ------------------------------------------------------------------ metadata

    async def _looked_at(self, application: str, kind: MetadataKind, *, settled: bool = False) -> FactsTopic | None:
        """The facts with all that others were answered; an open transaction is waited for a moment and no longer, unless
        `settled`."""
        topic = await self._facts_of(application)
        if topic is not None:
            number = UNDER_LEASE if kind.under_lease else EVERYBODYS
            await (topic.read_settled(number) if settled else topic.look(number, _LOOK_S))
        return topic

    async def metadata(self, application: str, kind: MetadataKind, key: str) -> bytes | None:
        topic = await self._looked_at(application, kind)
        return None if topic is None else topic.view.metadata(kind, key)

    async def metadata_of(self, application: str, kind: MetadataKind, *, settled: bool = False) -> dict[str, bytes]:
        topic = await self._looked_at(application, kind, settled=settled)
        return {} if topic is None else topic.view.metadata_of(kind)

    async def metadata_of_all(self, kind: MetadataKind, key: str) -> dict[str, bytes]:
        """Of the applications whose facts this user may read: for what is not listed to it, nobody can say either."""
        found: dict[str, bytes] = {}
        for application in await self._applications():
            try:
                value = await self._glance(application, kind, key)
            except StateError as error:
                if not is_denied(error):
                    raise
                value = None
            if value is not None:
                found[application] = value
        return found

    async def _glance(self, application: str, kind: MetadataKind, key: str) -> bytes | None:
        """As `metadata`; facts that are not followed yet are not followed from then on."""
        if application in self._facts:
            return await self.metadata(application, kind, key)
        number = UNDER_LEASE if kind.under_lease else EVERYBODYS
        view = await FactsTopic.seen_once(self._cluster, application, number, _LOOK_S)
        return None if view is None else view.metadata(kind, key)

    async def _applications(self) -> list[str]:
        """By the topics that may be facts: another program's may be called so, too."""
        listed = [name for name in await self._cluster.topics.listed() if name.endswith(TOPIC_SUFFIX)]
        there = await self._cluster.topics.refresh(listed)
        found = []
        for name in (name for name, layout in sorted(there.items()) if len(layout.leaders) == PARTITIONS):
            try:
                purpose = (await self._cluster.topics.purposes([name]))[name]
            except UnknownTopic:  # deleted meanwhile
                continue
            except KafkaRefused as error:
                if not is_denied(error):
                    raise
                continue
            if purpose.kind == "changelog":
                found.append(name.removesuffix(TOPIC_SUFFIX))
        return found

    async def put_metadata(
        self, application: str, kind: MetadataKind, key: str, value: bytes | None, *, lease: Lease | None = None
    ) -> None:
        checks.author(kind, lease)
        record = [facts.metadata_record(kind, key, value)]
        if lease is not None:
            await self.leases.write(await self._facts_of(application), lease, lambda: record)
        else:
            await (await self._made_facts(application)).change(lambda _: record)

    async def replace_metadata(
        self, application: str, kind: MetadataKind, key: str, seen: bytes | None, value: bytes | None
    ) -> bool:
        checks.author(kind, None)
        record = [facts.metadata_record(kind, key, value)]
        topic = await self._made_facts(application)
        return await topic.change(lambda view: record if view.metadata(kind, key) == seen else None)

    # ------------------------------------------------------------------ upkeep

    async def compact(self, topic: str) -> Compacted:
        """The brokers compact in their own time. Raises UnknownTopic."""
        found = (await self.topics([topic])).get(topic)
        if found is None:
            raise checks.unknown(Partition(topic, 0), None)
        compaction.require_changelog(found)
        return Compacted(0, 0)

    async def trim(self, positions: Mapping[Partition, int]) -> int:
        """The broker does not say how many records that were."""
        await self._cluster.offsets.trim(positions)
        return 0

    async def set_retention(self, topic: str, retention: Retention) -> TopicInfo:
        return await self._cluster.topics.set_retention(topic, retention)

    async def expired(self, partitions: Collection[Partition], *, at_once: bool = False) -> dict[Partition, int]:
        """The brokers remove such records in their own time."""
        return {}
