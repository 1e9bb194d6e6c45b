"""Joins by foreign key whose sides other ones write: the stages of Spark give the Driver's answer, or are refused.

The tasks are real, and are given what earlier stages have sent in the order in which Spark gives it; there is no Spark.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import App, Record, Sink, Table
from orchestrator.errors import WrongUse
from orchestrator.testing import Driver
from pipeline.definitions.topology import Subtopology, Topology
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.resources import Resources
from pipeline.spark.engine import Engine
from pipeline.spark.inputs import Inputs
from pipeline.spark.stage import TaskFacts
from pipeline.spark.stage_order import in_order_at_one_time, messages_of, stages
from pipeline.spark.stage_rows import StageRows
from pipeline.spark.task_state import TaskState

Sent = list[tuple[Any, str, str]]
Rows = dict[str, list[SourceRecord]]


def ordered(app: App, topology: Topology) -> list[Subtopology]:
    rekeyed = {name for name, info in topology.topics.items() if info.kind == "repartition"}
    return stages(app.id, topology.subtopologies, rekeyed, [], messages_of(app))


def in_stages(app: App, sent: Sent) -> Rows:
    """What is sent to each topic by the last stage of who sends to it; all records have one time."""
    topology = app.topology()
    counts = dict.fromkeys(topology.topics, 1)
    topology = topology.with_partitions(counts)
    rows: Rows = {}
    for topic, key, value in sent:
        listed = rows.setdefault(topic.topic, [])
        listed.append(SourceRecord(len(listed), 0, topic.key_codec.encode(key), topic.value_codec.encode(value), ()))
    for sub in ordered(app, topology):
        found = asyncio.run(one_stage(app, sub, rows, counts))
        rows |= {name: found.get(name, []) for name in sub.sinks}
    return rows


async def one_stage(app: App, sub: Subtopology, rows: Rows, counts: dict[str, int]) -> Rows:
    state, found = TaskState(sub.tables, 1 << 20), dict[str, list[SourceRecord]]()
    async with Resources(app) as resources:
        task = TaskProcess(app, sub, 0, dict(state.stores), counts, resources)
        left = [(name, one) for name in in_order_at_one_time(app, sub) for one in rows.get(name, [])]
        task.run(left)
        while task.again is not None:
            left = task.left(left)
            task.run(left)
        for (name, _), outs in task.collect().outputs.items():
            listed = found.setdefault(name, [])
            listed += [SourceRecord(n, out.timestamp_ms, out.key, out.value, ()) for n, out in enumerate(outs)]
    return found


def by_driver(app: App, sent: Sent, topic: Any) -> dict[str, str]:
    with Driver(app) as driver:
        for one, key, value in sent:
            driver.send(one, key, value, timestamp_ms=0)
        return dict(driver.items(topic))


def of_stages(app: App, sent: Sent, topic: Any) -> dict[str, str]:
    return {
        topic.key_codec.decode(one.key): topic.value_codec.decode(one.value)
        for one in in_stages(app, sent)[topic.topic]
    }


@pytest.mark.parametrize("names", [("first", "second"), ("second", "first")])
@pytest.mark.parametrize("through", ["the join", "a processor"])
def test_a_join_of_what_another_join_writes(names: tuple[str, str], through: str) -> None:
    """The second one subscribed to what the first had written before its answers: nothing, so it had no result, without a word. At
    one time the answers of the first come first, whatever its name."""
    app = App("row", partitions=1)
    orders, customers = app.topic("orders", key=str, value=str), app.topic("customers", key=str, value=str)
    regions, out = app.topic("regions", key=str, value=str), app.topic("out", key=str, value=str)
    marks = app.topic("marks", key=str, value=str)
    written, placed = app.table("written", key=str, value=str), app.table("placed", key=str, value=str)
    order_rows = app.table_of(orders)

    def first(order: Record[str, str], customer: Any, written: Table[str, str]) -> None:
        if customer is not None:
            written[order.key] = customer.value

    def second(row: Record[str, str], region: Any, out: Sink[str, str]) -> None:
        out.send(row.key, "none" if region is None else region.value)

    first.__name__, second.__name__ = names
    is_direct = through == "the join"
    app.foreign_key_join(order_rows, app.table_of(customers), written, key=str)(first)
    if not is_direct:

        @app.table_join(order_rows, written, placed)
        def goes_on(order: Any, written: Any, placed: Table[str, str]) -> None:
            placed[order.key] = written.value

    app.foreign_key_join(written if is_direct else placed, app.table_of(regions), out, key=str)(second)

    @app.processor(marks)
    def other(mark: Record[str, str]) -> None:
        """Another subtopology has nothing to do with it."""

    sent: Sent = [(customers, "ann", "eu"), (regions, "eu", "Europe"), (orders, "o1", "ann")]
    assert by_driver(app, sent, out) == of_stages(app, sent, out) == {"o1": "Europe"}


def test_a_join_with_what_another_join_writes() -> None:
    """On its right side: it was answered before the rows were there."""
    app = App("row", partitions=1)
    items, orders = app.topic("aitems", key=str, value=str), app.topic("orders", key=str, value=str)
    customers, out = app.topic("customers", key=str, value=str), app.topic("out", key=str, value=str)
    placed = app.table("placed", key=str, value=str)

    @app.foreign_key_join(app.table_of(orders), app.table_of(customers), placed, key=str)
    def first(order: Record[str, str], customer: Any, placed: Table[str, str]) -> None:
        if customer is not None:
            placed[order.key] = customer.value

    @app.foreign_key_join(app.table_of(items), placed, out, key=str)
    def second(item: Record[str, str], order: Any, out: Sink[str, str]) -> None:
        out.send(item.key, "none" if order is None else order.value)

    sent: Sent = [(customers, "ann", "Ann"), (orders, "o1", "ann"), (items, "i1", "o1")]
    assert by_driver(app, sent, out) == of_stages(app, sent, out) == {"i1": "Ann"}


def test_messages_that_are_not_sent_any_more_are_not_read(tmp_path: Path) -> None:
    """A stage that runs again with more answers may have nothing to send: what it had sent before was read for that."""
    app = App("row", partitions=1)
    rows = app.topic("rows", key=str, value=str)

    @app.foreign_key_join(app.table_of(rows), rows, key=str)
    def join(row: Record[str, str], other: Any) -> None:
        """Both sides are one subtopology."""

    topology = app.topology()
    prepared: Any = SimpleNamespace(app=app, topology=topology, topics=topology.topics)
    inputs = Inputs("m:app", prepared, "", "", {}, {})
    none: Any = None
    [sub] = topology.subtopologies

    class Sending(Engine):
        sent = 0

        def _stage(self, sub: Subtopology) -> list[TaskFacts]:
            task = self._computed.work / f"{sub.number}_0"
            task.mkdir()
            if self.sent < 2:
                (task / "rekeyed").mkdir()
                (task / "rekeyed" / "messages.parquet").touch()
            self.sent += 1
            return []

    engine = Sending(none, inputs, tmp_path, None, 0)
    computed = engine.run(lambda line: None)
    assert engine.sent == 3
    assert not StageRows(none, inputs, computed, none, sub)._rekeyed("messages")


def test_a_join_that_follows_from_itself_is_refused() -> None:
    app = App("row", partitions=1)
    orders, customers = app.topic("orders", key=str, value=str), app.topic("customers", key=str, value=str)
    placed, seen = app.table("placed", key=str, value=str), app.table("seen", key=str, value=str)

    @app.processor(orders, placed, seen)
    def place(order: Record[str, str], placed: Table[str, str], seen: Table[str, str]) -> None:
        if order.key not in seen:
            placed[order.key] = order.value

    @app.foreign_key_join(placed, app.table_of(customers), seen, key=str)
    def first(order: Record[str, str], customer: Any, seen: Table[str, str]) -> None:
        seen[order.key] = "yes"

    with pytest.raises(WrongUse, match=r"row-first-answer.*may follow from themselves"):
        ordered(app, app.topology())
