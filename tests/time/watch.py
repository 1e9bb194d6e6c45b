"""An app with everything that keeps time, for tests with real processes: what it sends is the whole of its answer."""

from __future__ import annotations

from datetime import timedelta

from orchestrator import App, ClosedWindow, Due, Record, Session, SessionTable, Sink, Timers, Tumbling, TumblingTable

MS = timedelta(milliseconds=1)

app = App("watch", partitions=2)
beats = app.topic("beats", key=str, value=int)
ships = app.topic("ships", key=str, value=int)
out = app.topic("out", key=str, value=str)
sums = app.table("sums", key=str, value=int, default=int, window=Tumbling(100 * MS), grace=30 * MS, retain=500 * MS)
visits = app.table(
    "visits", key=str, value=int, default=int, window=Session(gap=20 * MS, merge=lambda earlier, later: earlier + later)
)
silent = app.timers("silent", key=str)


@app.processor(beats, sums, visits, silent)
def beat(
    beat: Record[str, int], sums: TumblingTable[str, int], visits: SessionTable[str, int], silent: Timers[str]
) -> None:
    sums[beat.key] += beat.value
    visits[beat.key] += 1
    silent[beat.key] = beat.timestamp_ms + 50


@app.when_due(silent, silent, out)
def gone(due: Due[str], silent: Timers[str], out: Sink[str, str]) -> None:
    out.send(due.key, f"silent at {due.timestamp_ms}")
    if due.timestamp_ms % 3 == 0:
        silent[due.key] = due.timestamp_ms + 70


@app.when_closed(sums, out)
def close(window: ClosedWindow[str, int], out: Sink[str, str]) -> None:
    out.send(window.key, f"{window.start_ms}-{window.end_ms}: {window.value}")


@app.when_closed(visits, out)
def leave(window: ClosedWindow[str, int], out: Sink[str, str]) -> None:
    out.send(window.key, f"visit {window.start_ms}-{window.end_ms}: {window.value}")


@app.join(beats, ships, out, within=(MS, 10 * MS), grace=5 * MS, kind="outer")
def match(beat: Record[str, int] | None, ship: Record[str, int] | None, out: Sink[str, str]) -> None:
    key = beat.key if beat is not None else ship.key if ship is not None else ""
    out.send(key, f"pair {beat.value if beat else None} {ship.value if ship else None}")
