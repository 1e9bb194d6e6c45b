"""The log as a DataFrame, for SQL."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.spark import log_source
from pipeline.spark.log_source import NAME, LogSource, Slice, log_frame, read
from pipeline.spark.rows import unpacked
from state.errors import UnknownTopic
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.log.sqlite import open_sqlite

pytestmark = pytest.mark.spark


async def fill(path: Path) -> None:
    log = await open_sqlite(path, create=True)
    await log.create_topic(TopicSpec("t", 2))
    await log.create_topic(TopicSpec("empty", 1))
    for start in (0, 3):  # more than one batch
        rows = [
            NewRecord(b"k%d" % n, None if n == 4 else b"v%d" % n, 50 - n, (("h", b"%d" % n),))
            for n in range(start, start + 3)
        ]
        await log.append({Partition("t", 1): rows})
    await log.append({Partition("t", 0): [NewRecord(None, b"alone", 7)]})
    await log.close()


def test_sql_over_topics(tmp_path: Path, spark: Any) -> None:
    url = f"sqlite:{tmp_path / 'log.db'}"
    asyncio.run(fill(tmp_path / "log.db"))
    spark.dataSource.register(LogSource)
    frame = spark.read.format(NAME).option("log", url).option("topics", "t,empty").load()
    rows = sorted(frame.collect(), key=lambda row: (row["partition"], row["offset"]))
    assert [(r["topic"], r["partition"], r["offset"]) for r in rows] == [("t", 0, 0), *[("t", 1, n) for n in range(6)]]
    assert [bytes(r["value"]) if r["value"] is not None else None for r in rows][3:6] == [b"v2", b"v3", None]
    assert [r["timestamp_ms"] for r in rows[1:]] == [50, 49, 48, 47, 46, 45]
    assert [r["order_ms"] for r in rows[1:]] == [50] * 6
    assert rows[0]["key"] is None and rows[0]["headers"] is None
    assert unpacked(bytes(rows[2]["headers"])) == (("h", b"1"),)

    until = {"t-0": 0, "t-1": 2}
    cut = spark.read.format(NAME).option("log", url).option("topics", "t").option("until", json.dumps(until)).load()
    assert cut.count() == 2
    same = log_frame(spark, url, ["t"], until)
    assert same.columns == frame.columns and sorted(same.collect()) == sorted(cut.collect())
    assert log_frame(spark, url, ["empty"]).count() == 0


def test_an_unknown_topic_is_named(tmp_path: Path, spark: Any) -> None:
    asyncio.run(fill(tmp_path / "log.db"))
    with pytest.raises(UnknownTopic, match="has no topic 'u': check its name"):
        log_frame(spark, f"sqlite:{tmp_path / 'log.db'}", ["u"])


@pytest.mark.long
def test_a_read_that_cannot_reach_its_end_fails(tmp_path: Path, spark: Any) -> None:
    asyncio.run(fill(tmp_path / "log.db"))
    with pytest.raises(Exception, match="t-1 ended at 6, before 9: the log lost records it had"):
        log_frame(spark, f"sqlite:{tmp_path / 'log.db'}", ["t"], {"t-0": 1, "t-1": 9}).count()


@pytest.mark.parametrize("goes_on", (True, False))
def test_a_read_that_goes_on_sees_each_key_whatever_compaction_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """A key whose last record before the end went, since there is one behind it, was in neither part of what was read: an audit
    beside a busy app took it for lost."""
    monkeypatch.setattr(log_source, "POLL_BYTES", 1)
    path, keys = tmp_path / "log.db", [b"k%d" % number for number in range(10)]

    async def write() -> None:
        log = await open_sqlite(path, create=True)
        if not await log.topics(["c"]):
            await log.create_topic(TopicSpec("c", 1, "changelog"))
        for key in keys:
            await log.append({Partition("c", 0): [NewRecord(key, b"v", 1)]})
        await log.compact("c")
        await log.close()

    monkeypatch.setattr("state.log.compaction.BATCH_RECORDS_MAX", 1)
    asyncio.run(write())
    seen: list[bytes] = []
    for number, batch in enumerate(read(f"sqlite:{path}", Slice("c", 0, 0, 10, goes_on))):
        seen += batch.column("key").to_pylist()
        if number == 2:
            asyncio.run(write())
    assert (sorted(set(seen)) == keys) == goes_on, seen
