"""An app with everything that a backfill must get right: a re-key, a join, a range over a table, headers, tombstones,
a batch processor, an async one, records that fail."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from orchestrator import App, Record, Sink, Table


class Order(msgspec.Struct):
    id: int
    shop: str | None
    amount: int


app = App("sample", partitions=4)
orders = app.topic("orders", key=str, value=Order)
names = app.topic("names", key=str, value=str)
letters = app.topic("letters", key=str, value=Order)
totals = app.table("totals", key=str, value=int, default=int)
shops = app.table("shops", key=tuple[str, int], value=int, route=lambda key: key[0])
last_name = app.table("last-name", key=str, value=str)
counts = app.table("counts", key=str, value=int, default=int)
receipts = app.topic("receipts", key=str, value=int)
greetings = app.topic("greetings", key=str, value=str)

by_shop = orders.rekey("by-shop", key=str, by=lambda order: order.value.shop)


@app.processor(orders, totals, receipts, on_error=letters)
def add(order: Record[str, Order], totals: Table[str, int], receipts: Sink[str, int]) -> None:
    if order.value.amount == 13:
        raise ValueError("an unlucky order")
    totals[order.key] += order.value.amount
    if totals[order.key] == 0:
        del totals[order.key]
    receipts.send(order.key, order.value.id, headers=order.headers)


@app.processor(by_shop, shops)
def newest_of_shop(order: Record[str, Order], shops: Table[tuple[str, int], int]) -> None:
    """The three largest ids of each shop: reads a range of the table that it writes."""
    shops[order.key, order.value.id] = order.value.amount
    kept = list(shops.prefix((order.key,)))
    for key, _ in sorted(kept, key=lambda pair: pair[0][1])[:-3]:
        del shops[key]


@app.processor(by_shop, counts, batch=True)
def count(orders: Sequence[Record[str, Order]], counts: Table[str, int]) -> None:
    for order in orders:
        counts[order.key] += 1


@app.processor(names, last_name)
def named(name: Record[str, str], last_name: Table[str, str]) -> None:
    last_name[name.key] = name.value


@app.processor(orders, last_name, greetings)
async def greet(order: Record[str, Order], last_name: Table[str, str], greetings: Sink[str, str]) -> None:
    """A join with what came before: depends on the order of records of two topics."""
    greetings.send(order.key, last_name.get(order.key, "stranger"))
