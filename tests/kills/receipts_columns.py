"""The receipts in columns."""

from __future__ import annotations

import pyarrow.compute as pc

from orchestrator import App, Columns, ColumnTable, Sink
from tests.kills.receipts import Payment

app = App("receipts", partitions=8)
payments = app.topic("payments", key=str, value=Payment)
receipts = app.topic("receipts", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances, receipts, columns=True)
def settle(batch: Columns[str, Payment], balances: ColumnTable[str, int], receipts: Sink[str, int]) -> None:
    sums = batch.table.group_by("key").aggregate([("amount", "sum")])
    balances.put(sums["key"], pc.add(balances.get(sums["key"]), sums["amount_sum"]))
    receipts.send(batch.table["key"], batch.table["id"])
