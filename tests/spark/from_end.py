"""An app that reads a topic from its end on."""

from __future__ import annotations

from orchestrator import App, Record, Table

app = App("from-end", partitions=2)
clicks = app.topic("clicks", key=str, value=int, start="end")
sums = app.table("sums", key=str, value=int, default=int)


@app.processor(clicks, sums)
def add(click: Record[str, int], sums: Table[str, int]) -> None:
    sums[click.key] += click.value
