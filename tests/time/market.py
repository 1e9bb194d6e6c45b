"""An app with every join of tables, for tests with real processes and Spark."""

from __future__ import annotations

from typing import Any

from orchestrator import App, Record, Sink, Table

app = App("market", partitions=2)
orders = app.topic("orders", key=str, value=tuple[str | None, int])  # customer and amount
customers = app.topic("customers", key=str, value=str, partitions=3)
payments = app.topic("payments", key=str, value=int)
people = app.topic("people", key=str, value=str)  # who they report to
enriched = app.topic("enriched", key=str, value=str)
settled = app.topic("settled", key=str, value=str)
chiefs = app.topic("chiefs", key=str, value=str)

order_rows = app.table_of(orders)
paid = app.table("paid", key=str, value=int, default=int)


@app.processor(payments, paid)
def pay(payment: Record[str, int], paid: Table[str, int]) -> None:
    if payment.value:
        paid[payment.key] += payment.value
    else:
        paid.pop(payment.key, None)


@app.foreign_key_join(order_rows, customers, enriched, key=lambda order: order[0], kind="left")
def enrich(
    order: Record[str, tuple[str | None, int]], customer: Record[str, str] | None, enriched: Sink[str, str]
) -> None:
    gone: Any = order.value is None
    enriched.send(order.key, None if gone else f"{order.value[1]} for {customer.value if customer else '?'}")


@app.table_join(order_rows, paid, settled, kind="outer")
def settle(
    order: Record[str, tuple[str | None, int]] | None, paid: Record[str, int] | None, settled: Sink[str, str]
) -> None:
    if paid is not None:
        settled.send(paid.key, f"{order.value[1] if order else None} - {paid.value}")
    elif order is not None:
        gone: Any = order.value is None
        settled.send(order.key, None if gone else f"{order.value[1]} - None")


@app.foreign_key_join(people, people, chiefs, key=lambda chief: chief or None)
def report(person: Record[str, str], chief: Record[str, str] | None, chiefs: Sink[str, str]) -> None:
    chiefs.send(person.key, None if chief is None else f"{person.value}, who reports to {chief.value!r}")
