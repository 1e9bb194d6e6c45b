"""`produce` beside a process that holds the embedded log, as a backfill does while it writes what it has computed."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Collection
from pathlib import Path

import pytest

from orchestrator import App
from pipeline.files.shape import FileRecord
from state.errors import LogBusy, LogUnavailable
from state.log.memory import MemoryLog
from state.log.protocol import Partition, TopicInfo, TopicSpec
from state.log.sqlite import SqliteLog, open_sqlite
from tests.contracts.logs import until, values
from workers.commands import when_free
from workers.commands.produce import Counted, Writing
from workers.commands.produce_end import Ending

APP = App("bank", partitions=1)
PAYMENTS = APP.topic("payments", key=str, value=bytes)
RECORDS = [FileRecord(1, b"k", b"%d" % number, 1, (), None, None) for number in range(3)]


async def writing(path: Path) -> tuple[SqliteLog, Writing]:
    log = await open_sqlite(path, create=True, busy_timeout_ms=20)
    await log.create_topic(TopicSpec("payments", 1))
    return log, Writing(log, APP, PAYMENTS, Counted(log, 1), 0, None, Ending())


async def test_a_log_that_another_holds_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, mine = await writing(tmp_path / "log.db")
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("begin immediate")
    said: list[str] = []

    async def is_announced() -> bool:
        said.append(capsys.readouterr().err)
        return any("waiting: " in one for one in said)

    written = asyncio.create_task(mine.write(iter(RECORDS)))
    await until("it says what it waits for", is_announced)
    other.execute("commit")
    assert await written == 3
    assert await values(log, Partition("payments", 0)) == ["0", "1", "2"]
    assert "".join([*said, capsys.readouterr().err]).count("waiting: ") == 1
    other.close()
    await log.close()


async def test_it_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(when_free, "BUSY_S", 0.1)
    log, mine = await writing(tmp_path / "log.db")
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(LogBusy):
        await mine.write(iter(RECORDS))
    other.close()
    await log.close()


class Away(MemoryLog):
    """Its topics cannot be asked for."""

    async def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        raise LogUnavailable("no broker answers")


async def test_a_look_at_a_topic_that_fails_ends_nothing() -> None:
    """Between two batches: how long brokers are waited for, the writing of the next one says."""
    log = Away()
    await log.create_topic(TopicSpec("payments", 1))
    clock = itertools.count(0.0, 10.0).__next__
    assert await Writing(log, APP, PAYMENTS, Counted(log, 1, clock), 0, None, Ending()).write(iter(RECORDS)) == 3
    assert await values(log, Partition("payments", 0)) == ["0", "1", "2"]
