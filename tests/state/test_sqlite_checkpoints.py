"""Checkpoints of a SQLite log: beside its writers, one at a time, and never one that has nothing of its own to copy."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from state.log import sqlite_checkpoints
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.log.sqlite import SqliteLog, open_sqlite
from state.log.sqlite_checkpoints import Checkpoints
from state.log.sqlite_file import connect
from state.log.sqlite_parts import FileIdentity

T0 = Partition("t", 0)
DEADLINE_S = 30.0
LARGE = [NewRecord(b"k", b"v" * 100_000, 0)] * 10  # 250 pages


async def made(path: Path) -> SqliteLog:
    log = await open_sqlite(path, create=True)
    await log.create_topic(TopicSpec("t", 1, "plain"))
    return log


def count(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        found = db.execute("select value from facts where name = 'checkpoints'").fetchone()
    return int(found[0]) if found else 0


def wal(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


@contextmanager
def another_at_it(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def a_reader_that_stays(path: Path) -> Iterator[None]:
    """The write-ahead file cannot begin anew."""
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from parts").fetchone()
        yield


async def written_until(log: SqliteLog, checkpoints: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while count(log.path) < checkpoints:
            await log.append({T0: LARGE})


async def test_what_is_written_is_copied_while_the_log_is_open(tmp_path: Path) -> None:
    log = await made(tmp_path / "log.db")
    before = log.path.stat().st_size
    await written_until(log, 2)
    assert log.path.stat().st_size > before + sqlite_checkpoints.PAGES * 4096 * 0.9
    await log.close()


async def test_no_connection_checkpoints_in_a_commit(tmp_path: Path) -> None:
    """SQLite's own would, of each process for itself, and beside each other."""
    log = await made(tmp_path / "log.db")
    size = log.path.stat().st_size
    with another_at_it(tmp_path):
        for _ in range(12):
            await log.append({T0: LARGE})
        assert wal(log.path) > 3 * sqlite_checkpoints.PAGES * 4096
        assert (log.path.stat().st_size, count(log.path)) == (size, 0), "another process is at it"
    await written_until(log, 1)
    await log.close()


async def test_each_begins_with_a_commit_of_its_own(tmp_path: Path) -> None:
    """The file has nothing that is not copied; still there is something to copy."""
    path, said = tmp_path / "log.db", []  # type: tuple[Path, list[str]]
    log = await made(path)

    def traced() -> sqlite3.Connection:
        connection = connect(path, create=False, synchronous="NORMAL", busy_timeout_ms=1_000)
        connection.set_trace_callback(said.append)
        return connection

    checkpoints = Checkpoints(FileIdentity(path), traced, 1_000)
    async with asyncio.timeout(DEADLINE_S):
        while count(path) < 3:
            await asyncio.to_thread(checkpoints.wrote, sqlite_checkpoints.PAGES)
    await asyncio.to_thread(checkpoints.close)
    kinds = [line.split("(")[0].split()[-1].lower() for line in said if "wal_checkpoint" in line or line == "commit"]
    assert kinds == ["commit", "wal_checkpoint"] * count(path)
    await log.close()


async def test_the_write_ahead_file_begins_anew_however_its_writers_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No writer leaves a moment in which all is copied: beyond a length they wait once."""
    monkeypatch.setattr(sqlite_checkpoints, "_LONG", 2_000)
    path = tmp_path / "log.db"
    logs = [await made(path), await open_sqlite(path, create=False)]
    written = 0

    async def write(log: SqliteLog) -> None:
        nonlocal written
        while written - wal(path) < 20_000_000:
            await log.append({T0: LARGE})
            written += 1_000_000

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*map(write, logs), *map(write, logs))
    for log in logs:
        await log.close()


async def test_writers_wait_for_few_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written while the pages before were copied was left for the moment in which all wait: up to 195 ms."""
    monkeypatch.setattr(sqlite_checkpoints, "_LONG", 2_000)
    path, through = tmp_path / "log.db", []  # type: tuple[Path, list[tuple[str, int]]]
    log = await made(path)
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    copy = Checkpoints._copy

    def copied(self: Checkpoints, db: sqlite3.Connection, how: str) -> tuple[int, int]:
        length, there = copy(self, db, how)
        is_long = length > sqlite_checkpoints._LONG
        if is_long:
            through.append((how, there))
        if is_long and how == "passive":  # a writer goes on, and the first one takes long
            for _ in range(8 if len(through) == 1 else 1):
                asyncio.run_coroutine_threadsafe(log.append({T0: LARGE}), loop).result(DEADLINE_S)
        elif through:  # the writers waited, or one of them has begun the file anew
            loop.call_soon_threadsafe(is_over.set)
        return length, there

    with another_at_it(tmp_path):
        for _ in range(12):
            await log.append({T0: LARGE})
    monkeypatch.setattr(Checkpoints, "_copy", copied)
    async with asyncio.timeout(DEADLINE_S):
        while not through:
            await log.append({T0: LARGE})
        await is_over.wait()
    await log.close()
    passive = [there for how, there in through if how == "passive"]
    assert len(passive) > 1 and passive[1] > passive[0] + 8 * 250, through
    assert all(there <= passive[-1] + sqlite_checkpoints._FEW for how, there in through if how == "restart"), through


async def test_a_long_write_ahead_file_becomes_shorter_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader kept it from beginning anew. The commit after that gave back all above 64 MB at once, while every writer waited."""
    log = await made(tmp_path / "log.db")
    with a_reader_that_stays(log.path):
        while wal(log.path) < 120 << 20:
            await log.append({T0: LARGE})
    sizes, commit = [wal(log.path)], Checkpoints._commit

    def committed(self: Checkpoints, db: sqlite3.Connection) -> None:
        commit(self, db)
        sizes.append(wal(log.path))

    monkeypatch.setattr(Checkpoints, "_commit", committed)
    async with asyncio.timeout(DEADLINE_S):
        while sizes[-1] > 64 << 20:
            await log.append({T0: LARGE})
            if (running := log._checkpoints._running) is not None:
                await asyncio.wrap_future(running)
            sizes.append(wal(log.path))
    await log.close()
    assert max(before - after for before, after in pairwise(sizes)) <= 32 << 20, sizes


async def test_a_log_at_rest_gives_back_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one checkpoint: the next one comes after a thousand pages, which are minutes."""
    monkeypatch.setattr(sqlite_checkpoints, "_KEPT", 4 << 20)
    monkeypatch.setattr(sqlite_checkpoints, "_GIVEN_BACK", 2 << 20)
    log = await made(tmp_path / "log.db")
    with a_reader_that_stays(log.path):
        while wal(log.path) < 20 << 20:
            await log.append({T0: LARGE})
        if (running := log._checkpoints._running) is not None:
            await asyncio.wrap_future(running)
    await asyncio.to_thread(log._checkpoints._run)
    assert wal(log.path) == 4 << 20
    await log.close()


async def test_no_writer_waits_for_a_reader_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They waited 20 ms for it at each checkpoint, and two in a row for 50."""
    monkeypatch.setattr(sqlite_checkpoints, "_LONG", 2_000)
    log, seen, copy = await made(tmp_path / "log.db"), [], Checkpoints._copy  # type: ignore[var-annotated]

    def copied(self: Checkpoints, db: sqlite3.Connection, how: str) -> tuple[int, int]:
        length, there = copy(self, db, how)
        seen.append((how, length))
        return length, there

    async def until(is_over: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not is_over():
                await log.append({T0: LARGE})

    with a_reader_that_stays(log.path):
        await until(lambda: wal(log.path) > 4 * 2_000 * 4096)
        monkeypatch.setattr(Checkpoints, "_copy", copied)
        await until(lambda: len(seen) > 8)
        assert {how for how, _ in seen} == {"passive"}
    await until(lambda: seen[-1][1] < 2_000)  # it has begun anew
    await log.close()


async def test_a_log_that_was_replaced_gets_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log.db"
    log = await made(path)
    open_it = partial(connect, path, create=False, synchronous="NORMAL", busy_timeout_ms=1_000)
    checkpoints = Checkpoints(FileIdentity(path), open_it, 1_000)
    path.rename(tmp_path / "elsewhere.db")
    for ending in ("-wal", "-shm"):
        path.with_name(f"{path.name}{ending}").unlink()
    other = await made(path)
    checkpoints.wrote(sqlite_checkpoints.PAGES)
    checkpoints.close()
    assert "replaced" in caplog.text
    assert count(path) == 0
    await other.close()
    await log.close()
