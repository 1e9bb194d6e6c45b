"""The receipts behind a re-key: payments are added up by shop, so each record passes two tasks and a topic between them."""

from __future__ import annotations

from orchestrator import App, Record, Sink, Table
from tests.chaos.oracle import shop_of
from tests.kills.receipts import Payment

app = App("receipts", partitions=8)
payments = app.topic("payments", key=str, value=Payment)
by_shop = payments.rekey("by-shop", key=str, by=lambda payment: shop_of(payment.value.id))
receipts = app.topic("receipts", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(by_shop, balances, receipts)
def settle(payment: Record[str, Payment], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    balances[payment.key] += payment.value.amount
    receipts.send(payment.key, payment.value.id)
