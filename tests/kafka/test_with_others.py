"""Records of another client: its batches, codecs and transactions are read as it wrote them; its groups are refused."""

from __future__ import annotations

import asyncio
import base64
import uuid
from dataclasses import replace
from io import BytesIO
from typing import Any, ClassVar

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from state.errors import LogDamaged, Refused, StateError
from state.log.batches import build
from state.log.group_store import MetadataKind
from state.log.kafka.codes import KafkaRefused
from state.log.kafka.connections import GROUP
from state.log.kafka.facts import EVERYBODYS, UNDER_LEASE
from state.log.kafka.facts_topic import FactsTopic
from state.log.protocol import AT_LEAST_ONCE, FOR_EVER, NewRecord, Partition, TopicSpec
from tests import brokers
from tests.contracts.logs import read_all, records, until
from tests.kafka.place import APP, Place, count, owner
from tests.state.test_batches import NO_TEXT, no_text

pytestmark = pytest.mark.kafka
IN = Partition("in", 0)
_TEXT = CompactString("utf-8")


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_records_of_another_client_are_read(place: Place, codec: str | None) -> None:
    """Plain ones, tombstones and headers; and an aborted transaction with plain records in its middle."""
    log = await place.open()
    await log.create_topic(TopicSpec("in", 1))
    address, topic = f"127.0.0.1:{place.port}", place.prefix + "in"
    plain = AIOKafkaProducer(bootstrap_servers=address, compression_type=codec, linger_ms=5)
    theirs = AIOKafkaProducer(
        bootstrap_servers=address, compression_type=codec, transactional_id=place.prefix + "theirs"
    )
    async with plain, theirs:
        await plain.send_and_wait(topic, b"one", b"a", 0, headers=[("h", b"x")])
        await theirs.begin_transaction()
        await theirs.send_and_wait(topic, b"aborted " * 50, b"no", 0)
        await plain.send_and_wait(topic, None, b"between", 0)
        await theirs.abort_transaction()
        await theirs.begin_transaction()
        await theirs.send_and_wait(topic, b"two", b"b", 0)
        await theirs.commit_transaction()
    found = [(one.key, one.value, one.headers) for one in await read_all(log, IN)]
    assert found == [(b"a", b"one", (("h", b"x"),)), (b"between", None, ()), (b"b", b"two", ())]


async def test_a_group_with_members_of_another_program_is_refused(place: Place) -> None:
    log = await place.open()
    await log.create_topic(TopicSpec("in", 1))
    consumer = AIOKafkaConsumer(
        place.prefix + "in", bootstrap_servers=f"127.0.0.1:{place.port}", group_id=place.prefix + APP
    )
    async with consumer:

        async def refused() -> bool:
            try:
                await log.open_writer(APP, "w")
            except StateError as error:
                return "1 member of another program" in str(error)
            return False

        await until("the group to be refused", refused)
    await log.open_writer(APP, "w")


async def test_a_consumer_that_joins_while_positions_are_committed_outside_of_transactions(place: Place) -> None:
    """Brokers refuse those of a group with members; whoever reads the error is to know why."""
    log = await place.topics()
    await log.open_writer(APP, "w")
    lease = await log.acquire(APP, "i", "a:1", None)
    assert lease is not None
    await log.record_owners(lease, [owner(1, lease)])
    await log.commit(APP, "w", [count(1)], guarantee=AT_LEAST_ONCE)
    consumer = AIOKafkaConsumer(
        place.prefix + "in",
        bootstrap_servers=f"127.0.0.1:{place.port}",
        group_id=place.prefix + APP,
        enable_auto_commit=False,  # at its end it would commit where it is, which is not where the app is
    )
    async with consumer:
        await until("the consumer to be a member", lambda: asyncio.sleep(0, bool(consumer.assignment())))
        with pytest.raises(
            StateError, match="of another program have joined the application's consumer group: stop them"
        ):
            await log.commit(APP, "w", [count(2)], guarantee=AT_LEAST_ONCE)
    assert await log.positions(APP, [IN]) == {IN: 1}
    await log.commit(APP, "w", [count(2)], guarantee=AT_LEAST_ONCE)
    assert await log.positions(APP, [IN]) == {IN: 2}


class _Joined:
    """The answer to a heartbeat."""

    def __init__(self, code: int) -> None:
        self.code = code

    @classmethod
    def decode(cls, stream: BytesIO) -> _Joined:
        Int32.decode(stream)  # throttle time
        return cls(Int16.decode(stream))


class ShareGroupHeartbeatRequest_v1(RequestStruct):  # type: ignore[misc]
    API_KEY, API_VERSION, FLEXIBLE_VERSION, RESPONSE_TYPE = 76, 1, True, _Joined
    SCHEMA: ClassVar[Any] = Schema(
        ("group", _TEXT),
        ("member", _TEXT),
        ("epoch", Int32),
        ("rack", _TEXT),
        ("topics", CompactArray(_TEXT)),
        ("tags", TaggedFields),
    )


@pytest.mark.skipif(brokers.numbers() < (4, 2), reason="brokers have share groups from 4.2 on, by default")
async def test_a_share_group_of_that_name_is_refused(place: Place) -> None:
    """It takes no positions: the first commit ended with GROUP_ID_NOT_FOUND, again and again."""
    log = await place.topics()
    await log.open_writer(APP, "w")
    connections, group = log._cluster.connections, place.prefix + APP
    member = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")

    async def joined() -> bool:
        request = ShareGroupHeartbeatRequest_v1(group, member, 0, None, [place.prefix + "in"], {})
        answer = await connections.retried("joining", lambda: connections.coordinated(GROUP, group, request, "quick"))
        return answer.code == 0

    await until("the share group", joined)
    for refused in (log.check_alone(APP), log.open_writer(APP, "w2")):
        with pytest.raises(StateError, match=f"group {group} is a share group.*give the application another id"):
            await refused


async def test_topics_of_others_that_are_called_as_facts_are(place: Place) -> None:
    """On a cluster with others, commands that ask what all applications have said leave them out."""
    log, kind = await place.open(), MetadataKind("of-all")
    await log.put_metadata(APP, kind, "k", b"ours")
    for spec in (TopicSpec("one-orchestrator", 1), TopicSpec("two-orchestrator", 2), TopicSpec("key-orchestrator", 2)):
        await log.create_topic(spec)
        await log.append({Partition(spec.name, 0): [NewRecord(b"owner/0_0", b"no fact", 1)]})
    await log.create_topic(TopicSpec("three-orchestrator", 3, "changelog"))
    await log.append({Partition("three-orchestrator", 0): records("theirs")})
    assert await log.metadata_of_all(kind, "k") == {APP: b"ours"}


async def test_a_look_at_all_applications_leaves_facts_alone_that_another_call_follows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closed them behind itself: the other call waited for what was not read any more, or went on with what was old."""
    log, other, kind = await place.open(), await place.open(), MetadataKind("of-all")
    await other.put_metadata(APP, kind, "k", b"1")
    looks, goes_on = asyncio.Event(), asyncio.Event()
    look = FactsTopic.look

    async def held(topic: FactsTopic, number: int, patience_s: float) -> None:
        looks.set()
        await goes_on.wait()
        await look(topic, number, patience_s)

    monkeypatch.setattr(FactsTopic, "look", held)
    looking = asyncio.create_task(log.metadata_of_all(kind, "k"))
    await looks.wait()
    followed = await log._facts_of(APP)
    goes_on.set()
    assert await looking == {APP: b"1"} and followed is not None
    await other.put_metadata(APP, kind, "k", b"2")
    await followed.read_settled(EVERYBODYS, 5.0)
    assert followed.view.metadata(kind, "k") == b"2"


async def test_a_record_among_the_facts_that_is_none(place: Place) -> None:
    """It costs its task a hand-over, where no process could read or commit anything any more, and each said so twice a second; and
    a coordinator that fenced a worker ended with a ValueError, again and again."""
    log = await place.topics()
    await log.open_writer(APP, "w")
    lease = await log.acquire(APP, "i", "a:1", None)
    assert lease is not None
    await log.record_owners(lease, [owner(1, lease)])
    topic = Partition(f"{APP}-orchestrator", UNDER_LEASE)
    theirs = [NewRecord(key, b"1 no fact", 1) for key in (b"owner/0_0", b"fenced/x", b"owner/0_1")]
    facts_of = await log._facts_of(APP)
    assert facts_of is not None
    await log._cluster.topics.refresh([topic.topic])
    await log.append({topic: theirs})
    await facts_of.read_settled(UNDER_LEASE)
    with pytest.raises(Refused) as refused:
        await log.commit(APP, "w", [count(1)])
    assert refused.value.scopes == {"0_0"}
    with pytest.raises(
        LogDamaged, match=r"a record of key owner/0_0 that cannot be read.*without a value to partition 0"
    ):
        await log.owners(APP)
    await log.record_owners(lease, [owner(2, lease)])
    await log.commit(APP, "w", [replace(count(1), epoch=2)])
    with pytest.raises(LogDamaged, match="owner/0_1"):
        await log.owners(APP)
    await log.append({topic: [NewRecord(b"owner/0_1", None, 1)]})
    await facts_of.read_settled(UNDER_LEASE)
    assert await log.fence(lease, ["w"]) == {"w": frozenset({"0_0"})}
    assert [one.epoch for one in (await log.owners(APP)).values()] == [3]


async def test_names_that_brokers_take_for_one(place: Place) -> None:
    """An application bank_eu beside bank.eu: the error said how long a name may be."""
    log = await place.open()
    await log.create_topic(TopicSpec("bank.eu-orchestrator", 1))
    with pytest.raises(
        StateError, match=r"collides with existing topic.*choose another name, or id of the application"
    ):
        await log.create_topic(TopicSpec("bank_eu-orchestrator", 1))


async def test_names_of_headers_that_are_no_text(place: Place) -> None:
    """A broker takes them, also from clients of Go and C; they are read, and written on, as Java's client reads them."""
    log = await place.open()
    await log.create_topic(TopicSpec("in", 1))
    await log.set_retention("in", FOR_EVER)
    [batch] = build([NewRecord(b"k", b"v", 1_000, ((NO_TEXT, b"h"),))])
    theirs = log._cluster.producer(None, 30.0)
    await theirs.initialise()
    await theirs.produce({IN: [batch._replace(data=no_text(batch.data))]})
    [found] = await read_all(log, IN)
    assert (found.key, found.value, found.headers) == (b"k", b"v", (("\ufffd\ufffd name", b"h"),))
    await log.append({IN: [NewRecord(found.key, found.value, 1_000, found.headers)]})
    assert [one.headers for one in await read_all(log, IN)] == [found.headers] * 2


def test_brokers_without_a_setting_are_named_as_old() -> None:
    """Kafka before 3.6 answers so to the settings of our own topics; the line sent people to the broker's log."""
    error = KafkaRefused("creating topic t", 40, "Unknown topic config name: message.timestamp.before.max.ms")
    assert "older than Kafka 3.9" in str(error) and "log may say more" not in str(error)
