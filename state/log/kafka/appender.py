"""What is appended without an application: records of producers, and the progress of those that read a file.

One rule: a broker that is away for a while ends no producer. A transaction that brokers aborted for its age was not committed, so
it is made again; one whose commit is not answered is asked about until it is, and only then counts as unknown.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence

from state.errors import LogUnavailable, MetadataChanged, OutcomeUnknown, StateError
from state.log import checks
from state.log.group_store import AppMetadata
from state.log.kafka import facts, rights
from state.log.kafka.building import build, by_present_settings
from state.log.kafka.cluster import Cluster
from state.log.kafka.facts import EVERYBODYS
from state.log.kafka.facts_topic import WRITER_TIMEOUT_S, FactsTopic
from state.log.kafka.lost_records import may_go_on
from state.log.kafka.producer import NotEnded, Producer, ProducerFenced
from state.log.kafka.unbuilt import Built
from state.log.protocol import NewRecord, Partition

# A broker with default settings is noticed as dead after 9 s, and its partitions are led anew after that
ANSWER_WITHIN_S = 60.0


class Appender:
    """Producers of records that are no task's: one idempotent, one transactional, and one for each kept progress."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._idempotent: Producer | None = None
        self._transactional: Producer | None = None
        self._keyed: dict[tuple[str, str, str], Producer] = {}

    async def append(self, records: Mapping[Partition, Sequence[NewRecord]]) -> dict[Partition, int]:
        """Raises OutcomeUnknown, and what a topic refuses."""
        return await by_present_settings(self._cluster.topics, lambda: self._build(records), self._append)

    async def _build(self, records: Mapping[Partition, Sequence[NewRecord]]) -> Built:
        return await build(self._cluster.topics, records, ANSWER_WITHIN_S)

    async def _append(self, built: Built) -> dict[Partition, int]:
        if not built:
            return {}
        if sum(map(len, built.values())) == 1:
            return await self._produce(built)
        until = _now() + ANSWER_WITHIN_S
        while True:
            if self._transactional is None:
                self._transactional = await self._ready(f"{rights.PRODUCER_IDS}{uuid.uuid4().hex}")
            producer = self._transactional
            async with producer.turn:
                try:
                    return await producer.transact(built)
                except (
                    ProducerFenced
                ) as error:  # nobody else has its id: brokers have aborted it, so it was not committed
                    self._forget(producer)
                    if _now() >= until:
                        raise LogUnavailable(_aborted(built, error)) from error
                except NotEnded as error:
                    self._forget(producer)
                    raise LogUnavailable(_not_written(built, error)) from error
                except OutcomeUnknown as error:
                    self._forget(producer)
                    raise OutcomeUnknown(_unknown(built)) from error
                except StateError as error:
                    self._forget(producer)  # it is torn: one made anew writes what comes next
                    if not may_go_on(error, _now() < until):
                        raise

    def _forget(self, producer: Producer) -> None:
        if self._transactional is producer:
            self._transactional = None

    async def _produce(self, built: Built) -> dict[Partition, int]:
        until = _now() + ANSWER_WITHIN_S
        while True:
            if self._idempotent is None:
                self._idempotent = await self._ready(None)
            producer = self._idempotent
            async with producer.turn:
                if self._idempotent is not producer:  # another call was before, and gave it up
                    continue
                try:
                    return await producer.produce(built)
                except (
                    BaseException
                ) as error:  # a cancellation as well: its sequence may have a gap, or its next number be used
                    self._idempotent = None
                    if not may_go_on(error, _now() < until):
                        raise

    async def _ready(self, transactional_id: str | None) -> Producer:
        made = self._cluster.producer(transactional_id, WRITER_TIMEOUT_S, "produce", answer_within_s=ANSWER_WITHIN_S)
        await made.initialise()
        return made

    async def append_with(
        self,
        records: Mapping[Partition, Sequence[NewRecord]],
        metadata: AppMetadata,
        seen: bytes | None,
        topic: FactsTopic,
    ) -> dict[Partition, int]:
        """Records and the producer's progress in one transaction. Its id is the progress's own: who initialises it has
        fenced a twin, and reads what that one got written; until it is fenced itself it needs no other look. Raises MetadataChanged,
        OutcomeUnknown."""
        _, kind, key, value = metadata
        fact = facts.metadata_record(kind, key, value)
        together = {**records, topic.partition(EVERYBODYS): [fact]}
        return await by_present_settings(
            self._cluster.topics,
            lambda: self._build(together),
            lambda built: self._append_with(built, metadata, seen, topic, fact),
        )

    async def _append_with(
        self, built: Built, metadata: AppMetadata, seen: bytes | None, topic: FactsTopic, fact: NewRecord
    ) -> dict[Partition, int]:
        application, kind, key, _ = metadata
        name = (application, kind.name, key)
        until = _now() + ANSWER_WITHIN_S
        while True:
            is_new = name not in self._keyed
            if is_new:
                self._keyed[name] = await self._ready(f"{application}.produce.{kind.name}.{key}")
            producer = self._keyed[name]
            async with producer.turn:
                if self._keyed.get(name) is not producer:  # another call was before, and gave it up
                    continue
                if is_new:
                    try:
                        await topic.read_settled(EVERYBODYS)
                    except BaseException:
                        self._keyed.pop(name, None)
                        raise
                if topic.view.metadata(kind, key) != seen:
                    raise MetadataChanged(checks.metadata_changed(metadata))
                try:
                    behind = await producer.transact(built)
                except (
                    ProducerFenced
                ) as error:  # by a twin, or for its age: take the id back, and look what was written
                    self._keyed.pop(name, None)
                    if _now() >= until:
                        raise LogUnavailable(_aborted(built, error)) from error
                    continue
                except NotEnded as error:
                    self._keyed.pop(name, None)
                    raise LogUnavailable(_not_written(built, error)) from error
                except OutcomeUnknown as error:
                    self._keyed.pop(name, None)
                    raise OutcomeUnknown(
                        f"{_unknown(built)}; run it again, it goes on behind what was written"
                    ) from error
                except StateError as error:
                    self._keyed.pop(name, None)
                    if not may_go_on(error, _now() < until):
                        raise
                    continue
                topic.view.apply_own(EVERYBODYS, behind.pop(topic.partition(EVERYBODYS)), [fact])
                return behind


def _now() -> float:
    return asyncio.get_running_loop().time()


def _names(built: Built) -> str:
    return ", ".join(map(str, sorted(built)))


def _aborted(built: Built, error: ProducerFenced) -> str:
    return (
        f"what was to be written to {_names(built)} was aborted again and again for {ANSWER_WITHIN_S:g} s, and is not there "
        f"({error}): look after the brokers"
    )


def _not_written(built: Built, error: NotEnded) -> str:
    return f"what was to be written to {_names(built)} is not there: {error}"


def _unknown(built: Built) -> str:
    return (
        f"the brokers did not say for {ANSWER_WITHIN_S:g} s whether the latest records are written to {_names(built)}; look at its "
        "end before they are written again"
    )
