"""Settings of sizes: how large batches and answers are, on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from state.log.batches import headers
from state.log.kafka.cluster import KafkaOptions
from state.log.kafka.fetch import FetchAnswer
from state.log.kafka.log import KafkaLog, open_kafka
from state.log.protocol import FOR_EVER, NewRecord, Partition, TopicSpec
from tests.contracts.logs import read_all
from tests.kafka.place import Place

pytestmark = pytest.mark.kafka
OUT = [Partition("out", number) for number in range(4)]
RECORDS = [NewRecord(b"%d" % number, b"v" * 100, 1_000 + number) for number in range(400)]
LARGE = NewRecord(b"large", b"v" * 20_000, 2_000)


async def opened(place: Place, folder: Path, **settings: int) -> KafkaLog:
    config = folder / "client.properties"
    config.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items()))
    return await open_kafka(KafkaOptions([("127.0.0.1", place.port)], place.prefix, config=str(config)))


async def written(log: KafkaLog, *more: NewRecord) -> None:
    await log.create_topic(TopicSpec("out", len(OUT)))
    await log.set_retention("out", FOR_EVER)
    for partition in OUT:
        await log.append({partition: [*RECORDS, *more]})


async def answers(log: KafkaLog) -> list[list[int]]:
    """How many bytes of each partition each answer of the broker has, until everything was given."""
    reader, left, found = log.reader(), dict(await log.ends(OUT, settled=True)), list[list[int]]()
    connections = log._cluster.connections
    send = connections.send

    async def heard(*args: Any, **named: Any) -> Any:
        answer = await send(*args, **named)
        if isinstance(answer, FetchAnswer):
            found.append([len(one.data) for one in answer.given])
        return answer

    connections.send = heard  # type: ignore[method-assign]
    for partition in OUT:
        reader.add(partition, 0)
    while any(left.values()):
        for one in await reader.poll(wait_ms=1_000):
            if one.next_position == left[one.partition]:
                left[one.partition] = 0
    await reader.close()
    return found


async def batches(log: KafkaLog) -> list[int]:
    """The sizes of the batches of a partition."""
    reader, end, found = log.reader(), (await log.ends(OUT[:1], settled=True))[OUT[0]], list[int]()
    reader.add(OUT[0], 0)
    position = 0
    while position < end:
        for one in await reader.poll(wait_ms=1_000):
            position = one.next_position
            found += [batch.stop - batch.start for batch in headers(one.data)]
    await reader.close()
    return found


async def test_the_size_of_batches(place: Place, tmp_path: Path) -> None:
    """Records that share a batch keep to it; one that is larger goes alone, as far as its topic takes it."""
    log = await opened(place, tmp_path, max_request_size=4_096)
    try:
        await written(log, LARGE)
        *several, large = await batches(log)
        assert len(several) > 8 and max(several) <= 4_096 and large > 20_000
        found = await read_all(log, OUT[0])
        assert [one.key for one in found] == [one.key for one in (*RECORDS, LARGE)]
    finally:
        await log.close()


async def test_the_size_of_answers(place: Place, tmp_path: Path) -> None:
    """Of one partition, and of all in one answer, but for the batch that goes beyond it."""
    small = {"message_max_bytes": 2_048}
    for settings in (small, {**small, "max_partition_fetch_bytes": 4_096}, {**small, "fetch_max_bytes": 6_000}):
        log = await opened(place, tmp_path, **settings)
        try:
            if settings is small:
                await written(log)
            found = [sizes for sizes in await answers(log) if sizes]
            in_all, of_one = max(map(sum, found)), max(map(max, found))
            if "max_partition_fetch_bytes" in settings:
                assert of_one <= 4_096 < in_all
            elif "fetch_max_bytes" in settings:
                assert 4_096 < of_one <= in_all <= 6_000 + 2_048, found
            else:
                assert of_one > 40_000, found
        finally:
            await log.close()
