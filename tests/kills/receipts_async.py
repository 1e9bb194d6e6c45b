"""The receipts with a processor that waits for something in each call."""

from __future__ import annotations

import asyncio

from orchestrator import App, Record, Sink, Table
from tests.kills.receipts import Payment

app = App("receipts", partitions=8)
payments = app.topic("payments", key=str, value=Payment)
receipts = app.topic("receipts", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances, receipts)
async def settle(payment: Record[str, Payment], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    balances[payment.key] += payment.value.amount
    await asyncio.sleep(0.001)
    receipts.send(payment.key, payment.value.id)
