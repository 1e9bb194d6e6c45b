"""Retention and compactions of a SQLite log, and a clock that is wrong: what they remove does not come again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from state.log.batches import decode
from state.log.protocol import DELETE_RETENTION_MS, NewRecord, Partition, Retention, TopicSpec
from state.log.sqlite import SqliteLog, open_sqlite
from state.log.sqlite_time import LASTS_S
from state.steady_clock import LOOKS

CHANGES, EVENTS = Partition("changes", 0), Partition("events", 0)
DAY_MS = 86_400_000


class Clocks:
    """The clocks of this machine, as they are set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_ms = self.passed_s = 0.0
        wall, steady = time.time_ns, time.monotonic
        monkeypatch.setattr(time, "time_ns", lambda: wall() + int((self.ahead_ms + self.passed_s * 1000) * 1_000_000))
        monkeypatch.setattr("state.log.sqlite_time.monotonic_s", lambda: steady() + self.passed_s)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


async def made(path: Path) -> SqliteLog:
    log = await open_sqlite(path, create=True)
    await log.create_topic(TopicSpec("changes", 1, "changelog"))
    await log.create_topic(TopicSpec("events", 1, retention=Retention(DAY_MS)))
    await log.append(
        {CHANGES: [NewRecord(b"a", b"1", 0), NewRecord(b"b", b"1", 0)], EVENTS: [NewRecord(b"a", b"1", 0)]}
    )
    return log


async def deletions(log: SqliteLog) -> int:
    reader = log.reader()
    reader.add(CHANGES, 0)
    found = [record for part in await reader.poll() for record in decode(part.data, 0)]
    await reader.close()
    return sum(record.value is None for record in found)


async def delete(log: SqliteLog) -> None:
    await log.append({CHANGES: [NewRecord(b"a", None, 0)]})
    await log.compact("changes")


async def written(log: SqliteLog) -> None:
    """Something new, so that the next compaction has something to do."""
    await log.append({CHANGES: [NewRecord(b"b", b"2", 0)]})


async def test_deletions_stay_where_a_clock_is_ahead_for_a_moment(tmp_path: Path, clocks: Clocks) -> None:
    """They went, and a store that had not read them yet, of an instance that was away for minutes, had what they delete for ever."""
    log = await made(tmp_path / "log.db")
    await delete(log)
    clocks.ahead_ms = DELETE_RETENTION_MS + DAY_MS
    await log.compact("changes")
    assert await deletions(log) == 1
    clocks.passed_s = LASTS_S / 2
    await log.compact("changes")
    assert await deletions(log) == 1
    clocks.passed_s = LASTS_S + 1
    for _ in range(LOOKS):
        await log.expired([EVENTS])
    await log.compact("changes")
    assert await deletions(log) == 0, "that is the time by now"
    assert await log.forgotten([CHANGES, EVENTS]) == {CHANGES: 3}
    await log.close()


async def test_deletions_that_go_too_soon_are_known_to_be_gone(tmp_path: Path, clocks: Clocks) -> None:
    """A machine that began in 1970: what it noted was long ago a minute later. A store that has not read them is restored."""
    log = await made(tmp_path / "log.db")
    await log.close()
    clocks.ahead_ms = -20_000 * DAY_MS
    log = await open_sqlite(tmp_path / "log.db", create=False)
    await delete(log)
    await log.close()
    clocks.ahead_ms = 0
    log = await open_sqlite(tmp_path / "log.db", create=False)
    await written(log)
    assert await log.forgotten([CHANGES]) == {}
    await log.compact("changes")
    assert (await deletions(log), await log.forgotten([CHANGES])) == (0, {CHANGES: 3})
    await log.close()


async def test_retention_waits_for_a_clock_that_went_ahead_or_began_ahead(tmp_path: Path, clocks: Clocks) -> None:
    log = await made(tmp_path / "log.db")
    clocks.ahead_ms = 2 * DAY_MS
    assert await log.expired([EVENTS]) == {EVENTS: 0}
    await log.close()
    log = await open_sqlite(tmp_path / "log.db", create=False)
    await log.append({CHANGES: [NewRecord(b"c", b"1", 0)]})
    assert await log.expired([EVENTS]) == {EVENTS: 0}, "a process that began with it"
    assert await log.expired([EVENTS], at_once=True) == {EVENTS: 1}, "an operator wants it"
    clocks.passed_s = LASTS_S + 1
    assert await log.expired([EVENTS]) == {EVENTS: 1}
    await log.close()


async def test_deletions_that_are_compacted_when_a_log_that_rested_is_opened_stay_as_long_as_any(
    tmp_path: Path, clocks: Clocks
) -> None:
    """Until the clock is believed the time is that of the newest record: noted with it, the compaction was old a minute later."""
    log = await made(tmp_path / "log.db")
    await log.append({CHANGES: [NewRecord(b"a", None, 0)]})
    await log.close()
    clocks.ahead_ms = DELETE_RETENTION_MS + DAY_MS
    log = await open_sqlite(tmp_path / "log.db", create=False)
    await log.compact("changes")
    for passed_s, left in ((LASTS_S + 1, 1), (LASTS_S + 60, 1), (LASTS_S + DELETE_RETENTION_MS / 1000 + 120, 0)):
        clocks.passed_s = passed_s
        for _ in range(LOOKS):
            await log.expired([EVENTS])
        await written(log)
        await log.compact("changes")
        assert await deletions(log) == left
    await log.close()
