"""What the coordinator's instance removes from the log: never what somebody has yet to read, and only where it is worth it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator import App, Record, Table
from pipeline.errors import DefinitionError
from state.log.group_store import OwnerRecord
from state.log.memory import MemoryLog
from state.log.protocol import Compacted, NewRecord, Partition, Retention, TaskCommit, TopicSpec
from workers.instance.upkeep import AT_MOST_EVERY_MS, LogUpkeep
from workers.prepare import prepare

INPUT, CHANGELOG = Partition("in", 0), Partition("counting-counts-changelog", 0)


def counting(name: str) -> App:
    app = App(name, partitions=1)
    source, counts = app.topic("in", key=str, value=int), app.table("counts", key=str, value=int, default=int)

    @app.processor(source, counts)
    def count(record: Record[str, int], counts: Table[str, int]) -> None:
        counts[record.key] += 1

    return app


async def read_up_to(log: MemoryLog, application: str, position: int) -> None:
    """As its worker commits it."""
    lease = await log.acquire(application, "i1", "", await log.lease(application))
    assert lease is not None
    await log.open_writer(application, f"{application}-w")
    epoch = len(await log.owners(application)) + 1
    await log.record_owners(lease, [OwnerRecord("0_0", epoch, "m", f"{application}-w", lease.term)])
    await log.commit(application, f"{application}-w", [TaskCommit("0_0", epoch, {}, {INPUT: position})])


async def a_log(*applications: str) -> MemoryLog:
    log = MemoryLog(clock_ms=lambda: 10_000, markers=False)
    for name in applications:
        await prepare(log, counting(name))
    for _ in range(10):
        await log.append({INPUT: [NewRecord(b"k", bytes(8), 0)]})
    return log


async def test_what_an_application_has_yet_to_read_stays() -> None:
    log = await a_log("counting", "other")
    upkeep = LogUpkeep(log, "counting")
    await log.set_retention("in", Retention(bytes=0))
    assert await upkeep.round() == 0  # nobody has committed anything
    await read_up_to(log, "counting", 8)
    assert await upkeep.round() == 0
    await read_up_to(log, "other", 3)
    assert await upkeep.round() == 3
    assert await log.starts([INPUT]) == {INPUT: 3}
    await log.set_retention("in", Retention(bytes=0, forced=True))
    assert await upkeep.round() == 6  # the newest batch stays
    assert await log.starts([INPUT]) == {INPUT: 9}


async def test_the_topic_of_a_global_table_is_read_whole_at_each_start_so_it_stays() -> None:
    log, app = MemoryLog(clock_ms=lambda: 10_000, markers=False), App("looking", partitions=1)
    table = app.global_table(app.topic("in", key=str, value=bytes), alias="table")
    app.processor(app.topic("orders", key=str, value=int), table)(lambda order, table: None)  # type: ignore[arg-type]
    await prepare(log, app)
    for _ in range(10):
        await log.append({INPUT: [NewRecord(b"k", bytes(8), 0)]})
    upkeep = LogUpkeep(log, "looking")
    await log.set_retention("in", Retention(bytes=0))
    assert await upkeep.round() == 0
    await log.set_retention("in", Retention(bytes=0, forced=True))
    assert await upkeep.round() == 9


async def test_without_a_retention_everything_stays() -> None:
    log = await a_log("counting")
    await read_up_to(log, "counting", 10)
    assert await LogUpkeep(log, "counting").round() == 0
    assert await log.starts([INPUT]) == {INPUT: 0}


async def test_a_changelog_is_compacted_once_half_of_it_is_new() -> None:
    log, now_ms = await a_log("counting"), AT_MOST_EVERY_MS
    upkeep = LogUpkeep(log, "counting", lambda: now_ms)

    async def write(keys: range) -> None:
        await log.append({CHANGELOG: [NewRecord(b"%d" % key, b"v", 0) for key in keys]})

    await write(range(10))
    await write(range(10))
    assert await upkeep.round() == 10
    await write(range(5))
    assert await upkeep.round() == 0
    await write(range(5, 11))
    assert await upkeep.round() == 10
    await write(range(1))
    now_ms += AT_MOST_EVERY_MS - 1
    assert await upkeep.round() == 0
    now_ms += 1
    assert await upkeep.round() == 1  # once a day, whatever it is
    now_ms += 2 * AT_MOST_EVERY_MS
    assert await upkeep.round() == 0  # where nothing is new, never


async def test_a_changelog_is_compacted_as_before_by_the_next_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the offsets that there had ever been for records that stayed, and let as many pile up again; then each new one read all
    changelogs whole, a minute after it came, whatever was new."""
    log, asked = await a_log("counting"), []
    compact = log.compact

    async def watched(topic: str) -> Compacted:
        asked.append(topic)
        return await compact(topic)

    async def write(count: int) -> None:
        await log.append({CHANGELOG: [NewRecord(b"%d" % (number % 10), b"v", 0) for number in range(count)]})

    monkeypatch.setattr(log, "compact", watched)
    await write(1_000)
    assert await LogUpkeep(log, "counting", lambda: 1).round() == 990
    await write(5)
    following = LogUpkeep(log, "counting", lambda: AT_MOST_EVERY_MS)
    assert await following.round() == 0 and len(asked) == 1
    await write(6)
    assert await following.round() == 11
    await write(1)
    assert await LogUpkeep(log, "counting", lambda: 2 * AT_MOST_EVERY_MS - 1).round() == 0
    assert await LogUpkeep(log, "counting", lambda: 2 * AT_MOST_EVERY_MS).round() == 1  # a day after the other's


async def test_what_was_noted_of_a_changelog_is_not_that_of_one_made_anew() -> None:
    log = await a_log("counting")
    await log.append({CHANGELOG: [NewRecord(b"k", b"v", 0) for _ in range(100)]})
    assert await LogUpkeep(log, "counting", lambda: 1).round() == 99
    await log.delete_topic(CHANGELOG.topic)
    await log.create_topic(TopicSpec(CHANGELOG.topic, 1, "changelog"))
    await log.append({CHANGELOG: [NewRecord(b"k", b"v", 0) for _ in range(10)]})
    assert await LogUpkeep(log, "counting", lambda: 1).round() == 9


async def test_a_log_that_compacts_by_itself_is_not_asked_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    log, asked = await a_log("counting"), 0

    async def compact(topic: str) -> Compacted:
        nonlocal asked
        asked += 1
        return Compacted(0, 0)

    monkeypatch.setattr(log, "compact", compact)
    upkeep = LogUpkeep(log, "counting")
    for _ in range(40):
        await log.append({CHANGELOG: [NewRecord(b"k", b"v", 0)]})
        await upkeep.round()
    assert 1 <= asked < 10


async def test_a_topic_has_the_retention_that_its_app_declares_where_the_app_makes_it() -> None:
    app = App("keeping", partitions=1)
    app.topic("in", key=str, value=int, retention=timedelta(days=7), retention_bytes=1 << 30)
    app.topic("free", key=str, value=int)

    @app.processor([app.topics["in"], app.topics["free"]])
    def look(record: Record[str, int]) -> None: ...

    log = MemoryLog()
    await log.create_topic(TopicSpec("free", 1, retention=Retention(ms=5)))
    await prepare(log, app)
    topics = await log.topics(["in", "free"])
    assert topics["in"].retention == Retention(7 * 24 * 3_600_000, 1 << 30)
    assert topics["free"].retention == Retention(ms=5)  # that of a topic that is there stays


@pytest.mark.parametrize("wrong", [{"retention": timedelta(0)}, {"retention": 5}, {"retention_bytes": 0}])
def test_a_retention_of_nothing_is_refused_when_it_is_declared(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="topic 'in': retention"):
        App("x").topic("in", key=str, value=int, **wrong)
