"""What bare loops share that read their input from a log and commit to it: the log, the stores of all tasks, one commit.

One rule: nothing is promised that a loop does not need. Changelogs, outputs and positions go into one transaction of the log, the
stores have them after it, as a worker does it; no call, no record and no table of the app is made for any of it.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from state.log.entries import Entries
from state.log.group_store import OwnerRecord
from state.log.protocol import GroupLog, NewRecord, Partition, Reader, TaskCommit, TopicSpec
from state.log.sqlite import open_sqlite
from state.store.buffered import BufferedStore
from state.store.rocksdb import Budget

NAME, WRITER, CHANGELOG, OUTPUT = "bare", "bare-1", "bare-changelog", "bare-output"
Writes = Mapping[bytes, bytes | None]


def copy_log(source: Path, target: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        if (found := Path(f"{source}{suffix}")).exists():
            shutil.copy(found, f"{target}{suffix}")


class BareLog:
    """See the module. `reader` has every partition of the input from its start; `positions` are set by who reads."""

    def __init__(self, log: GroupLog, reader: Reader, stores: list[BufferedStore]) -> None:
        self._log = log
        self.reader = reader
        self.stores = stores
        self.positions: dict[Partition, int] = {}

    async def commit(self, made: Mapping[int, Writes], outputs: Mapping[int, Sequence[NewRecord]]) -> None:
        """What each task writes, with the positions that it has come to; `outputs` by the partition that they go to."""
        parts = []
        for number in {position.number for position in self.positions} | outputs.keys():
            records: dict[Partition, Sequence[NewRecord]] = {}
            if writes := made.get(number):
                records[Partition(CHANGELOG, number)] = Entries(writes, 1_000)
            if sent := outputs.get(number):
                records[Partition(OUTPUT, number)] = sent
            own = {partition: at for partition, at in self.positions.items() if partition.number == number}
            parts.append(TaskCommit(f"0_{number}", 1, records, own))
        ends = await self._log.commit(NAME, WRITER, parts)
        for number, writes in made.items():
            if writes:
                self.stores[number].write(writes, ends[Partition(CHANGELOG, number)])
        self.positions = {}


@asynccontextmanager
async def open_bare_log(folder: Path, source: Path, topics: Collection[str], partitions: int) -> AsyncIterator[BareLog]:
    """Of a copy of the log `source` in the folder. The stores are buffered ones, as a worker's are."""
    copy_log(source, folder / "log.db")
    log = await open_sqlite(folder / "log.db", create=False)
    for topic in (CHANGELOG, OUTPUT):
        await log.create_topic(TopicSpec(topic, partitions))
    lease = await log.acquire(NAME, WRITER, "", None)
    assert lease is not None
    await log.record_owners(lease, [OwnerRecord(f"0_{n}", 1, NAME, WRITER, 1) for n in range(partitions)])
    await log.open_writer(NAME, WRITER)
    budget, reader = Budget(), log.reader()
    stores = [BufferedStore(folder / f"bare-{n}", stamp={}, cache=budget) for n in range(partitions)]
    for number in range(partitions):
        for topic in topics:
            reader.add(Partition(topic, number), 0)
    yield BareLog(log, reader, stores)
    await reader.close()
    for store in stores:
        store.close()
    await log.close()
