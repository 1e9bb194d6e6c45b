"""The log in memory: the twin of the others for simulation and tests, with everything a Kafka log can surprise with.

One rule: with `markers` (the default) offsets are not dense, exactly as on Kafka. Every transaction leaves a control
batch behind in each partition it wrote, a refused one leaves its aborted records' offsets, and an open one holds the
readable end back. Who counts records instead of comparing positions fails here, in a unit test.
Deterministic: no threads, no randomness, no clock of its own (`clock_ms` is for tombstones; 0 keeps them all).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from state.errors import (
    Fenced,
    InvalidRecord,
    LogBusy,
    MetadataChanged,
    NotOpened,
    OutcomeUnknown,
    Refused,
    TopicMismatch,
)
from state.log import batches, checks, compaction
from state.log.base import BASE, stands_on_one
from state.log.batches import MESSAGE_BYTES_MAX, Batch
from state.log.group_store import AppMetadata, Lease
from state.log.memory_group_store import MemoryGroupStore
from state.log.memory_parts import Entries, owns
from state.log.memory_reader import MemoryReader
from state.log.memory_transaction import OpenTransaction
from state.log.protocol import (
    DELETE_RETENTION_MS,
    EXACTLY_ONCE,
    FOR_EVER,
    Compacted,
    Fetched,
    Guarantee,
    Intended,
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

Built = Mapping[Partition, Sequence[Batch]]
TRANSACTION_TIMEOUT_S = 10.0


class MemoryLog(MemoryGroupStore):
    """See `state.log.protocol.GroupLog`. All instances of a simulation share one object; `close` is for symmetry."""

    def __init__(
        self,
        *,
        log_id: str = "memory",
        markers: bool = True,
        clock_ms: Callable[[], int] = lambda: 0,
        delete_retention_ms: int = DELETE_RETENTION_MS,
        max_message_bytes: int = MESSAGE_BYTES_MAX,
    ) -> None:
        super().__init__()
        self.log_id = log_id
        self.position_lifetime_ms: int | None = None
        self.writer_lifetime_ms: int | None = None
        self.leaves_open = False
        self._markers = markers
        self.now_ms = clock_ms
        self._delete_retention_ms = delete_retention_ms
        self._max_message_bytes = max_message_bytes
        self._topics: dict[str, TopicInfo] = {}
        self._parts: dict[Partition, Entries] = {}
        self._positions: dict[str, dict[Partition, int]] = {}
        self._committed_ms: dict[tuple[str, Partition], int] = {}
        self._epochs: dict[tuple[str, Partition], int] = {}  # under which positions were committed
        self._opened: set[tuple[str, str]] = set()
        self._waiting, self._made = dict[asyncio.Future[None], None](), 0  # in the order of their waits

    async def close(self) -> None:
        """Nothing to let go of."""

    # ------------------------------------------------------------------ topics

    async def create_topic(self, spec: TopicSpec) -> TopicInfo:
        checks.topic_spec(spec)
        if found := self._topics.get(spec.name):
            if found.partitions != spec.partitions:
                raise TopicMismatch(checks.mismatch(found, spec))
            return found
        self._made += 1
        topic_id, kept_ms = f"{self.log_id}-topic-{self._made}", self._delete_retention_ms
        made = TopicInfo(spec.name, topic_id, spec.partitions, spec.kind, kept_ms, spec.retention)
        self._topics[spec.name] = made
        for number in range(spec.partitions):
            self._parts[Partition(spec.name, number)] = Entries()
        return made

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        found = checks.growth(self._topics.get(name), name, partitions)
        for number in range(found.partitions, partitions):
            self._parts[Partition(name, number)] = Entries()
        self._topics[name] = replace(found, partitions=partitions)
        self.wake()
        return self._topics[name]

    async def delete_topic(self, name: str) -> None:
        if self._topics.pop(name, None) is None:
            raise checks.unknown(Partition(name, 0), None)
        self._parts = {partition: entries for partition, entries in self._parts.items() if partition.topic != name}
        for application, positions in self._positions.items():
            self._positions[application] = {at: where for at, where in positions.items() if at.topic != name}
        self.wake()

    async def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        return {name: self._topics[name] for name in names if name in self._topics}

    async def names(self) -> list[str]:
        return []

    async def ends(self, partitions: Collection[Partition], *, settled: bool = False) -> dict[Partition, int]:
        if settled:
            await self._settled({partition: self.part(partition).end for partition in partitions})
        return {partition: self.part(partition).readable_end for partition in partitions}

    async def known_ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {partition: self.part(partition).readable_end for partition in partitions}

    async def written(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {partition: self.part(partition).end for partition in partitions}

    async def _settled(self, written: Mapping[Partition, int]) -> None:
        """Wait until all that was written can be read. Raises LogBusy."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TRANSACTION_TIMEOUT_S
        while held := [partition for partition, end in written.items() if self.part(partition).readable_end < end]:
            if loop.time() >= deadline:
                raise LogBusy(checks.held_open(held[0], TRANSACTION_TIMEOUT_S))
            await self.changed(deadline)

    async def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {partition: self.part(partition).start for partition in partitions}

    async def forgotten(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {one: self.part(one).forgotten for one in partitions if self.part(one).forgotten}

    def epoch(self, partition: Partition) -> int:
        return len(self.part(partition).elections) if self._markers else -1

    async def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, int]:
        return {one: self.part(one).epoch_end(epoch) for one, epoch in epochs.items()} if self._markers else {}

    def reader(self) -> Reader:
        return MemoryReader(self)

    def part(self, partition: Partition) -> Entries:
        if (found := self._parts.get(partition)) is None:
            topic = self._topics.get(partition.topic)
            raise checks.unknown(partition, topic.partitions if topic else None)
        return found

    # ------------------------------------------------------------------ reading

    def fetch(self, partition: Partition, position: int, max_bytes: int, epoch: int = -1) -> Fetched | None:
        """What a reader gets from `position` on; None where there is nothing yet. It has read what was before under
        `epoch`. Raises PositionOutOfRange."""
        part = self.part(partition)
        if epoch >= 0 and (end := part.epoch_end(epoch)) < position:
            raise checks.lost(partition, position, part.start, end)
        found = part.fetch(partition, position, max_bytes)
        known = found is not None and self._markers
        return found._replace(epoch=part.epoch_at(found.next_position)) if known and found is not None else found

    def elect(self, partition: Partition, end: int) -> None:
        """As brokers do where the leader is away: a replica leads on, and what lies behind `end` it does not have."""
        self.part(partition).elect(end)
        self.wake()

    async def changed(self, deadline: float) -> None:
        """Return at the next change, or at the deadline of the loop's clock."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self._waiting[woken] = None
        timer = loop.call_at(deadline, _finish, woken)
        try:
            await woken
        finally:
            timer.cancel()
            self._waiting.pop(woken, None)

    def wake(self) -> None:
        for woken in list(self._waiting):
            _finish(woken)

    # ------------------------------------------------------------------ writing

    async def append(
        self,
        records: Mapping[Partition, Sequence[NewRecord]],
        *,
        metadata: AppMetadata | None = None,
        seen: bytes | None = None,
    ) -> dict[Partition, int]:
        built = self._build(records)
        if metadata is not None:
            checks.author(metadata.kind, None)
            if self.kept(metadata.application, metadata.kind).get(metadata.key) != seen:
                raise MetadataChanged(checks.metadata_changed(metadata))
            self.keep_metadata(*metadata)
        return self._write(built, committed=True)

    async def open_writer(self, application: str, transactional_id: str) -> None:
        checks.transactional_id(transactional_id)
        if (application, transactional_id) in self._fenced:
            raise Fenced(checks.fenced(transactional_id))
        self._opened.add((application, transactional_id))

    async def check_rights(self, application: str, wanted: Intended) -> None:
        """Who may write the log may do all of it."""

    async def check_alone(self, application: str) -> None:
        """Nothing but applications commits positions here."""

    def fences(self, guarantee: Guarantee) -> bool:
        return guarantee == EXACTLY_ONCE or not self._markers

    async def commit(
        self,
        application: str,
        transactional_id: str,
        tasks: Sequence[TaskCommit],
        *,
        guarantee: Guarantee = EXACTLY_ONCE,
        may_write: MayWrite = always,
    ) -> dict[Partition, int]:
        if (application, transactional_id) not in self._opened:
            raise NotOpened(checks.not_opened(transactional_id))
        built = self._build(checks.merged(tasks), tasks)
        unfenced = not self.fences(guarantee)
        try:
            self.check_writer(application, transactional_id, tasks)
        except Refused:
            if not unfenced:
                self._write(built, committed=False)
            raise
        if not unfenced:
            self.put_positions(application, tasks)
            return self._write(built, committed=True)
        behind = self.write_unfenced(tasks, may_write)
        self.put_positions(application, tasks, may_write)
        return behind

    def check_writer(self, application: str, transactional_id: str, tasks: Sequence[TaskCommit]) -> None:
        """Raises Fenced, Refused."""
        if (application, transactional_id) in self._fenced:
            raise Fenced(checks.fenced(transactional_id))
        owners = self._owners.get(application, {})
        refused = [task.scope for task in tasks if not owns(owners.get(task.scope), task, transactional_id)]
        if refused:
            raise Refused(frozenset(refused), checks.refused(transactional_id, refused))

    # The two writes of a commit at least once; a simulation makes them one by one, and has processes end in between.

    def write_unfenced(self, tasks: Sequence[TaskCommit], may_write: MayWrite = always) -> dict[Partition, int]:
        """Raises OutcomeUnknown."""
        if not may_write():
            raise OutcomeUnknown(checks.not_sent())
        return self._write(self._build(checks.merged(tasks), tasks), committed=True, marked=False)

    def put_positions(self, application: str, tasks: Sequence[TaskCommit], may_write: MayWrite = always) -> None:
        """Raises OutcomeUnknown."""
        if not may_write():
            raise OutcomeUnknown(checks.not_sent())
        for task in tasks:
            self._positions.setdefault(application, {}).update(task.positions)
            self._epochs |= {(application, partition): self.epoch(partition) for partition in task.positions}
            if task.at_ms:
                self._committed_ms |= {(application, partition): task.at_ms for partition in task.positions}

    def open_transaction(self, records: Mapping[Partition, Sequence[NewRecord]]) -> OpenTransaction:
        """Records that are written and neither committed nor aborted yet, as a slow or dead producer leaves them."""
        return OpenTransaction(self, self._build(records))

    async def positions(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        kept = self._positions.get(application, {})
        return {partition: kept[partition] for partition in partitions if partition in kept}

    async def lost(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        kept = await self.positions(application, partitions)
        ends = await self.written(kept)
        ends |= await self.epoch_ends({one: self._epochs.get((application, one), 0) for one in kept})
        return {one: ends[one] for one, position in kept.items() if ends[one] < position}

    async def set_elsewhere(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        return {}

    async def committed_ms(self, application: str, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {one: at_ms for one in partitions if (at_ms := self._committed_ms.get((application, one)))}

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
        built = self._build(records)
        for part in parts():
            for partition, listed in self._build(part).items():
                built.setdefault(partition, []).extend(listed)
        self.check_lease(lease)
        kept = self._positions.setdefault(lease.application, {})
        if any(partition in kept for partition in positions):
            return False
        kept.update(positions)
        for one in metadata:
            self.keep_metadata(*one)
        self._write(built, committed=True)
        return True

    async def forget_positions(self, lease: Lease, partitions: Collection[Partition]) -> None:
        self.check_lease(lease)
        for partition in partitions:
            self._positions.get(lease.application, {}).pop(partition, None)
            self._committed_ms.pop((lease.application, partition), None)

    def _build(
        self, records: Mapping[Partition, Sequence[NewRecord]], tasks: Sequence[TaskCommit] | None = None
    ) -> dict[Partition, list[Batch]]:
        """Batches of records that the log takes; all that is refused is refused here."""
        limit = self._max_message_bytes
        built = batches.build_all(records, limit) if tasks is None else batches.build_commit(tasks, limit)
        for partition in built:
            self.part(partition)
            try:
                checks.keys(self._topics[partition.topic], partition, records[partition])
            except InvalidRecord as error:
                raise (error if tasks is None else checks.of_scope(error, tasks)) from None
        return built

    def _write(self, built: Built, *, committed: bool, marked: bool = True) -> dict[Partition, int]:
        """Append a finished transaction, or records outside of one (not `marked`); an aborted one only takes offsets, and
        those only with `markers`. Returns the offsets after the last records, which lie before the markers."""
        if not committed and not self._markers:
            return {}
        behind: dict[Partition, int] = {}
        for partition, listed in built.items():
            part = self.part(partition)
            base = part.take(listed)
            behind[partition] = part.end
            if committed:
                part.show(listed, base, self.now_ms())
            if marked:
                self.mark(part, committed)
        self.wake()
        return behind

    def mark(self, part: Entries, committed: bool) -> None:
        if self._markers:
            part.mark(committed, self.now_ms())

    # ------------------------------------------------------------------ upkeep

    async def compact(self, topic: str) -> Compacted:
        if (found := self._topics.get(topic)) is None:
            raise checks.unknown(Partition(topic, 0), None)
        compaction.require_changelog(found)
        bases = await self.metadata_of_all(BASE, topic)
        based = stands_on_one(bases.values(), found)
        done = [
            self.part(Partition(topic, number)).compact(self.now_ms(), self._delete_retention_ms, stands_on_base=based)
            for number in range(found.partitions)
        ]
        return Compacted(sum(one.removed for one in done), sum(one.kept for one in done))

    async def trim(self, positions: Mapping[Partition, int]) -> int:
        parts = [(self.part(partition), position) for partition, position in positions.items()]
        return sum(part.trim(position) for part, position in parts)

    async def set_retention(self, topic: str, retention: Retention) -> TopicInfo:
        self._topics[topic] = replace(checks.plain(self._topics.get(topic), topic), retention=retention)
        return self._topics[topic]

    async def expired(self, partitions: Collection[Partition], *, at_once: bool = False) -> dict[Partition, int]:
        limits = {one: self._topics[one.topic].retention for one in partitions if self.part(one)}
        return {one: self.part(one).expired(self.now_ms(), kept) for one, kept in limits.items() if kept != FOR_EVER}


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
