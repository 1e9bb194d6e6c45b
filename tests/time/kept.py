"""An app with a table of every form that time has, for tests of what keeps, compares and restores tables."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from orchestrator import App, Hopping, Session, Sliding, Tumbling

MS = timedelta(milliseconds=1)
DAY = timedelta(days=1)

app = App("kept", partitions=2)
beats = app.topic("beats", key=str, value=int)
ships = app.topic("ships", key=str, value=int)
rates = app.topic("rates", key=str, value=int)
out = app.topic("out", key=str, value=str)
hourly = app.table("hourly", key=str, value=int, default=int, window=Tumbling(100 * MS), grace=30 * MS, retain=DAY)
rolling = app.table("rolling", key=str, value=int, default=int, window=Hopping(90 * MS, every=30 * MS), retain=DAY)
near = app.table("near", key=str, value=int, default=int, window=Sliding(20 * MS), retain=DAY)
visits = app.table(
    "visits",
    key=str,
    value=int,
    default=int,
    retain=DAY,
    window=Session(gap=20 * MS, merge=lambda one, other: one + other),
)
silent = app.timers("silent", key=str)
rate_of = app.table_of(rates, versions=timedelta(minutes=5), alias="rate_of")


@app.processor(beats, hourly, rolling, near, visits, silent, rate_of, out)
def beat(beat: Any, hourly: Any, rolling: Any, near: Any, visits: Any, silent: Any, rate_of: Any, out: Any) -> None:
    hourly[beat.key] += beat.value
    for windows in (rolling, near):
        for window in windows:
            window[beat.key] += beat.value
    visits[beat.key] += 1
    silent[beat.key] = beat.timestamp_ms + 60
    out.send(beat.key, f"rate {rate_of.as_of(beat.timestamp_ms - 40).get(beat.key)}")


@app.when_due(silent, out)
def gone(due: Any, out: Any) -> None:
    out.send(due.key, f"silent at {due.timestamp_ms}")


@app.when_closed(visits, out)
def leave(window: Any, out: Any) -> None:
    out.send(window.key, f"visit {window.start_ms}-{window.end_ms}: {window.value}")


@app.join(beats, ships, out, within=10 * MS, grace=5 * MS, kind="outer")
def match(beat: Any, ship: Any, out: Any) -> None:
    one = beat if beat is not None else ship
    out.send(one.key, f"pair {beat.value if beat else None} {ship.value if ship else None}")
