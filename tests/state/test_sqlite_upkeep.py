"""What is removed from a SQLite log costs what it is, whatever stays."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from state.log.protocol import NewRecord, Partition, Retention, TopicSpec
from state.log.sqlite import SqliteLog, open_sqlite
from state.log.sqlite_file import connect
from state.log.sqlite_parts import FileIdentity
from state.log.sqlite_retention import Expiry
from state.log.sqlite_upkeep import Upkeep
from state.log.sqlite_writer import Writer

T0 = Partition("t", 0)
FEW, MANY = 20, 2_000
OLD = 8  # batches of which each is a record


async def made(path: Path, batches: int, retention: Retention) -> SqliteLog:
    log = await open_sqlite(path, create=True)
    await log.create_topic(TopicSpec("t", 1, "plain", retention))
    for _ in range(batches):
        await log.append({T0: [NewRecord(b"k", b"v", 0)]})
    return log


def steps(db: sqlite3.Connection, work: Callable[[], object]) -> int:
    """Of SQLite's machine, in tens."""
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    db.set_progress_handler(step, 10)
    work()
    db.set_progress_handler(None, 0)
    return taken


async def test_a_removal_looks_at_nothing_that_stays(tmp_path: Path) -> None:
    """Also where fewer are to go than a transaction takes."""
    taken = {}
    for count in (FEW, MANY):
        path = tmp_path / f"{count}.db"
        log = await made(path, count, Retention())
        db = connect(path, create=False, synchronous="NORMAL", busy_timeout_ms=0)
        upkeep = Upkeep(Writer(db, FileIdentity(path), 0, 1 << 20), path)
        taken[count] = steps(db, lambda upkeep=upkeep: upkeep.trim(T0, OLD))  # type: ignore[misc]
        assert (await log.starts([T0]))[T0] == OLD
        db.close()
        await log.close()
    assert taken[MANY] < 2 * taken[FEW]


async def test_a_removal_writes_a_small_part_of_what_it_removes(tmp_path: Path) -> None:
    """Some builds of SQLite write zeros over it: the write-ahead file grew as fast as the log had, and writers waited for it."""
    path = tmp_path / "log.db"
    log = await made(path, 1, Retention())
    for _ in range(OLD):
        await log.append({T0: [NewRecord(b"k", b"v" * 200_000, 0)]})
    db = connect(path, create=False, synchronous="NORMAL", busy_timeout_ms=0)
    db.execute("pragma wal_checkpoint(truncate)")
    upkeep = Upkeep(Writer(db, FileIdentity(path), 0, 1 << 20), path)
    assert upkeep.trim(T0, 1 + OLD) == (1 + OLD, True)
    assert path.with_name("log.db-wal").stat().st_size < OLD * 200_000 / 8
    db.close()
    await log.close()


async def test_what_it_writes_is_counted(tmp_path: Path) -> None:
    """A compaction counted as a few pages, so nothing was copied: the write-ahead file had 235 MB at its end."""
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await log.create_topic(TopicSpec("t", 1, "plain"))
    await log.create_topic(TopicSpec("c", 1, "changelog"))
    for number in range(1_000):
        records = [NewRecord(b"%d" % (number % 10), b"v" * 500, 0)]
        await log.append({T0: records, Partition("c", 0): records})
    counted: list[int] = []
    log._writer.wrote = counted.append
    ahead = log.path.with_name("log.db-wal")

    async def compact() -> int:
        return (await log.compact("c")).removed

    for work in (compact, partial(log.trim, {T0: 1_000})):
        before = ahead.stat().st_size
        counted.clear()
        assert await work() > 900
        assert sum(counted) > (ahead.stat().st_size - before) / 4096 / 2, work
    await log.close()


async def test_what_is_young_is_not_looked_at(tmp_path: Path) -> None:
    taken = {}
    for count in (FEW, MANY):
        log = await made(tmp_path / f"{count}.db", count, Retention(60_000))
        db = connect(log.path, create=False, synchronous="NORMAL", busy_timeout_ms=0)
        db.execute("update batches set time_ms = 0 where base < ?", (OLD,))
        now_ms = time.time_ns() // 1_000_000
        found: list[dict[Partition, int]] = []
        taken[count] = steps(db, lambda db=db, now=now_ms, to=found: to.append(Expiry().expired(db, [T0], now)))  # type: ignore[misc]
        assert found == [{T0: OLD}]
        db.close()
        await log.close()
    assert taken[MANY] < 2 * taken[FEW]


async def test_what_stays_by_its_bytes_is_counted_once(tmp_path: Path) -> None:
    taken = {}
    for count in (FEW, MANY):
        log = await made(tmp_path / f"{count}.db", count, Retention())
        db = connect(log.path, create=False, synchronous="NORMAL", busy_timeout_ms=0)
        ((size,),) = db.execute("select sum(length(data)) from batches")
        await log.set_retention("t", Retention(bytes=size))
        expiry, now_ms, found = Expiry(), 0, list[dict[Partition, int]]()
        found.append(expiry.expired(db, [T0], now_ms))
        await log.append({T0: [NewRecord(b"k", b"v", 0)]})
        taken[count] = steps(db, lambda db=db, of=expiry, to=found: to.append(of.expired(db, [T0], 0)))  # type: ignore[misc]
        assert found == [{T0: 0}, {T0: 1}]
        db.close()
        await log.close()
    assert taken[MANY] < 2 * taken[FEW]


async def test_a_clock_that_is_set_back_removes_nothing_that_is_young_again(tmp_path: Path) -> None:
    log = await made(tmp_path / "log.db", 3, Retention(10, 5_000))
    db = connect(log.path, create=False, synchronous="NORMAL", busy_timeout_ms=1_000)
    db.execute("update batches set time_ms = 0")
    expiry = Expiry()
    assert [expiry.expired(db, [T0], now_ms)[T0] for now_ms in (0, 30, 10)] == [0, 3, 0]
    db.close()
    await log.close()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_counted_on_is_as_counted_anew(data: st.DataObject) -> None:
    """Whatever is written, removed and set between two looks."""
    asyncio.run(_counted_on(data))


async def _counted_on(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = await made(Path(folder) / "log.db", 0, Retention(10, 5_000))
        db = connect(log.path, create=False, synchronous="NORMAL", busy_timeout_ms=1_000)
        expiry, now_ms, end = Expiry(), 0, 0
        for what in data.draw(
            st.lists(st.sampled_from(["write", "write", "write", "trim", "set", "time"]), min_size=10, max_size=40)
        ):
            if what == "write":
                await log.append({T0: [NewRecord(None, bytes(data.draw(st.integers(1, 90))), 0)]})
                db.execute("update batches set time_ms = ? where base = ?", (now_ms, end))
                end += 1
            elif what == "trim":
                await log.trim({T0: data.draw(st.integers(0, end))})
            elif what == "set":
                drawn = data.draw(st.tuples(st.sampled_from([None, 10, 50]), st.sampled_from([100, 400, 5_000])))
                await log.set_retention("t", Retention(*drawn))
            elif what == "time":
                now_ms += data.draw(st.sampled_from([-20, 5, 30]))
            assert expiry.expired(db, [T0], now_ms) == Expiry().expired(db, [T0], now_ms) == _by_hand(db, now_ms)
        db.close()
        await log.close()


def _by_hand(db: sqlite3.Connection, now_ms: int) -> dict[Partition, int]:
    """As the protocol says it: what is past its time, and all before the newest batches of so many bytes."""
    ((ms, most, _),) = db.execute("select ms, bytes, forced from retentions").fetchall()
    ((position,),) = db.execute("select start from parts").fetchall()
    rows = db.execute("select next, length(data), time_ms from batches order by base").fetchall()
    for end, _, time_ms in rows:
        if ms is None or time_ms >= now_ms - ms:
            break
        position = max(position, end)
    for place, (end, _, _) in enumerate(rows[:-1]):
        if sum(length for _, length, _ in rows[place:]) > most:
            position = max(position, end)
    return {T0: position}
