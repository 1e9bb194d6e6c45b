"""What is removed from a SQLite log costs what it is, whatever stays."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from state.log import sqlite_reader
from state.log.protocol import NewRecord, Partition, Retention, TopicSpec
from state.log.sqlite import SqliteLog, open_sqlite
from state.log.sqlite_file import FileIdentity, connect
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


async def test_what_is_young_is_not_looked_at(tmp_path: Path) -> None:
    taken = {}
    for count in (FEW, MANY):
        log = await made(tmp_path / f"{count}.db", count, Retention(60_000))
        db = connect(log.path, create=False, synchronous="NORMAL", busy_timeout_ms=0)
        db.execute("update batches set time_ms = 0 where base < ?", (OLD,))
        now_ms = time.time_ns() // 1_000_000
        found: list[dict[Partition, int]] = []
        taken[count] = steps(db, lambda db=db, now=now_ms, to=found: to.append(sqlite_reader.expired(db, [T0], now)))  # type: ignore[misc]
        assert found == [{T0: OLD}]
        db.close()
        await log.close()
    assert taken[MANY] < 2 * taken[FEW]
