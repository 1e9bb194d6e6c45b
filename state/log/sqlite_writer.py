"""The one writing connection of a SQLite log, and every transaction it knows. Runs in the log's writing thread.

One rule: batches are built before the lock is taken (but for a seed's parts, which are more than memory should hold), and every
check (owner rows, lease) is made inside the transaction that writes. A process that is stopped while it builds batches stops no other.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from state.clocks import wall_ms
from state.errors import (
    Fenced,
    InvalidRecord,
    LeaseLost,
    MetadataChanged,
    OutcomeUnknown,
    Refused,
    TopicMismatch,
)
from state.log import batches, checks
from state.log.batches import Batch
from state.log.group_store import AppMetadata, Lease, MetadataKind, OwnerRecord
from state.log.protocol import FOR_EVER, NewRecord, Partition, Parts, Retention, TaskCommit, TopicInfo, TopicSpec
from state.log.sqlite_file import begin, explain
from state.log.sqlite_parts import FileIdentity

PAGE = 4096
_PAGES_OF_ANY, _PAGES_OF_A_BATCH = 4, 2  # about


class Writer:
    """Not safe for two threads at once."""

    def __init__(
        self, connection: sqlite3.Connection, identity: FileIdentity, busy_timeout_ms: int, max_message_bytes: int
    ) -> None:
        self.db = connection
        self.identity = identity
        self._path = identity.path
        self._busy_timeout_ms = busy_timeout_ms
        self._max_message_bytes = max_message_bytes
        self.before_commit: Callable[[], None] | None = None  # a failpoint: all is written, nothing is committed
        self.wrote: Callable[[int], None] | None = None  # called with about how many pages each transaction wrote

    def close(self) -> None:
        self.db.close()

    @contextmanager
    def transaction(self, size: int = 0) -> Iterator[sqlite3.Connection]:
        """All or nothing: commits at the end of the block, takes everything back when it raises. `size`: bytes of the batches
        that it writes."""
        self.identity.check()
        try:
            begin(self.db, self._busy_timeout_ms)
            try:
                yield self.db
            except BaseException:
                self._take_back()
                raise
        except sqlite3.Error as error:
            raise explain(error, self._path) from error
        try:
            self.db.execute("commit")
        except sqlite3.Error as error:
            unknown = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR
            self._take_back()
            if unknown:
                raise OutcomeUnknown(
                    f"the log {self._path} failed while it committed ({error}): check its disk, then read it again"
                ) from error
            raise explain(error, self._path) from error
        if self.wrote is not None:
            self.wrote(_PAGES_OF_ANY + size // PAGE)

    def _take_back(self) -> None:
        if self.db.in_transaction:  # some errors have rolled back already
            self.db.execute("rollback")

    # ------------------------------------------------------------------ topics

    def create_topic(self, spec: TopicSpec) -> TopicInfo:
        checks.topic_spec(spec)
        with self.transaction() as db:
            found = find_topic(db, spec.name)
            if found is not None:
                if found.partitions != spec.partitions:
                    raise TopicMismatch(checks.mismatch(found, spec))
                return found
            made = TopicInfo(spec.name, str(uuid.uuid4()), spec.partitions, spec.kind, retention=spec.retention)
            db.execute("insert into topics values (?, ?, ?, ?)", (made.name, made.topic_id, made.partitions, made.kind))
            db.executemany(
                "insert into parts (topic, number) values (?, ?)",
                [(spec.name, number) for number in range(spec.partitions)],
            )
            if spec.retention != FOR_EVER:
                db.execute("insert into retentions values (?, ?, ?, ?)", (spec.name, *spec.retention))
            return made

    def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        with self.transaction() as db:
            found = checks.growth(find_topic(db, name), name, partitions)
            db.execute("update topics set partitions = ? where name = ?", (partitions, name))
            new = [(name, number) for number in range(found.partitions, partitions)]
            db.executemany("insert into parts (topic, number) values (?, ?)", new)
            return replace(found, partitions=partitions)

    def delete_topic(self, name: str) -> None:
        with self.transaction() as db:
            if not db.execute("delete from topics where name = ?", (name,)).rowcount:
                raise checks.unknown(Partition(name, 0), None)
            db.execute("delete from batches where part in (select id from parts where topic = ?)", (name,))
            for table in ("compactions", "forgotten"):
                db.execute(f"delete from {table} where part in (select id from parts where topic = ?)", (name,))
            db.execute("delete from parts where topic = ?", (name,))
            db.execute("delete from positions where topic = ?", (name,))
            db.execute("delete from commit_times where topic = ?", (name,))
            db.execute("delete from retentions where topic = ?", (name,))

    # ------------------------------------------------------------------ records

    def append(
        self,
        records: Mapping[Partition, Sequence[NewRecord]],
        metadata: AppMetadata | None,
        seen: bytes | None,
    ) -> dict[Partition, int]:
        if metadata is not None:
            checks.author(metadata.kind, None)
        built = batches.build_all(records, self._max_message_bytes)
        with self.transaction(_size(built)) as db:
            behind = _insert(db, built, records)
            if metadata is not None and not _replace_metadata(db, *metadata[:3], seen, metadata.value):
                raise MetadataChanged(checks.metadata_changed(metadata))
        return behind

    def commit(self, application: str, transactional_id: str, tasks: Sequence[TaskCommit]) -> dict[Partition, int]:
        built = batches.build_commit(tasks, self._max_message_bytes)
        with self.transaction(_size(built)) as db:
            _check_owner(db, application, transactional_id, tasks)
            try:
                behind = _insert(db, built, checks.merged(tasks))
            except InvalidRecord as error:
                raise checks.of_scope(error, tasks) from None
            for task in tasks:
                _put_positions(db, application, task.positions)
                if task.at_ms:
                    _put_times(db, application, task)
            if self.before_commit is not None:
                self.before_commit()
        return behind

    def seed_positions(
        self,
        lease: Lease,
        positions: Mapping[Partition, int],
        records: Mapping[Partition, Sequence[NewRecord]],
        metadata: Sequence[AppMetadata],
        parts: Parts,
    ) -> bool:
        for one in metadata:
            checks.author(one.kind, lease)
        built, more = batches.build_all(records, self._max_message_bytes), 0
        with self.transaction(_size(built)) as db:
            _check_lease(db, lease)
            if read_positions(db, lease.application).keys() & positions.keys():
                return False
            _insert(db, built, records)
            for part in parts():
                built = batches.build_all(part, self._max_message_bytes)
                _insert(db, built, part)
                more += _size(built)
            _put_positions(db, lease.application, positions)
            for one in metadata:
                _put_metadata(db, *one)
        if self.wrote is not None:
            self.wrote(more // PAGE)
        return True

    def forget_positions(self, lease: Lease, partitions: Collection[Partition]) -> None:
        gone = [(lease.application, one.topic, one.number) for one in partitions]
        with self.transaction() as db:
            _check_lease(db, lease)
            for table in ("positions", "commit_times"):
                db.executemany(f"delete from {table} where application = ? and topic = ? and number = ?", gone)

    # ------------------------------------------------------------------ lease and owners

    def acquire(self, application: str, holder: str, address: str, seen: Lease | None) -> Lease | None:
        with self.transaction() as db:
            found = read_lease(db, application)
            if found != seen:
                return None
            made = Lease(application, found.term + 1 if found else 1, holder, address, 0)
            db.execute(
                "insert or replace into leases values (?, ?, ?, ?, ?)",
                (made.application, made.term, made.holder, made.address, made.beat),
            )
            return made

    def renew(self, lease: Lease) -> Lease:
        with self.transaction() as db:
            found = _check_lease(db, lease)
            made = Lease(found.application, found.term, found.holder, found.address, found.beat + 1)
            db.execute("update leases set beat = ? where application = ?", (made.beat, made.application))
            return made

    def record_owners(self, lease: Lease, records: Sequence[OwnerRecord]) -> None:
        with self.transaction() as db:
            _check_lease(db, lease)
            db.executemany(
                "insert or replace into owners values (?, ?, ?, ?, ?, ?)",
                [
                    (lease.application, one.scope, one.epoch, one.member, one.transactional_id, one.term)
                    for one in records
                ],
            )

    def fence(self, lease: Lease, transactional_ids: Collection[str]) -> dict[str, frozenset[str]]:
        checks.ids_to_fence(transactional_ids)
        had: dict[str, frozenset[str]] = {}
        with self.transaction() as db:
            _check_lease(db, lease)
            for fenced in transactional_ids:
                mine = (lease.application, fenced)
                db.execute("insert or ignore into fenced values (?, ?)", mine)
                rows = db.execute("select scope from owners where application = ? and writer = ?", mine).fetchall()
                db.execute(
                    "update owners set epoch = epoch + 1, writer = '', term = ? where application = ? and writer = ?",
                    (lease.term, *mine),
                )
                had[fenced] = frozenset(row[0] for row in rows)
        return had

    def put_metadata(
        self, application: str, kind: MetadataKind, key: str, value: bytes | None, lease: Lease | None
    ) -> None:
        checks.author(kind, lease)
        with self.transaction() as db:
            if lease is not None:
                _check_lease(db, lease)
            _put_metadata(db, application, kind, key, value)

    def replace_metadata(
        self, application: str, kind: MetadataKind, key: str, seen: bytes | None, value: bytes | None
    ) -> bool:
        checks.author(kind, None)
        with self.transaction() as db:
            return _replace_metadata(db, application, kind, key, seen, value)


INSERT = "insert into batches (part, base, next, time_ms, records, data) values (?, ?, ?, ?, ?, ?)"


class PartRow(NamedTuple):
    """A partition as its row has it: it can be read from `start` to `end`."""

    id: int
    start: int
    end: int


def find_part(db: sqlite3.Connection, partition: Partition) -> PartRow:
    """Raises UnknownTopic."""
    row: tuple[int, int, int] | None = db.execute(
        "select id, start, next from parts where topic = ? and number = ?", partition
    ).fetchone()
    if row is None:
        found = find_topic(db, partition.topic)
        raise checks.unknown(partition, found.partitions if found else None)
    return PartRow(*row)


def find_topic(db: sqlite3.Connection, name: str) -> TopicInfo | None:
    row = db.execute("select name, topic_id, partitions, kind from topics where name = ?", (name,)).fetchone()
    if row is None:
        return None
    kept = db.execute("select ms, bytes, forced from retentions where topic = ?", (name,)).fetchone()
    made = TopicInfo(*row)
    return replace(made, retention=Retention(kept[0], kept[1], bool(kept[2]))) if kept else made


def read_positions(db: sqlite3.Connection, application: str) -> dict[Partition, int]:
    """All of an application."""
    rows = db.execute("select topic, number, position from positions where application = ?", (application,))
    return {Partition(topic, number): position for topic, number, position in rows}


def is_fenced(db: sqlite3.Connection, application: str, transactional_id: str) -> bool:
    query = "select 1 from fenced where application = ? and writer = ?"
    return db.execute(query, (application, transactional_id)).fetchone() is not None


def read_lease(db: sqlite3.Connection, application: str) -> Lease | None:
    row = db.execute("select * from leases where application = ?", (application,)).fetchone()
    return Lease(*row) if row else None


def _check_lease(db: sqlite3.Connection, lease: Lease) -> Lease:
    found = read_lease(db, lease.application)
    if found is None or (found.term, found.holder) != (lease.term, lease.holder):
        raise LeaseLost(checks.lease_lost(lease, found))
    return found


def _check_owner(db: sqlite3.Connection, application: str, transactional_id: str, tasks: Sequence[TaskCommit]) -> None:
    if is_fenced(db, application, transactional_id):
        raise Fenced(checks.fenced(transactional_id))
    refused: list[str] = []
    for task in tasks:
        row = db.execute(
            "select epoch, writer from owners where application = ? and scope = ?", (application, task.scope)
        ).fetchone()
        if row != (task.epoch, transactional_id):
            refused.append(task.scope)
    if refused:
        raise Refused(frozenset(refused), checks.refused(transactional_id, refused))


def _size(built: Mapping[Partition, Collection[Batch]]) -> int:
    """Bytes that these batches change in the file, with what points at them."""
    return sum(len(batch.data) + _PAGES_OF_A_BATCH * PAGE for listed in built.values() for batch in listed)


def _insert(
    db: sqlite3.Connection,
    built: Mapping[Partition, Collection[Batch]],
    records: Mapping[Partition, Sequence[NewRecord]],
) -> dict[Partition, int]:
    """Write batches, built of `records`, at the ends of their partitions; returns the new ends."""
    now_ms = wall_ms()
    ends: dict[Partition, int] = {}
    for partition, listed in built.items():
        part, _, end = find_part(db, partition)
        if checks.lack_keys(records[partition]):
            topic = find_topic(db, partition.topic)
            assert topic is not None
            checks.keys(topic, partition, records[partition])
        for batch in listed:
            row = (part, end, end + batch.span, now_ms, batch.records, batches.place(batch.data, end))
            db.execute(INSERT, row)
            end += batch.span
        db.execute("update parts set next = ? where id = ?", (end, part))
        ends[partition] = end
    return ends


def _put_positions(db: sqlite3.Connection, application: str, positions: Mapping[Partition, int]) -> None:
    db.executemany(
        "insert or replace into positions values (?, ?, ?, ?)",
        [(application, partition.topic, partition.number, position) for partition, position in positions.items()],
    )


def _put_times(db: sqlite3.Connection, application: str, task: TaskCommit) -> None:
    db.executemany(
        "insert or replace into commit_times values (?, ?, ?, ?, ?)",
        [(application, topic, number, position, task.at_ms) for (topic, number), position in task.positions.items()],
    )


def _put_metadata(db: sqlite3.Connection, application: str, kind: MetadataKind, key: str, value: bytes | None) -> None:
    at = (application, kind.name, key)
    if value is None:
        db.execute("delete from notes where application = ? and kind = ? and key = ?", at)
    else:
        db.execute("insert or replace into notes values (?, ?, ?, ?)", (*at, value))


def read_metadata(db: sqlite3.Connection, application: str, kind: MetadataKind, key: str) -> bytes | None:
    query = "select value from notes where application = ? and kind = ? and key = ?"
    row = db.execute(query, (application, kind.name, key)).fetchone()
    return row[0] if row else None


def _replace_metadata(
    db: sqlite3.Connection, application: str, kind: MetadataKind, key: str, seen: bytes | None, value: bytes | None
) -> bool:
    if read_metadata(db, application, kind, key) != seen:
        return False
    _put_metadata(db, application, kind, key, value)
    return True
