"""The receipts in batches."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator import App, Record, Sink, Table
from tests.kills.receipts import Payment

app = App("receipts", partitions=8)
payments = app.topic("payments", key=str, value=Payment)
receipts = app.topic("receipts", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances, receipts, batch=True)
def settle(batch: Sequence[Record[str, Payment]], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    for payment in batch:
        balances[payment.key] += payment.value.amount
        receipts.send(payment.key, payment.value.id)
