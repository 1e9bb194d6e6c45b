"""The log as a worker uses it: one that is busy, full or away is waited for, and every loop above it goes on by itself.

One rule: only calls of which the log says that nothing was written are made again (`LogUnavailable`). The wait has an
end, `--log-timeout`: then LogTimedOut ends the worker. Coordinators wait as well, and so keep their sessions; the lease
decides whose the next write is. A wrapper around `GroupLog`; `waiting` is what `status` shows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from state.errors import LogDamaged, LogUnavailable
from state.log.group_store import AppMetadata, Lease, MetadataKind, OwnerRecord
from state.log.protocol import (
    EXACTLY_ONCE,
    Compacted,
    Fetched,
    GroupLog,
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
from workers.log.patience import End, Patience

T = TypeVar("T")


class PatientReader:
    """See `state.log.protocol.Reader`."""

    def __init__(self, reader: Reader, patience: Patience) -> None:
        self._reader = reader
        self._patience = patience

    def add(self, partition: Partition, position: int) -> None:
        self._reader.add(partition, position)

    def drop(self, partition: Partition) -> None:
        self._reader.drop(partition)

    async def poll(self, *, max_bytes_per_partition: int = 1 << 20, wait_ms: int = 0) -> list[Fetched]:
        async def once() -> list[Fetched]:
            try:
                return await self._reader.poll(max_bytes_per_partition=max_bytes_per_partition, wait_ms=wait_ms)
            except LogDamaged as error:  # it may have been damaged on its way: a read is made again
                raise LogUnavailable(str(error)) from error

        return await self._patience(once)

    async def close(self) -> None:
        await self._reader.close()


async def open_patiently(
    open_: Callable[[], Awaitable[GroupLog]], limit_s: float, clock: Callable[[], float]
) -> PatientLog:
    """The log that `open_` opens; one that cannot be opened now is waited for as well. Raises LogTimedOut."""
    return PatientLog(await Patience("read", limit_s, clock, End())(open_), limit_s, clock)


class PatientLog:
    """See `state.log.protocol.GroupLog` and the module text; `limit_s` is the log timeout."""

    def __init__(self, log: GroupLog, limit_s: float, clock: Callable[[], float]) -> None:
        self.inner = log
        self.log_id = log.log_id
        self.position_lifetime_ms = log.position_lifetime_ms
        self.writer_lifetime_ms = log.writer_lifetime_ms
        self.leaves_open = log.leaves_open
        end = End()
        self._read = Patience("read", limit_s, clock, end)
        self._write = Patience("write", limit_s, clock, end)

    @property
    def waiting(self) -> str:
        """Why calls wait; "" where none does."""
        return self._write.reason or self._read.reason

    def waits(self) -> tuple[int, float]:
        """How often calls began to wait, and the seconds of those waits that are over."""
        return self._read.waits + self._write.waits, self._read.waited_s + self._write.waited_s

    async def close(self) -> None:
        await self.inner.close()

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """A call of a user of the log that has no patience of its own, with it. Raises LogTimedOut."""
        return await self._write(call)

    # topics

    async def create_topic(self, spec: TopicSpec) -> TopicInfo:
        return await self._write(lambda: self.inner.create_topic(spec))

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        return await self._write(lambda: self.inner.grow_topic(name, partitions))

    async def delete_topic(self, name: str) -> None:
        await self._write(lambda: self.inner.delete_topic(name))

    async def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        return await self._read(lambda: self.inner.topics(names))

    async def names(self) -> list[str]:
        return await self._read(self.inner.names)

    async def ends(self, partitions: Collection[Partition], *, settled: bool = False) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.ends(partitions, settled=settled))

    async def known_ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.known_ends(partitions))

    async def written(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.written(partitions))

    async def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.starts(partitions))

    async def forgotten(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.forgotten(partitions))

    def epoch(self, partition: Partition) -> int:
        return self.inner.epoch(partition)

    async def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.epoch_ends(epochs))

    def reader(self) -> PatientReader:
        return PatientReader(self.inner.reader(), self._read)

    # writing

    async def append(
        self,
        records: Mapping[Partition, Sequence[NewRecord]],
        *,
        metadata: AppMetadata | None = None,
        seen: bytes | None = None,
    ) -> dict[Partition, int]:
        return await self._write(lambda: self.inner.append(records, metadata=metadata, seen=seen))

    async def open_writer(self, application: str, transactional_id: str) -> None:
        await self._write(lambda: self.inner.open_writer(application, transactional_id))

    async def check_alone(self, application: str) -> None:
        await self._read(lambda: self.inner.check_alone(application))

    async def check_rights(self, application: str, wanted: Intended) -> None:
        await self._read(lambda: self.inner.check_rights(application, wanted))

    def fences(self, guarantee: Guarantee) -> bool:
        return self.inner.fences(guarantee)

    async def commit(
        self,
        application: str,
        transactional_id: str,
        tasks: Sequence[TaskCommit],
        *,
        guarantee: Guarantee = EXACTLY_ONCE,
        may_write: MayWrite = always,
    ) -> dict[Partition, int]:
        return await self._write(
            lambda: self.inner.commit(application, transactional_id, tasks, guarantee=guarantee, may_write=may_write)
        )

    async def fence(self, lease: Lease, transactional_ids: Collection[str]) -> dict[str, frozenset[str]]:
        return await self._write(lambda: self.inner.fence(lease, transactional_ids))

    async def end_left_open(self, lease: Lease, transactional_ids: Mapping[str, int]) -> LeftOpen:
        return await self.inner.end_left_open(lease, transactional_ids)

    # positions

    async def positions(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.positions(application, partitions, settled=settled))

    async def lost(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.lost(application, partitions, settled=settled))

    async def set_elsewhere(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.set_elsewhere(application, partitions, settled=settled))

    async def committed_ms(self, application: str, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.committed_ms(application, partitions))

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
        return await self._write(
            lambda: self.inner.seed_positions(lease, positions, records, metadata=metadata, parts=parts, spread=spread)
        )

    async def forget_positions(self, lease: Lease, partitions: Collection[Partition]) -> None:
        await self._write(lambda: self.inner.forget_positions(lease, partitions))

    # upkeep

    async def compact(self, topic: str) -> Compacted:
        return await self._write(lambda: self.inner.compact(topic))

    async def trim(self, positions: Mapping[Partition, int]) -> int:
        return await self._write(lambda: self.inner.trim(positions))

    async def set_retention(self, topic: str, retention: Retention) -> TopicInfo:
        return await self._write(lambda: self.inner.set_retention(topic, retention))

    async def expired(self, partitions: Collection[Partition], *, at_once: bool = False) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.expired(partitions, at_once=at_once))

    # the group store

    async def lease(self, application: str) -> Lease | None:
        return await self._read(lambda: self.inner.lease(application))

    async def acquire(self, application: str, holder: str, address: str, seen: Lease | None) -> Lease | None:
        return await self._write(lambda: self.inner.acquire(application, holder, address, seen))

    async def renew(self, lease: Lease) -> Lease:
        return await self._write(lambda: self.inner.renew(lease))

    async def owners(self, application: str) -> dict[str, OwnerRecord]:
        return await self._read(lambda: self.inner.owners(application))

    async def record_owners(self, lease: Lease, records: Sequence[OwnerRecord]) -> None:
        await self._write(lambda: self.inner.record_owners(lease, records))

    async def metadata(self, application: str, kind: MetadataKind, key: str) -> bytes | None:
        return await self._read(lambda: self.inner.metadata(application, kind, key))

    async def metadata_of(self, application: str, kind: MetadataKind, *, settled: bool = False) -> dict[str, bytes]:
        return await self._read(lambda: self.inner.metadata_of(application, kind, settled=settled))

    async def metadata_of_all(self, kind: MetadataKind, key: str) -> dict[str, bytes]:
        return await self._read(lambda: self.inner.metadata_of_all(kind, key))

    async def put_metadata(
        self, application: str, kind: MetadataKind, key: str, value: bytes | None, *, lease: Lease | None = None
    ) -> None:
        await self._write(lambda: self.inner.put_metadata(application, kind, key, value, lease=lease))

    async def replace_metadata(
        self, application: str, kind: MetadataKind, key: str, seen: bytes | None, value: bytes | None
    ) -> bool:
        return await self._write(lambda: self.inner.replace_metadata(application, kind, key, seen, value))
