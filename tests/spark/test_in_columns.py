"""A processor that takes columns gives one answer: in the Driver, live, and per Arrow batch on Spark."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import Driver
from pipeline.process import TaskProcess
from pipeline.spark import rows
from pipeline.spark.backfill import backfill
from pipeline.tables.dict_store import DictStore
from pipeline.values.partitioner import partition_of
from state.log.protocol import NewRecord, Partition
from state.log.sqlite import open_sqlite
from tests.spark import in_columns
from tests.spark.sample import Order
from workers.commands.consume import read_all
from workers.prepare import prepare

ROOT = Path(__file__).resolve().parent.parent.parent


def orders(count: int) -> list[tuple[str, bytes | None, int]]:
    choice = random.Random(3)
    made: list[tuple[str, bytes | None, int]] = []
    for number in range(count):
        order = Order(number, choice.choice(["north", "south", "west"]), choice.randrange(-5, 15))
        value = in_columns.orders.value_codec.encode(order) if number % 50 else b'{"id": "none"}'
        made.append((f"p{choice.randrange(9)}", value, 1_000 + 10 * number + choice.randrange(-40, 40)))
    return made


def driven(sent: list[tuple[str, bytes | None, int]]) -> tuple[dict[str, int], Counter[Any]]:
    with Driver(in_columns.app) as driver:
        with driver.together():
            for key, value, at_ms in sent:
                driver.send_bytes(in_columns.orders, key.encode(), value, timestamp_ms=at_ms)
        records = driver.records(in_columns.receipts)
        return driver.table(in_columns.totals), Counter((one.key, one.value, one.timestamp_ms) for one in records)


@pytest.mark.spark
async def test_a_backfill_gives_the_answer_of_the_driver(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    sent = orders(500)
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await prepare(log, in_columns.app)
    made: dict[Partition, list[NewRecord]] = {}
    for key, value, at_ms in sent:
        where = Partition("orders", partition_of(key.encode(), 4))
        made.setdefault(where, []).append(NewRecord(key.encode(), value, at_ms))
    await log.append(made)
    url = f"sqlite:{tmp_path / 'log.db'}"
    facts = await backfill(
        "tests.spark.in_columns:app", url, tmp_path / "snapshots", history={}, session=spark, say=lambda line: None
    )
    table = in_columns.totals
    found = {
        table.key_codec.decode(r.key or b""): table.spec.decode_value(r.value or b"")
        for _, r in await read_all(log, table.changelog)
    }
    receipts = in_columns.receipts
    outputs = Counter(
        (receipts.key_codec.decode(r.key or b""), receipts.value_codec.decode(r.value or b""), r.timestamp_ms)
        for _, r in await read_all(log, "receipts")
    )
    assert (found, outputs) == await asyncio.to_thread(driven, sent)
    assert facts["dead_lettered"] == 10
    await log.close()


def test_rows_become_columns_without_an_object_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [
        rows.Row(
            0,
            n,
            "a" if n < 3 else "b",
            -1,
            7 + n,
            100 + n,
            b"k%d" % n,
            b"v" if n % 2 else None,
            rows.packed((("h", b"x"),)),
        )
        for n in range(5)
    ]
    (batch,) = rows.table_of(listed).to_batches()
    expected = rows.records(rows.of_records(batch))
    pieces = rows.in_columns(rows.of_records(batch))
    assert [(one.topic, len(one)) for one in pieces] == [("a", 3), ("b", 2)]
    assert [row for piece in pieces for row in piece] == expected
    assert pieces[1].offsets.tolist() == [10, 11] and pieces[1].timestamps.tolist() == [103, 104]
    assert pieces[0].keys.to_pylist() == [b"k0", b"k1", b"k2"] and pieces[0].values.to_pylist() == [None, b"v", None]
    monkeypatch.setattr(rows, "records", None)  # what makes the objects
    assert [piece[1:].offsets.tolist() for piece in rows.in_columns(rows.of_records(batch))] == [[8, 9], [11]]


def test_the_task_of_the_backfill_takes_columns() -> None:
    """Else rows would be read one by one, with the same answer."""
    sub = next(sub for sub in in_columns.app.topology().subtopologies if sub.tables)
    counts = {"receipts": 4, "letters": 4}
    assert TaskProcess(in_columns.app, sub, 0, {"totals": DictStore()}, counts).takes_columns
