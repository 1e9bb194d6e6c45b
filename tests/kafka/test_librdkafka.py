"""Records of librdkafka's producers (confluent-kafka, and what C, Go, C# and others build on it) are read right."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pipeline.values.partitioner import partition_of
from state.errors import StateError
from state.log.kafka.log import KafkaLog
from state.log.protocol import Partition, TaskCommit, TopicSpec
from tests import brokers
from tests.contracts.logs import read_all, until
from tests.kafka.place import APP, IN, Place, owner

confluent_kafka: Any = pytest.importorskip("confluent_kafka", reason="librdkafka is not here: install confluent-kafka")
pytestmark = pytest.mark.kafka
PARTITIONS, RECORDS, WITHIN_S = 4, 20, 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ABORTED = 1  # of three transactions, the one between


def write(address: str, topic: str, codec: str) -> dict[str, int]:
    """Three transactions of one producer; keys of those that count, with the partitions that it chose."""
    placed: dict[str, int] = {}

    def delivered(error: object, message: Any) -> None:
        assert error is None, error
        placed[message.key().decode()] = message.partition()

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": f"{topic}-{codec}",
            "compression.type": codec,
            "partitioner": "murmur2_random",
        }
    )
    producer.init_transactions(WITHIN_S)
    for turn in range(3):
        producer.begin_transaction()
        for number in range(RECORDS):
            value = None if number % 5 == 0 else b"v" * 50 + b"%d" % number
            headers = [("codec", codec.encode()), ("empty", b""), ("none", None)]
            producer.produce(topic, value, f"{codec}-{turn}-{number}", headers=headers, on_delivery=delivered)
        assert producer.flush(WITHIN_S) == 0
        if turn == ABORTED:
            producer.abort_transaction(WITHIN_S)
        else:
            producer.commit_transaction(WITHIN_S)
    return {key: partition for key, partition in placed.items() if key.split("-")[1] != str(ABORTED)}


async def test_records_of_librdkafkas_producer(place: Place) -> None:
    """Of every codec: none of the aborted ones, tombstones, headers, and each key in the partition where ours would be."""
    log = await place.open()
    await log.create_topic(TopicSpec("theirs", PARTITIONS))
    sent: dict[str, int] = {}
    for codec in CODECS:
        sent |= await asyncio.to_thread(write, f"127.0.0.1:{place.port}", f"{place.prefix}theirs", codec)
    assert len(sent) == len(CODECS) * 2 * RECORDS
    assert sent == {key: partition_of(key.encode(), PARTITIONS) for key in sent}
    assert len(set(sent.values())) == PARTITIONS
    found: dict[str, int] = {}
    for number in range(PARTITIONS):
        for one in await read_all(log, Partition("theirs", number)):
            assert one.key is not None
            key = one.key.decode()
            codec, turn, count = key.split("-")
            assert key not in found and turn != str(ABORTED), key
            assert one.headers == (("codec", codec.encode()), ("empty", b""), ("none", b"")), one
            assert one.value == (None if int(count) % 5 == 0 else b"v" * 50 + count.encode())
            found[key] = number
    assert found == sent


@pytest.mark.skipif(brokers.VERSION.startswith("3."), reason="brokers speak that protocol from 4.0 on, by default")
async def test_a_member_of_the_protocol_that_brokers_assign_by_is_refused(place: Place) -> None:
    """`group.protocol=consumer` (KIP-848): asked as a classic one, its group is called dead and without members."""
    log = await place.topics()
    await log.open_writer(APP, "w")
    settings = {
        "bootstrap.servers": f"127.0.0.1:{place.port}",
        "group.id": place.prefix + APP,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([place.prefix + "in"])
    try:

        async def is_member() -> bool:
            await asyncio.to_thread(consumer.poll, 0.1)
            return bool(consumer.assignment())

        await until("the consumer to be a member", is_member)
        assert await said_of(log) == f"consumer group {place.prefix}{APP} has members of another program"
        with pytest.raises(StateError, match="members of another program"):
            await log.open_writer(APP, "w2")
    finally:
        await asyncio.to_thread(consumer.close)

    async def is_alone() -> bool:
        return not await said_of(log)

    await until("the group to be empty", is_alone)
    lease = await log.acquire(APP, "i", "a:1", None)
    assert lease is not None
    await log.record_owners(lease, [owner(1, lease)])
    await log.open_writer(APP, "w")
    await log.commit(APP, "w", [TaskCommit("0_0", 1, {}, {IN: 1})])
    assert await log.positions(APP, [IN]) == {IN: 1}


async def said_of(log: KafkaLog) -> str:
    """Why the group is refused; "" where it is not."""
    try:
        await log.check_alone(APP)
    except StateError as error:
        return str(error).partition(",")[0]
    return ""
