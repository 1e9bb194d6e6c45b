"""Windows, sessions, timers and joins over history: Spark's answer is the Driver's, and live workers go on from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import Driver
from pipeline.tables.dict_store import DictStore
from tests.spark.test_backfill import Place, write
from tests.time import watch
from tests.time.test_live import history
from workers.commands.consume import read_all

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.asyncio
async def test_the_answer_over_history_is_that_of_the_driver(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    place = Place(tmp_path, spark)
    records = history(1_500, 5)
    with Driver(watch.app) as driver:
        with driver.together():
            for topic, key, value, at in records:
                driver.send(watch.app.topics[topic], key, value, timestamp_ms=at)
        outputs = Counter((r.key, r.value, r.timestamp_ms) for r in driver.records(watch.out))
        tables: dict[str, Any] = {table.name: driver.table(table) for table in (watch.sums, watch.visits)}
        tables[watch.silent.name] = driver.table(watch.silent)
    log = await place.log()
    await write(log, watch.app, [(watch.app.topics[topic], key, value, at) for topic, key, value, at in records])
    await place.backfill("tests.time.watch:app")
    sent = await read_all(log, watch.out.topic)
    found = Counter((str(r.key, "utf-8"), str(r.value, "utf-8"), r.timestamp_ms) for _, r in sent if r.key and r.value)
    assert found == outputs
    for name, expected in tables.items():
        table = watch.app.tables[name]
        stores = {0: DictStore(), 1: DictStore()}
        for partition, entry in await read_all(log, table.changelog):
            stores[partition.number].write({entry.key or b"": entry.value})
        assert {key: value for store in stores.values() for key, value in table.pairs(store)} == expected
    await log.close()
