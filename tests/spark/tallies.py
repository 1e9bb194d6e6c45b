"""A small app with a table whose entries go, and an output: what is looked at key by key is looked at here."""

from __future__ import annotations

from orchestrator import App, Record, Sink, Table

app = App("tallies", partitions=2)
marks = app.topic("marks", key=str, value=int)
sums = app.table("sums", key=str, value=int, default=int)
seen = app.topic("seen", key=str, value=int)


@app.processor(marks, sums, seen)
def add(mark: Record[str, int], sums: Table[str, int], seen: Sink[str, int]) -> None:
    sums[mark.key] += mark.value
    if sums[mark.key] == 0:
        del sums[mark.key]
    seen.send(mark.key, mark.value, headers=mark.headers)
