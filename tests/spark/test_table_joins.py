"""Joins of tables over history: the last result of each key and every table are the Driver's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import WrongUse
from orchestrator.testing import Driver
from pipeline.definitions.topology import Subtopology
from pipeline.spark.differences import last_records
from pipeline.spark.stage_order import stages
from pipeline.spark.verifying import verify
from pipeline.tables.dict_store import DictStore
from pipeline.values.partitioner import partition_of
from state.log.protocol import NewRecord, Partition
from tests.spark.test_backfill import Place
from tests.time import market
from workers.commands.consume import read_all
from workers.prepare import prepare

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = (market.enriched, market.settled, market.chiefs)
Change = tuple[str, str, Any, int]


def history(count: int, seed: int) -> list[Change]:
    """Changes of all tables, deletions among them, in the order of their times."""
    chance = random.Random(seed)
    names = [f"c{number}" for number in range(6)]
    found: list[Change] = []
    for at in range(count):
        topic = chance.choice(["orders", "customers", "payments", "people"])
        if topic == "orders":
            value: Any = (chance.choice([None, *names]), at)
            found.append((topic, f"o{chance.randrange(20)}", value, at))
        elif topic == "people":
            found.append((topic, chance.choice(names), chance.choice(["", *names]), at))
        elif topic == "customers":
            found.append((topic, chance.choice(names), f"{topic} {at}", at))
        else:
            found.append((topic, f"o{chance.randrange(20)}", chance.choice([0, 1, 2]), at))
        if chance.random() < 0.15 and topic != "payments":
            found[-1] = (topic, found[-1][1], None, at)
    return found


def driver_answer(changes: list[Change]) -> tuple[dict[str, dict[str, str]], dict[str, dict[bytes, bytes]]]:
    """The last result of each key by topic, and what all stores of each table hold."""
    with Driver(market.app) as driver:
        with driver.together():
            for topic, key, value, at in changes:
                driver.send(market.app.topics[topic], key, value, timestamp_ms=at)
        results = {topic.topic: last_of_each(driver.items(topic)) for topic in RESULTS}
        tables: dict[str, dict[bytes, bytes]] = {name: {} for name in market.app.tables}
        for stores in driver._stores.values():
            for name, store in stores.items():
                tables[name] |= store.data
        return results, tables


def last_of_each(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    return {key: value for key, value in dict(pairs).items() if value is not None}


@pytest.mark.spark
@pytest.mark.asyncio
async def test_the_results_over_history_are_those_of_the_driver(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    place = Place(tmp_path, spark)
    changes = history(800, 3)
    results, tables = driver_answer(changes)
    log = await place.log()
    app = market.app
    await write_all(log, changes)
    facts = await place.backfill("tests.time.market:app")
    assert sum(facts["rekeyed"].values()) > 800
    for topic in RESULTS:
        sent = [
            (topic.key_codec.decode(r.key or b""), None if r.value is None else topic.value_codec.decode(r.value))
            for _, r in await read_all(log, topic.topic)
        ]
        assert last_of_each(sent) == results[topic.topic]
    for name, expected in tables.items():
        store = DictStore()
        for _, entry in await read_all(log, app.tables[name].changelog):
            store.write({entry.key or b"": entry.value})
        assert store.data == expected, name
    await log.close()
    checks = await verify("tests.time.market:app", place.url, say=lambda text: None, session=spark)
    assert all(check["ok"] for check in checks), checks


@pytest.mark.spark
def test_no_result_is_no_other_answer_than_one_that_was_taken_back(tmp_path: Path, spark: Any) -> None:
    """A row that is gone before its answer came has had no result live, and one that was taken back where the answer was faster."""

    def rows(*given: tuple[str, str | None]) -> Any:
        columns = "subject string, order_ms bigint, topic string, upstream int, seq bigint, offset bigint, key binary, value binary"
        made = [
            ("enriched", 0, "orders", 0, at, at, key.encode(), None if value is None else value.encode())
            for at, (key, value) in enumerate(given)
        ]
        return spark.createDataFrame(made, columns)

    wanted = rows(("o1", "tea"), ("o1", None), ("o2", "cup"), ("o3", "pot"), ("o3", None), ("o4", "jug"))
    there = rows(("o2", "can"), ("o2", "cup"), ("o3", "pot"), ("o5", None), ("o6", "mug"))
    found = last_records(wanted, there, tmp_path, "last")["enriched"]
    assert (found.expected, found.found) == (2, 3), "keys that have a result"
    assert found.kinds == {"missing": 1, "extra": 2}, "o4 is missing; o3 was not taken back, and o6 never was"


async def write_all(log: Any, changes: list[Change]) -> None:
    prepared = await prepare(log, market.app)
    batch: dict[Partition, list[NewRecord]] = {}
    for name, key, value, at in changes:
        topic = market.app.topics[name]
        data = topic.key_codec.encode(key)
        where = Partition(topic.topic, partition_of(data, prepared.topics[topic.topic].partitions))
        raw = None if value is None else topic.value_codec.encode(value)
        batch.setdefault(where, []).append(NewRecord(data, raw, at))
    await log.append(batch)


def sub(number: int, sources: tuple[str, ...], sinks: tuple[str, ...]) -> Subtopology:
    return Subtopology(number, frozenset(), sources, (), sinks, 1, True, ())


MESSAGES = {"subscriptions": frozenset[str](), "answers": frozenset(["subscriptions"])}
BETWEEN = {"subscriptions", "answers", "rekeyed"}
LEFT = sub(0, ("orders", "answers"), ("subscriptions", "out"))
RIGHT = sub(1, ("customers", "subscriptions"), ("answers",))
SELF = sub(2, ("people", "subscriptions", "answers"), ("subscriptions", "answers"))
AFTER = sub(3, ("out",), ("more",))


@pytest.mark.parametrize(
    ("subs", "followed", "expected"),
    [
        ([LEFT, RIGHT], [], [0, 1, 0]),
        ([RIGHT, LEFT], [], [0, 1, 0]),
        ([SELF], [], [2, 2, 2]),
        ([AFTER, LEFT, RIGHT], ["out"], [0, 1, 0, 3]),  # what a join sends is final when its subtopology is
        ([sub(4, ("rekeyed",), ()), sub(5, ("orders",), ("rekeyed",))], [], [5, 4]),
    ],
)
def test_stages_read_what_is_final_or_run_again(
    subs: list[Subtopology], followed: list[str], expected: list[int]
) -> None:
    assert [found.number for found in stages("app", subs, BETWEEN, followed, MESSAGES)] == expected


def test_outputs_in_a_circle_are_refused() -> None:
    circle = [sub(0, ("orders", "answers", "more"), ("subscriptions", "out")), RIGHT, AFTER]
    with pytest.raises(WrongUse, match="more, out is read by the subtopology that writes it"):
        stages("app", circle, BETWEEN, ["out", "more"], MESSAGES)
