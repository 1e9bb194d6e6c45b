"""Orders that look at two topics as tables, for tests with real processes."""

from __future__ import annotations

from orchestrator import App, Record, Sink, TopicTable

app = App("desk", partitions=2)
customers = app.topic("customers", key=str, value=str)
rates = app.topic("rates", key=str, value=int, partitions=3)
orders = app.topic("orders", key=str, value=int)
out = app.topic("out", key=str, value=str)
known = app.table_of(customers)
everywhere = app.global_table(rates)


@app.processor(orders, known, everywhere, out)
def order(
    order: Record[str, int], customers: TopicTable[str, str], rates: TopicTable[str, int], out: Sink[str, str]
) -> None:
    out.send(order.key, f"{order.value} {customers.get(order.key)} {sorted(rates.items())}")
