"""Joins of tables by equal keys: topics and tables of the app as sides, failures, refusals, and an oracle."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App, PipelineError, ProcessorFailed
from orchestrator.testing import Driver
from pipeline.errors import DefinitionError, TopologyError

Kind = Literal["inner", "left", "outer"]
Result = tuple[int | None, int | None]


class Totals:
    """Two tables that processors write, joined; `calls` has what the join was called with."""

    def __init__(self, kind: Kind = "inner", **options: Any) -> None:
        self.app = App("totals", partitions=2)
        self.orders = self.app.topic("orders", key=str, value=int)
        self.payments = self.app.topic("payments", key=str, value=int)
        self.out = self.app.topic("out", key=str, value=str)
        self.due = self.app.table("due", key=str, value=int, default=int)
        self.paid = self.app.table("paid", key=str, value=int, default=int)
        self.calls: list[tuple[Any, ...]] = []

        @self.app.processor(self.orders, self.due)
        def order(order: Any, due: Any) -> None:
            if order.value == 0:
                due.pop(order.key, None)
            else:
                due[order.key] += order.value

        @self.app.processor(self.payments, self.paid, self.due)
        def pay(payment: Any, paid: Any, due: Any) -> None:
            paid[payment.key] += payment.value
            if payment.value > 100:
                due[payment.key] = 0

        @self.app.table_join(self.due, self.paid, self.out, kind=kind, **options)  # type: ignore[call-overload]
        def balance(due: Any, paid: Any, out: Any) -> None:
            self.calls.append(tuple(None if row is None else (row.key, row.value) for row in (due, paid)))
            if paid is not None and paid.value == 13:
                raise ValueError(paid.value)
            out.send((due or paid).key, f"{due and due.value} {paid and paid.value}")


def test_tables_of_the_app() -> None:
    totals = Totals()
    with Driver(totals.app) as d:
        d.send(totals.orders, "ann", 5, timestamp_ms=10)
        d.send(totals.payments, "ann", 2, timestamp_ms=12)
        d.send(totals.payments, "bob", 1, timestamp_ms=13)
        d.send(totals.orders, "ann", 1, timestamp_ms=11)
        d.send(totals.orders, "ann", 0, timestamp_ms=14)
        d.send(totals.orders, "ann", 0, timestamp_ms=15)
        sent = [(r.key, r.value, r.timestamp_ms) for r in d.records(totals.out)]
    # Of a table of the app a row's time is not known: the call has that of the call that made the change.
    assert sent == [("ann", "5 2", 12), ("ann", "6 2", 11), ("ann", "None None", 14)]
    assert totals.calls[-1] == (("ann", None), None)


def test_a_call_that_changes_both_sides_gives_both_results_in_the_order_of_its_tables() -> None:
    totals = Totals()
    with Driver(totals.app) as d:
        d.send(totals.orders, "ann", 5)
        d.send(totals.payments, "ann", 1)
        d.send(totals.payments, "ann", 200)
    assert totals.calls[1:] == [(("ann", 0), ("ann", 201))] * 2


@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
@pytest.mark.parametrize("sides", ["tables", "topic after", "topic before"])
def test_where_one_call_changes_both_sides_what_was_is_taken_back_once(sides: str, kind: Kind) -> None:
    """Of two tables that a function writes, and of one and the topic whose records it gets: both change before the join is called."""
    app = App("pairs")
    topic, out = app.topic("topic", key=str, value=str), app.topic("out", key=str, value=str)
    tables = [app.table(name, key=str, value=str) for name in ("left", "right")]
    joined: list[Any] = list(tables)
    if sides != "tables":
        joined[1] = app.table_of(topic)

    def write(record: Any, left: Any, right: Any) -> None:
        for letter, table in zip(record.value or "--", (left, right), strict=True):
            if letter == "-":
                table.pop(record.key, None)
            elif letter != ".":
                table[record.key] = letter

    def pair(left: Any, right: Any, out: Any) -> None:
        values = [None if row is None else row.value for row in (left, right)]
        out.send((left or right).key, None if values == [None, None] else "".join(v or "-" for v in values))

    def declare_pair() -> None:
        app.table_join(joined[0], joined[1], out, kind=kind)(pair)

    if sides == "topic before":
        declare_pair()
    app.processor(topic, *tables)(write)
    if sides != "topic before":
        declare_pair()
    steps = ["11", "--", "2.", "-3", "4-", "--"] if sides == "tables" else ["1.", None, "2.", None]
    rows: dict[int, str | None] = {0: None, 1: None}
    has = {"inner": lambda: None not in rows.values(), "left": lambda: rows[0] is not None}
    with Driver(app) as d:
        for step in steps:
            before, sent = has.get(kind, lambda: any(rows.values()))(), len(d.items(out))
            d.send(topic, "k", step)
            changed = {side: None if one == "-" else one for side, one in enumerate(step or "--") if one != "."}
            rows.update(changed if sides == "tables" else {**changed, 1: step})
            after = has.get(kind, lambda: any(rows.values()))()
            results = [value for _, value in d.items(out)[sent:]]
            if after:
                assert results and results[-1] == "".join(row or "-" for row in rows.values()), (step, results)
                assert None not in results, (step, results)
            else:
                assert results[-1:] == [None] * before and results.count(None) == before, (step, results)


def test_a_call_that_fails_leaves_nothing_of_its_record() -> None:
    totals = Totals()
    with Driver(totals.app) as d:
        d.send(totals.orders, "ann", 5)
        with pytest.raises(ProcessorFailed, match=r"balance failed at the row b'ann' of table 'paid' in task 0_"):
            d.send(totals.payments, "ann", 13)
        assert d.table(totals.paid) == {} and d.items(totals.out) == []


def test_a_call_that_is_skipped_leaves_its_record() -> None:
    totals = Totals(on_error="skip")
    with Driver(totals.app) as d:
        d.send(totals.orders, "ann", 5)
        d.send(totals.payments, "ann", 13)
        d.send(totals.payments, "ann", 1)
        assert d.table(totals.paid) == {"ann": 14} and d.items(totals.out) == [("ann", "5 14")]


def test_a_topic_stands_for_its_table_and_joins_go_on_from_each_other() -> None:
    app = App("chain")
    left, right = app.topic("left", key=str, value=int), app.topic("right", key=str, value=int)
    sums, out = app.table("sums", key=str, value=int), app.topic("out", key=str, value=int)
    known = app.table_of(right, alias="known")

    @app.table_join(left, right, sums, alias={sums: "sums"}, kind="outer")
    def add(one: Any, other: Any, sums: Any) -> None:
        total = sum(row.value or 0 for row in (one, other) if row)
        if other is None and one.value is None:
            del sums[one.key]
        else:
            sums[(one or other).key] = total

    @app.table_join(sums, known, out, kind="left")
    def compare(total: Any, other: Any, out: Any) -> None:
        out.send(total.key, None if total.value is None else total.value - (other.value if other else 0))

    with Driver(app) as d:
        d.send(left, "a", 5)
        d.send(right, "a", 2)
        assert d.table(sums) == {"a": 7}
        assert d.items(out) == [("a", 5), ("a", 5), ("a", 5)]  # 5; then for the sum and for the row of 2
        d.send(left, "a", None)
        d.send(right, "a", None)
        assert d.table(sums) == {} and d.items(out)[-1] == ("a", None)


def test_joins_that_change_what_they_are_called_for_are_taken_for_a_loop() -> None:
    app = App("loop")
    topic = app.topic("topic", key=str, value=int)
    one, other = app.table("one", key=str, value=int), app.table("other", key=str, value=int)
    app.processor(topic, one)(lambda record, one: one.update({record.key: record.value}))
    app.table_join(one, topic, other)(lambda left, right, other: other.update({left.key: left.value + 1}))
    app.table_join(other, topic, one)(lambda left, right, one: one.update({left.key: left.value + 1}))
    with Driver(app) as d, pytest.raises(ProcessorFailed, match="each made the next one"):
        d.send(topic, "a", 1)


changes = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("ab"), st.one_of(st.none(), st.integers(0, 9))),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(changes=changes, kind=st.sampled_from(["inner", "left", "outer"]), cuts=st.sets(st.integers(0, 30)))
def test_the_results_are_those_of_the_definition(
    changes: list[tuple[str, str, int | None]], kind: Kind, cuts: set[int]
) -> None:
    """Whatever the batches: after all changes each key's last result is what its last rows give, and a result is taken back
    exactly where there was one."""
    app = App("pairs")
    topics = {name: app.topic(name, key=str, value=int) for name in ("left", "right")}
    sent: list[tuple[str, Result | None]] = []

    @app.table_join(topics["left"], topics["right"], kind=kind)  # type: ignore[call-overload]
    def pair(left: Any, right: Any) -> None:
        is_gone = left is not None and left.value is None
        assert not (is_gone and right is not None)
        found = left.value if left is not None else None, right.value if right is not None else None
        sent.append(((left or right).key, None if is_gone else found))

    parts: list[list[tuple[str, str, int | None]]] = [[]]
    for number, change in enumerate(changes):
        if number in cuts:
            parts.append([])
        parts[-1].append(change)
    with Driver(app) as driver:
        at = 0
        for part in parts:
            with driver.together():
                for topic, key, value in part:
                    driver.send(topics[topic], key, value, timestamp_ms=at)
                    at += 1
    assert sent == list(by_definition(changes, kind))


def by_definition(changes: list[tuple[str, str, int | None]], kind: Kind) -> Any:
    rows: dict[str, dict[str, int]] = {"left": {}, "right": {}}

    def result(key: str) -> Result | None:
        left, right = rows["left"].get(key), rows["right"].get(key)
        there = {"inner": left is not None and right is not None, "left": left is not None}.get(
            kind, left is not None or right is not None
        )
        return (left, right) if there else None

    for side, key, value in changes:
        before = result(key)
        rows[side].pop(key, None)
        if value is not None:
            rows[side][key] = value
        if before is not None or result(key) is not None:
            yield key, result(key)


def app_of_all() -> tuple[App, Any, Any]:
    app = App("bank")
    return app, app.topic("beats", key=str, value=int), app.topic("ships", key=str, value=int)


def test_what_cannot_be_joined() -> None:
    from datetime import timedelta

    from orchestrator import Tumbling

    app, beats, ships = app_of_all()
    hour = timedelta(hours=1)
    join: Any = app.table_join
    windowed = app.table("windowed", key=str, value=int, window=Tumbling(hours=1))
    expiring = app.table("expiring", key=str, value=int, expire=hour)
    local = app.table("own", key=str, value=int, local=True)
    routed = app.table("routed", key=str, value=int, route=lambda key: key[0])
    numbered = app.table("numbered", key=int, value=int)
    sums = app.table("sums", key=str, value=int)
    everywhere = app.global_table(ships)
    other = App("other").topic("beats", key=str, value=int)
    for sides, options, message in (
        ((beats, ships), {"kind": "right"}, 'table join pair: kind=.right. is not one of "inner", "left", "outer"'),
        ((beats, windowed), {}, "table join pair: table 'windowed' cannot be joined as a table"),
        ((app.timers("silent", key=str), beats), {}, "timers 'silent' cannot be joined"),
        ((everywhere, beats), {}, "global table 'ships' cannot be joined"),
        ((3, beats), {}, "3 cannot be joined as a table; give app.table_of"),
        ((expiring, beats), {}, "table 'expiring' has expire="),
        ((beats, local), {}, "table 'own' has local=True"),
        ((beats, routed), {}, "'beats' and 'routed' have different route="),
        ((beats, numbered), {}, "keys of 'beats' are str and those of 'numbered' int"),
        ((other, beats), {}, "belongs to app 'other', not to 'bank'"),
    ):
        with pytest.raises(DefinitionError, match=message):
            join(*sides, **options)(named("pair"))
    with pytest.raises(DefinitionError, match="must not write it"):
        join(beats, sums, sums)(lambda beats, ships, sums: None)
    with pytest.raises(DefinitionError, match="would call it for ever"):
        join(beats, sums, beats)(lambda left, right, beats: None)
    with pytest.raises(DefinitionError, match="its first two are its records"):
        join(beats, sums)(lambda one: None)


def named(name: str) -> Any:
    def pair(left: Any, right: Any) -> None: ...

    pair.__name__ = name
    return pair


def test_partition_counts_must_be_equal() -> None:
    app, beats, _ = app_of_all()
    three = app.topic("three", key=str, value=int, partitions=3)
    app.table_join(beats, three)(lambda left, right: None)
    with pytest.raises(TopologyError, match="partition counts differ: beats has 1, three has 3"):
        app.topology()


def test_a_table_that_only_a_join_has_is_never_written() -> None:
    app, *_ = app_of_all()
    app.table_join(app.table("a", key=str, value=int), app.table("b", key=str, value=int))(lambda left, right: None)
    app.processor(app.topic("other", key=str, value=int))(lambda record: None)
    with pytest.raises(TopologyError, match="nothing that reads a topic writes table 'b'"):
        app.topology()


def test_batches_and_calls_at_once_do_not_go_with_it() -> None:
    app, beats, _ = app_of_all()
    sums = app.table("sums", key=str, value=int)
    app.table_join(sums, beats)(lambda left, right: None)
    app.processor(beats, sums, batch=True)(lambda beats, sums: None)
    with pytest.raises(PipelineError, match="batch=True"):
        app.topology()

    async def one(record: Any, sums: Any) -> None: ...

    with pytest.raises(DefinitionError, match="concurrency=2 cannot have table 'sums'"):
        app.processor(beats, sums, concurrency=2)(one)
