"""Spark on a real broker: history out of a topic of another log, tables and outputs into Kafka, a snapshot, an audit."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.spark.backfill import backfill
from pipeline.spark.log_source import log_frame
from pipeline.spark.snapshotting import take
from pipeline.spark.sources import From
from pipeline.spark.verifying import Wanted, audit
from state import snapshot
from state.log.protocol import FOR_EVER, NewRecord, Partition, TopicSpec
from tests.contracts.logs import read_all
from tests.kafka.place import Place
from tests.spark import sample, tallies
from tests.spark.test_attempts import workers_of_spark
from tests.spark.test_backfill import in_log, write
from workers.prepare import prepare

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
APP = "tests.spark.sample:app"
MARKS, KEYS = 60_000, 20_000


async def test_history_from_a_topic_and_everything_after_it(place: Place, tmp_path: Path, spark: Any) -> None:
    now = int(time.time() * 1000)  # a broker deletes what is older than its retention
    log = await place.open()
    await log.create_topic(TopicSpec("old", 3))
    orders = [sample.Order(n, "north" if n % 2 else None, n) for n in range(40)]
    for n, order in enumerate(orders):
        record = NewRecord(b"p%d" % (n % 5), msgspec.json.encode(order), now + n, (("h", b"%d" % n),))
        await log.append({Partition("old", n % 3): [record]})
    await write(log, sample.app, [(sample.orders, "p1", sample.Order(99, "south", 7), now + 1_000)])
    url = f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}"
    rows = await asyncio.to_thread(lambda: log_frame(spark, url, ["old"]).count())
    assert rows == 40
    facts = await backfill(
        APP, url, tmp_path / "snapshots", history={"orders": [From(f"log:{url}/old")]}, session=spark, say=print
    )
    tables, outputs = await in_log(log)
    taken = [order for order in orders if order.amount != 13]
    expected = {f"p{n}": sum(order.amount for order in taken if order.id % 5 == n) for n in range(5)}
    assert tables["totals"] == {**expected, "p1": expected["p1"] + 7}
    assert sum(outputs["receipts"].values()) == facts["outputs"]["receipts"] == 40
    assert {headers for *_, headers in outputs["receipts"]} > {(("h", b"3"),)}, "of a topic they come with it"

    made = await take("sample", url, tmp_path / "snapshots", session=spark)
    assert snapshot.verify(tmp_path / "snapshots", made["snapshot"]).log_id == log.log_id
    checked = await audit(APP, url, Wanted(history={"orders": [From(f"log:{url}/old")]}), say=print, session=spark)
    assert checked["checks"] and all(check["ok"] for check in checked["checks"]), checked["checks"]
    where = Partition("sample-totals-changelog", 0)
    await log.append({where: [NewRecord(b"nobody", b"\0" * 8, now + 2_000)]})
    checked = await audit(APP, url, Wanted(history={"orders": [From(f"log:{url}/old")]}), say=print, session=spark)
    assert [check["check"] for check in checked["checks"] if not check["ok"]] == ["table totals: every key"]


async def test_a_killed_task_of_the_write_writes_each_record_once(place: Place, tmp_path: Path, spark: Any) -> None:
    """All Python workers, once, while the transaction is open."""
    now = int(time.time() * 1000)
    keys = [f"k{number % KEYS}" for number in range(MARKS)]
    columns = [pa.array(keys), pa.array([1] * MARKS), pa.array(range(now, now + MARKS))]
    pq.write_table(pa.table(columns, ["key", "value", "timestamp_ms"]), tmp_path / "marks.parquet")
    log = await place.open()
    await prepare(log, tallies.app)
    written = [Partition(topic, number) for topic in ("seen", tallies.sums.changelog) for number in range(2)]
    running = asyncio.create_task(
        backfill(
            "tests.spark.tallies:app",
            f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}",
            tmp_path / "snapshots",
            history={"marks": [str(tmp_path / "marks.parquet")]},
            say=print,
            session=spark,
        )
    )
    killed: list[int] = []
    while not killed and not running.done():
        if await log.written(written) != await log.ends(written):
            killed = workers_of_spark()
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
    facts = await running
    assert killed, "no worker was seen while it wrote"
    assert facts["records_in"] == MARKS and facts["tables"] == {"sums": KEYS} and facts["outputs"] == {"seen": MARKS}
    sums = [record for number in range(2) for record in await read_all(log, written[2 + number])]
    assert {record.key: record.value for record in sums} == {
        f"k{number}".encode(): (MARKS // KEYS).to_bytes(8, "big") for number in range(KEYS)
    }
    seen = Counter([record.key for number in range(2) for record in await read_all(log, written[number])])
    assert len(sums) == KEYS == len(seen) and set(seen.values()) == {MARKS // KEYS}


@pytest.mark.parametrize("kept", ["a week", "for ever"])
async def test_outputs_that_will_not_stay_are_warned_of(kept: str, place: Place, tmp_path: Path, spark: Any) -> None:
    """Brokers go by the times of records: outputs of a backfill were gone minutes later, all of them, and nothing had said so."""
    log = await place.open()
    await prepare(log, tallies.app)
    if kept == "for ever":
        await log.set_retention("seen", FOR_EVER)
    (tmp_path / "marks.csv").write_text("key,value,timestamp_ms\na,1,1700000000000\n")
    lines: list[str] = []
    await backfill(
        "tests.spark.tallies:app",
        f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}",
        tmp_path / "snapshots",
        history={"marks": [str(tmp_path / "marks.csv")]},
        say=lines.append,
        session=spark,
    )
    assert [line for line in lines if line.startswith("warning: ")] == (
        []
        if kept == "for ever"
        else [
            "warning: topic seen keeps records for 7 d by their own times, and the oldest of these outputs is of 2023-11-14: brokers remove "
            "such records within minutes, read or not; `orchestrator topics set tallies seen --retention forever`, before it or at once, "
            "keeps them"
        ]
    )
