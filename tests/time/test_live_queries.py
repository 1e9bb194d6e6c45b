"""Windows, sessions and timers of a running group, as `query`, `consume` and `table` show them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.console import Console

pytestmark = pytest.mark.processes
HOUR = 3_600_000
PROGRAM = """
from datetime import timedelta
from orchestrator import App, Hopping, Session, Tumbling
app = App("beats", partitions=2)
beats = app.topic("beats", key=str, value=int)
ships = app.topic("ships", key=str, value=int)
DAY = timedelta(days=1)
hourly = app.table("hourly", key=str, value=int, default=int, window=Tumbling(hours=1), retain=DAY)
rolling = app.table("rolling", key=str, value=int, default=int, window=Hopping(hours=2, every=timedelta(hours=1)), retain=DAY)
visits = app.table("visits", key=str, value=int, default=int, retain=DAY,
                   window=Session(gap=timedelta(minutes=30), merge=lambda one, other: one + other))
silent = app.timers("silent", key=str)

@app.processor(beats, hourly, rolling, visits, silent)
def beat(beat, hourly, rolling, visits, silent):
    hourly[beat.key] += beat.value
    for window in rolling:
        window[beat.key] += beat.value
    visits[beat.key] += beat.value
    silent[beat.key] = beat.timestamp_ms + 300_000

@app.when_due(silent)
def gone(due): pass

@app.join(beats, ships, within=timedelta(minutes=1))
def match(beat, ship): pass
"""


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    found = Console(tmp_path / "place", app="beats")
    found.write("beats.py", PROGRAM)
    yield found
    found.close()


def rows(console: Console, *words: str) -> list[Any]:
    done = console.here(*words)
    assert done.code == 0, done
    return [json.loads(line) for line in done.out.splitlines()]


def test_windows_are_shown(console: Console) -> None:
    times = [("ann", 0, 1), ("ann", 60_000, 2), ("bob", HOUR, 4), ("zoe", HOUR + 1, 8), ("ann", 3 * HOUR + 5, 16)]
    lines = [json.dumps({"key": key, "value": value, "timestamp_ms": at}) for key, at, value in times]
    assert console.here("produce", "beats:app", "beats", stdin="\n".join(lines)).code == 0
    console.run("--heartbeat", "200ms")
    console.until("all", lambda: len(rows(console, "table", "dump", "beats", "hourly")) == 4)

    newest = {"start_ms": 3 * HOUR, "end_ms": 4 * HOUR, "open": True, "value": 16}
    first = {"start_ms": 0, "end_ms": HOUR, "open": False, "value": 3}
    assert rows(console, "query", "beats", "hourly", "ann") == [newest]
    assert rows(console, "query", "beats", "hourly", "ann", "--from", "0") == [first, newest]
    assert rows(console, "query", "beats", "hourly", "ann", "--until", "1970-01-01T03:00Z") == [first]
    assert rows(console, "query", "beats", "hourly", "ann", "--at", f"{HOUR - 1}") == [first]
    outside = console.here("query", "beats", "hourly", "ann", "--at", f"{HOUR}")
    assert outside.code == 5 and "has no such window of key ann" in outside.err, outside
    empty = console.here("query", "beats", "hourly", "ann", "--from", "5", "--until", "5")
    assert empty.code == 2 and "--until is not after --from" in empty.err, empty
    answer = console.here("query", "beats", "hourly", "ann", "--json").json
    assert (answer["found"], answer["value"], answer["windows"]) == (True, 16, [newest])
    several = rows(console, "query", "beats", "rolling", "ann", "--at", "0")
    assert [(row["start_ms"], row["value"]) for row in several] == [(0, 3)]
    several = rows(console, "query", "beats", "rolling", "ann", "--at", f"{3 * HOUR + 9}")
    assert [(row["start_ms"], row["value"]) for row in several] == [(2 * HOUR, 16), (3 * HOUR, 16)]
    open_one = {"start_ms": 3 * HOUR + 5, "end_ms": 3 * HOUR + 5, "open": True, "value": 16}
    assert rows(console, "query", "beats", "visits", "ann") == [open_one]
    over = {"start_ms": 0, "end_ms": 60_000, "open": False, "value": 3}
    assert rows(console, "query", "beats", "visits", "ann", "--at", "30000") == [over]
    assert console.here("query", "beats", "silent", "ann").out == f"{3 * HOUR + 300_005}\n"
    for words, problem in (
        (("query", "beats", "silent", "ann", "--at", "0"), "'silent' has no windows"),
        (("query", "beats", "hourly", "ann", "--at", "soon"), "--at soon: it is neither milliseconds"),
        (("query", "beats", "match-join", "ann"), "holds what a join keeps for itself (join)"),
        (("table", "scan", "beats", "match-join"), "holds what a join keeps for itself (join)"),
    ):
        done = console.here(*words)
        assert done.code == 2 and problem in done.err, done

    dumped = rows(console, "table", "dump", "beats", "hourly", "--prefix", "ann")
    assert dumped == [{"key": "ann", **{n: row[n] for n in ("start_ms", "end_ms", "value")}} for row in (first, newest)]
    assert console.here("table", "dump", "beats", "visits", "--out", "visits.parquet").code == 0
    import pyarrow.parquet as pq

    table = pq.read_table(console.folder / "visits.parquet")
    found = {tuple(row[n] for n in ("key", "start_ms", "end_ms", "value")) for row in table.to_pylist()}
    assert ("ann", 0, 60_000, 3) in found and len(found) == 4
    shown = rows(console, "consume", "beats", "beats-hourly-changelog")
    last = {(row["key"], row["start_ms"], row["end_ms"]): row["value"] for row in shown}
    assert last[("ann", 0, HOUR)] == 3 and len(last) == 4
    timers = rows(console, "consume", "beats", "beats-silent-changelog")
    assert {row["key"]: row["value"] for row in timers}["ann"] == 3 * HOUR + 300_005
    assert {task["id"] for task in console.here("status", "beats", "--json").json["tasks"]} == {"0_0", "0_1"}
