"""What a type checker sees of windows, timers, joins and topics as tables: right programs pass mypy --strict, wrong ones
do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.test_typing import check

HEAD = """
from __future__ import annotations
from datetime import timedelta
from orchestrator import (
    App, ClosedWindow, Due, Hopping, HoppingTable, Record, Session, SessionTable, Sink, Sliding, Timers, TopicTable, Tumbling,
    TumblingTable, Window,
)
from orchestrator.testing import Driver

app = App("bank")
beats = app.topic("beats", key=str, value=int)
ships = app.topic("ships", key=str, value=float)
out = app.topic("out", key=str, value=str)
hourly = app.table("hourly", key=str, value=int, default=int, window=Tumbling(hours=1), grace=timedelta(minutes=5))
rolling = app.table("rolling", key=str, value=int, default=int, window=Hopping(hours=1, every=timedelta(minutes=10)))
near = app.table("near", key=str, value=int, default=int, window=Sliding(minutes=5))
visits = app.table("visits", key=str, value=int, default=int,
                   window=Session(gap=timedelta(minutes=30), merge=lambda earlier, later: earlier + later))
silent = app.timers("silent", key=str)
named = app.table("named", key=int, value=str)
sums = app.table("sums", key=str, value=int, default=int)
rates = app.global_table(ships)
counts = app.table_of(beats, versions=timedelta(minutes=5), alias="counts")
"""
GOOD = """
@app.processor(beats, hourly, rolling, near, visits, silent)
def beat(
    beat: Record[str, int], hourly: TumblingTable[str, int], rolling: HoppingTable[str, int], near: HoppingTable[str, int],
    visits: SessionTable[str, int], silent: Timers[str],
) -> None:
    hourly[beat.key] += beat.value
    before: int | None = hourly.at(hourly.start_ms - 1).get(beat.key)
    for window in rolling:
        window[beat.key] += window.end_ms - window.start_ms
    for window in near:
        window[beat.key] += 1
    bounds: Window | None = visits.window(beat.key)
    silent[beat.key] = beat.timestamp_ms + 300_000

@app.when_due(silent, silent, out)
def gone(due: Due[str], silent: Timers[str], out: Sink[str, str]) -> None:
    out.send(due.key, str(due.timestamp_ms))

@app.when_closed(hourly, out)
def close(window: ClosedWindow[str, int], out: Sink[str, str]) -> None:
    out.send(window.key, str(window.value + window.start_ms))

@app.when_closed(visits)
def leave(window: ClosedWindow[str, int]) -> None: ...

@app.join(beats, ships, out, within=timedelta(hours=1))
def inner(beat: Record[str, int], ship: Record[str, float], out: Sink[str, str]) -> None: ...

@app.join(beats, ships, within=(timedelta(0), timedelta(hours=1)), kind="left", grace=timedelta(minutes=1), on_late=out)
def left(beat: Record[str, int], ship: Record[str, float] | None) -> None: ...

@app.join(beats, ships, within=timedelta(hours=1), kind="outer")
def outer(beat: Record[str, int] | None, ship: Record[str, float] | None) -> None: ...

@app.table_join(counts, ships, out)
def both(beat: Record[str, int], ship: Record[str, float] | None, out: Sink[str, str]) -> None: ...

@app.table_join(sums, counts, kind="outer", on_error="skip")
def either(beat: Record[str, int] | None, ship: Record[str, int] | None) -> None: ...

@app.foreign_key_join(ships, counts, out, key=lambda weight: str(weight) if weight > 1 else None, kind="left")
def of(ship: Record[str, float], beat: Record[str, int] | None, out: Sink[str, str]) -> None: ...

@app.foreign_key_join(sums, named, key=lambda number: number)
def by_number(total: Record[str, int], name: Record[int, str] | None) -> None: ...

@app.processor(beats, rates, counts)
def price(beat: Record[str, int], ships: TopicTable[str, float], counts: TopicTable[str, int]) -> None:
    one: float = ships["usd"]
    two: int = counts.as_of(beat.timestamp_ms)[beat.key] + counts.timestamp_ms(beat.key)

with Driver(app) as driver:
    windows: dict[tuple[str, Window], int] = driver.table(hourly)
    timers: dict[str, int] = driver.table(silent)
    topic: dict[str, int] = driver.table(counts)
    late: int = driver.late(hourly) + driver.late(inner)
    driver.advance(5)
fake = hourly.fake()
fake["ann"] += 1
"""
BAD = {
    "a plain dict of windows": """
@app.processor(beats, rolling)
def a(beat: Record[str, int], rolling: TumblingTable[str, int]) -> None: ...""",
    "value of a window": """
@app.when_closed(hourly)
def a(window: ClosedWindow[str, str]) -> None: ...""",
    "key of a timer": """
@app.when_due(silent)
def a(due: Due[int]) -> None: ...""",
    "None of a left join": """
@app.join(beats, ships, within=timedelta(hours=1), kind="left")
def a(beat: Record[str, int], ship: Record[str, float]) -> None: ...""",
    "None of an outer join": """
@app.join(beats, ships, within=timedelta(hours=1), kind="outer")
def a(beat: Record[str, int], ship: Record[str, float] | None) -> None: ...""",
    "sides swapped": """
@app.join(beats, ships, within=timedelta(hours=1))
def a(ship: Record[str, float], beat: Record[str, int]) -> None: ...""",
    "None of a join of tables": """
@app.table_join(counts, ships)
def a(beat: Record[str, int], ship: Record[str, float]) -> None: ...""",
    "sides of tables swapped": """
@app.table_join(counts, ships)
def a(ship: Record[str, float], beat: Record[str, int] | None) -> None: ...""",
    "a windowed table in a join of tables": """
@app.table_join(counts, hourly)
def a(beat: Record[str, int], other: Record[str, int] | None) -> None: ...""",
    "a foreign key of another type": """
@app.foreign_key_join(ships, counts, key=lambda weight: 3)
def a(ship: Record[str, float], beat: Record[str, int] | None) -> None: ...""",
    "a field that a value does not have": """
@app.foreign_key_join(ships, counts, key=lambda weight: weight.name)
def a(ship: Record[str, float], beat: Record[str, int] | None) -> None: ...""",
    "None of a join by foreign key": """
@app.foreign_key_join(ships, counts, key=lambda weight: str(weight))
def a(ship: Record[str, float], beat: Record[str, int]) -> None: ...""",
    "timers of another key": """
@app.processor(beats, silent)
def a(beat: Record[str, int], silent: Timers[int]) -> None: ...""",
    "a topic's value": """
@app.processor(beats, counts)
def a(beat: Record[str, int], counts: TopicTable[str, str]) -> None: ...""",
}


def test_right_programs_pass_and_wrong_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = check(tmp_path, {"right": GOOD, **BAD}, monkeypatch, HEAD)
    assert found.pop("right") == []
    assert [name for name, errors in found.items() if not errors] == []
