"""The embedded log: one SQLite file, several processes on one host, nothing to install.

One rule: the event loop never waits for the file. Writes run in one thread with one connection, reads in another,
checkpoints in a third (sqlite_checkpoints.py); one more connection, on the loop itself, only asks whether anything changed (a
microsecond, it takes no lock).
A commit is one SQLite transaction in WAL mode. With synchronous NORMAL a loss of power may lose the last commits but
never tears one; FULL loses none and pays a disk sync per commit. The file must be on a local disk.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from state.clocks import wall_ms
from state.errors import Fenced, NotOpened
from state.log import checks, compaction, sqlite_reader
from state.log.base import BASE, stands_on_one
from state.log.batches import MESSAGE_BYTES_MAX
from state.log.called_off import unless_cancelled
from state.log.group_store import AppMetadata, Lease, MetadataKind, OwnerRecord
from state.log.protocol import (
    DELETE_RETENTION_MS,
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
from state.log.sqlite_changes import Changes
from state.log.sqlite_checkpoints import BUSY_MS, Checkpoints
from state.log.sqlite_compaction import Compaction
from state.log.sqlite_file import Synchronous, connect, explain, prepare
from state.log.sqlite_parts import LOOK_AGAIN_S, FileIdentity
from state.log.sqlite_reader import SqliteReader
from state.log.sqlite_retention import Expiry
from state.log.sqlite_time import LogTime
from state.log.sqlite_upkeep import Upkeep
from state.log.sqlite_writer import Writer, is_fenced, read_lease, read_metadata

T = TypeVar("T")

_ANSWERS_MAX = 64


async def open_sqlite(
    path: Path,
    *,
    create: bool,
    synchronous: Synchronous = "NORMAL",
    busy_timeout_ms: int = 10_000,
    delete_retention_ms: int = DELETE_RETENTION_MS,
    max_message_bytes: int = MESSAGE_BYTES_MAX,
) -> SqliteLog:
    """Open the log at `path`. Raises LogMissing (and `create` is not set), LogUnusable."""
    loop = asyncio.get_running_loop()
    opened = partial(_open, path, create=create, synchronous=synchronous, busy_timeout_ms=busy_timeout_ms)
    connections, log_id, newest_ms = await loop.run_in_executor(None, opened)
    identity = FileIdentity(path)
    writer = Writer(connections[0], identity, busy_timeout_ms, max_message_bytes)
    again = partial(connect, path, create=False, synchronous=synchronous, busy_timeout_ms=busy_timeout_ms)
    checkpoints = Checkpoints(identity, again, min(busy_timeout_ms, BUSY_MS))
    return SqliteLog(identity, log_id, writer, checkpoints, connections[1:], delete_retention_ms, newest_ms)


def _open(
    path: Path, *, create: bool, synchronous: Synchronous, busy_timeout_ms: int
) -> tuple[list[sqlite3.Connection], str, int]:
    connections = [connect(path, create=create, synchronous=synchronous, busy_timeout_ms=busy_timeout_ms)]
    try:
        log_id = prepare(connections[0], path, create=create, busy_timeout_ms=busy_timeout_ms)
        for timeout_ms in (busy_timeout_ms, 0):
            connections.append(connect(path, create=False, synchronous=synchronous, busy_timeout_ms=timeout_ms))
            connections[-1].execute("pragma query_only=1")
        newest_ms = sqlite_reader.newest_ms(connections[0])
    except BaseException as error:
        for connection in connections:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise explain(error, path) from error
        raise
    return connections, log_id, newest_ms


class SqliteLog:
    """See `state.log.protocol.GroupLog`. A call that is cancelled may still take effect: its thread finishes it."""

    def __init__(
        self,
        identity: FileIdentity,
        log_id: str,
        writer: Writer,
        checkpoints: Checkpoints,
        connections: Sequence[sqlite3.Connection],
        delete_retention_ms: int,
        newest_ms: int,
    ) -> None:
        self.path = identity.path
        self.log_id = log_id
        self.position_lifetime_ms: int | None = None
        self.writer_lifetime_ms: int | None = None
        self.leaves_open = False
        self._identity = identity
        self._writer = writer
        self._checkpoints = checkpoints
        writer.wrote = checkpoints.wrote
        self._upkeep = Upkeep(writer, identity.path)
        self._expiry = Expiry()
        self._time = LogTime(newest_ms)
        self._reading, watching = connections
        self._changes = Changes(watching, identity)
        self._answers: dict[Hashable, object] = {}  # to what was asked of this version of the log
        self._answers_of = -1
        self._opened: set[tuple[str, str]] = set()  # transactional ids of this process
        self._write_thread = ThreadPoolExecutor(1, "log-write")
        self._read_thread = ThreadPoolExecutor(1, "log-read")
        self._delete_retention_ms = delete_retention_ms

    async def close(self) -> None:
        if self._changes.is_closed:
            return
        self._changes.close()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._write_thread, self._writer.close)
        await loop.run_in_executor(self._write_thread, self._checkpoints.close)
        await loop.run_in_executor(self._read_thread, self._reading.close)
        self._write_thread.shutdown(wait=False)
        self._read_thread.shutdown(wait=False)

    # ------------------------------------------------------------------ threads and waiting

    async def _write(self, work: Callable[[], T]) -> T:
        self._changes.check_open()
        result = await asyncio.get_running_loop().run_in_executor(self._write_thread, work)
        self._changes.wake()
        return result

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._changes.check_open()
        return await asyncio.get_running_loop().run_in_executor(self._read_thread, self._guarded, work)

    async def _kept(self, question: Hashable, work: Callable[[sqlite3.Connection], T]) -> T:
        """The answer of `work`, which runs again only after a change of the log: candidates and workers ask the same again and again."""
        version = self._changes.version()
        if version != self._answers_of or len(self._answers) >= _ANSWERS_MAX:
            self._answers, self._answers_of = {}, version
        answers = self._answers
        if question in answers and version >= 0:
            return cast(T, answers[question])
        answer = await self.read(work)
        answers[question] = answer  # of this version, or of a later one, which is another by then
        return answer

    def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._identity.check()
        try:
            return work(self._reading)
        except sqlite3.Error as error:
            raise explain(error, self.path) from error

    def fail_before_commit(self, point: Callable[[], None] | None) -> None:
        """A failpoint for tests and the demo: called (in the writing thread) when the next commits have written all
        their rows and are about to commit."""
        self._writer.before_commit = point

    # ------------------------------------------------------------------ topics

    async def create_topic(self, spec: TopicSpec) -> TopicInfo:
        return await self._write(partial(self._writer.create_topic, spec))

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        return await self._write(partial(self._writer.grow_topic, name, partitions))

    async def delete_topic(self, name: str) -> None:
        await self._write(partial(self._writer.delete_topic, name))

    async def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        return dict(await self._kept(("topics", *names), lambda db: sqlite_reader.topics(db, names)))

    async def names(self) -> list[str]:
        return []

    async def ends(self, partitions: Collection[Partition], *, settled: bool = False) -> dict[Partition, int]:
        """Always settled: a transaction is in the file whole, or not at all."""
        return await self.read(lambda db: sqlite_reader.ends(db, partitions))

    async def known_ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self.ends(partitions)

    async def written(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self.ends(partitions)

    async def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self.read(lambda db: sqlite_reader.starts(db, partitions))

    async def forgotten(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self.read(lambda db: sqlite_reader.forgotten(db, partitions))

    def epoch(self, partition: Partition) -> int:
        return -1  # nothing is elected

    async def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, int]:
        return {}

    def reader(self) -> Reader:
        return SqliteReader(self.read, self._changes)

    # ------------------------------------------------------------------ writing

    async def append(
        self,
        records: Mapping[Partition, Sequence[NewRecord]],
        *,
        metadata: AppMetadata | None = None,
        seen: bytes | None = None,
    ) -> dict[Partition, int]:
        return await self._write(partial(self._writer.append, records, metadata, seen))

    async def open_writer(self, application: str, transactional_id: str) -> None:
        checks.transactional_id(transactional_id)
        if await self.read(lambda db: is_fenced(db, application, transactional_id)):
            raise Fenced(checks.fenced(transactional_id))
        self._opened.add((application, transactional_id))

    async def check_rights(self, application: str, wanted: Intended) -> None:
        """Who may write the file may do all of it."""

    async def check_alone(self, application: str) -> None:
        """Nothing but applications commits positions here."""

    def fences(self, guarantee: Guarantee) -> bool:
        return True

    async def commit(
        self,
        application: str,
        transactional_id: str,
        tasks: Sequence[TaskCommit],
        *,
        guarantee: Guarantee = EXACTLY_ONCE,
        may_write: MayWrite = always,
    ) -> dict[Partition, int]:
        """One transaction for either guarantee: two would cost more. Raises NotOpened, and what the
        port says."""
        if (application, transactional_id) not in self._opened:
            raise NotOpened(checks.not_opened(transactional_id))
        return await self._write(partial(self._writer.commit, application, transactional_id, tasks))

    async def positions(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        return await self.read(lambda db: sqlite_reader.positions(db, application, partitions))

    async def lost(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        """Positions stand in the file with the records: where it is an older copy, both are."""
        return {}

    async def set_elsewhere(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        return {}

    async def committed_ms(self, application: str, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self.read(lambda db: sqlite_reader.committed_ms(db, application, partitions))

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
        seed = partial(self._writer.seed_positions, lease, positions, records, metadata)
        return await unless_cancelled(lambda given: self._write(partial(seed, given)), parts)

    async def forget_positions(self, lease: Lease, partitions: Collection[Partition]) -> None:
        await self._write(partial(self._writer.forget_positions, lease, partitions))

    # ------------------------------------------------------------------ lease and owners

    async def lease(self, application: str) -> Lease | None:
        return await self._kept(("lease", application), lambda db: read_lease(db, application))

    async def acquire(self, application: str, holder: str, address: str, seen: Lease | None) -> Lease | None:
        return await self._write(partial(self._writer.acquire, application, holder, address, seen))

    async def renew(self, lease: Lease) -> Lease:
        return await self._write(partial(self._writer.renew, lease))

    async def owners(self, application: str) -> dict[str, OwnerRecord]:
        return await self.read(lambda db: sqlite_reader.owners(db, application))

    async def record_owners(self, lease: Lease, records: Sequence[OwnerRecord]) -> None:
        await self._write(partial(self._writer.record_owners, lease, records))

    async def fence(self, lease: Lease, transactional_ids: Collection[str]) -> dict[str, frozenset[str]]:
        return await self._write(partial(self._writer.fence, lease, transactional_ids))

    async def end_left_open(self, lease: Lease, transactional_ids: Mapping[str, int]) -> LeftOpen:
        """A transaction of SQLite ends with its process, and none waits for anything but the disk."""
        return LeftOpen({}, [])

    # ------------------------------------------------------------------ metadata

    async def metadata(self, application: str, kind: MetadataKind, key: str) -> bytes | None:
        return await self._kept(
            ("metadata", application, kind.name, key), lambda db: read_metadata(db, application, kind, key)
        )

    async def metadata_of(self, application: str, kind: MetadataKind, *, settled: bool = False) -> dict[str, bytes]:
        return dict(
            await self._kept(
                ("metadata", application, kind.name), lambda db: sqlite_reader.metadata_of(db, application, kind)
            )
        )

    async def metadata_of_all(self, kind: MetadataKind, key: str) -> dict[str, bytes]:
        return await self.read(lambda db: sqlite_reader.metadata_of_all(db, kind, key))

    async def put_metadata(
        self, application: str, kind: MetadataKind, key: str, value: bytes | None, *, lease: Lease | None = None
    ) -> None:
        await self._write(partial(self._writer.put_metadata, application, kind, key, value, lease))

    async def replace_metadata(
        self, application: str, kind: MetadataKind, key: str, seen: bytes | None, value: bytes | None
    ) -> bool:
        return await self._write(partial(self._writer.replace_metadata, application, kind, key, seen, value))

    # ------------------------------------------------------------------ upkeep

    async def compact(self, topic: str) -> Compacted:
        """Partition by partition, in short transactions and off the loop: commits and polls go on between them.
        Raises UnknownTopic."""
        found = (await self.topics([topic])).get(topic)
        if found is None:
            raise checks.unknown(Partition(topic, 0), None)
        compaction.require_changelog(found)
        bases = await self.metadata_of_all(BASE, topic)
        based = stands_on_one(bases.values(), found)
        removed = kept = 0
        work = Compaction(self.read, self._write, self._remove, self._upkeep, self._time, self._delete_retention_ms)
        for number in range(found.partitions):
            done = await work.run(Partition(topic, number), stands_on_base=based)
            removed, kept = removed + done.removed, kept + done.kept
        await self._shrink()
        return Compacted(removed, kept)

    async def _shrink(self) -> None:
        """Gives the free pages back, a few at a time, for as long as they become fewer: what is written meanwhile takes and
        frees some, and a file that was made by other means may give none."""
        before = await self._remove(self._upkeep.shrink)
        while before and (left := await self._remove(self._upkeep.shrink)) < before:
            before = left

    async def _remove(self, work: Callable[[], T]) -> T:
        """A transaction of upkeep, and a moment in which whoever waits for the lock comes to look: who asks for it again at
        once takes it again each time."""
        result = await self._write(work)
        await asyncio.sleep(LOOK_AGAIN_S)
        return result

    async def trim(self, positions: Mapping[Partition, int]) -> int:
        removed = 0
        for partition, position in positions.items():
            are_gone = False
            while not are_gone:
                count, are_gone = await self._remove(partial(self._upkeep.trim, partition, position))
                removed += count
        if removed:
            await self._shrink()
        return removed

    async def set_retention(self, topic: str, retention: Retention) -> TopicInfo:
        return await self._write(partial(self._upkeep.set_retention, topic, retention))

    async def expired(self, partitions: Collection[Partition], *, at_once: bool = False) -> dict[Partition, int]:
        now_ms = wall_ms() if at_once else self._time.now_ms()
        return await self.read(lambda db: self._expiry.expired(db, partitions, now_ms))
