"""Clicks numbered by page, behind a re-key: the number that a click gets depends on when it comes."""

from __future__ import annotations

from orchestrator import App, Record, Sink, Table

app = App("numbered", partitions=2)
clicks = app.topic("clicks", key=str, value=str)
numbers = app.topic("numbers", key=str, value=int)
pages = app.table("pages", key=str, value=int, default=int)
by_page = clicks.rekey("by-page", key=str, by=lambda click: click.value)


@app.processor(by_page, pages, numbers)
def number(click: Record[str, str], pages: Table[str, int], numbers: Sink[str, int]) -> None:
    pages[click.key] += 1
    numbers.send(click.key, pages[click.key])
