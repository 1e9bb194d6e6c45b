"""What the memory log can surprise with, as Kafka does: markers, aborted records, open transactions."""

from __future__ import annotations

import asyncio

import pytest

from state.errors import LogBusy, Refused
from state.log import base
from state.log.batches import decode, headers
from state.log.group_store import AppMetadata
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, Retention, TaskCommit, TopicSpec

T0, T1 = Partition("t", 0), Partition("t", 1)


async def opened(**settings: bool) -> MemoryLog:
    log = MemoryLog(**settings)  # type: ignore[arg-type]
    await log.create_topic(TopicSpec("t", 2, "changelog"))
    return log


def one(value: str) -> list[NewRecord]:
    return [NewRecord(b"k", value.encode(), 0)]


async def read(log: MemoryLog, position: int = 0) -> list[tuple[int, bytes | None]]:
    reader = log.reader()
    reader.add(T0, position)
    return [(record.offset, record.value) for got in await reader.poll() for record in decode(got.data, got.position)]


async def test_each_transaction_leaves_a_marker() -> None:
    log = await opened()
    assert await log.append({T0: one("a")}) == {T0: 1}
    assert await log.append({T0: one("b"), T1: one("c")}) == {T0: 3, T1: 1}
    assert await log.ends([T0, T1]) == {T0: 4, T1: 2}
    assert await read(log) == [(0, b"a"), (2, b"b")]
    got = log.fetch(T0, 0, 1 << 20)
    assert got is not None
    assert [header.control for header in headers(got.data)] == [False, True, False, True]


async def test_a_refused_commit_takes_offsets_and_shows_nothing() -> None:
    log = await opened()
    await log.open_writer("app", "w")
    await log.append({T0: one("a")})
    with pytest.raises(Refused):
        await log.commit("app", "w", [TaskCommit("0_0", 1, {T0: one("lost")})])
    assert await log.ends([T0]) == {T0: 4}
    assert await read(log) == [(0, b"a")]
    await log.append({T0: one("b")})
    assert await read(log) == [(0, b"a"), (4, b"b")]


async def test_without_markers_offsets_are_dense() -> None:
    log = await opened(markers=False)
    await log.open_writer("app", "w")
    with pytest.raises(Refused):
        await log.commit("app", "w", [TaskCommit("0_0", 1, {T0: one("lost")})])
    assert await log.append({T0: one("a")}) == {T0: 1}
    assert await log.append({T0: one("b")}) == {T0: 2}


@pytest.mark.parametrize("committed", [True, False])
async def test_an_open_transaction_holds_the_readable_end_back(committed: bool) -> None:
    log = await opened()
    await log.append({T0: one("a")})
    pending = log.open_transaction({T0: one("p"), T1: one("q")})
    await log.append({T0: one("b")})
    assert await log.ends([T0, T1]) == {T0: 2, T1: 0}
    assert await log.written([T0, T1]) == {T0: 5, T1: 1}
    assert await read(log) == [(0, b"a")]
    assert await read(log, 2) == []
    if committed:
        pending.commit()
    else:
        pending.abort()
    assert await read(log) == [(0, b"a"), *([(2, b"p")] if committed else []), (3, b"b")]
    (end,) = (await log.ends([T0])).values()
    assert end == 6
    assert await read(log, end) == []


@pytest.mark.parametrize("committed", [True, False])
async def test_settled_ends_wait_for_an_open_transaction(committed: bool) -> None:
    log = await opened()
    await log.append({T0: one("a")})
    pending = log.open_transaction({T0: one("p")})
    asking = asyncio.create_task(log.ends([T0, T1], settled=True))
    await log.append({T0: one("b"), T1: one("c")})
    for _ in range(10):
        await asyncio.sleep(0)
    assert not asking.done()
    assert await log.ends([T0]) == {T0: 2}
    if committed:
        pending.commit()
    else:
        pending.abort()
    assert await asking == await log.ends([T0, T1]) == {T0: 6, T1: 2}


async def test_settled_ends_do_not_wait_for_what_is_written_later() -> None:
    log = await opened()
    first = log.open_transaction({T0: one("p")})
    asking = asyncio.create_task(log.ends([T0], settled=True))
    await asyncio.sleep(0)
    log.open_transaction({T0: one("q")})  # stays open
    first.commit()
    assert await asking == {T0: 1}


async def test_a_transaction_that_nobody_ends_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("state.log.memory.TRANSACTION_TIMEOUT_S", 0.01)
    log = await opened()
    log.open_transaction({T0: one("p")})
    async with asyncio.timeout(10):
        with pytest.raises(LogBusy, match="t-0 open for 0 s"):
            await log.ends([T0], settled=True)


async def test_compaction_leaves_open_transactions_alone() -> None:
    log = await opened()
    await log.append({T0: one("old")})
    pending = log.open_transaction({T0: one("p")})
    await log.append({T0: one("new")})
    assert (await log.compact("t")).removed == 0
    pending.commit()
    assert (await log.compact("t")).removed == 2
    assert await read(log) == [(3, b"new")]


async def test_tombstones_of_a_changelog_with_a_base_stay() -> None:
    now = [0]
    log = MemoryLog(clock_ms=lambda: now[0], delete_retention_ms=1000)
    topic = await log.create_topic(TopicSpec("t", 1, "changelog"))
    kept = base.encode(base.Base("snap-1", topic.topic_id))
    lease = await log.acquire("app", "c", "a:1", None)
    assert lease is not None
    marked = [AppMetadata("app", base.BASE, "t", kept)]
    assert await log.seed_positions(lease, {T0: 0}, {T0: [base.marker(0)]}, metadata=marked)
    assert (await log.compact("t")).removed == 0
    now[0] = 5000
    assert (await log.compact("t")).removed == 0
    await log.put_metadata("app", base.BASE, "t", None, lease=lease)
    assert (await log.compact("t")).removed == 1


async def test_tombstones_go_a_while_after_what_they_delete() -> None:
    """Who had read the value by the pass that removed it has all of that while to read on."""
    now = [0]
    log = MemoryLog(clock_ms=lambda: now[0], delete_retention_ms=1000)
    await log.create_topic(TopicSpec("t", 1, "changelog"))
    await log.append({T0: one("a")})
    await log.append({T0: [NewRecord(b"k", None, 0)]})
    now[0] = 9000  # long after the deletion: the first pass
    assert (await log.compact("t")).removed == 1
    await log.append({T0: [NewRecord(b"young", None, 0)]})
    now[0] = 10_000
    assert (await log.compact("t")).removed == 0
    now[0] = 10_001
    assert await log.forgotten([T0]) == {}
    assert (await log.compact("t")).removed == 1
    assert await read(log) == [(4, None)]
    assert await log.forgotten([T0]) == {T0: 4}
    now[0] = 11_001
    assert (await log.compact("t")).removed == 1


async def test_what_is_older_than_its_retention_is_expired() -> None:
    now = [0]
    log = MemoryLog(clock_ms=lambda: now[0], markers=False)
    await log.create_topic(TopicSpec("t", 1, retention=Retention(ms=1_000)))
    await log.append({T0: one("a")})
    now[0] = 500
    await log.append({T0: one("b")})
    assert await log.expired([T0]) == {T0: 0}
    now[0] = 1_001
    assert await log.expired([T0]) == {T0: 1}
    now[0] = 9_000
    assert await log.expired([T0]) == {T0: 2}
