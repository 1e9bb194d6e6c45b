"""Batches beside others that have their tables. Law: where a run is cut changes nothing: every call sees what it would see had the
records come one at a time, and the same is sent and stored in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App, Tumbling
from orchestrator.testing import Driver
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from workers.calls.call_watch import Turn, blame, describe, is_of_one_record

MS = timedelta(milliseconds=1)
OF_A_TOPIC = ["of a topic", "versions"]
KINDS = [*OF_A_TOPIC, "one", "batch", "own topic", "own batch", "async", "at once", "window"]
Given = Sequence[tuple[str, bytes, int]]
GIVEN = st.lists(
    st.tuples(st.sampled_from(["orders", "pays"]), st.sampled_from([b"x", b"y"]), st.integers(1, 10)), max_size=14
)


def app_of(kind: str, sizes: list[int]) -> App:
    """Orders in batches, which see and change what pays have written; `sizes`: those of the batches."""
    app = App("shop", partitions=1)
    pays, orders = app.topic("pays", key=str, value=int), app.topic("orders", key=str, value=int)
    out = app.topic("out", key=str, value=str)
    tab: Any
    match kind:
        case _ if kind in OF_A_TOPIC:
            tab = app.table_of(pays, alias="tab", versions=6 * MS if kind == "versions" else None)
        case "window":
            tab = app.table("tab", key=str, value=int, default=int, window=Tumbling(5 * MS), retain=7 * MS)
        case _:
            tab = app.table("tab", key=str, value=int, default=int)

    async def pay_async(pay: Any, tab: Any) -> None:
        await asyncio.sleep(0)
        tab[pay.key] += pay.value

    def pay_all(pays: Any, tab: Any) -> None:
        for pay in pays:
            tab[pay.key] += pay.value

    def pay(pay: Any, tab: Any) -> None:
        tab[pay.key] += pay.value

    if kind in ("async", "at once"):
        app.processor(pays, tab, concurrency=2 if kind == "at once" else 1)(pay_async)
    elif kind == "batch":
        app.processor(pays, tab, batch=True)(pay_all)
    elif kind not in OF_A_TOPIC:
        app.processor(pays, tab)(pay)
    if kind in ("own topic", "own batch"):
        app.processor(orders, tab, batch=kind == "own batch")(pay_all if kind == "own batch" else pay)

    @app.processor(orders, tab, out, batch=True, on_error={ValueError: "skip"})
    def order(orders: Any, tab: Any, out: Any) -> None:
        sizes.append(len(orders))
        for order in orders:
            now = tab.at(order.timestamp_ms) if kind == "window" else tab
            then = tab.as_of(order.timestamp_ms - 3).get(order.key) if kind == "versions" else None
            out.send(order.key, f"{order.value} of {now.get(order.key)}, then {then}")
            if kind not in OF_A_TOPIC:
                now[order.key] -= order.value
            if order.value == 10:
                raise ValueError("too much")

    return app


def records_of(app: App, given: Given) -> list[tuple[str, SourceRecord]]:
    codec = app.topics["pays"].value_codec
    ends, records = {"pays": 0, "orders": 0}, []
    for at_ms, (topic, key, value) in enumerate(given):
        records.append((topic, SourceRecord(ends[topic], at_ms, key, codec.encode(value))))
        ends[topic] += 1
    return records


async def played(kind: str, given: Given, cuts: set[int], sizes: list[int]) -> Any:
    """What is sent and stored where a run, and a commit, ends at each of `cuts`."""
    app = app_of(kind, sizes)
    (part,), counts = app.topology().subtopologies, {"pays": 1, "orders": 1, "out": 1}
    stores = {name: DictStore() for name in part.tables}
    process = TaskProcess(app, part, 0, stores, counts)
    records, sent, begin = records_of(app, given), [], 0
    for end in sorted({*cuts, len(records)}):
        if begin < end <= len(records):
            await process.run_async(records[begin:end])
            assert process.again is None
            changes = process.collect()
            for name, written in changes.writes.items():
                stores[name].write(written)
            process.mark_applied()
            sent += [(one.key, one.value, one.timestamp_ms) for outputs in changes.outputs.values() for one in outputs]
            begin = end
    return sent, [dict(store.data) for store in stores.values()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(given=GIVEN, cuts=st.sets(st.integers(1, 13)))
def test_a_cut_changes_nothing(kind: str, given: Given, cuts: set[int]) -> None:
    one_by_one = asyncio.run(played(kind, given, set(range(len(given))), []))
    assert asyncio.run(played(kind, given, cuts, [])) == one_by_one


def test_a_batch_ends_only_where_another_has_its_table() -> None:
    """Views are of the same task by another table of the orders' topic, and end no batch; pays do."""
    sizes: list[int] = []
    app = app_of("one", sizes)
    views, orders, pays = app.topic("views", key=str, value=int), app.topics["orders"], app.topics["pays"]
    seen = app.table("seen", key=str, value=int, default=int)

    @app.processor(views, seen)
    def view(view: Any, seen: Any) -> None:
        seen[view.key] += 1

    @app.processor(pays, seen)
    def pay_seen(pay: Any, seen: Any) -> None:
        seen[pay.key] += 1

    with Driver(app) as d, d.together():
        for topic in (orders, views, orders, views, orders, pays, orders, orders, views):
            d.send(topic, "x", 1)
    assert sizes == [3, 2]


def test_a_batch_that_is_called_within_a_turn_is_named_with_its_last_record() -> None:
    """Not the record that comes next, which no call has: of a call that lasts too long it would be taken for the cause."""
    found: list[Any] = []
    app = App("shop", partitions=1)
    pays, orders = app.topic("pays", key=str, value=int), app.topic("orders", key=str, value=int)
    tab = app.table("tab", key=str, value=int, default=int)

    @app.processor(pays, tab)
    def pay(pay: Any, tab: Any) -> None:
        """Is called behind a batch."""

    @app.processor(orders, tab, batch=True)
    def order(orders: Any, tab: Any) -> None:
        at = blame(turn)
        found.append((len(orders), is_of_one_record(turn), at.topic, at.offset, at.processors, describe(turn)))

    process = TaskProcess(app, app.topology().subtopologies[0], 0, {"tab": DictStore()}, {})
    given = [("orders", b"x", 1), ("orders", b"x", 1), ("pays", b"x", 1), ("orders", b"x", 1), ("pays", b"x", 1)]
    turn = Turn("0_0", process, records_of(app, given))
    process.run(turn.records)
    of_two, of_one = "a batch of 2 records up to orders-0@1", "a batch of 1 record up to orders-0@2"
    assert found == [
        (2, False, "orders", 1, ("order",), f"the call of order with {of_two} in task 0_0"),
        (1, True, "orders", 2, ("order",), f"the call of order with {of_one} in task 0_0"),
    ]


def test_a_call_behind_a_close_is_named_with_its_own_record() -> None:
    """Where time passes a run with batches is made in parts, and each counted its records from the beginning of the run."""
    found: list[Any] = []
    app = App("shop", partitions=1)
    pays, orders = app.topic("pays", key=str, value=int), app.topic("orders", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int, window=Tumbling(2 * MS))

    @app.processor(pays, sums)
    def pay(pay: Any, sums: Any) -> None:
        at = blame(turn)
        found.append((at.topic, at.offset, at.processors, describe(turn)))

    @app.processor(orders, sums, batch=True)
    def order(orders: Any, sums: Any) -> None:
        for order in orders:
            sums.at(order.timestamp_ms)[order.key] += 1

    (part,) = app.topology().subtopologies
    process = TaskProcess(app, part, 0, {name: DictStore() for name in part.tables}, {})
    turn = Turn("0_0", process, records_of(app, [("orders", b"x", 1), ("orders", b"x", 1)] * 2 + [("pays", b"x", 1)]))
    process.run(turn.records)
    assert found == [("pays", 0, ("pay",), "the call of pay with pays-0@0 in task 0_0")]
