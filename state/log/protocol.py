"""The Log port: where topics live. SQLite (embedded default), memory (simulation, tests), Kafka (production).

One rule: whatever is written for a scope (a task, to its users) is checked against the owner record of that scope in
the same transaction. The log knows scopes as opaque text; who owns what is decided elsewhere.
Every implementation keeps records as Kafka v2 record batches (`state.log.batches`), so there is one decoder, and every
implementation passes the one contract suite in tests/contracts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

Headers = tuple[tuple[str, bytes], ...]
Note = tuple[str, str, str, bytes]  # application, kind, key, value


class Partition(NamedTuple):
    """A partition of a topic; prints as `payments-3`."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


class NewRecord(NamedTuple):
    """A record to be written. `value` None is a tombstone."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


class StoredRecord(NamedTuple):
    """A record as read back."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Fetched(NamedTuple):
    """Bytes of one partition: whole v2 batches, committed data only.

    `data` may begin before `position` (a batch is never cut); decode with `state.log.batches.decode(data, position)`.
    `next_position` is where to read on; it can lie beyond the last record (offsets are not dense).
    """

    partition: Partition
    position: int
    data: bytes
    next_position: int


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What a topic should be. `kind` is "plain", "changelog" (compacted) or "repartition" (consumed records may go)."""

    name: str
    partitions: int
    kind: str = "plain"


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What a topic is. `topic_id` changes when a topic is deleted and created again."""

    name: str
    topic_id: str
    partitions: int
    kind: str


@dataclass(frozen=True, slots=True)
class Part:
    """What one scope adds to a commit: records per partition, and the positions it has read its inputs up to."""

    scope: str
    epoch: int
    records: Mapping[Partition, Sequence[NewRecord]] = field(default_factory=dict)
    positions: Mapping[Partition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """Who may write for a scope. `writer` is the transactional id, never used again by another process;
    "" means nobody may (fenced, or given up)."""

    scope: str
    epoch: int
    member: str
    writer: str
    term: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The coordinator's lease of an application. `term` grows with every holder, `beat` with every renewal.

    Candidates judge a lease by whether `beat` stood still on their own monotonic clock: no wall clock is compared.
    """

    application: str
    term: int
    holder: str
    address: str
    beat: int


class Reader(Protocol):
    """An incremental reader: a partition is added or dropped without touching the position or buffer of the others."""

    def add(self, partition: Partition, position: int) -> None:
        """Read `partition` from `position` on. Adding it again moves its position."""

    def drop(self, partition: Partition) -> None:
        """Read it no more; unknown ones are ignored."""

    async def poll(self, *, max_bytes_per_partition: int = 1 << 20, wait_ms: int = 0) -> list[Fetched]:
        """What is there now for the added partitions, in the order they were added; positions move past it.

        With nothing there, waits up to `wait_ms` for anything to arrive. Raises UnknownTopic for a deleted topic.
        """

    async def close(self) -> None: ...


class Log(Protocol):
    """See the module text. All calls may be made from one event loop; none blocks it for long."""

    log_id: str

    async def close(self) -> None: ...

    # topics
    async def create_topic(self, spec: TopicSpec) -> TopicInfo:
        """Create, or return what is there. Raises TopicMismatch where another partition count exists."""

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        """Give the topic that many partitions; those it has keep their records, and everybody who reads `topics` from
        then on sees the new ones. The same count: nothing to do. Raises UnknownTopic, TopicMismatch for fewer."""

    async def topics(self) -> dict[str, TopicInfo]: ...

    async def ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The position after the last committed record of each (0 for an empty one). Raises UnknownTopic."""

    async def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The first position that can still be read."""

    def reader(self) -> Reader: ...

    # writing
    async def append(
        self,
        records: Mapping[Partition, Sequence[NewRecord]],
        *,
        note: Note | None = None,
    ) -> dict[Partition, int]:
        """Write records of nobody in particular (a producer), all or nothing, with an optional note in the same
        transaction. Returns the new ends."""

    async def commit(self, application: str, writer: str, parts: Sequence[Part]) -> dict[Partition, int]:
        """Write records and positions of all parts in one transaction, if `writer` owns each part's scope at its epoch.

        Returns the new end of every partition written. Raises Refused (names the scopes), Fenced, OutcomeUnknown.
        """

    async def positions(self, application: str) -> dict[Partition, int]:
        """Where the application's inputs have been read up to."""

    async def seed_positions(
        self,
        application: str,
        positions: Mapping[Partition, int],
        records: Mapping[Partition, Sequence[NewRecord]],
        *,
        notes: Sequence[Note] = (),
    ) -> bool:
        """Commit starting positions, records and notes (a backfill's) in one transaction, only if the application has
        no positions at all; False, and nothing written, where it has."""

    # the coordinator's
    async def lease(self, application: str) -> Lease | None: ...

    async def acquire(self, application: str, holder: str, address: str, seen: Lease | None) -> Lease | None:
        """Take the lease at the next term, if it is still exactly what was `seen`; None where somebody was faster."""

    async def renew(self, lease: Lease) -> Lease:
        """Another beat. Raises LeaseLost."""

    async def owners(self, application: str) -> dict[str, OwnerRecord]: ...

    async def record_owners(self, lease: Lease, records: Sequence[OwnerRecord]) -> None:
        """Write owner records under the lease, all or nothing. Raises LeaseLost."""

    async def fence(self, lease: Lease, writer: str) -> frozenset[str]:
        """From now on `writer` can commit nothing: its owner records get the next epoch and no writer.
        Returns the scopes it had. Raises LeaseLost."""

    # small durable facts: subtopology numbers, value schemas, operations, the progress of a producer
    async def note(self, application: str, kind: str, key: str) -> bytes | None: ...

    async def notes(self, application: str, kind: str) -> dict[str, bytes]: ...

    async def notes_of_all(self, kind: str, key: str) -> dict[str, bytes]:
        """One note of every application that has it, by application."""

    async def put_note(
        self, application: str, kind: str, key: str, value: bytes | None, *, lease: Lease | None = None
    ) -> None:
        """Write (or with None remove) a note; with `lease`, only under it (LeaseLost)."""

    async def replace_note(self, application: str, kind: str, key: str, before: bytes | None, value: bytes) -> bool:
        """Write a note only where it still is `before` (None: not there); whether it was written."""

    # upkeep
    async def compact(self, topic: str) -> int:
        """Changelogs keep the last record of each key, and tombstones for a while (with a base, `state.base`: for
        ever); returns records removed."""

    async def trim(self, positions: Mapping[Partition, int]) -> int:
        """Remove whole batches before these positions (consumed records of a repartition topic)."""
