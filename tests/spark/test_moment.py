"""The moment at which an app is compared: what is behind it is counted, also where the log is slow to give it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.spark import moment
from pipeline.spark.moment import moment_of
from state.log.sqlite import open_sqlite
from state.log.sqlite_reader import SqliteReader
from tests.spark import tallies
from tests.spark.test_backfill import write
from workers.commands import consume
from workers.prepare import prepare


class Slow:
    """So many polls of readers find nothing yet, as those of a broker that is busy, or away for a moment."""

    def __init__(self, patch: pytest.MonkeyPatch, polls: int) -> None:
        self.left, self._poll = polls, SqliteReader.poll
        slow = self

        async def poll(reader: SqliteReader, **given: Any) -> Any:
            if slow.left:
                slow.left -= 1
                return []
            return await slow._poll(reader, **given)

        patch.setattr(SqliteReader, "poll", poll)


@pytest.mark.parametrize("polls", [0, 3, 1 << 40])
async def test_unread_records_are_counted_by_a_slow_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, polls: int
) -> None:
    """A second without an answer was taken for "there is none": verify said that all inputs are processed."""
    monkeypatch.setattr(moment, "STILL_S", 0.0)
    monkeypatch.setattr(consume, "ANSWER_S", 0.1 if polls > 3 else 30.0)
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await write(log, tallies.app, [(tallies.marks, f"m{n}", 1, n) for n in range(7)])
    Slow(monkeypatch, polls)
    found = await moment_of(log, await prepare(log, tallies.app))
    assert found.unread == 7
    await log.close()
