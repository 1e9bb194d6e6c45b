"""Spark on a real broker: history out of a topic of another log, tables and outputs into Kafka, a snapshot, an audit."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.spark.backfill import backfill
from pipeline.spark.log_source import log_frame
from pipeline.spark.snapshotting import take
from pipeline.spark.sources import From
from pipeline.spark.verifying import Wanted, audit
from state import snapshot
from state.log.protocol import NewRecord, Partition, TopicSpec
from tests.kafka.place import Place
from tests.spark import sample
from tests.spark.test_backfill import in_log, write

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
APP = "tests.spark.sample:app"


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
