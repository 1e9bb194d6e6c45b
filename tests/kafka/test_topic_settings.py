"""Topics of an application's own are what they have to be, whatever settings are given for topics that are created."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from state.errors import LogUnusable
from state.log.kafka import topics
from state.log.kafka.cluster import KafkaOptions
from state.log.kafka.log import open_kafka
from state.log.protocol import FOR_EVER, NewRecord, Partition, TopicSpec
from tests.cli.console import Console
from tests.contracts.logs import read_all, until
from tests.kafka.place import Place

pytestmark = pytest.mark.kafka


async def test_topics_of_our_own_keep_what_makes_them_so(place: Place) -> None:
    """A limit by time or size that is meant for inputs and outputs removes nothing that is yet to be read, nor is event time lost."""
    given = {
        "retention.ms": "60000",
        "retention.bytes": "1048576",
        "segment.bytes": "1048576",
        "message.timestamp.type": "LogAppendTime",
    }
    log = await open_kafka(KafkaOptions([("127.0.0.1", place.port)], place.prefix, topic_settings=given))
    try:
        for kind in ("repartition", "changelog"):
            await log.create_topic(TopicSpec(kind, 1, kind))
            made = (await log.topics([kind]))[kind]
            assert (made.kind, made.retention) == (kind, FOR_EVER)
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


SHOP = """
from orchestrator import App

app = App("shop", partitions=2)
sales = app.topic("sales", key=str, value=str)
counts = app.table("counts", key=str, value=int, default=int)


@app.processor(sales.rekey("by", key=str, by=lambda sale: sale.value), counts)
def count(sale, counts):
    counts[sale.key] += 1
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("topic", "settings", "text"),
    [
        (
            "shop-counts-changelog",
            {"cleanup.policy": "compact,delete", "retention.ms": "60000"},
            "from with time or size, too",
        ),
        ("shop-counts-changelog", {"cleanup.policy": "delete"}, "and is not compacted"),
        (
            "shop-by-repartition",
            {"cleanup.policy": "compact"},
            "is compacted: of records with one key all but the last",
        ),
        (
            "shop-by-repartition",
            {"cleanup.policy": "delete", "retention.ms": "60000"},
            "is deleted from with time or size",
        ),
        (
            "shop-by-repartition",
            {"retention.ms": "-1", "retention.bytes": "1000000"},
            "is deleted from with time or size",
        ),
        ("shop-by-repartition", {}, "is deleted from with time or size"),
        ("shop-by-repartition", {"retention.ms": "-1"}, ""),
        ("shop-counts-changelog", {"cleanup.policy": "compact,delete", "retention.ms": "-1"}, ""),
    ],
)
async def test_a_topic_of_its_own_that_was_made_before_and_would_lose_records(
    place: Place, tmp_path: Path, topic: str, settings: dict[str, str], text: str
) -> None:
    """An operator may create them, with the cluster's settings or those of other topics: what is needed was deleted with time."""
    log = await place.open()
    await log.create_topic(TopicSpec("sales", 2))
    await log._cluster.topics.create(TopicSpec(topic, 2), settings)
    console = Console(tmp_path)
    console.write("shop.py", SHOP)
    url = f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}"
    if text:
        done = await asyncio.to_thread(console, "run", "shop:app", "--log", url)
        assert done.code == 3 and topic in done.err and text in done.err and done.err.count("\n") == 1, done
        return
    fleet = console.start("run", "shop:app", "--log", url, name="run")
    done = await asyncio.to_thread(console, "wait", "shop", "--log", url, "--timeout", "60s")
    assert done.code == 0, (done, console.said("run"))
    fleet.terminate()
    assert await asyncio.to_thread(fleet.wait, 30) == 0


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
async def test_nothing_is_coordinated_by_facts_that_would_be_deleted(place: Place, tmp_path: Path, policy: str) -> None:
    """A group ran on them: behind their retention its terms and epochs would begin anew beside instances that have them."""
    log = await place.open()
    await log.create_topic(TopicSpec("sales", 2))
    settings = {"cleanup.policy": policy, "retention.ms": "3600000"}
    await log._cluster.topics.create(TopicSpec("shop-orchestrator", 2), settings)
    console = Console(tmp_path)
    console.write("shop.py", SHOP)
    url = f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}"
    fleet = console.start("run", "shop:app", "--log", url, name="run")
    text = "shop-orchestrator holds which instance owns which task"
    await asyncio.to_thread(console.until, "the reason", lambda: text in console.said("run"))
    done = await asyncio.to_thread(console, "wait", "shop", "--log", url, "--timeout", "2s")
    assert done.code == 4, done
    await alter(place, "shop-orchestrator", "compact")
    done = await asyncio.to_thread(console, "wait", "shop", "--log", url, "--timeout", "90s")
    assert done.code == 0, (done, console.said("run"))
    fleet.terminate()
    assert await asyncio.to_thread(fleet.wait, 30) == 0


async def alter(place: Place, topic: str, policy: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{place.port}")
    await admin.start()
    try:
        settings = {"cleanup.policy": policy}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, place.prefix + topic, settings)])
    finally:
        await admin.close()


async def test_settings_that_another_program_changes_are_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker looks at its topics each second, and went by their settings as they were when it began."""
    log = await place.open()
    await log.create_topic(TopicSpec("t-changelog", 1, "changelog"))
    assert (await log.topics(["t-changelog"]))["t-changelog"].kind == "changelog"
    monkeypatch.setattr(topics, "SETTINGS_S", 0.0)
    await alter(place, "t-changelog", "delete")

    async def is_seen() -> bool:
        return (await log.topics(["t-changelog"]))["t-changelog"].kind == "plain"

    await until("the other policy", is_seen)
