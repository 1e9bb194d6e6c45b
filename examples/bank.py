"""The first example: accounts that must not be overdrawn. One rule of its own: an alert for every payment below zero.

The shortest app with state: a topic in, a table, a topic out. `tests/examples/test_bank.py` runs it.
"""

import msgspec

from orchestrator import App, Record, Sink, Table


class Payment(msgspec.Struct):
    account: str
    amount: int


app = App("bank", partitions=8)
payments = app.topic("payments", key=str, value=Payment)
alerts = app.topic("alerts", key=str, value=str)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances, alerts)
def settle(payment: Record[str, Payment], balances: Table[str, int], alerts: Sink[str, str]) -> None:
    balances[payment.key] += payment.value.amount
    if balances[payment.key] < 0:
        alerts.send(payment.key, "overdrawn")
