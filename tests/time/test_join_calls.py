"""The calls of a join without a coroutine for each give what those of any task give."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pipeline.process
from orchestrator import App, ProcessorFailed
from orchestrator.testing import Driver
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from pipeline.time import expiring, join_view, timed_view

MS = timedelta(milliseconds=1)
record = st.tuples(
    st.sampled_from(["orders", "shipments"]),
    st.sampled_from(["a", "a", "b", None]),
    st.integers(0, 5),  # later than the one before
    st.sampled_from([0, 0, 0, 1, 4, 9]),  # and so late
    st.sampled_from([1, 2, 3, 11, 12, None]),
)


def played(records: Any, kind: str, cuts: set[int], *, stops: bool) -> tuple[Any, ...]:
    """All that an app does with the records: what is sent, kept, late, and where it stops."""
    app = App("pairs")
    orders = app.topic("orders", key=str, value=int)
    shipments = app.topic("shipments", key=str, value=int)
    out = app.topic("out", key=str, value=str)
    late, dead = app.topic("late", key=str, value=int), app.topic("dead", key=str, value=int)
    counts = app.table("counts", key=str, value=int, default=int, expire=40 * MS)
    policy: Any = {KeyError: dead, ValueError: "stop" if stops else "skip"}

    @app.join(
        orders, shipments, counts, out, within=(2 * MS, 6 * MS), grace=3 * MS, kind=kind, on_late=late, on_error=policy
    )
    def match(order: Any, shipment: Any, counts: Any, out: Any) -> None:
        known = order or shipment
        if known.key is not None:
            counts[known.key] += 1
        out.send(known.key, f"{order and order.value} {shipment and shipment.value}")
        values = {one.value for one in (order, shipment) if one is not None}
        if values & {11, 12}:
            raise (KeyError if 11 in values else ValueError)(sorted(values))

    stopped: list[str] = []
    parts: list[list[Any]] = [[]]
    now_ms = 0
    for number, (topic, key, after_ms, late_ms, value) in enumerate(records):
        now_ms += after_ms
        if number in cuts:
            parts.append([])
        parts[-1].append((topic, key, max(0, now_ms - late_ms), value))
    topics = {"orders": orders, "shipments": shipments}
    with Driver(app) as d:
        for part in parts:
            try:
                with d.together():
                    for topic, key, at, value in part:
                        d.send(topics[topic], key, value, timestamp_ms=at)
            except ProcessorFailed as error:
                stopped.append(str(error))
                break
        tables = [dict(store.data) for stores in d._stores.values() for store in stores.values()]
        sent = [(r.key, r.value, r.timestamp_ms, r.headers) for name in (out, late, dead) for r in d.records(name)]
        return sent, tables, stopped, d.table(counts)


SECOND_STOPS = [("orders", "a", 1, 0, 1), ("orders", "a", 1, 0, 12), ("shipments", "a", 1, 0, 2)]
kinds = st.sampled_from(["inner", "left", "outer"])


@settings(max_examples=200, deadline=None)
@given(records=st.lists(record, max_size=25), kind=kinds, cuts=st.sets(st.integers(0, 25)), stops=st.booleans())
@example(records=SECOND_STOPS, kind="inner", cuts=set(), stops=True)
def test_they_give_what_the_calls_of_any_task_give(records: Any, kind: str, cuts: set[int], stops: bool) -> None:
    fast = played(records, kind, cuts, stops=stops)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.process, "window_calls", lambda *arguments: None)
        assert fast == played(records, kind, cuts, stops=stops)


@settings(max_examples=100, deadline=None)
@given(records=st.lists(record, max_size=25), kind=kinds, cuts=st.sets(st.integers(0, 25)), most=st.integers(0, 2))
def test_nothing_at_hand_is_as_all_at_hand(records: Any, kind: str, cuts: set[int], most: int) -> None:
    expected = played(records, kind, cuts, stops=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join_view, "_KNOWN_KEYS", most)
        patch.setattr(expiring, "MOST", most)
        assert expected == played(records, kind, cuts, stops=False)


@pytest.mark.parametrize("most", [0, 7, 1_000])
@pytest.mark.parametrize("part", [3, 1_000])
def test_what_is_over_leaves_the_store_also_of_a_task_that_begins_anew(
    most: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiring, "MOST", most)
    monkeypatch.setattr(timed_view, "MOST_FORGOTTEN", part)
    app = App("pairs")
    orders, shipments = app.topic("orders", key=str, value=int), app.topic("shipments", key=str, value=int)
    app.join(orders, shipments, within=(2 * MS, 6 * MS))(lambda order, shipment: None)
    [name] = app.tables
    store = DictStore()
    for begins in range(3):
        task = TaskProcess(app, app.topology().subtopologies[0], 0, {name: store}, {})
        for at_ms in range(begins * 40, begins * 40 + 40):
            value = at_ms.to_bytes(8, "big")
            task.run([("orders", SourceRecord(at_ms, at_ms, b"a", value))])
            task.run([("shipments", SourceRecord(at_ms, at_ms, b"%d" % at_ms, value))])
            if at_ms % 4 == 0:
                store.write(task.collect(in_parts=True).writes.get(name, {}))
                task.mark_applied()
                kept = [int.from_bytes(key[-16:-8], "big") for key in store.data if key[:1] in b"lr"]
                assert part == 3 or min(kept) >= at_ms - 12, (
                    at_ms,
                    sorted(kept),
                )  # up to a bucket longer than it lives
    for at_ms in range(1_000, 1_040):  # parts: more with each take than is written
        task.run([("orders", SourceRecord(at_ms, at_ms, b"last", bytes(8)))])
        store.write(task.collect(in_parts=True).writes.get(name, {}))
        task.mark_applied()
    kept = [int.from_bytes(key[-16:-8], "big") for key in store.data if key[:1] in b"lr"]
    assert kept and min(kept) >= 1_000


def test_records_of_history_are_kept_though_their_offsets_are_below_zero() -> None:
    """They match in the order in which they came, before a later one of their time; each that nothing matches is announced once,
    also by a task that begins anew."""
    app = App("history")
    orders = app.topic("orders", key=bytes, value=bytes)
    shipments = app.topic("shipments", key=bytes, value=bytes)
    out = app.topic("out", key=bytes, value=bytes)

    @app.join(orders, shipments, out, within=6 * MS, kind="left")
    def match(order: Any, shipment: Any, out: Any) -> None:
        out.send(order.key, b"%d %s" % (order.offset, order.value))

    (sub,) = app.topology().subtopologies
    stores = {"match-join": DictStore()}
    sent: list[bytes | None] = []

    def run(*records: tuple[str, int, int, bytes]) -> None:
        process = TaskProcess(app, sub, 0, stores, {"orders": 1, "shipments": 1, "out": 1})
        process.run([(topic, SourceRecord(offset, at_ms, key, b"v")) for topic, offset, at_ms, key in records])
        changes = process.collect()
        stores["match-join"].write(changes.writes["match-join"])
        sent.extend(output.value for outputs in changes.outputs.values() for output in outputs)

    first = -(1 << 40)
    run(("orders", first, 10, b"a"), ("orders", first + 1, 10, b"a"), ("orders", first + 2, 10, b"b"))
    run(("orders", 0, 10, b"a"), ("shipments", 0, 11, b"a"))
    assert sent == [b"%d v" % offset for offset in (first, first + 1, 0)]
    run(("shipments", 1, 30, b"c"))
    assert sent[3:] == [b"%d v" % (first + 2)]
