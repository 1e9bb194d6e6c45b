"""An app with keys that JSON writes as text, and values with a default that a function makes."""

from __future__ import annotations

from datetime import date

import msgspec

from orchestrator import App, Record, Table


class Day(msgspec.Struct):
    count: int
    last: date
    tags: list[str] = msgspec.field(default_factory=lambda: ["none"])


app = App("dated", partitions=2)
days = app.topic("days", key=date, value=Day)
latest = app.table("latest", key=date, value=Day)


@app.processor(days, latest)
def keep(record: Record[date, Day], latest: Table[date, Day]) -> None:
    latest[record.key] = record.value
