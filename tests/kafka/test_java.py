"""Kafka's own clients beside ours: records of Java's producer are read right, and what we write is read by Kafka Streams."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from pipeline.values.partitioner import partition_of
from state.log.kafka import broker
from state.log.kafka.building import build
from state.log.protocol import Log, Partition, TaskCommit, TopicSpec
from tests import brokers
from tests.contracts.logs import keyed, read_all, until
from tests.kafka.place import APP, CHANGES, IN, OUT, Place, owner

pytestmark = pytest.mark.kafka
PARTITIONS, DEADLINE_S = 4, 90.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs tests/kafka/java/Beside.java."""
    brokers.shared()  # skips the test where none can be had
    compiler = broker.java("javac")
    if compiler is None:
        pytest.skip("there is no javac here")
    folder = tmp_path_factory.mktemp("classes")
    classpath = os.pathsep.join([f"{broker.jars('kafka-streams')}/*", str(folder)])
    source = Path(__file__).parent / "java" / "Beside.java"
    subprocess.run([compiler, "-cp", classpath, "-d", str(folder), str(source)], check=True, capture_output=True)
    return [broker.java() or "java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", classpath, "Beside"]


async def ran(command: list[str]) -> list[str]:
    done = await asyncio.to_thread(
        subprocess.run, command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=DEADLINE_S
    )
    return done.stdout.decode().splitlines()


async def behind_all(log: Log, partition: Partition) -> int:
    """Where a reader goes on that has read all there is, as a worker commits it."""
    end = (await log.ends([partition], settled=True))[partition]
    reader = log.reader()
    reader.add(partition, 0)
    position = 0

    async def all_read() -> bool:
        nonlocal position
        for one in await reader.poll(wait_ms=100):
            position = one.next_position
        return position >= end

    await until("its records, and the marker behind them", all_read)
    await reader.close()
    return position


async def test_records_of_javas_producer(place: Place, program: list[str]) -> None:
    """Of every codec: none of the aborted ones, tombstones, headers, and each key in the partition where ours would be."""
    log = await place.open()
    await log.create_topic(TopicSpec("theirs", PARTITIONS))
    lines = await ran([*program, "write", f"127.0.0.1:{place.port}", f"{place.prefix}theirs"])
    sent = {key: int(partition) for key, partition in map(str.split, lines)}
    assert len(sent) == 5 * 2 * 20
    assert sent == {key: partition_of(key.encode(), PARTITIONS) for key in sent}
    found = {}
    for number in range(PARTITIONS):
        for one in await read_all(log, Partition("theirs", number)):
            assert one.key is not None
            key = one.key.decode()
            codec, turn, count = key.split("-")
            assert sent[key] == number and turn != "1" and one.headers == (("codec", codec.encode()),)
            assert one.value == (None if int(count) % 5 == 0 else b"v" * 50 + count.encode())
            assert key not in found
            found[key] = number
    assert found == sent


async def test_kafka_streams_reads_what_is_committed_and_tools_see_no_lag(
    place: Place, program: list[str], tmp_path: Path
) -> None:
    """An output as a stream, a changelog as a table; nothing of a commit that was fenced. The position of a worker that has
    read all of an input is behind the marker of its last transaction."""
    log = await place.topics()
    await log.create_topic(TopicSpec("beside", 1))
    lease = await log.acquire(APP, "c", "a:1", None)
    assert lease is not None
    await log.record_owners(lease, [owner(1, lease)])
    await log.open_writer(APP, "w")
    await log.append({IN: keyed(ann="1", bob="2", cid="3"), Partition("beside", 0): keyed(ann="1")})  # a transaction
    read_to = await behind_all(log, IN)
    assert read_to > 3, "there is a marker behind the records"
    stopped = (await place.open())._cluster.producer("stopped", 30)
    for number, (name, value) in enumerate((("ann", "1"), ("bob", "2"), ("ann", None)), 1):
        if number == 2:
            await stopped.initialise()
            built = await build(log._cluster.topics, {one: keyed(lost="0") for one in (OUT, CHANGES)})
            await stopped._open(built, None)
            await stopped._write(built, transactional=True)
            await stopped.initialise()  # aborts it, as a fence does
        changed = keyed(**{name: value})
        position = number if number < 3 else read_to
        await log.commit(
            APP, "w", [TaskCommit("0_0", 1, {OUT: keyed(**{name: str(number)}), CHANGES: changed}, {IN: position})]
        )
    address = f"127.0.0.1:{place.port}"
    committed, end = map(
        int, (await ran([*program, "lag", address, place.prefix + APP, f"{place.prefix}in"]))[0].split()
    )
    assert committed == end, "a tool sees a lag where all is processed"
    topics = [f"{place.prefix}out", f"{place.prefix}t-changelog"]
    words = [*program, "streams", address, f"{place.prefix}theirs", str(tmp_path), *topics]
    running = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    seen: list[str] = []
    try:
        assert running.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            while {"stream ann 3", "table ann null"} - set(seen):
                line = await running.stdout.readline()
                assert line, f"it ended: {seen}"
                seen.append(line.decode().strip())
    finally:
        running.kill()
        await running.wait()
    assert [one for one in seen if one.startswith("stream")] == ["stream ann 1", "stream bob 2", "stream ann 3"]
    assert [one for one in seen if one.startswith("table")] == ["table ann 1", "table bob 2", "table ann null"]
