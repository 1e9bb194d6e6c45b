"""An app whose calls wait for as long as there is a file `hold`; without state where the environment says so."""

from __future__ import annotations

import os
import time
from pathlib import Path

from orchestrator import App, Record, Table

app = App("waiting", partitions=4)
source = app.topic("source", key=str, value=int)
seen = app.table("seen", key=str, value=int, default=int)


def wait() -> None:
    while Path("hold").exists():
        Path("holds").touch()
        time.sleep(0.02)


if os.environ.get("STATELESS"):

    @app.processor(source)
    def look(record: Record[str, int]) -> None:
        wait()

else:

    @app.processor(source, seen)
    def take(record: Record[str, int], seen: Table[str, int]) -> None:
        wait()
        seen[record.key] += 1
