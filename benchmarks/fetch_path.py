"""What it costs to have the records of a topic in hand: `python -m benchmarks.fetch_path WAY ADDRESS TOPIC PARTITIONS RECORDS`, rows of
`make bench-kafka`.

One rule: nothing is done with what was fetched. aiokafka's `getmany` over all partitions, and the log's own reader, with its records or
columns made; committed records alone, no positions. What is printed is records per CPU-second of this process from the first ones to the
last.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from state.log.batches import decode
from state.log.protocol import Partition
from workers.log.logs import open_log

GETMANY, RECORDS, COLUMNS = "aiokafka's getmany", "our reader, records", "our reader, columns"
WAYS: Final = (GETMANY, RECORDS, COLUMNS)


def run(way: str, address: str, topic: str, partitions: int, records: int) -> float:
    """The figure of a process of its own. `address` without a scheme."""
    command = [sys.executable, "-m", "benchmarks.fetch_path", way, address, topic, str(partitions), str(records)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


async def _getmany(address: str, topic: str, partitions: int) -> AsyncIterator[int]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        while True:
            yield sum(len(found) for found in (await consumer.getmany(timeout_ms=1_000)).values())
    finally:
        await consumer.stop()


async def _ours(address: str, topic: str, partitions: int, *, in_columns: bool) -> AsyncIterator[int]:
    from state.log.columns import columns

    log = await open_log(f"kafka://{address}", create=False)
    reader = log.reader()
    try:
        for number in range(partitions):
            reader.add(Partition(topic, number), 0)
        while True:
            count = 0
            for part in await reader.poll(wait_ms=1_000):
                found = columns(part.data, part.position) if in_columns else None
                count += len(decode(part.data, part.position)) if found is None else len(found.offsets)
            yield count
    finally:
        await reader.close()
        await log.close()


async def _rate(way: str, address: str, topic: str, partitions: int, records: int) -> float:
    began, first, count = 0.0, 0, 0
    if way == GETMANY:
        parts = _getmany(address, topic, partitions)
    else:
        parts = _ours(address, topic, partitions, in_columns=way == COLUMNS)
    async for found in parts:
        count += found
        if not first and count:
            first, began = count, time.process_time()
        if count >= records:
            break
    rate = (count - first) / (time.process_time() - began)
    await parts.aclose()  # type: ignore[attr-defined]
    return rate


if __name__ == "__main__":
    print(asyncio.run(_rate(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))))
