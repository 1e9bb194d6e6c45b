"""The logs that the contract is held against, and what its tests share.

One rule: each test has a log to itself: a file of its own, an object of its own, or (on a broker that all tests share) a
prefix of its own before every name. A test never counts offsets and never expects that a write is readable the moment
it is answered: it asks for settled ends, or waits with a deadline.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import ClassVar

from state.log.batches import decode
from state.log.group_store import Lease, MetadataKind, OwnerRecord
from state.log.kafka.cluster import KafkaOptions
from state.log.kafka.log import KafkaLog, open_kafka
from state.log.memory import MemoryLog
from state.log.protocol import GroupLog, Log, NewRecord, Partition, Reader, StoredRecord
from state.log.sqlite import open_sqlite
from tests import brokers

APP = "payments-app"
P0, P1, P2 = (Partition("payments", number) for number in range(3))
C0 = Partition("counts-changelog", 0)
SCHEMA, OPERATION = MetadataKind("schema"), MetadataKind("operation", under_lease=True)
MAX_MESSAGE_BYTES = 1 << 20
DEADLINE_S = 20.0


class Place:
    """Where one test's log lies; `open` again gives what another process would have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = f"t{uuid.uuid4().hex[:10]}-"
        self._opened: list[GroupLog] = []

    async def open(self) -> GroupLog:
        log = await self._open()
        self._opened.append(log)
        return log

    async def _open(self) -> GroupLog:
        raise NotImplementedError

    async def close(self) -> None:
        for log in self._opened:
            await log.close()


class SqlitePlace(Place):
    async def _open(self) -> GroupLog:
        return await open_sqlite(self.folder / "log.db", create=True, max_message_bytes=MAX_MESSAGE_BYTES)


class MemoryPlace(Place):
    """As Kafka is: transactions leave markers behind."""

    markers = True

    async def _open(self) -> GroupLog:
        if self._opened:
            return self._opened[0]
        return MemoryLog(markers=self.markers, max_message_bytes=MAX_MESSAGE_BYTES)


class DensePlace(MemoryPlace):
    markers = False


class KafkaPlace(Place):
    """A broker that all tests share, each under a prefix of its own. Topics are compacted as soon as may be."""

    topic_settings: ClassVar[dict[str, str]] = {
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
        "segment.ms": "200",
        "retention.ms": "-1",  # the times of records are long past: a broker would delete them, every five minutes
        "min.cleanable.dirty.ratio": "0.01",
    }

    def options(self) -> KafkaOptions:
        address = [("127.0.0.1", brokers.shared().port)]
        return KafkaOptions(address, prefix=self.prefix, transaction_timeout_s=10, topic_settings=self.topic_settings)

    async def _open(self) -> KafkaLog:
        return await open_kafka(self.options())


PLACES: dict[str, type[Place]] = {
    "sqlite": SqlitePlace,
    "memory": MemoryPlace,
    "memory without markers": DensePlace,
    "kafka": KafkaPlace,
}


def records(*values: str | None, key: str = "k") -> list[NewRecord]:
    return [NewRecord(key.encode(), None if value is None else value.encode(), 1_000) for value in values]


def keyed(**values: str | None) -> list[NewRecord]:
    return [NewRecord(key.encode(), None if value is None else value.encode(), 1_000) for key, value in values.items()]


async def until(what: str, there: Callable[[], Awaitable[bool]], within_s: float = DEADLINE_S) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + within_s
    while not await there():
        assert time.monotonic() < deadline, f"{what}: not within {within_s:.0f} s"
        await asyncio.sleep(0.01)


async def read_all(
    log: Log, partition: Partition, position: int | None = None, max_bytes: int = 1 << 20
) -> list[StoredRecord]:
    """Every record from `position` on (the start, where it is None) to the settled end."""
    if position is None:
        position = (await log.starts([partition]))[partition]
    end = (await log.ends([partition], settled=True))[partition]
    reader = log.reader()
    reader.add(partition, position)
    found: list[StoredRecord] = []
    while position < end:
        for one in await reader.poll(max_bytes_per_partition=max_bytes, wait_ms=1_000):
            assert one.partition == partition
            assert one.position == position
            assert one.next_position > position
            found += decode(one.data, one.position)
            position = one.next_position
    # A marker may come alone behind it, and holds no record: seen on Kafka of a producer whose broker had been killed.
    assert position >= end and all(one.offset < end for one in found), (position, end, found)
    await reader.close()
    return found


async def values(log: Log, partition: Partition, position: int | None = None) -> list[str | None]:
    return [None if one.value is None else one.value.decode() for one in await read_all(log, partition, position)]


async def arrived(reader: Reader, partitions: Collection[Partition]) -> dict[Partition, list[bytes | None]]:
    """Values by partition, polled until there are some of each of these."""
    found: dict[Partition, list[bytes | None]] = {}

    async def all_there() -> bool:
        for one in await reader.poll(wait_ms=100):
            listed = [record.value for record in decode(one.data, one.position)]
            if listed:
                found.setdefault(one.partition, []).extend(listed)
        return found.keys() >= set(partitions)

    await until(f"records of {', '.join(map(str, partitions))}", all_there)
    return found


async def lease_of(log: GroupLog) -> Lease:
    """The lease of the application, taken where nobody has it."""
    lease = await log.lease(APP) or await log.acquire(APP, "coordinator", "127.0.0.1:1", None)
    assert lease is not None
    return lease


async def granted(log: GroupLog, *scopes: str, by: str = "w-1", epoch: int = 1) -> Lease:
    """A lease, and `by` as the recorded owner of the scopes."""
    lease = await lease_of(log)
    recorded = {scope: OwnerRecord(scope, epoch, "member", by, lease.term) for scope in scopes}
    await log.record_owners(lease, list(recorded.values()))

    async def seen() -> bool:
        return recorded.items() <= (await log.owners(APP)).items()

    await until("the owner records", seen)
    return lease


async def owned(log: GroupLog, *scopes: str, by: str = "w-1", epoch: int = 1) -> Lease:
    """As `granted`, with the transactional id opened here."""
    await log.open_writer(APP, by)
    return await granted(log, *scopes, by=by, epoch=epoch)


def last_per_key(found: Sequence[StoredRecord]) -> dict[bytes | None, bytes | None]:
    return {one.key: one.value for one in found}
