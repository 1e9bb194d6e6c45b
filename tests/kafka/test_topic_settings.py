"""Topics of an application's own are what they have to be, whatever settings are given for topics that are created."""

from __future__ import annotations

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from state.errors import LogUnusable
from state.log.kafka import topics
from state.log.kafka.cluster import KafkaOptions
from state.log.kafka.log import open_kafka
from state.log.protocol import NewRecord, Partition, TopicSpec
from tests.contracts.logs import read_all, until
from tests.kafka.place import Place

pytestmark = pytest.mark.kafka


async def test_topics_of_our_own_keep_what_makes_them_so(place: Place) -> None:
    """A limit by time or size that is meant for inputs and outputs removes nothing that is yet to be read, nor is event time lost."""
    given = {"retention.ms": "60000", "segment.bytes": "1048576", "message.timestamp.type": "LogAppendTime"}
    log = await open_kafka(KafkaOptions([("127.0.0.1", place.port)], place.prefix, topic_settings=given))
    try:
        for kind in ("repartition", "changelog"):
            await log.create_topic(TopicSpec(kind, 1, kind))
            assert (await log.topics([kind]))[kind].kind == kind
            one = Partition(kind, 0)
            await log.append({one: [NewRecord(b"k", b"v", 1_000)]})
            assert [found.timestamp_ms for found in await read_all(log, one)] == [1_000]
        await log.create_topic(TopicSpec("plain", 1))
        assert (await log.topics(["plain"]))["plain"].retention.ms == 60_000
    finally:
        await log.close()


@pytest.mark.parametrize("name", ["an app", "a" * 250])
async def test_a_name_that_no_topic_has(place: Place, name: str) -> None:
    log = await place.open()
    with pytest.raises(LogUnusable, match="at most 249 letters"):
        await log.create_topic(TopicSpec(name, 1))


async def test_settings_that_another_program_changes_are_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker looks at its topics each second, and went by their settings as they were when it began."""
    log = await place.open()
    await log.create_topic(TopicSpec("t-changelog", 1, "changelog"))
    assert (await log.topics(["t-changelog"]))["t-changelog"].kind == "changelog"
    monkeypatch.setattr(topics, "SETTINGS_S", 0.0)
    admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{place.port}")
    await admin.start()
    try:
        name = place.prefix + "t-changelog"
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"cleanup.policy": "delete"})])
    finally:
        await admin.close()

    async def is_seen() -> bool:
        return (await log.topics(["t-changelog"]))["t-changelog"].kind == "plain"

    await until("the other policy", is_seen)
