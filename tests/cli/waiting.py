"""An app whose calls wait for as long as there is a file `hold`."""

from __future__ import annotations

import time
from pathlib import Path

from orchestrator import App, Record, Table

app = App("waiting", partitions=4)
source = app.topic("source", key=str, value=int)
seen = app.table("seen", key=str, value=int, default=int)


@app.processor(source, seen)
def take(record: Record[str, int], seen: Table[str, int]) -> None:
    while Path("hold").exists():
        Path("holds").touch()
        time.sleep(0.02)
    seen[record.key] += 1
