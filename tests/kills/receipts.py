"""The bank with a receipt for every payment, so that a lost or doubled one has a name."""

from __future__ import annotations

import msgspec

from orchestrator import App, Record, Sink, Table


class Payment(msgspec.Struct):
    id: int
    amount: int


app = App("receipts", partitions=8)
payments = app.topic("payments", key=str, value=Payment)
receipts = app.topic("receipts", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances, receipts)
def settle(payment: Record[str, Payment], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    balances[payment.key] += payment.value.amount
    receipts.send(payment.key, payment.value.id)
