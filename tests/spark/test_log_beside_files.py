"""A topic of another log that is read beside files: one order of time, and in each of its own partitions the one in which it was
written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.files.shape import Reading, Shape
from pipeline.spark.history import history_job, history_rows, placed
from pipeline.spark.merging import Merging
from pipeline.spark.reading import _of_files, _packed
from pipeline.spark.runs import Spent, unpack
from pipeline.spark.source import Source
from pipeline.spark.sources import From, local_files
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.log.sqlite import open_sqlite
from tests.spark import trails

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parent.parent.parent
# By when a task takes them: a late record of a log comes behind the one that stands before it, not where its own time is.
OLD = [("old1", 1_000), ("old2", 2_000), ("between", 9_200), ("last", 9_900)]
LOG = {0: [("log1", 9_000), ("log2", 9_500), ("late", 1_500)], 1: [("log3", 9_100)]}
EXPECTED = ["old1", "old2", "log1", "log3", "between", "log2", "late", "last"]


async def test_its_records_stand_among_those_of_files_by_their_times(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a log had was taken before all files, so years of files behind it were late."""
    monkeypatch.chdir(ROOT)
    columns = [pa.array([b"k"] * len(OLD)), pa.array([name for name, _ in OLD]), pa.array([at for _, at in OLD])]
    pq.write_table(pa.table(columns, ["key", "value", "timestamp_ms"]), tmp_path / "old.parquet")
    log = await open_sqlite(tmp_path / "other.db", create=True)
    await log.create_topic(TopicSpec("other", 2))
    for number, rows in LOG.items():
        await log.append({Partition("other", number): [NewRecord(b"k", name.encode(), at) for name, at in rows]})
    await log.close()

    app, topic = trails.app, trails.left
    reading = Reading(topic.topic, topic.key_codec, topic.value_codec, 1, is_history=True)
    source = From(f"log:sqlite:{tmp_path}/other.db/other")
    names, shown = await asyncio.to_thread(local_files, spark, source, tmp_path / "log", reading, Shape())
    files = [str(tmp_path / "old.parquet"), *names]
    job = history_job(Source("tests.spark.trails:app", ""), topic, 1, files, Shape(), shown=shown)

    cells = [
        cell
        for item in range(len(job.parts))
        for cell in _packed(_of_files(placed(job, app, item), True), 1, 0, item, Spent())
    ]
    merging = Merging(1 << 20)
    runs = unpack(sorted(cells, key=lambda cell: cell[0]))
    packed = [value for piece in merging.pieces(runs) for value in piece.rows.column("value").to_pylist()]
    assert [value.decode() for value in packed] == EXPECTED
    by_sql = history_rows(spark, job).orderBy("seq").collect()
    assert [bytes(row["value"]).decode() for row in by_sql] == EXPECTED
    assert [row["order_ms"] for row in by_sql] == sorted(row["order_ms"] for row in by_sql)
