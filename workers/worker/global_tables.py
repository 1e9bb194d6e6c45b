"""Global tables of a worker: topics that are read whole, from their beginning, independent of which tasks the worker owns.

One rule: no task of the worker begins before what the topics held at its start has been read. After that they change
between any two calls. They are kept in memory, and nothing of them is committed. Bytes that cannot be read are read again
every second (`unreadable.py`): the tables lack what is behind them meanwhile, and status says so. So it is with a record that
`on_error` of who looks at the table stops at, where `--on-halt continue` keeps the worker; else that ends it, as a call would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pipeline.calls.global_records import GlobalRecords
from pipeline.errors import DecodingFailed
from pipeline.records import RawRecord
from state.errors import LogDamaged, PositionOutOfRange
from state.log.batches import decode
from state.log.protocol import Partition, Reader
from workers.worker.left_out import LeftOutLines
from workers.worker.ports import GlobalPort
from workers.worker.unreadable import Unreadable

WAIT_MS = 500


class GlobalTables:
    """See the module text. `stores` are by table."""

    def __init__(self, worker: GlobalPort) -> None:
        self._worker = worker
        self._tables = list(worker.prepared.app.globals.values())
        self._records = GlobalRecords(worker.prepared.app)
        self.stores = self._records.stores
        self._left_out = LeftOutLines()
        self._are_known = asyncio.Event()
        self.unreadable = Unreadable(worker.surroundings.clock)

    async def known(self) -> None:
        """Once what was there at the start has been read."""
        if self._tables:
            await self._are_known.wait()

    async def run(self) -> None:
        """Until the worker stops."""
        log = self._worker.log
        positions = await log.starts(self._partitions())
        ends = await log.ends(list(positions))
        reader = log.reader()
        for partition, position in positions.items():
            reader.add(partition, position)
        try:
            while not self._worker.stopping.is_set():
                if all(positions[partition] >= end for partition, end in ends.items()):
                    self._are_known.set()
                for partition, position in self.unreadable.due():
                    reader.add(partition, position)
                await self._read(reader, positions)
                for partition in self._partitions():
                    if partition not in positions:  # the topic has grown
                        positions[partition] = 0
                        reader.add(partition, 0)
        finally:
            self._left_out.end()
            await reader.close()

    def _partitions(self) -> list[Partition]:
        topics = self._worker.prepared.topics
        names = [table.of.topic for table in self._tables]
        return [Partition(name, number) for name in names for number in range(topics[name].partitions)]

    async def _read(self, reader: Reader, positions: dict[Partition, int]) -> None:
        try:
            fetched = await reader.poll(wait_ms=WAIT_MS)
        except PositionOutOfRange as error:  # retention removed what was yet to be read
            partition = Partition(*error.partition)
            positions[partition] = error.start
            self.unreadable.forget(partition)
            reader.add(partition, error.start)
            return
        for part in fetched:
            try:
                records = decode(part.data, part.position) if part.data else []
                self._take(part.partition, records, positions)
            except (LogDamaged, DecodingFailed) as error:
                if isinstance(error, DecodingFailed) and self._worker.spec.instance.on_halt == "exit":
                    raise
                self.unreadable.hold(part.partition, max(part.position, positions[part.partition]), error)
                reader.drop(part.partition)
                continue
            positions[part.partition] = part.next_position

    def _take(self, partition: Partition, records: Sequence[RawRecord], positions: dict[Partition, int]) -> None:
        """Raises DecodingFailed, with the position at the record that its readers stop at."""
        for record in records:
            try:
                left_out = self._records.take(*partition, record)
            except DecodingFailed:
                positions[partition] = record.offset
                raise
            if left_out is not None:
                self._left_out.committed("a global table", [left_out])
