"""A PySpark data source over the log: `spark.read.format("orchestrator-log")`.

Options: `log` (a log URL), `topics` (names, comma-separated), `until` (JSON, "topic-partition" -> position; by default
the ends when the query is planned). One Spark partition a topic partition. Columns: topic, partition, offset,
timestamp_ms, order_ms, key, value. `order_ms` is the running maximum of the timestamps of its partition: sorting by it
merges partitions exactly as a task does, by the smallest timestamp among their heads.
One rule: a read goes to its end position, or fails; it never ends short.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from state.errors import StateError
from state.log.batches import decode
from state.log.protocol import Log, Partition, StoredRecord
from workers.logs import open_log

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = "topic string, partition int, offset bigint, timestamp_ms bigint, order_ms bigint, key binary, value binary"
NAME = "orchestrator-log"


class Slice(InputPartition):
    """One topic partition, from its start to `end`."""

    def __init__(self, topic: str, number: int, start: int, end: int) -> None:
        super().__init__(f"{topic}-{number}")
        self.topic, self.number, self.start, self.end = topic, number, start, end


class LogSource(DataSource):
    """See the module text."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> LogReader:
        return LogReader(dict(self.options))


class LogReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, options: dict[str, str]) -> None:
        self._url = options["log"]
        self._topics = [name for name in options["topics"].split(",") if name]
        self._until = json.loads(options.get("until", "null"))

    def partitions(self) -> list[Slice]:
        return asyncio.run(self._plan())

    async def _plan(self) -> list[Slice]:
        log = await open_log(self._url, create=False)
        try:
            known = await log.topics()
            found = [Partition(topic, n) for topic in self._topics for n in range(known[topic].partitions)]
            starts, ends = await log.starts(found), await log.ends(found)
        finally:
            await log.close()
        if self._until is not None:
            ends = {p: int(self._until[str(p)]) for p in found}
        return [Slice(p.topic, p.number, starts[p], ends[p]) for p in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        loop = asyncio.new_event_loop()
        try:
            rows = _rows(self._url, partition)
            running = partition.start, -1
            while (records := loop.run_until_complete(anext(rows, None))) is not None:
                batch, running = _batch(partition, records, running[1])
                yield batch
        finally:
            loop.close()


async def _rows(url: str, part: Slice) -> AsyncIterator[list[StoredRecord]]:
    if part.end <= part.start:
        return
    log: Log = await open_log(url, create=False)
    reader = log.reader()
    where = Partition(part.topic, part.number)
    reader.add(where, part.start)
    try:
        position = part.start
        while position < part.end:
            fetched = await reader.poll(max_bytes_per_partition=4 << 20)
            if not fetched:
                raise StateError(f"{where} ended at {position}, before {part.end}: the log lost records it had")
            for item in fetched:
                records = [r for r in decode(item.data, item.position) if r.offset < part.end] if item.data else []
                position = item.next_position
                if records:
                    yield records
    finally:
        await reader.close()
        await log.close()


def _batch(part: Slice, records: list[StoredRecord], running: int) -> tuple[pa.RecordBatch, tuple[int, int]]:
    import pyarrow as pa

    order: list[int] = []
    for record in records:
        running = max(running, record.timestamp_ms)
        order.append(running)
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([part.topic] * len(records), pa.string()),
            "partition": pa.array([part.number] * len(records), pa.int32()),
            "offset": pa.array([r.offset for r in records], pa.int64()),
            "timestamp_ms": pa.array([r.timestamp_ms for r in records], pa.int64()),
            "order_ms": pa.array(order, pa.int64()),
            "key": pa.array([r.key for r in records], pa.binary()),
            "value": pa.array([r.value for r in records], pa.binary()),
        }
    )
    return batch, (records[-1].offset, running)
