"""The sample's sums in columns, for a backfill: a re-key between, some values that cannot be read."""

from __future__ import annotations

import pyarrow.compute as pc

from orchestrator import App, Columns, ColumnTable, Sink
from tests.spark.sample import Order

app = App("in-columns", partitions=4, on_error="letters")
orders = app.topic("orders", key=str, value=Order)
letters = app.topic("letters", key=bytes, value=bytes)
totals = app.table("totals", key=str, value=int, default=int)
receipts = app.topic("receipts", key=str, value=int)
by_shop = orders.rekey("by-shop", key=str, by=lambda order: order.value.shop)


@app.processor(by_shop, totals, receipts, columns=True)
def add(batch: Columns[str, Order], totals: ColumnTable[str, int], receipts: Sink[str, int]) -> None:
    sums = batch.table.group_by("key").aggregate([("amount", "sum")])
    totals.put(sums["key"], pc.add(totals.get(sums["key"]), sums["amount_sum"]))
    receipts.send(batch.table["key"], batch.table["id"])
