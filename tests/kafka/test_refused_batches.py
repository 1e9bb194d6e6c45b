"""A transaction of which a broker refuses a batch, or has no leader for one: nothing of it counts, and what is written next is not
taken for what was sent before."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from state.errors import LogUnavailable, RecordTooLarge, StateError
from state.log.group_store import AppMetadata
from state.log.kafka.broker import Broker
from state.log.kafka.cluster import KafkaOptions
from state.log.kafka.connections import TRANSACTION
from state.log.kafka.log import KafkaLog, open_kafka
from state.log.kafka.requests import DescribeTransactionsRequest_v0
from state.log.protocol import FOR_EVER, NewRecord, Partition, TaskCommit, TopicSpec
from tests.contracts.logs import read_all, records, until
from tests.kafka.place import IN, OUT, Place, owner
from workers.log.produced import PROGRESS

pytestmark = pytest.mark.kafka
SMALL, BESIDE, AWAY = Partition("small", 0), Partition("beside", 0), Partition("away", 0)
LARGE = [NewRecord(b"large", b"v" * 2_000, 1)]


async def set_(place: Place, topic: str, **settings: str) -> None:
    """As an operator does with Kafka's own tools, while clients go by what they have read."""
    admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{place.port}")
    await admin.start()
    try:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, place.prefix + topic, named)])
    finally:
        await admin.close()


async def owned(log: KafkaLog) -> None:
    lease = await log.acquire("bank", "c", "a:1", None)
    assert lease is not None
    await log.record_owners(lease, [owner(1, lease)])
    await log.open_writer("bank", "w")


async def with_small(place: Place) -> KafkaLog:
    log = await place.topics()
    await log.create_topic(TopicSpec("small", 1))
    await log.set_retention("small", FOR_EVER)
    return log


async def texts(log: KafkaLog, partition: Partition) -> list[bytes | None]:
    return [one.value for one in await read_all(log, partition)]


async def test_a_commit_after_one_that_a_broker_refused_is_written(place: Place) -> None:
    log, tried = await with_small(place), 0
    await owned(log)

    async def is_refused() -> bool:
        nonlocal tried
        tried += 1
        task = TaskCommit("0_0", 1, {OUT: records(f"try {tried}"), SMALL: LARGE}, {})
        try:
            await log.commit("bank", "w", [task])
        except RecordTooLarge as error:
            assert (error.scope, error.index) == ("0_0", 0), "by the settings as they are now it is known which"
            return True
        return False

    assert not await is_refused()
    await set_(place, "small", max_message_bytes="1000", retention_ms="-1")
    await until("the refusal", is_refused)
    for number in range(3):
        await log.commit("bank", "w", [TaskCommit("0_0", 1, {OUT: records(f"behind {number}")}, {})])
    taken = [f"try {number}".encode() for number in range(1, tried)]
    assert await texts(log, OUT) == [*taken, b"behind 0", b"behind 1", b"behind 2"]


async def test_a_batch_of_several_records_is_cut_by_the_settings_as_they_are(place: Place) -> None:
    log = await with_small(place)
    await owned(log)
    many = [NewRecord(b"%d" % number, b"v" * 400, 1) for number in range(20)]
    await log.commit("bank", "w", [TaskCommit("0_0", 1, {SMALL: many}, {})])
    await set_(place, "small", max_message_bytes="1000", retention_ms="-1")

    async def count() -> bool:
        """Until the broker goes by it, all is one batch, as before."""
        await log.commit("bank", "w", [TaskCommit("0_0", 1, {SMALL: many, OUT: records("beside")}, {})])
        topics = log._cluster.topics
        return (await topics.purposes(["small"]))["small"].max_message_bytes == 1_000

    rounds = 1

    async def is_cut() -> bool:
        nonlocal rounds
        rounds += 1
        return await count()

    await until("smaller batches", is_cut)
    assert len(await texts(log, SMALL)) == 20 * rounds
    assert len(await texts(log, OUT)) == rounds - 1


async def test_an_append_after_one_that_a_broker_refused_is_written(place: Place) -> None:
    log, tried = await with_small(place), 0

    async def is_refused() -> bool:
        nonlocal tried
        tried += 1
        try:
            await log.append({OUT: records(f"try {tried}"), SMALL: LARGE})
        except StateError:
            return True
        return False

    assert not await is_refused()
    await set_(place, "small", max_message_bytes="1000", retention_ms="-1")
    await until("the refusal", is_refused)
    for number in range(3):
        await log.append({OUT: records(f"behind {number}"), SMALL: records("fits")})
    taken = [f"try {number}".encode() for number in range(1, tried)]
    assert await texts(log, OUT) == [*taken, b"behind 0", b"behind 1", b"behind 2"]


@pytest.mark.parametrize("how", ["a commit", "an append", "appends of two", "progress"])
async def test_what_fits_by_a_limit_that_was_changed_is_written(place: Place, how: str) -> None:
    """Whichever way it was changed since this process has asked for it: raised for a record that was refused, and lowered below
    the batches that were written."""
    log, progress = await with_small(place), 0
    await owned(log)

    async def write(written: list[NewRecord]) -> None:
        nonlocal progress
        if how == "a commit":
            await log.commit("bank", "w", [TaskCommit("0_0", 1, {SMALL: written}, {})])
        elif how == "progress":
            seen, after = (str(one).encode() if one else None for one in (progress, progress + 1))
            assert after is not None
            await log.append({SMALL: written}, metadata=AppMetadata("bank", PROGRESS, "file", after), seen=seen)
            progress += 1
        else:
            await log.append({SMALL: written} if how == "an append" else {SMALL: written, OUT: records("beside")})

    async def takes(limit: int) -> None:
        """A process that has not asked before says how the broker goes."""
        await set_(place, "small", max_message_bytes=str(limit), retention_ms="-1")
        other = await place.open()

        async def is_shown() -> bool:
            topics = other._cluster.topics
            found = (await topics.purposes(["small"]))["small"].max_message_bytes
            topics.forget_purpose("small")
            return found == limit

        await until("the limit", is_shown)

    await takes(1_000)
    with pytest.raises(RecordTooLarge):
        await write(LARGE)
    await takes(10_000)
    await write(LARGE)
    many = [NewRecord(b"%d" % number, b"v" * 400, 1) for number in range(20)]
    await write(many)
    await takes(1_000)
    await write(many)
    found = await read_all(log, SMALL)
    assert [one.key for one in found] == [b"large", *(2 * [one.key for one in many])]


async def test_a_commit_that_does_not_fit_leaves_no_transaction(place: Place) -> None:
    """It is built while its transaction is opened; an open one would keep what others write in
    those partitions from being read."""
    log = await with_small(place)
    await owned(log)

    async def state() -> str:
        inside = f"{place.prefix}bank.worker.w"
        request = DescribeTransactionsRequest_v0([inside], {})
        answer = await log._cluster.connections.coordinated(TRANSACTION, inside, request, "txn")
        return str(answer.states[0][2])

    await log.commit("bank", "w", [TaskCommit("0_0", 1, {OUT: records("1")}, {IN: 1})])
    large = [NewRecord(b"large", b"v" * 2_000_000, 1)]
    for number in range(3):
        with pytest.raises(RecordTooLarge, match="0_0"):
            await log.commit("bank", "w", [TaskCommit("0_0", 1, {SMALL: large, OUT: records("no")}, {IN: 9})])
        assert (await state()).endswith("Abort")
        await log.commit("bank", "w", [TaskCommit("0_0", 1, {OUT: records(f"then {number}")}, {IN: 2 + number})])
    assert await texts(log, OUT) == [b"1", b"then 0", b"then 1", b"then 2"]
    assert await texts(log, SMALL) == []
    assert await log.positions("bank", [IN]) == {IN: 4}


async def test_a_commit_is_whole_after_one_for_which_a_partition_had_no_leader(three: list[Broker]) -> None:
    """For longer than a transaction may last. What a partition beside it had taken meanwhile was aborted."""
    await asyncio.gather(*(asyncio.to_thread(one.launch) for one in three))
    admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{three[0].port}")
    await admin.start()
    alone = {"min.insync.replicas": "1", "retention.ms": "-1"}
    placed = {BESIDE: 1, AWAY: 2}  # each on one broker
    made = [NewTopic(one.topic, -1, -1, {0: [node]}, topic_configs=alone) for one, node in placed.items()]
    await admin.create_topics(made)
    await admin.close()
    log = await open_kafka(KafkaOptions([("127.0.0.1", one.port) for one in three], transaction_timeout_s=3))

    def task(text: str) -> TaskCommit:
        return TaskCommit("0_0", 1, {BESIDE: records(text), AWAY: records(text)}, {})

    try:
        await until("both topics", lambda: _both(log))
        await owned(log)
        await log.commit("bank", "w", [task("before")])
        await asyncio.to_thread(three[1].stop, kill=True)
        tries, back = 0, None

        async def is_through() -> bool:
            nonlocal tries, back
            try:
                await log.commit("bank", "w", [task("again")])
            except LogUnavailable:
                tries += 1
                back = back or asyncio.create_task(asyncio.to_thread(three[1].launch))
                return False
            return True

        await until("the commit", is_through, 90)
        assert tries
        assert (await texts(log, BESIDE)).count(b"again") == (await texts(log, AWAY)).count(b"again") == 1
    finally:
        await log.close()


async def _both(log: KafkaLog) -> bool:
    return len(await log.topics(["beside", "away"])) == 2
