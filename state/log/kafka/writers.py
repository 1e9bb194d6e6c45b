"""The transactional ids that the workers of this process write with.

One rule: an id is opened by initialising it, and only then is it looked up whether it was fenced: a fence writes its record
first and initialises second, so of the two one is always seen. The owner records in memory refuse a commit early, as
advice; the promise is the broker's, which refuses an id that was initialised by another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress

from state.errors import Fenced, LogBusy, NotOpened, OutcomeUnknown, RecordsLost, Refused, StateError
from state.log import checks
from state.log.group_store import OwnerRecord
from state.log.kafka.building import by_present_settings, unbuilt
from state.log.kafka.cluster import Cluster
from state.log.kafka.codes import FORGOTTEN_ID, KafkaRefused, Then
from state.log.kafka.connections import TooLate, is_answer
from state.log.kafka.facts import UNDER_LEASE
from state.log.kafka.facts_topic import FactsTopic
from state.log.kafka.left_open import OPEN, Written, latest_of
from state.log.kafka.lost_records import Latest, of_writer
from state.log.kafka.members import refuse_members
from state.log.kafka.producer import Producer, ProducerFenced
from state.log.kafka.short_lived import ShortLived
from state.log.kafka.unbuilt import Unbuilt
from state.log.protocol import MayWrite, Partition, TaskCommit

_LOOK_S = 5.0
_UNSEEN_S = 1.0  # for an owner record: its marker is written in milliseconds, where no broker has just died


def writer_id(application: str, transactional_id: str) -> str:
    """As the cluster knows it: two applications may use one name."""
    return f"{application}.worker.{transactional_id}"


class Writers:
    """The writers of this process, by application and transactional id."""

    def __init__(self, cluster: Cluster, transaction_timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = transaction_timeout_s
        self._opened: dict[tuple[str, str], Producer] = {}
        self._unfenced: dict[tuple[str, str], Producer] = {}  # idempotent ones, of commits at least once
        self._latest: dict[tuple[str, str], Latest] = {}
        self._lost: set[tuple[str, str]] = set()
        self._short_lived = ShortLived()

    def producer(self, application: str, transactional_id: str) -> Producer:
        writes = Written(None, application)
        return self._cluster.producer(writer_id(application, transactional_id), self._timeout_s, writes=writes)

    async def open_since(self, application: str, transactional_ids: Collection[str]) -> dict[str, int]:
        """Of these ids, of any process, those that have a transaction open, and when it began. Raises KafkaRefused, LogUnavailable."""
        connections, names = self._cluster.connections, self._cluster.topics.names

        async def asked(inside: str) -> tuple[str, int]:
            return await connections.retried(
                "a look at a transaction", lambda: latest_of(connections, inside, "txn"), within_s=_LOOK_S
            )

        latest = await asyncio.gather(*(asked(names.inside(writer_id(application, one))) for one in transactional_ids))
        found = zip(transactional_ids, latest, strict=True)
        return {one: since_ms for one, (state, since_ms) in found if state == OPEN}

    async def open(self, application: str, transactional_id: str, topic: FactsTopic | None) -> None:
        checks.transactional_id(transactional_id)
        await refuse_members(self._cluster, application)
        producer = self.producer(application, transactional_id)
        await _initialised(producer, transactional_id, topic)
        self._opened[application, transactional_id] = producer

    async def commit(
        self, application: str, transactional_id: str, tasks: Sequence[TaskCommit], topic: FactsTopic | None
    ) -> dict[Partition, int]:
        key = (application, transactional_id)
        if key in self._lost:
            raise Fenced(checks.fenced(transactional_id))
        producer = self._opened.get(key)
        if producer is None:
            raise NotOpened(checks.not_opened(transactional_id))
        positions = {partition: position for task in tasks for partition, position in task.positions.items()}
        await self._cluster.topics.require(positions)

        async def transact(records: Unbuilt) -> dict[Partition, int]:
            async with producer.turn:
                try:
                    if producer.is_torn:
                        await _initialised(producer, transactional_id, topic)
                    await self._refuse(transactional_id, tasks, topic)
                    behind = await producer.transact(records, application, positions, _times_ms(tasks))
                    self._wrote(key, behind)
                    return behind
                except ProducerFenced as error:
                    self._give_up(key)
                    raise Fenced(await self._why(error, application, transactional_id, topic)) from None
                except (Fenced, OutcomeUnknown):
                    self._give_up(key)
                    raise
                except KafkaRefused as error:
                    if error.then is not Then.LOST:
                        raise
                    raise await self._given_up(key, error) from error

        return await self._written(tasks, transact)

    async def commit_unfenced(
        self,
        application: str,
        transactional_id: str,
        tasks: Sequence[TaskCommit],
        topic: FactsTopic | None,
        may_write: MayWrite,
    ) -> dict[Partition, int]:
        """Records, and once they are acknowledged the positions. The owner records in memory are all that refuses here.
        Raises NotOpened, Fenced (RecordsLost too), Refused, OutcomeUnknown, and what a topic refuses."""
        key = (application, transactional_id)
        if key in self._lost:
            raise Fenced(checks.fenced(transactional_id))
        opened = self._opened.get(key)
        if opened is None:
            raise NotOpened(checks.not_opened(transactional_id))
        positions = {partition: position for task in tasks for partition, position in task.positions.items()}
        await self._cluster.topics.require(positions)

        async def produce(records: Unbuilt) -> dict[Partition, int]:
            built = records.make()
            async with opened.turn:
                producer = self._unfenced.pop(key, None)
                if producer is None:
                    producer = self._cluster.producer(None, self._timeout_s)
                    await producer.initialise()
                await self._refuse(transactional_id, tasks, topic)
                try:
                    behind = await producer.produce(built, may_write)
                    if positions:
                        await self._cluster.offsets.commit(application, positions, _times_ms(tasks), may_write)
                except (TooLate, StateError) as error:
                    if isinstance(error, KafkaRefused) and error.then is Then.LOST:
                        raise await self._given_up(key, error) from error
                    is_fence = isinstance(error, KafkaRefused) and error.then is Then.FENCED
                    if isinstance(error, OutcomeUnknown) or (is_answer(error) and not is_fence):
                        raise
                    raise OutcomeUnknown(checks.not_sent(str(error))) from error
                # After any error the sequence of this one may have a gap: the next commit has a new producer
                self._unfenced[key] = producer
                self._wrote(key, behind)
            return behind

        return await self._written(tasks, produce)

    async def _written(
        self, tasks: Sequence[TaskCommit], write: Callable[[Unbuilt], Awaitable[dict[Partition, int]]]
    ) -> dict[Partition, int]:
        topics = self._cluster.topics
        return await by_present_settings(topics, lambda: unbuilt(topics, tasks, self._short_lived), write)

    async def _why(
        self, error: ProducerFenced, application: str, transactional_id: str, topic: FactsTopic | None
    ) -> str:
        """What has ended it: a fence of the group writes its record first, so without a record it was another program, or its age."""
        if topic is not None and isinstance(error.__cause__, KafkaRefused):  # else it was interrupted here
            with suppress(StateError, TimeoutError):
                async with asyncio.timeout(_UNSEEN_S):
                    await topic.read_settled(UNDER_LEASE)
                if not topic.view.is_fenced(transactional_id):
                    name = self._cluster.topics.names.inside(writer_id(application, transactional_id))
                    if error.__cause__.code == FORGOTTEN_ID:
                        return checks.forgotten(name)
                    return checks.initialised_elsewhere(name, self._timeout_s)
        return checks.fenced(transactional_id)

    def _wrote(self, key: tuple[str, str], behind: Mapping[Partition, int]) -> None:
        self._latest.setdefault(key, Latest()).wrote(behind, self._cluster.topics)

    async def _given_up(self, key: tuple[str, str], error: KafkaRefused) -> RecordsLost:
        latest = self._latest.get(key, Latest())
        self._give_up(key)
        return await of_writer(error, self._cluster, key[1], latest)

    def _give_up(self, key: tuple[str, str]) -> None:
        self._latest.pop(key, None)
        self._opened.pop(key, None)
        self._unfenced.pop(key, None)
        self._lost.add(key)

    async def _refuse(self, transactional_id: str, tasks: Sequence[TaskCommit], topic: FactsTopic | None) -> None:
        """By the owner records as this process has seen them; one that it has not seen yet is waited for: a coordinator grants a
        task when its transaction is answered, and readers get the record once its marker is written. Raises Fenced, Refused."""
        if topic is not None:
            topic.check()
            if not _are_seen(topic, tasks):
                with suppress(LogBusy):  # it is refused then: the other tasks of the commit are not held up for longer
                    await topic.read_until(UNDER_LEASE, lambda: _are_seen(topic, tasks), _UNSEEN_S)
            if topic.view.is_fenced(transactional_id):
                raise Fenced(checks.fenced(transactional_id))
        refused = [
            task.scope
            for task in tasks
            if not _owns(None if topic is None else topic.view.owner(task.scope), task, transactional_id)
        ]
        if refused:
            raise Refused(frozenset(refused), checks.refused(transactional_id, refused))


async def _initialised(producer: Producer, transactional_id: str, topic: FactsTopic | None) -> None:
    """From now on it writes, where it was not fenced. Raises Fenced."""
    await producer.initialise()
    if topic is not None:
        await topic.read_settled(UNDER_LEASE)
        if topic.view.is_fenced(transactional_id):
            raise Fenced(checks.fenced(transactional_id))


def _times_ms(tasks: Sequence[TaskCommit]) -> dict[Partition, int]:
    """When its positions are committed, where a task gives the time."""
    return {partition: task.at_ms for task in tasks for partition in task.positions if task.at_ms}


def _are_seen(topic: FactsTopic, tasks: Sequence[TaskCommit]) -> bool:
    """Whether the owner record of each task was read that its commit names, or a later one."""
    records = ((topic.view.owner(task.scope), task.epoch) for task in tasks)
    return all(record is not None and record.epoch >= epoch for record, epoch in records)


def _owns(record: OwnerRecord | None, task: TaskCommit, transactional_id: str) -> bool:
    return record is not None and (record.epoch, record.transactional_id) == (task.epoch, transactional_id)
