"""An app that sends on what it reads, from two inputs: its output is the order in which its tasks took their records."""

from __future__ import annotations

from orchestrator import App, Record, Sink, Table

app = App("trails", partitions=3)
left = app.topic("left", key=bytes, value=str)
right = app.topic("right", key=bytes, value=str)
trail = app.topic("trail", key=bytes, value=str)
seen = app.table("seen", key=bytes, value=int, default=int)


@app.processor(left, seen, trail)
def from_left(record: Record[bytes, str], seen: Table[bytes, int], trail: Sink[bytes, str]) -> None:
    if record.key is not None:
        seen[record.key] += 1
    trail.send(record.key, record.value)


@app.processor(right, seen, trail)
def from_right(record: Record[bytes, str], seen: Table[bytes, int], trail: Sink[bytes, str]) -> None:
    if record.key is not None:
        seen[record.key] += 1
    trail.send(record.key, record.value)
