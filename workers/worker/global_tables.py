"""Global tables of a worker: topics that are read whole, from their beginning, independent of which tasks the worker owns.

One rule: no task of the worker begins before what the topics held at its start has been read. After that they change
between any two calls. They are kept in memory, and nothing of them is committed. Bytes that cannot be read are read again
every second (`unreadable.py`): the tables lack what is behind them meanwhile, and status says so.
"""

from __future__ import annotations

import asyncio

from pipeline.definitions.topic_tables import GlobalTableDef
from pipeline.tables.dict_store import DictStore
from state.errors import LogDamaged, PositionOutOfRange
from state.log.batches import decode
from state.log.protocol import Partition, Reader
from workers.worker.ports import GlobalPort
from workers.worker.unreadable import Unreadable

WAIT_MS = 500


class GlobalTables:
    """See the module text. `stores` are by table."""

    def __init__(self, worker: GlobalPort) -> None:
        self._worker = worker
        self._tables = list(worker.prepared.app.globals.values())
        self.stores = {table.name: DictStore() for table in self._tables}
        self._are_known = asyncio.Event()
        self.unreadable = Unreadable(worker.surroundings.clock)

    async def known(self) -> None:
        """Once what was there at the start has been read."""
        if self._tables:
            await self._are_known.wait()

    async def run(self) -> None:
        """Until the worker stops."""
        log = self._worker.log
        by_topic = {table.of.topic: table for table in self._tables}
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
                await self._read(reader, positions, by_topic)
                for partition in self._partitions():
                    if partition not in positions:  # the topic has grown
                        positions[partition] = 0
                        reader.add(partition, 0)
        finally:
            await reader.close()

    def _partitions(self) -> list[Partition]:
        topics = self._worker.prepared.topics
        names = [table.of.topic for table in self._tables]
        return [Partition(name, number) for name in names for number in range(topics[name].partitions)]

    async def _read(
        self, reader: Reader, positions: dict[Partition, int], by_topic: dict[str, GlobalTableDef[object, object]]
    ) -> None:
        try:
            fetched = await reader.poll(wait_ms=WAIT_MS)
        except PositionOutOfRange as error:  # retention removed what was yet to be read
            partition = Partition(*error.partition)
            positions[partition] = error.start
            self.unreadable.forget(partition)
            reader.add(partition, error.start)
            return
        for part in fetched:
            table = by_topic[part.partition.topic]
            try:
                records = decode(part.data, part.position) if part.data else []
            except LogDamaged as error:
                self.unreadable.hold(part.partition, part.position, error)
                reader.drop(part.partition)
                continue
            for record in records:
                self.stores[table.name].write(table.entries(record))
            positions[part.partition] = part.next_position
