"""Compressed batches: our own and another client read them, and they are smaller on the broker's disk."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer

from state.log.batches import headers
from state.log.kafka.cluster import KafkaOptions
from state.log.kafka.log import open_kafka
from state.log.protocol import FOR_EVER, NewRecord, Partition, TaskCommit, TopicSpec
from tests.contracts.logs import read_all
from tests.kafka.place import APP, Place, owner

pytestmark = pytest.mark.kafka
OUT = Partition("out", 0)
RECORDS = [NewRecord(f"k{n}".encode(), b"a value that comes again " * 10, 1_000 + n) for n in range(200)]


async def stored_bytes(place: Place, compression: str) -> int:
    options = KafkaOptions([("127.0.0.1", place.port)], f"{place.prefix}{compression}-", compression=compression)
    log = await open_kafka(options)
    try:
        await log.create_topic(TopicSpec("out", 1))
        await log.set_retention("out", FOR_EVER)  # the times of these records are long past: a broker would delete them
        lease = await log.acquire(APP, "me", "a:1", await log.lease(APP))
        assert lease is not None
        await log.record_owners(lease, [owner(1, lease)])
        await log.open_writer(APP, "w")
        await log.commit(APP, "w", [TaskCommit("0_0", 1, {OUT: RECORDS})])
        found = await read_all(log, OUT)
        assert [(one.key, one.value, one.timestamp_ms) for one in found] == [
            (one.key, one.value, one.timestamp_ms) for one in RECORDS
        ]
        reader = log.reader()
        reader.add(OUT, 0)
        [fetched] = await reader.poll(wait_ms=5_000)
        await reader.close()
        assert len(list(headers(fetched.data))) == 1
        return len(fetched.data)
    finally:
        await log.close()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_batches_are_smaller_and_anybody_reads_them(place: Place, codec: str) -> None:
    assert await stored_bytes(place, codec) * 5 < await stored_bytes(place, "none")
    topic = f"{place.prefix}{codec}-out"
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=f"127.0.0.1:{place.port}",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    async with asyncio.timeout(60), consumer:
        assert [(await consumer.getone()).value for _ in RECORDS] == [one.value for one in RECORDS]
