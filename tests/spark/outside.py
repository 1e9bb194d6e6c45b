"""An app outside of what Spark promises."""

from __future__ import annotations

from orchestrator import App, Record, Table

app = App("outside", partitions=2)
clicks = app.topic("clicks", key=str, value=int)
seen = app.table("seen", key=str, value=int, default=int, local=True)


@app.processor(clicks, seen)
def see(click: Record[str, int], seen: Table[str, int]) -> None:
    seen["all"] += 1
    if click.value < 0:
        raise ValueError("a negative click")
