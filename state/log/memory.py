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

from state.base import NOTE, stands_on_one
from state.errors import Fenced, LeaseLost, Refused, StateError, TopicMismatch
from state.log import batches, checks, compaction
from state.log.batches import Batch
from state.log.memory_parts import Entries
from state.log.protocol import (
    Fetched,
    Lease,
    NewRecord,
    Note,
    OwnerRecord,
    Part,
    Partition,
    Reader,
    TopicInfo,
    TopicSpec,
)

Built = Mapping[Partition, Sequence[Batch]]


class MemoryLog:
    """See `state.log.protocol.Log`. All instances of a simulation share one object; `close` is for symmetry."""

    def __init__(
        self,
        *,
        log_id: str = "memory",
        markers: bool = True,
        clock_ms: Callable[[], int] = lambda: 0,
        delete_retention_ms: int = compaction.DELETE_RETENTION_MS,
    ) -> None:
        self.log_id = log_id
        self._markers = markers
        self.now_ms = clock_ms
        self._delete_retention_ms = delete_retention_ms
        self._topics: dict[str, TopicInfo] = {}
        self._parts: dict[Partition, Entries] = {}
        self._positions: dict[str, dict[Partition, int]] = {}
        self._owners: dict[str, dict[str, OwnerRecord]] = {}
        self._fenced: set[tuple[str, str]] = set()
        self._leases: dict[str, Lease] = {}
        self._notes: dict[tuple[str, str], dict[str, bytes]] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._made = 0

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
        made = TopicInfo(spec.name, f"{self.log_id}-topic-{self._made}", spec.partitions, spec.kind)
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
        """Remove a topic, its records and every application's positions in it. Raises UnknownTopic."""
        if self._topics.pop(name, None) is None:
            raise checks.unknown(Partition(name, 0), None)
        self._parts = {partition: entries for partition, entries in self._parts.items() if partition.topic != name}
        for application, positions in self._positions.items():
            self._positions[application] = {at: where for at, where in positions.items() if at.topic != name}
        self.wake()

    async def topics(self) -> dict[str, TopicInfo]:
        return dict(sorted(self._topics.items()))

    async def ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {partition: self.part(partition).readable_end for partition in partitions}

    async def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {partition: self.part(partition).start for partition in partitions}

    def reader(self) -> Reader:
        return MemoryReader(self)

    def part(self, partition: Partition) -> Entries:
        if (found := self._parts.get(partition)) is None:
            topic = self._topics.get(partition.topic)
            raise checks.unknown(partition, topic.partitions if topic else None)
        return found

    # ------------------------------------------------------------------ reading

    def fetch(self, partition: Partition, position: int, max_bytes: int) -> Fetched | None:
        """What a reader gets from `position` on; None where there is nothing yet."""
        return self.part(partition).fetch(partition, position, max_bytes)

    async def changed(self, deadline: float) -> None:
        """Return at the next change, or at the deadline of the loop's clock."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self._waiting.add(woken)
        timer = loop.call_at(deadline, _finish, woken)
        try:
            await woken
        finally:
            timer.cancel()
            self._waiting.discard(woken)

    def wake(self) -> None:
        for woken in list(self._waiting):
            _finish(woken)

    # ------------------------------------------------------------------ writing

    async def append(
        self,
        records: Mapping[Partition, Sequence[NewRecord]],
        *,
        note: Note | None = None,
    ) -> dict[Partition, int]:
        ends = self._write(self._build(records), committed=True)
        if note is not None:
            self._put_note(*note)
        return ends

    async def commit(self, application: str, writer: str, parts: Sequence[Part]) -> dict[Partition, int]:
        built = self._build(checks.merged(parts))
        if (application, writer) in self._fenced:
            raise Fenced(checks.fenced(writer))
        owners = self._owners.get(application, {})
        refused = [part.scope for part in parts if not _owns(owners.get(part.scope), part, writer)]
        if refused:
            self._write(built, committed=False)
            raise Refused(frozenset(refused), checks.refused(writer, refused))
        ends = self._write(built, committed=True)
        for part in parts:
            self._positions.setdefault(application, {}).update(part.positions)
        return ends

    def open_transaction(self, records: Mapping[Partition, Sequence[NewRecord]]) -> OpenTransaction:
        """Records that are written and neither committed nor aborted yet, as a slow or dead producer leaves them."""
        return OpenTransaction(self, self._build(records))

    async def positions(self, application: str) -> dict[Partition, int]:
        return dict(sorted(self._positions.get(application, {}).items()))

    async def seed_positions(
        self,
        application: str,
        positions: Mapping[Partition, int],
        records: Mapping[Partition, Sequence[NewRecord]],
        *,
        notes: Sequence[Note] = (),
    ) -> bool:
        built = self._build(records)
        if self._positions.get(application):
            return False
        self._write(built, committed=True)
        self._positions[application] = dict(positions)
        for note in notes:
            self._put_note(*note)
        return True

    def _build(self, records: Mapping[Partition, Sequence[NewRecord]]) -> dict[Partition, list[Batch]]:
        built = batches.build_all(records)
        for partition in built:
            self.part(partition)
        return built

    def _write(self, built: Built, *, committed: bool) -> dict[Partition, int]:
        """Append a finished transaction; an aborted one only takes offsets, and those only with `markers`."""
        if not committed and not self._markers:
            return {}
        ends: dict[Partition, int] = {}
        for partition, listed in built.items():
            part = self.part(partition)
            base = part.take(listed)
            if committed:
                part.show(listed, base, self.now_ms())
            self.mark(part, committed)
            ends[partition] = part.readable_end
        self.wake()
        return ends

    def mark(self, part: Entries, committed: bool) -> None:
        if self._markers:
            part.mark(committed, self.now_ms())

    # ------------------------------------------------------------------ lease and owners

    async def lease(self, application: str) -> Lease | None:
        return self._leases.get(application)

    async def acquire(self, application: str, holder: str, address: str, seen: Lease | None) -> Lease | None:
        found = self._leases.get(application)
        if found != seen:
            return None
        made = Lease(application, found.term + 1 if found else 1, holder, address, 0)
        self._leases[application] = made
        return made

    async def renew(self, lease: Lease) -> Lease:
        found = self._check_lease(lease)
        made = replace(found, beat=found.beat + 1)
        self._leases[lease.application] = made
        return made

    def _check_lease(self, lease: Lease) -> Lease:
        found = self._leases.get(lease.application)
        if found is None or (found.term, found.holder) != (lease.term, lease.holder):
            raise LeaseLost(checks.lease_lost(lease, found))
        return found

    async def owners(self, application: str) -> dict[str, OwnerRecord]:
        return dict(sorted(self._owners.get(application, {}).items()))

    async def record_owners(self, lease: Lease, records: Sequence[OwnerRecord]) -> None:
        self._check_lease(lease)
        self._owners.setdefault(lease.application, {}).update({record.scope: record for record in records})

    async def fence(self, lease: Lease, writer: str) -> frozenset[str]:
        if not writer:
            raise StateError("the writer to fence has no name: an owner record with no writer needs no fence")
        self._check_lease(lease)
        self._fenced.add((lease.application, writer))
        owners = self._owners.get(lease.application, {})
        mine = [scope for scope, record in owners.items() if record.writer == writer]
        for scope in mine:
            owners[scope] = replace(owners[scope], epoch=owners[scope].epoch + 1, writer="", term=lease.term)
        return frozenset(mine)

    # ------------------------------------------------------------------ notes

    async def note(self, application: str, kind: str, key: str) -> bytes | None:
        return self._notes.get((application, kind), {}).get(key)

    async def notes(self, application: str, kind: str) -> dict[str, bytes]:
        return dict(sorted(self._notes.get((application, kind), {}).items()))

    async def notes_of_all(self, kind: str, key: str) -> dict[str, bytes]:
        found = {app: kept[key] for (app, noted), kept in self._notes.items() if noted == kind and key in kept}
        return dict(sorted(found.items()))

    async def put_note(
        self, application: str, kind: str, key: str, value: bytes | None, *, lease: Lease | None = None
    ) -> None:
        if lease is not None:
            self._check_lease(lease)
        self._put_note(application, kind, key, value)
        self.wake()

    async def replace_note(self, application: str, kind: str, key: str, before: bytes | None, value: bytes) -> bool:
        if self._notes.get((application, kind), {}).get(key) != before:
            return False
        self._put_note(application, kind, key, value)
        self.wake()
        return True

    def _put_note(self, application: str, kind: str, key: str, value: bytes | None) -> None:
        kept = self._notes.setdefault((application, kind), {})
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = value

    # ------------------------------------------------------------------ upkeep

    async def compact(self, topic: str) -> int:
        if (found := self._topics.get(topic)) is None:
            raise checks.unknown(Partition(topic, 0), None)
        compaction.require_changelog(found)
        kept = [notes[topic] for (_, kind), notes in self._notes.items() if kind == NOTE and topic in notes]
        horizon_ms = 0 if stands_on_one(kept, found) else self.now_ms() - self._delete_retention_ms
        merge_ms = max(self._delete_retention_ms // 8, 1)
        return sum(
            self.part(Partition(topic, number)).compact(horizon_ms, merge_ms) for number in range(found.partitions)
        )

    async def trim(self, positions: Mapping[Partition, int]) -> int:
        parts = [(self.part(partition), position) for partition, position in positions.items()]
        return sum(part.trim(position) for part, position in parts)


class OpenTransaction:
    """Holds the readable end of its partitions back until it is committed or aborted."""

    def __init__(self, log: MemoryLog, built: Built) -> None:
        self._log = log
        self._held: list[tuple[Entries, int, Sequence[Batch]]] = []
        for partition, listed in built.items():
            part = log.part(partition)
            base = part.take(listed)
            part.open.append(base)
            self._held.append((part, base, listed))

    def commit(self) -> None:
        self._finish(committed=True)

    def abort(self) -> None:
        self._finish(committed=False)

    def _finish(self, *, committed: bool) -> None:
        held, self._held = self._held, []
        for part, base, listed in held:
            part.open.remove(base)
            if committed:
                part.show(listed, base, self._log.now_ms())
            self._log.mark(part, committed)
            part.sort()
        self._log.wake()


class MemoryReader:
    """See `state.log.protocol.Reader`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._positions: dict[Partition, int] = {}

    def add(self, partition: Partition, position: int) -> None:
        self._positions[partition] = position
        self._log.wake()

    def drop(self, partition: Partition) -> None:
        self._positions.pop(partition, None)

    async def poll(self, *, max_bytes_per_partition: int = 1 << 20, wait_ms: int = 0) -> list[Fetched]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        await asyncio.sleep(0)  # a poll that always has data must not starve the loop
        while True:
            taken = [
                got
                for partition, position in self._positions.items()
                if (got := self._log.fetch(partition, position, max_bytes_per_partition)) is not None
            ]
            for one in taken:
                self._positions[one.partition] = one.next_position
            if taken or loop.time() >= deadline:
                return taken
            await self._log.changed(deadline)

    async def close(self) -> None:
        self._positions.clear()


def _owns(record: OwnerRecord | None, part: Part, writer: str) -> bool:
    return record is not None and bool(writer) and (record.epoch, record.writer) == (part.epoch, writer)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
