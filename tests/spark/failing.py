"""A small app whose calls of what closes always fail: for what must leave all as it was."""

from __future__ import annotations

from datetime import timedelta

from orchestrator import App, ClosedWindow, Record, Tumbling, TumblingTable

app = App("failing", partitions=2)
beats = app.topic("failing-beats", key=str, value=int)
sums = app.table("sums", key=str, value=int, default=int, window=Tumbling(timedelta(seconds=1)))


@app.processor(beats, sums)
def beat(beat: Record[str, int], sums: TumblingTable[str, int]) -> None:
    sums[beat.key] += beat.value


@app.when_closed(sums)
def close(window: ClosedWindow[str, int]) -> None:
    raise ValueError("no more")
