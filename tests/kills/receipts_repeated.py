"""The same bank at least once, under the same id: a group may change from one guarantee to the other between two runs."""

from __future__ import annotations

from orchestrator import App, Record, Sink, Table
from tests.kills.receipts import Payment

app = App("receipts", partitions=8, guarantee="at-least-once")
payments = app.topic("payments", key=str, value=Payment)
receipts = app.topic("receipts", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances, receipts)
def settle(payment: Record[str, Payment], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    balances[payment.key] += payment.value.amount
    receipts.send(payment.key, payment.value.id)
