"""What several tasks send to one meets in the order of time in a Driver, as it does over history on Spark.

Live tasks write when they come to it, so what lies behind a re-key there is as far out of order as they are apart: grace is for
that, and what it is not enough for is late (`tests.time.one_answer` compares it with a Driver that is given the live order).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator import App, Tumbling
from orchestrator.testing import Driver
from pipeline.definitions.topology import Subtopology
from pipeline.meeting import Flow, met
from pipeline.records import OutputRecord

MS = timedelta(milliseconds=1)
KEYS = [f"k{number}" for number in range(8)]


def app_with_a_rekey() -> tuple[App, Any, Any, Any]:
    app = App("groups", partitions=3)
    beats, out = app.topic("beats", key=str, value=int), app.topic("out", key=str, value=str)
    small = app.table("small", key=str, value=int, default=int, window=Tumbling(10 * MS))
    sums = app.topic("sums", key=str, value=int)
    total = sums.rekey("total", key=str, by=lambda record: "all")
    totals = app.table("totals", key=str, value=int, default=int, window=Tumbling(20 * MS), retain=10_000 * MS)

    @app.processor(beats, small)
    def beat(beat: Any, small: Any) -> None:
        small[beat.key] += 1

    @app.when_closed(small, sums)
    def closed(window: Any, sums: Any) -> None:
        sums.send(window.key, window.value)

    @app.processor(total, totals)
    def add(record: Any, totals: Any) -> None:
        totals[record.key] += record.value

    return app, beats, totals, out


def test_a_backlog_behind_a_rekey_is_not_late() -> None:
    app, beats, totals, _ = app_with_a_rekey()
    with Driver(app) as driver:
        with driver.together():
            for at_ms in range(0, 300, 5):
                for key in KEYS:
                    driver.send(beats, key, 1, timestamp_ms=at_ms)
        assert driver.late(totals) == 0
        driver.advance(1_000)
        assert driver.late(totals) == 0
        found = {window.start_ms: count for (_, window), count in driver.table(totals).items()}
        assert found == dict.fromkeys(range(0, 300, 20), 4 * len(KEYS))


def test_what_comes_due_at_one_task_is_there_before_time_has_come_further_at_another() -> None:
    app, beats, totals, _ = app_with_a_rekey()
    with Driver(app) as driver:
        for key in KEYS:
            driver.send(beats, key, 1, timestamp_ms=5)
        driver.advance(1_000)
        assert driver.late(totals) == 0
        assert driver.table(totals) == {("all", (0, 20)): len(KEYS)}


@pytest.mark.parametrize(("beats_name", "ships_name"), [("a", "b"), ("b", "a")])
def test_a_task_that_reads_a_rekey_and_a_topic_waits_for_the_rekey(beats_name: str, ships_name: str) -> None:
    app = App("pairs", partitions=2)
    beats, ships = app.topic(beats_name, key=str, value=int), app.topic(ships_name, key=int, value=int)
    by_value = beats.rekey(f"{beats_name}-by-value", key=int, by=lambda record: record.value)
    pairs: list[int] = []

    @app.join(by_value, ships, within=MS)
    def match(beat: Any, ship: Any) -> None:
        pairs.append(beat.value)

    with Driver(app) as driver:
        with driver.together():
            for at_ms in range(0, 300, 5):
                driver.send(beats, KEYS[at_ms % 8], at_ms, timestamp_ms=at_ms)
                driver.send(ships, at_ms, at_ms, timestamp_ms=at_ms)
        assert driver.late(match) == 0 and sorted(pairs) == list(range(0, 300, 5))


def output(name: str, at_ms: int) -> OutputRecord:
    return OutputRecord(name.encode(), b"", at_ms)


def test_each_source_keeps_its_own_order() -> None:
    one = [output("a", 5), output("b", 3), output("c", 9)]
    other = [output("d", 4), output("e", 5), output("f", 8)]
    assert [record.key for record in met([one, other])] == [b"d", b"a", b"b", b"e", b"f", b"c"]
    assert met([one]) == one


def subtopology(number: int, sources: str, sinks: str) -> Subtopology:
    return Subtopology(number, frozenset(), tuple(sources), (), tuple(sinks), 1, False, ())


def test_who_sends_comes_before_who_reads() -> None:
    flow = Flow(
        [subtopology(0, "c", "x"), subtopology(1, "b", "c"), subtopology(2, "a", "b"), subtopology(3, "d", "d")]
    )
    assert flow.in_order() == [2, 1, 0, 3]
    assert flow.first({0, 3}) == 0
    circle = Flow([subtopology(0, "ac", "b"), subtopology(1, "b", "c"), subtopology(2, "x", "a")])
    assert circle.in_order() == [2, 0, 1]
