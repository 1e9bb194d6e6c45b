"""A topic that grows while its app runs, as real processes; and what is refused of growth. One rule: a condition is waited
for with a deadline; nothing sleeps for a time."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.values.partitioner import partition_of
from state.log.sqlite import open_sqlite
from tests.cli.console import Console, Done
from tests.upgrades.test_rolling_upgrade import BOTH, OLD, Shop

pytestmark = pytest.mark.processes
CLICKS = """
from orchestrator import App, Record, Sink, Table

app = App("clicks", partitions=2)
raw = app.topic("raw", key=str, value=int)
clean = app.topic("clean", key=str, value=int{start})
done = app.topic("done", key=str, value=int)
orders = app.topic("orders", key=str, value=int)
by_value = orders.rekey("by-value", key=str, by=lambda record: str(record.value))
totals = app.table("totals", key=str, value=int, default=int)


@app.processor(raw, clean)
def washed(click: Record[str, int], clean: Sink[str, int]) -> None:
    clean.send(click.key, click.value)


@app.processor(clean, done)
def finished(click: Record[str, int], done: Sink[str, int]) -> None:
    done.send(click.key, click.value)


@app.processor(by_value, totals)
def counted(order: Record[str, int], totals: Table[str, int]) -> None:
    totals[order.key] += 1
"""
TOGETHER = """
from orchestrator import App, Record, Sink

app = App("clicks", partitions=2)
left = app.topic("left", key=str, value=int)
right = app.topic("right", key=str, value=int)
done = app.topic("done", key=str, value=int)


@app.processor([left, right], done)
def both(click: Record[str, int], done: Sink[str, int]) -> None:
    done.send(click.key, click.value)
"""
FAST = ("--heartbeat", "200ms", "--commit-interval", "50ms")
KEYS = 40


class Clicks(Console):
    """The app in a folder, and its instances."""

    def lines(self, first: int, count: int) -> str:
        return "\n".join(json.dumps({"key": f"k{n % KEYS}", "value": n}) for n in range(first, first + count))

    def produce(self, topic: str, first: int, count: int) -> None:
        done = self.here("produce", "clicks:app", topic, stdin=self.lines(first, count))
        assert done.code == 0, done

    def grow(self, topic: str, partitions: int, *more: str) -> Done:
        return self.here("topics", "grow", "clicks", topic, "--partitions", str(partitions), *more)

    def status(self) -> Any:
        done = self.here("status", "clicks", "--json")
        return done.json if done.code == 0 else {"tasks": [], "stable": False}

    def running(self) -> dict[str, tuple[str, int]]:
        """Who runs each task, and at which epoch; nothing while anything moves."""
        found = self.status()
        return {t["id"]: (t["active"], t["epoch"]) for t in found["tasks"] if found["stable"] and t["active"]}

    def settled(self, tasks: set[str]) -> dict[str, tuple[str, int]]:
        self.until(f"{sorted(tasks)} run", lambda: self.running().keys() == tasks)
        return self.running()

    def consumed(self, topic: str) -> list[dict[str, Any]]:
        done = self.here("consume", "clicks", topic)
        assert done.code == 0, done
        return [json.loads(line) for line in done.out.splitlines()]


def grow(path: Path, topic: str, partitions: int) -> None:
    """Behind the back of whoever runs."""

    async def grow() -> None:
        log = await open_sqlite(path, create=False)
        await log.grow_topic(topic, partitions)
        await log.close()

    asyncio.run(grow())


@pytest.fixture
def clicks(tmp_path: Path) -> Iterator[Clicks]:
    found = Clicks(tmp_path / "place", "clicks")
    found.write("clicks.py", CLICKS.format(start=""))
    yield found
    found.close()


def tasks(**counts: int) -> set[str]:
    """Of raw, clean, orders and by-value, in the order of their numbers."""
    return {f"{number}_{partition}" for number, count in counts.items() for partition in range(count)}


def numbers(clicks: Clicks) -> dict[str, str]:
    """Subtopologies by the topic that each reads."""
    return {task["topics"][0]: task["id"].partition("_")[0] for task in clicks.status()["tasks"]}


def test_topics_grow_while_records_flow(clicks: Clicks) -> None:
    """Two instances, a long producer, and both topics of a chain grow under it: every record goes through exactly once,
    the new partitions are used and run, and nothing that ran before changed hands."""
    clicks.run(*FAST, instances=2)
    number = numbers(clicks)
    before = clicks.settled(tasks(**dict.fromkeys(number.values(), 2)))
    clicks.write("many.jsonl", clicks.lines(0, 3_000))
    producer = clicks.start("produce", "clicks:app", "raw", "--file", "many.jsonl", "--rate", "500", name="producer")
    clicks.until("the first records", lambda: len(clicks.consumed("done")) > 100)

    grown = clicks.grow("raw", 5, "--json")
    assert grown.json == {
        "schema": 1,
        "application": "clicks",
        "topic": "raw",
        "from": 2,
        "to": 5,
        "outcome": "done",
    }
    assert clicks.grow("clean", 4).out == "clean: 2 -> 4 partitions\n"
    after = clicks.settled(tasks(**{number["raw"]: 5, number["clean"]: 4}) | before.keys())
    assert {task: after[task] for task in before} == before, "a task that ran changed hands"
    assert {epoch for task, (_, epoch) in after.items() if task not in before} == {1}, "a new task was moved"
    loads = Counter(instance for instance, _ in after.values())
    assert max(loads.values()) - min(loads.values()) <= 1, loads

    assert clicks.end(producer) == 0
    assert {r["partition"] for r in clicks.consumed("raw")} == set(range(5)), "the producer saw it grow"
    clicks.produce("raw", 3_000, 200)
    clicks.until("all records", lambda: len(clicks.consumed("done")) >= 3_200)
    assert Counter(r["value"] for r in clicks.consumed("done")) == Counter(range(3_200))
    for topic, count in (("raw", 5), ("clean", 4)):
        last = [r for r in clicks.consumed(topic) if r["value"] >= 3_000]
        assert all(r["partition"] == partition_of(r["key"].encode(), count) for r in last), "they go by the new count"


def test_growth_that_a_stopped_app_finds(clicks: Clicks) -> None:
    """What was written while nobody ran is read whole, also from a topic that is read from its end: a partition that came
    later lies within the app's life."""
    clicks.write("clicks.py", CLICKS.format(start=', start="end"'))
    fleet = clicks.run(*FAST)
    number = numbers(clicks)
    clicks.settled(tasks(**dict.fromkeys(number.values(), 2)))
    fleet.send_signal(signal.SIGTERM)
    assert clicks.end(fleet) == 0
    assert clicks.grow("clean", 4).code == 0
    clicks.produce("clean", 0, 100)
    late = sum(1 for r in clicks.consumed("clean") if r["partition"] >= 2)
    assert late > 0
    clicks.run(*FAST)
    clicks.until("what lies in the new partitions", lambda: len(clicks.consumed("done")) >= late)


def test_topics_that_are_read_together_grow_one_after_the_other(clicks: Clicks) -> None:
    """A task that runs takes the partition that comes for it, without a hand-over."""
    clicks.write("clicks.py", TOGETHER)
    clicks.run(*FAST)
    clicks.settled({"0_0", "0_1"})
    assert clicks.grow("left", 4).code == 0
    before = clicks.settled({"0_0", "0_1", "0_2", "0_3"})
    assert clicks.grow("right", 3).code == 0
    for topic, first in (("left", 0), ("right", 100)):
        clicks.produce(topic, first, 100)
    clicks.until("all records", lambda: len(clicks.consumed("done")) >= 200)
    assert Counter(r["value"] for r in clicks.consumed("done")) == Counter(range(200))
    assert {r["partition"] for r in clicks.consumed("right")} == {0, 1, 2}
    assert clicks.running() == before


def test_growth_that_is_refused(clicks: Clicks) -> None:
    """Where a count decides where state lies it stays; nothing is changed by a refused command."""
    clicks.produce("raw", 0, 1)

    for topic, code, said in (
        ("clicks-by-value-repartition", 3, "not grown by hand"),
        ("clicks-totals-changelog", 3, "not grown by hand"),
        ("nowhere", 2, "has no topic 'nowhere'; it has"),
    ):
        done = clicks.grow(topic, 3)
        assert (done.code, done.out) == (code, "") and said in done.err, done
    done = clicks.grow("raw", 1)
    assert done.code == 3 and "raw has 2 partitions and cannot have 1" in done.err
    done = clicks.grow("raw", 2, "--json")
    assert (done.code, done.json["outcome"]) == (0, "nothing to do")
    other = Console(clicks.folder / "other", "bank").bank()
    log = ("--log", f"sqlite:{clicks.folder}/.orchestrator/clicks.db")
    assert other.here("produce", "bank:app", "payments", *log).code == 0
    done = other.here("topics", "grow", "bank", "payments", "--partitions", "9", *log)
    assert done.code == 3 and "payments feeds subtopology 0, whose state (balances) lies by 8 partitions" in done.err


def test_an_input_with_state_that_grew_behind_the_back(clicks: Clicks) -> None:
    """Producers lay keys by the new number soon: the app ends, and a start is refused and names both counts."""
    clicks.write(
        "clicks.py", CLICKS.format(start="").replace("app.processor(by_value, totals)", "app.processor(orders, totals)")
    )
    fleet = clicks.run(*FAST)
    clicks.settled({t["id"] for t in clicks.status()["tasks"]})
    grow(clicks.folder / ".orchestrator/clicks.db", "orders", 3)
    assert clicks.end(fleet) == 1
    said = clicks.said("run")
    assert (
        "topic orders was given 3 partitions while the app ran, and state lies by 2" in said and "Traceback" not in said
    ), said
    done = clicks("run", "clicks:app")
    assert done.code == 3 and "clicks-totals-changelog has 2, orders has 3" in done.err, done


def test_a_changelog_that_grew_behind_the_back(clicks: Clicks) -> None:
    """Tasks that run go on, with one line of warning, and a coordinator is found; a start is refused and names both counts."""
    clicks.write(
        "clicks.py", CLICKS.format(start="").replace("app.processor(by_value, totals)", "app.processor(orders, totals)")
    )
    fleet = clicks.run(*FAST)
    before = clicks.settled({t["id"] for t in clicks.status()["tasks"]})
    grow(clicks.folder / ".orchestrator/clicks.db", "clicks-totals-changelog", 3)
    warning = "topic clicks-totals-changelog has 3 partitions now"
    clicks.until("a warning", lambda: warning in clicks.said("run"))
    assert clicks.grow("raw", 3).code == 0
    clicks.until("the task of a topic that may grow", lambda: len(clicks.running()) == len(before) + 1)
    after = clicks.running()
    assert {task: after[task] for task in before} == before
    assert clicks.said("run").count(warning) == 1
    fleet.send_signal(signal.SIGTERM)
    assert clicks.end(fleet) == 0
    done = clicks("run", "clicks:app")
    assert done.code == 3 and "clicks-totals-changelog has 3, orders has 2" in done.err, done


@pytest.mark.long
def test_a_coordinator_is_found_although_a_start_is_refused(tmp_path: Path) -> None:
    """The instance that coordinates dies after a changelog grew: the other one takes over its tasks, too."""
    console = Console(tmp_path / "place", "shop")
    shop = Shop(console)
    try:
        shop.start("i1", "old")
        shop.settled(BOTH | OLD, {"i1"})
        shop.start("i2", "old")
        shop.settled(BOTH | OLD, {"i1", "i2"})
        grow(shop.log, "shop-totals-changelog", 3)
        killed = shop.running.pop("i1")
        killed.kill()
        killed.wait(30)
        shop.settled(BOTH | OLD, {"i2"})
        assert shop.status()["coordinator"]["instance"] == "i2"
    finally:
        for process in shop.running.values():
            process.send_signal(signal.SIGTERM)
        for process in shop.running.values():
            process.wait(30)
        console.close()
