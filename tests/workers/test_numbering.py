"""Numbers of subtopologies in the log: one of each, also of two versions that start at the same moment, and none of an app that was
refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from orchestrator import App, Record, Table
from state.log.memory import MemoryLog
from state.log.protocol import TopicSpec
from state.log.sqlite import open_sqlite
from workers.errors import AppRefused
from workers.prepare import NUMBERING, prepare


def version(*names: str) -> App:
    app = App("rolled", partitions=1)
    for name in names:
        topic = app.topic(name, key=str, value=int)
        table = app.table(f"{name}-table", key=str, value=int, alias="table")

        def keep(record: Record[str, int], table: Table[str, int]) -> None:
            table[record.key] = record.value

        keep.__name__ = f"keep_{name}"
        app.processor(topic, table)(keep)
    return app


async def test_versions_that_start_together_do_not_share_a_number(tmp_path: Path) -> None:
    first = await open_sqlite(tmp_path / "log.db", create=True)
    await prepare(first, version("base"))
    second = await open_sqlite(tmp_path / "log.db", create=False)
    found = await asyncio.gather(prepare(first, version("base", "left")), prepare(second, version("base", "right")))
    numbers = {
        topic: sub.number for prepared in found for sub in prepared.topology.subtopologies for topic in sub.sources
    }
    assert numbers["base"] == 0 and sorted(numbers.values()) == [0, 1, 2]
    kept = json.loads(await first.metadata("rolled", NUMBERING, "app") or b"")
    again = version("base", "left", "right").topology(kept)
    assert {topic: sub.number for sub in again.subtopologies for topic in sub.sources} == numbers
    await first.close()
    await second.close()


async def test_an_app_that_was_refused_is_in_the_way_of_no_other_start() -> None:
    log = MemoryLog(markers=False)
    for name, partitions in (("left", 3), ("right", 4)):
        await log.create_topic(TopicSpec(name, partitions))
    mistaken = App("rolled", partitions=4)
    sums = mistaken.table("sums", key=str, value=int)
    for name in ("left", "right"):

        def keep(record: Record[str, int], sums: Table[str, int]) -> None:
            sums[record.key] = record.value

        keep.__name__ = f"keep_{name}"
        mistaken.processor(mistaken.topic(name, key=str, value=int), sums)(keep)
    with pytest.raises(AppRefused, match="partition counts differ"):
        await prepare(log, mistaken)
    prepared = await prepare(log, version("base"))
    assert [sub.number for sub in prepared.topology.subtopologies] == [0]
