"""The Log port: topics, records, positions, transactions. SQLite (embedded default), memory (simulation, tests), Kafka.

One rule: whatever is written for a scope (a task, to its users) is written by the owner of that scope alone. The log
knows scopes as opaque text; who owns what is decided elsewhere, and kept in `state.log.group_store`. Both ports meet in
`GroupLog`, which every implementation is, since one transaction spans both; a caller names the port that it needs.
Every implementation keeps records as Kafka v2 record batches (`state.log.batches`), so there is one decoder, and every
implementation passes the one contract suite in tests/contracts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import msgspec

from state.log.group_store import AppMetadata, GroupStore, Lease

Headers = tuple[tuple[str, bytes], ...]
Guarantee = Literal["exactly-once", "at-least-once"]
EXACTLY_ONCE: Guarantee = "exactly-once"
AT_LEAST_ONCE: Guarantee = "at-least-once"
MayWrite = Callable[[], bool]
DELETE_RETENTION_MS = 7 * 24 * 3_600_000


class Partition(NamedTuple):
    """A partition of a topic; prints as `payments-3`."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to be written. `value` None is a tombstone."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


class StoredRecord(msgspec.Struct, frozen=True, gc=False):
    """A record as read back."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Fetched(NamedTuple):
    """Bytes of one partition: whole v2 batches, committed data only.

    `data` may begin before `position` (a batch is never cut); decode with `state.log.batches.decode(data, position)`.
    `next_position` is where to read on; it can lie beyond the last record (offsets are not dense). `epoch` is of the leader
    that wrote the last of it (see `Log.epoch`).
    """

    partition: Partition
    position: int
    data: bytes
    next_position: int
    epoch: int = -1


class Retention(NamedTuple):
    """How long records of a topic are kept, in milliseconds since they were appended, and how many bytes of each partition.
    None: without limit. What an application of the log has yet to read is kept all the same, unless it is `forced` (brokers
    do not look at that)."""

    ms: int | None = None
    bytes: int | None = None
    forced: bool = False


FOR_EVER = Retention()


class LeftOpen(NamedTuple):
    """Of the writers that were looked at those that have a transaction open, and when it began (ms, by the log); and those that were
    fenced for theirs."""

    open: Mapping[str, int]
    ended: Sequence[str]


class Compacted(NamedTuple):
    """How many records a compaction removed, and how many it left."""

    removed: int
    kept: int


class Intended(NamedTuple):
    """What a command is about to do with a log: topics that it deletes, topics that it grows, whether it forgets positions of the
    application, whether it seeds them, and topics of which it trims what was read."""

    deleted: Collection[str] = ()
    grown: Collection[str] = ()
    forgets: bool = False
    seeds: bool = False
    trimmed: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What a topic should be. `kind` is "plain", "changelog" (compacted) or "repartition" (consumed records may go); a plain
    one has a `retention`."""

    name: str
    partitions: int
    kind: str = "plain"
    retention: Retention = FOR_EVER


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What a topic is. `topic_id` changes when a topic is deleted and created again; `delete_retention_ms`: for how long its
    compaction keeps a deletion; `has_append_times`: records get the time at which they are written, whatever time they have."""

    name: str
    topic_id: str
    partitions: int
    kind: str
    delete_retention_ms: int = DELETE_RETENTION_MS
    retention: Retention = FOR_EVER
    has_append_times: bool = False


@dataclass(frozen=True, slots=True)
class TaskCommit:
    """What one scope adds to a commit: records per partition, and the positions it has read its inputs up to. `at_ms`: the
    writer's wall time, kept beside the positions (0: not known)."""

    scope: str
    epoch: int
    records: Mapping[Partition, Sequence[NewRecord]] = field(default_factory=dict)
    positions: Mapping[Partition, int] = field(default_factory=dict)
    at_ms: int = 0


def always() -> bool:
    """For a caller whose writes are fenced, or whose topics no other process takes over."""
    return True


class Reader(Protocol):
    """An incremental reader: a partition is added or dropped without touching the position or buffer of the others."""

    def add(self, partition: Partition, position: int) -> None:
        """Read `partition` from `position` on. Adding it again moves its position."""

    def drop(self, partition: Partition) -> None:
        """Read it no more; unknown ones are ignored."""

    async def poll(self, *, max_bytes_per_partition: int = 1 << 20, wait_ms: int = 0) -> list[Fetched]:
        """What is there now for the added partitions, in the order they were added; positions move past it.

        With nothing there, waits up to `wait_ms` for anything to arrive. Raises UnknownTopic for a deleted topic, and
        PositionOutOfRange for a position past the end or before the start (its records are gone: begin at `starts`), and
        where the log has lost records that this reader has read, however much was written since.
        """

    async def close(self) -> None: ...


Parts = Callable[
    [], Iterable[Mapping[Partition, Sequence[NewRecord]]]
]  # records, a part at a time, each time from the first


class Ticket(Protocol):
    """The right to write a part of a seed in another process: it is pickled, and sent there."""

    async def write(self, partition: Partition, parts: Callable[[], Iterable[Sequence[NewRecord]]]) -> int:
        """Write all records of a partition, a part at a time; returns how many there are. Every attempt gives the same records
        in the same parts, and of several attempts each record is written once. Raises what the log refuses."""


@dataclass(frozen=True, slots=True)
class Spread:
    """What of a seed other processes write, where a log has room for several writers: all records of these partitions. `write`
    sends its ticket to them, and returns when all is written."""

    partitions: Collection[Partition]
    write: Callable[[Ticket], Awaitable[None]]


def no_parts() -> Iterable[Mapping[Partition, Sequence[NewRecord]]]:
    return ()


class Log(Protocol):
    """See the module text. All calls may be made from one event loop; none blocks it for long.

    A call that names a partition raises UnknownTopic where it is not there. Offsets are not dense: transactions leave
    markers and aborted records behind, so positions are compared and never counted.
    """

    log_id: str
    position_lifetime_ms: int | None
    """For how long a position is kept that is not committed again; None: for ever."""
    writer_lifetime_ms: int | None
    """For how long a transactional id is known that commits nothing; None: for ever."""
    leaves_open: bool
    """Whether who stands still within a commit leaves a transaction open: what others write behind it to its partitions is not read."""

    async def check_alone(self, application: str) -> None:
        """Raises StateError where another program commits positions under the application's name (Kafka: members of its group)."""

    async def check_rights(self, application: str, wanted: Intended) -> None:
        """Raises what one of these changes would raise for a right that the user lacks; changes nothing. Who makes several asks before
        the first. Topics that are not there are passed over."""

    def fences(self, guarantee: Guarantee) -> bool:
        """Whether a fenced writer's commits of this guarantee are refused for certain; else the writer goes by its clock."""

    async def close(self) -> None: ...

    # topics
    async def create_topic(self, spec: TopicSpec) -> TopicInfo:
        """Create, or return what is there. Raises TopicMismatch where another partition count exists."""

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        """Give the topic that many partitions; those it has keep their records, and every caller that reads `topics` from
        then on sees the new ones. The same count: nothing to do. Raises UnknownTopic, TopicMismatch for fewer."""

    async def delete_topic(self, name: str) -> None:
        """Remove a topic and its records, and soon every application's positions in it. Raises UnknownTopic."""

    async def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        """Those of the named topics that exist, by name."""

    async def names(self) -> list[str]:
        """Of all topics of brokers, whoever made them. An embedded log has none but those that its apps have made: nothing."""

    async def ends(self, partitions: Collection[Partition], *, settled: bool = False) -> dict[Partition, int]:
        """The position up to which each can be read now: all before it is committed or aborted (0 for an empty one).

        A commit is answered before its markers are written, so this end may lie before a commit that its writer knows
        of. With `settled` it lies behind all that was written before the call, and transactions that are open are
        waited for: a caller that takes a changelog over, or judges a store by its end, asks so. Raises LogBusy where a
        transaction stays open for longer than the log lets it.
        """

    async def known_ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """`ends` of those that a broker leads now; the others can be neither read nor written, and are left out. For who shows or
        measures. Raises UnknownTopic."""

    async def written(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The end of all that is written, open transactions included, which are not waited for: no store, and no commit
        that was answered before this call, lies behind it. Some of it may be aborted yet."""

    async def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The first position that can still be read."""

    async def forgotten(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Below which offset compaction has removed deletions of a changelog: a store that stands before it may lack them. Left out
        is a partition that lacks none, or of which that is not known, as brokers do not say it."""

    def epoch(self, partition: Partition) -> int:
        """The epoch under which this partition is written, as last known: brokers elect a leader, and each election begins
        an epoch (KIP-101). -1 where nothing is elected: a log in one file loses records only with all of it (`state.history`)."""

    async def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, int]:
        """Where the records of these epochs, and of those before, end in the log as it is now: a store or a reader that has read
        beyond that under its epoch has what the log has lost. Nothing where there are no epochs."""

    def reader(self) -> Reader: ...

    # writing
    async def append(
        self,
        records: Mapping[Partition, Sequence[NewRecord]],
        *,
        metadata: AppMetadata | None = None,
        seen: bytes | None = None,
    ) -> dict[Partition, int]:
        """Write records of a producer, all or nothing. With `metadata` its progress is written in the same transaction,
        and only where the stored value still is what was `seen` (None: not there): of two producers that go on from one
        place, one is refused.

        Returns for each partition the offset after the last record written. Raises MetadataChanged, RecordTooLarge,
        InvalidRecord (a changelog keeps the last record of each key, so each has one); then nothing was written.
        """

    async def open_writer(self, application: str, transactional_id: str) -> None:
        """Make the transactional id this process's own; once for each incarnation of a member, before it joins.

        A transaction that a commit of it left open is settled: it is in the log, or will never be. Raises Fenced for an
        id that was fenced before.
        """

    async def commit(
        self,
        application: str,
        transactional_id: str,
        tasks: Sequence[TaskCommit],
        *,
        guarantee: Guarantee = EXACTLY_ONCE,
        may_write: MayWrite = always,
    ) -> dict[Partition, int]:
        """Write records and positions of all tasks in one transaction.

        At least once asks for no more than this: the records are in the log before the positions are, and before the
        answer; an end in between leaves records without positions, so they are processed again. A log that gains
        nothing by that does as for exactly once. Where nothing fences the writer (`fences`),
        `may_write` is asked before each request, and none is sent once it says no: OutcomeUnknown. An owner record that
        this process has seen is obeyed all the same. What the log refuses late (InvalidRecord) may stand in part.

        Returns for each partition written the offset after its last record; markers are not counted, so it is at most
        the settled end. Raises Fenced: the id was fenced, all of its scopes are lost; this is the promise. Refused: the
        owner records that this process has seen name another owner or epoch of some scopes; the others can be committed
        again. RecordTooLarge, InvalidRecord: as `append`, and the writer may go on. NotOpened, OutcomeUnknown.
        """

    async def fence(self, lease: Lease, transactional_ids: Collection[str]) -> dict[str, frozenset[str]]:
        """From now on these ids can commit nothing, also those that are opened later: their owner records get the next
        epoch and no transactional id. Returns the scopes that each had. Raises LeaseLost."""

    async def end_left_open(self, lease: Lease, transactional_ids: Mapping[str, int]) -> LeftOpen:
        """Ends transactions that silent writers have left open. The ids come with what the last look at each found, -1 where there was
        none. One whose transaction is the same still is fenced, but for its owner records: its tasks are its member's. Raises LeaseLost
        where it fences any."""

    # positions
    async def positions(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        """Where these inputs of the application have been read up to; those without a position are left out. A commit
        that is answered counts (Kafka: stable offsets, of named partitions only). With `settled` False, here and below, a transaction
        that is open is not waited for, and counts as not made: what is answered decides nothing about what is processed."""

    async def lost(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        """Those of these inputs of which the log has lost records before the application's position, and where what it has
        kept of them ends: an election gave the partition to a replica that lagged, or a broker was restored."""

    async def set_elsewhere(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        """Those of these positions that another program has set, such as Kafka's tools for groups: what is at them is another
        place than where the application was."""

    async def committed_ms(self, application: str, partitions: Collection[Partition]) -> dict[Partition, int]:
        """When the positions of these inputs were committed, by the clock of the process that did it (`TaskCommit.at_ms`); those of
        which that is not known are left out. It decides nothing: pauses are measured with it."""

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
        """Commit starting positions, records and metadata of kinds that are written under the lease (a backfill's) in
        one transaction, only if the lease's application has no position in any of the partitions; False, and nothing
        written, where it has. `parts` gives more records than memory should hold, which follow `records`: one part of them is
        held at a time. It is called in another thread, and once more where the call is made again. With `spread` other processes
        write what `parts` gives, in the same transaction, where the log can have that (Kafka). Raises LeaseLost, RecordTooLarge,
        InvalidRecord, and what `parts` or `spread.write` raises: then nothing is written. OutcomeUnknown: all of it is, or nothing."""

    async def forget_positions(self, lease: Lease, partitions: Collection[Partition]) -> None:
        """Remove the application's positions in these partitions: it begins there as if it had never read them. Those
        without a position are ignored. Raises LeaseLost, StateError where members of another kind are in the group."""

    # upkeep
    async def compact(self, topic: str) -> Compacted:
        """Changelogs keep the last record of each key, and tombstones for a while (with a base, `state.log.base`: for
        ever). Returns what this call did: zeros where a broker does it in its own time."""

    async def trim(self, positions: Mapping[Partition, int]) -> int:
        """Removes batches before these positions, a few at a time, so that no writer waits for long (consumed records of a
        repartition topic, records past their retention); a position past the end means the end. Returns how many records
        this call is known to have removed."""

    async def set_retention(self, topic: str, retention: Retention) -> TopicInfo:
        """Changes how long a plain topic is kept. Raises UnknownTopic, StateError for a topic of another kind."""

    async def expired(self, partitions: Collection[Partition], *, at_once: bool = False) -> dict[Partition, int]:
        """Returns where these partitions would begin if all went that is past the retention of their topics; those without
        limit are left out, and all of them where a broker removes such records in its own time. `at_once`: an operator wants
        it by the clock as it is; else one that has just gone ahead is not believed yet."""


class GroupLog(Log, GroupStore, Protocol):
    """Both ports in one object, as every implementation gives them: for callers that need both."""
