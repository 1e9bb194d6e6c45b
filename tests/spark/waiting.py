"""Clicks counted by page, behind a re-key: what an audit meets in the middle of it."""

from __future__ import annotations

from orchestrator import App, Record, Table

app = App("waiting", partitions=2)
clicks = app.topic("clicks", key=str, value=str)
pages = app.table("pages", key=str, value=int, default=int)
by_page = clicks.rekey("by-page", key=str, by=lambda click: click.value)


@app.processor(by_page, pages)
def count(click: Record[str, str], pages: Table[str, int]) -> None:
    pages[click.key] += 1
