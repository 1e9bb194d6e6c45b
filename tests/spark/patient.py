"""An app whose client is there as soon as a file is."""

from __future__ import annotations

from pathlib import Path

from orchestrator import App, Record, Table

app = App("patient", partitions=2)
orders = app.topic("orders", key=str, value=str)
done = app.table("done", key=str, value=int, default=int)


@app.processor(orders, done, backoff=0.1, on_error={ConnectionError: "wait"})
async def order(order: Record[str, str], done: Table[str, int]) -> None:
    if not Path(order.value).exists():
        raise ConnectionRefusedError("nobody is there")
    done[order.key] += 1
