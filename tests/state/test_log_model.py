"""Logs against a model of lists and dicts: any order of appends, commits, grants, fences, compaction and trimming."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from state.errors import Fenced, LeaseLost, Refused
from state.log.batches import decode
from state.log.group_store import Lease, OwnerRecord
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, StoredRecord, TaskCommit, TopicSpec
from state.log.sqlite import open_sqlite

T = TypeVar("T")

APP = "app"
PARTITIONS = [Partition(topic, number) for topic in ("plain", "changelog") for number in (0, 1)]
PARTITION = st.sampled_from(PARTITIONS)
SCOPE = st.sampled_from(["0_0", "0_1", "0_2"])
WRITER = st.sampled_from(["w-1", "w-2"])
RECORDS = st.lists(
    st.builds(NewRecord, st.sampled_from([b"a", b"b", b"c"]), st.none() | st.binary(max_size=2), st.just(0)),
    max_size=4,
)
WRITES = st.dictionaries(PARTITION, RECORDS, max_size=3)


class LogAgainstModel(RuleBasedStateMachine):
    """The model keeps values in order; offsets are the log's own business, except that they only grow."""

    def open(self) -> Awaitable[Any]:
        raise NotImplementedError

    def run(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(work)  # type: ignore[arg-type]

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.log = self.run(self.open())
        for topic, kind in (("plain", "plain"), ("changelog", "changelog")):
            self.run(self.log.create_topic(TopicSpec(topic, 2, kind)))
        for writer in ("w-1", "w-2"):
            self.run(self.log.open_writer(APP, writer))
        self.records: dict[Partition, list[tuple[bytes | None, bytes | None]]] = {one: [] for one in PARTITIONS}
        self.positions: dict[Partition, int] = {}
        self.owners: dict[str, tuple[int, str]] = {}
        self.fenced: set[str] = set()
        self.lease: Lease | None = None
        self.deposed: Lease | None = None
        self.reader = self.log.reader()
        self.seen: dict[Partition, list[StoredRecord]] = {}

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.run(self.log.close())
            self.loop.close()
            shutil.rmtree(self.folder)

    def write(self, writes: dict[Partition, list[NewRecord]]) -> None:
        for partition, records in writes.items():
            self.records[partition] += [(record.key, record.value) for record in records]

    def check_answer(self, behind: dict[Partition, int], writes: dict[Partition, list[NewRecord]]) -> None:
        """What a write answers is the offset after the last record; the settled end lies at it, or behind markers."""
        assert behind.keys() == {one for one in writes if writes[one]}
        ends = self.run(self.log.ends(list(behind), settled=True))
        for partition, offset in behind.items():
            assert offset <= ends[partition]
            assert [one.offset for one in self.read(partition)][-1] == offset - 1

    def read(self, partition: Partition, position: int = 0, max_bytes: int = 1 << 20) -> list[StoredRecord]:
        reader = self.log.reader()
        reader.add(partition, max(position, self.run(self.log.starts([partition]))[partition]))
        found: list[StoredRecord] = []
        while got := self.run(reader.poll(max_bytes_per_partition=max_bytes)):
            for one in got:
                found += decode(one.data, one.position)
        return found

    # ------------------------------------------------------------------ what is done

    @rule(writes=WRITES)
    def append(self, writes: dict[Partition, list[NewRecord]]) -> None:
        behind = self.run(self.log.append(writes))
        self.write(writes)
        self.check_answer(behind, writes)

    @rule(writer=WRITER, scopes=st.lists(SCOPE, min_size=1, max_size=3, unique=True), writes=WRITES, late=st.booleans())
    def commit(self, writer: str, scopes: list[str], writes: dict[Partition, list[NewRecord]], late: bool) -> None:
        parts = [
            TaskCommit(
                scope,
                self.owners.get(scope, (1, ""))[0] - late,
                writes if scope == scopes[0] else {},
                {PARTITIONS[0]: n},
            )
            for n, scope in enumerate(scopes, len(self.positions) + 1)
        ]
        bad = {part.scope for part in parts if self.owners.get(part.scope) != (part.epoch, writer)}
        try:
            behind = self.run(self.log.commit(APP, writer, parts))
        except Fenced:
            assert writer in self.fenced
        except Refused as error:
            assert error.scopes == bad
            assert writer not in self.fenced
        else:
            assert not bad
            assert writer not in self.fenced
            self.write(writes)
            self.check_answer(behind, writes)
            self.positions[PARTITIONS[0]] = parts[-1].positions[PARTITIONS[0]]

    @rule()
    def depose(self) -> None:
        self.deposed = self.lease
        self.lease = self.run(self.log.acquire(APP, "c", "a:1", self.run(self.log.lease(APP))))
        assert self.lease is not None
        assert self.lease.term == (self.deposed.term + 1 if self.deposed else 1)

    @precondition(lambda self: self.lease is not None)
    @rule(scope=SCOPE, writer=WRITER | st.just(""))
    def grant(self, scope: str, writer: str) -> None:
        assert self.lease is not None
        epoch = self.owners.get(scope, (0, ""))[0] + 1
        self.run(self.log.record_owners(self.lease, [OwnerRecord(scope, epoch, "m", writer, self.lease.term)]))
        self.owners[scope] = (epoch, writer)

    @precondition(lambda self: self.lease is not None)
    @rule(writer=WRITER)
    def fence(self, writer: str) -> None:
        had = self.run(self.log.fence(self.lease, [writer]))[writer]
        assert had == {scope for scope, (_, owner) in self.owners.items() if owner == writer}
        for scope in had:
            self.owners[scope] = (self.owners[scope][0] + 1, "")
        self.fenced.add(writer)

    @precondition(lambda self: self.deposed is not None)
    @rule(scope=SCOPE, writer=WRITER)
    def act_deposed(self, scope: str, writer: str) -> None:
        for call in (
            self.log.record_owners(self.deposed, [OwnerRecord(scope, 99, "m", writer, 0)]),
            self.log.fence(self.deposed, [writer]),
            self.log.renew(self.deposed),
        ):
            with pytest.raises(LeaseLost):
                self.run(call)

    @rule()
    def compact(self) -> None:
        before = {one: len(kept) for one, kept in self.records.items()}
        for partition in PARTITIONS[2:]:
            kept: dict[bytes | None, bytes | None] = {}
            for key, value in self.records[partition]:
                kept.pop(key, None)
                kept[key] = value
            self.records[partition] = list(kept.items())
        left = {one: len(self.records[one]) for one in PARTITIONS[2:]}
        removed = sum(before[one] - left[one] for one in left)
        assert self.run(self.log.compact("changelog")) == (removed, sum(left.values()))

    @rule(partition=st.sampled_from(PARTITIONS[:2]), skip=st.integers(0, 6))
    def trim(self, partition: Partition, skip: int) -> None:
        """Whole batches only: what is left is a tail of what was there, and all of what lies at the position."""
        found = self.read(partition)
        if not found:
            return
        position = found[min(skip, len(found) - 1)].offset
        if partition in self.seen:  # whoever stands before that would be told that it is gone
            self.follow(partition)
        removed = self.run(self.log.trim({partition: position}))
        left = self.read(partition)
        assert left == found[removed:]
        assert [one for one in left if one.offset >= position] == [one for one in found if one.offset >= position]
        start = self.run(self.log.starts([partition]))[partition]
        assert start <= position
        self.records[partition] = self.records[partition][removed:]

    # ------------------------------------------------------------------ what is read

    @rule(partition=PARTITION)
    def follow(self, partition: Partition) -> None:
        if partition not in self.seen:
            self.reader.add(partition, self.run(self.log.ends([partition]))[partition])
            self.seen[partition] = []
        else:
            self.reader.drop(partition)
            del self.seen[partition]

    @rule(max_bytes=st.sampled_from([1, 150, 1 << 20]))
    def poll(self, max_bytes: int) -> None:
        for one in self.run(self.reader.poll(max_bytes_per_partition=max_bytes)):
            self.seen[one.partition] += decode(one.data, one.position)

    @invariant()
    def followers_see_everything_once_and_in_order(self) -> None:
        for found in getattr(self, "seen", {}).values():
            offsets = [record.offset for record in found]
            assert offsets == sorted(set(offsets))

    @rule(partition=PARTITION, part=st.floats(0, 1), max_bytes=st.sampled_from([1, 150, 1 << 20]))
    def read_from_anywhere(self, partition: Partition, part: float, max_bytes: int) -> None:
        end = self.run(self.log.ends([partition]))[partition]
        position = int(end * part)
        whole = self.read(partition)
        assert [(one.key, one.value) for one in whole] == self.records[partition]
        assert self.read(partition, position, max_bytes) == [one for one in whole if one.offset >= position]
        assert all(one.offset < end for one in whole)

    @invariant()
    def small_facts_are_as_written(self) -> None:
        if hasattr(self, "log"):
            assert self.run(self.log.positions(APP, PARTITIONS)) == self.positions
            owners = self.run(self.log.owners(APP))
            assert {scope: (one.epoch, one.transactional_id) for scope, one in owners.items()} == self.owners


class SqliteAgainstModel(LogAgainstModel):
    def open(self) -> Awaitable[Any]:
        return open_sqlite(self.folder / "log.db", create=True)


class MemoryAgainstModel(LogAgainstModel):
    async def open(self) -> Any:  # type: ignore[override]
        return MemoryLog()


SETTINGS = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestSqlite = SqliteAgainstModel.TestCase
TestSqlite.settings = SETTINGS
TestMemory = MemoryAgainstModel.TestCase
TestMemory.settings = SETTINGS
