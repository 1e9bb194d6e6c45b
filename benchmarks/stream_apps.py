"""The apps of `benchmarks/stream.py`: a count by key, in each form that a processor has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pyarrow.compute as pc

from orchestrator import App, Columns, ColumnTable, Record, Sink, Table

TOPIC = "events"
PARTITIONS = 8


class Payment(msgspec.Struct):
    amount: int
    note: str


record = App("record", partitions=PARTITIONS)
record_events = record.topic(TOPIC, key=str, value=bytes)
record_counts = record.table("counts", key=str, value=int, default=int)


@record.processor(record_events, record_counts)
def count(event: Record[str, bytes], counts: Table[str, int]) -> None:
    counts[event.key] += 1


least = App("least", partitions=PARTITIONS, guarantee="at-least-once")
least_events = least.topic(TOPIC, key=str, value=bytes)
least_counts = least.table("counts", key=str, value=int, default=int)


@least.processor(least_events, least_counts)
def count_least(event: Record[str, bytes], counts: Table[str, int]) -> None:
    counts[event.key] += 1


batch = App("batch", partitions=PARTITIONS)
batch_events = batch.topic(TOPIC, key=str, value=bytes)
batch_counts = batch.table("counts", key=str, value=int, default=int)


@batch.processor(batch_events, batch_counts, batch=True)
def count_all(events: Sequence[Record[str, bytes]], counts: Table[str, int]) -> None:
    for event in events:
        counts[event.key] += 1


expiring = App("expiring", partitions=PARTITIONS)
expiring_events = expiring.topic(TOPIC, key=str, value=bytes)
expiring_counts = expiring.table("counts", key=str, value=int, default=int, expire=timedelta(days=1))


@expiring.processor(expiring_events, expiring_counts)
def count_expiring(event: Record[str, bytes], counts: Table[str, int]) -> None:
    counts[event.key] += 1


sending = App("sending", partitions=PARTITIONS)
sending_events = sending.topic(TOPIC, key=str, value=bytes)
sending_out = sending.topic("out", key=str, value=bytes)


@sending.processor(sending_events, sending_out)
def forward(event: Record[str, bytes], out: Sink[str, bytes]) -> None:
    out.send(event.key, event.value)


def tail_of(key: str) -> str:
    return key[-4:]


rekeying = App("rekeying", partitions=PARTITIONS)
rekeying_events = rekeying.topic(TOPIC, key=str, value=bytes)
rekeying_by_tail = rekeying_events.rekey("by-tail", key=str, by=lambda event: tail_of(event.key))
rekeying_counts = rekeying.table("counts", key=str, value=int, default=int)


@rekeying.processor(rekeying_by_tail, rekeying_counts)
def count_tails(event: Record[str, bytes], counts: Table[str, int]) -> None:
    counts[event.key] += 1


structs = App("structs", partitions=PARTITIONS)
structs_events = structs.topic(TOPIC, key=str, value=Payment)
structs_sums = structs.table("sums", key=str, value=int, default=int)


@structs.processor(structs_events, structs_sums)
def add_up(event: Record[str, Payment], sums: Table[str, int]) -> None:
    sums[event.key] += event.value.amount


waiting = App("waiting", partitions=PARTITIONS)
waiting_events = waiting.topic(TOPIC, key=str, value=bytes)
waiting_counts = waiting.table("counts", key=str, value=int, default=int)


@waiting.processor(waiting_events, waiting_counts)
async def count_async(event: Record[str, bytes], counts: Table[str, int]) -> None:
    await asyncio.sleep(0)
    counts[event.key] += 1


columns = App("columns", partitions=PARTITIONS)
columns_events = columns.topic(TOPIC, key=str, value=bytes)
columns_counts = columns.table("counts", key=str, value=int, default=int)


@columns.processor(columns_events, columns_counts, columns=True)
def count_columns(batch: Columns[str, bytes], counts: ColumnTable[str, int]) -> None:
    found = batch.table["key"].value_counts()
    keys = found.field("values")
    counts.put(keys, pc.add(counts.get(keys), found.field("counts")))


struct_columns = App("struct-columns", partitions=PARTITIONS)
struct_columns_events = struct_columns.topic(TOPIC, key=str, value=Payment)
struct_columns_sums = struct_columns.table("sums", key=str, value=int, default=int)


@struct_columns.processor(struct_columns_events, struct_columns_sums, columns=True)
def add_up_columns(batch: Columns[str, Payment], sums: ColumnTable[str, int]) -> None:
    found = batch.table.group_by("key").aggregate([("amount", "sum")])
    keys = found["key"]
    sums.put(keys, pc.add(sums.get(keys), found["amount_sum"]))


_EVERY = (record, least, batch, columns, expiring, sending, rekeying, structs, struct_columns, waiting)
APPS = {app.id: app for app in _EVERY}
JSON = {"structs", "struct-columns"}
