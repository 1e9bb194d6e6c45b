"""Joins by foreign keys: old answers, failures, refusals, tables of the app as sides, and an oracle under any order of tasks."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App, ProcessorFailed
from orchestrator.testing import Driver
from pipeline.calls.foreign_key_joins import LeftSide
from pipeline.errors import DefinitionError, TopologyError
from pipeline.tables.dict_store import DictStore

Kind = Literal["inner", "left"]
Order = tuple[str | None, int]  # its customer, and a number


class Shop:
    """Orders that name their customers. `results` has the last call by order, `calls` all."""

    def __init__(self, kind: Kind = "inner", *, key: Any = None, partitions: int = 3, **options: Any) -> None:
        self.app = App("shop", partitions=partitions)
        self.orders_topic = self.app.topic("orders", key=str, value=tuple[str | None, int])
        self.customers_topic = self.app.topic("customers", key=str, value=str, partitions=2)
        self.letters = self.app.topic("letters", key=str, value=tuple[str | None, int])
        self.orders, self.customers = self.app.table_of(self.orders_topic), self.app.table_of(self.customers_topic)
        self.calls: list[tuple[str, Any]] = []
        self.results: dict[str, tuple[Order, str | None]] = {}
        self.body: Any = lambda order, customer: None

        @self.app.foreign_key_join(
            self.orders, self.customers, self.orders, key=key or (lambda order: order[0]), kind=kind, **options
        )
        def enrich(order: Any, customer: Any, orders: Any) -> None:
            self.body(order, customer)
            assert order.value in (None, orders.get(order.key)), "an old answer was not dropped"
            if order.value is None or (kind == "inner" and customer is None):
                assert customer is None
                assert self.results.pop(order.key, None) is not None, "nothing was there to take back"
                self.calls.append((order.key, None))
                return
            self.results[order.key] = order.value, customer.value if customer is not None else None
            self.calls.append((order.key, self.results[order.key]))


def by_definition(orders: dict[str, Order], customers: dict[str, str], kind: Kind) -> dict[str, Any]:
    found = {key: (order, customers.get(order[0] or "")) for key, order in orders.items()}
    return {key: result for key, result in found.items() if kind == "left" or result[1] is not None}


changes = st.lists(
    st.one_of(
        st.tuples(
            st.just("orders"),
            st.sampled_from(["o1", "o2", "o3", "o4"]),
            st.one_of(
                st.none(), st.tuples(st.one_of(st.none(), st.sampled_from(["ann", "bob", "cid"])), st.integers(0, 1))
            ),
        ),
        st.tuples(
            st.just("customers"), st.sampled_from(["ann", "bob", "cid"]), st.one_of(st.none(), st.text(max_size=1))
        ),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(changes=changes, kind=st.sampled_from(["inner", "left"]), data=st.data())
def test_the_last_call_of_each_row_is_that_of_the_definition(changes: Any, kind: Kind, data: Any) -> None:
    """Whatever the order in which the tasks run, and however much of their inputs each takes at once."""
    shop = Shop(kind)
    topics = {"orders": shop.orders_topic, "customers": shop.customers_topic}
    rows: dict[str, dict[str, Any]] = {"orders": {}, "customers": {}}
    with Driver(shop.app) as driver:
        driver._held = True
        left = list(changes)
        while left or any(driver._inbox.values()):
            busy = sorted(task for task, inbox in driver._inbox.items() if inbox)
            chosen = data.draw(st.sampled_from([*(["send"] if left else []), *busy]))
            if chosen == "send":
                topic, key, value = left.pop(0)
                rows[topic].pop(key, None)
                if value is not None:
                    rows[topic][key] = value
                driver.send(topics[topic], key, value)
            else:
                run(driver, chosen, data.draw(st.integers(1, 3)))
        assert shop.results == by_definition(rows["orders"], rows["customers"], kind)
        kept = {key for stores in driver._stores.values() for key in stores.get("enrich-join", EMPTY).data}
        subscribed = [
            key for stores in driver._stores.values() for key in stores.get("enrich-subscriptions", EMPTY).data
        ]
        with_key = [order for order in rows["orders"].values() if order[0] is not None]
        assert len(kept) == len(rows["orders"]) and len(subscribed) == len(with_key)


EMPTY = DictStore()


def run(driver: Driver, task: str, count: int) -> None:
    """One task takes so many records of what waits for it."""
    process = driver._tasks[task]
    with driver._meeting():
        try:
            process.run(driver._inbox[task].take(count))
        finally:
            driver._take(task, process)


def test_an_answer_to_an_older_row_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order changes its customer while the first one's answer is under way."""

    def played() -> list[tuple[str, Any]]:
        shop = Shop("inner")
        with Driver(shop.app) as driver:
            driver.send(shop.customers_topic, "ann", "A")
            driver.send(shop.customers_topic, "bob", "B")
            driver._held = True
            for customer in ("ann", "bob"):
                driver.send(shop.orders_topic, "o1", (customer, 1))
                task = next(
                    task for task, inbox in driver._inbox.items() if inbox and task.startswith(shop_task(driver))
                )
                run(driver, task, 9)
            driver._held = False
            driver._complete(driver._process())
        return shop.calls

    assert played() == [("o1", (("bob", 1), "B"))]
    monkeypatch.setattr(LeftSide, "of_message", without_comparing(LeftSide.of_message))
    with pytest.raises(AssertionError, match="an old answer counted"):
        played()


def shop_task(driver: Driver) -> str:
    return f"{driver._task_of['orders']}_"


def without_comparing(real: Any) -> Any:
    """Every answer counts, as if it were for the row as it is."""

    def of_message(self: Any, item: Any) -> Any:
        import msgspec

        from pipeline.calls import foreign_key_joins

        answer = msgspec.msgpack.decode(item.record.value, type=foreign_key_joins._Answer)
        row = self._kept(item.raw.key)
        fitting = msgspec.structs.replace(answer, hash=row.hash, foreign_key=row.foreign_key)
        record = msgspec.structs.replace(item.record, value=msgspec.msgpack.encode(fitting))
        found = real(self, msgspec.structs.replace(item, record=record))
        if found is not None and answer.hash != row.hash:
            raise AssertionError("an old answer counted")
        return found

    return of_message


def test_a_key_that_cannot_be_had_goes_by_on_error() -> None:
    def key(order: Order) -> str:
        if order[1] == 13:
            raise ValueError("no key")
        return order[0] or ""

    shop = Shop(key=key)
    with Driver(shop.app) as d:
        d.send(shop.customers_topic, "ann", "A")
        with pytest.raises(ProcessorFailed, match=r"enrich failed at orders-\d@0 in task \d_\d: ValueError: no key"):
            d.send(shop.orders_topic, "o1", ("ann", 13))
        assert d.table(shop.orders) == {}
    shop = Shop(key=key, on_error="letters")
    with Driver(shop.app) as d:
        d.send(shop.customers_topic, "ann", "A")
        d.send(shop.orders_topic, "o1", ("ann", 1))
        d.send(shop.orders_topic, "o1", ("ann", 13))
        d.send(shop.customers_topic, "ann", "B")  # of which the order has no part now
        assert shop.calls == [("o1", (("ann", 1), "A"))]
        (letter,) = d.records(shop.letters)
        assert (letter.key, letter.value) == ("o1", ("ann", 13)) and ("error-message", b"no key") in letter.headers
        d.send(shop.orders_topic, "o1", None)
        assert shop.calls[-1] == ("o1", None)


def test_a_key_of_another_type_goes_by_on_error() -> None:
    shop = Shop(key=lambda order: order[1])
    with Driver(shop.app) as d, pytest.raises(ProcessorFailed, match="key of table 'customers'"):
        d.send(shop.orders_topic, "o1", ("ann", 1))


def test_a_call_that_fails_is_made_again_with_the_answer() -> None:
    shop = Shop("left", retries=1)
    failures = [ValueError("once")]

    def body(order: Any, customer: Any) -> None:
        if failures and customer is not None:
            raise failures.pop()

    shop.body = body
    with Driver(shop.app) as d:
        d.send(shop.customers_topic, "ann", "A")
        d.send(shop.orders_topic, "o1", ("ann", 1))
    assert shop.calls == [("o1", (("ann", 1), "A"))] and not failures


def test_a_call_that_stops_names_the_row() -> None:
    shop = Shop()

    def body(order: Any, customer: Any) -> None:
        raise ValueError("broken")

    shop.body = body
    with Driver(shop.app) as d:
        d.send(shop.customers_topic, "ann", "A")
        with pytest.raises(ProcessorFailed, match="the row 'o1' of 'orders' that 'customers' answered in task"):
            d.send(shop.orders_topic, "o1", ("ann", 1))


@pytest.mark.parametrize("between", ["enrich-subscription", "enrich-answer"])
@pytest.mark.parametrize("value", [None, b"by hand", b"\x92\x01\x02"])
def test_a_message_of_somebody_else_goes_by_on_error(between: str, value: bytes | None) -> None:
    """Whoever may write to a topic between the tasks ends no worker with it."""
    shop = Shop(on_error="letters")
    with Driver(shop.app) as d:
        d.send(shop.customers_topic, "ann", "A")
        d.send_bytes(_between(shop, between), b"o1", value)
        d.send(shop.orders_topic, "o1", ("ann", 1))
        assert shop.calls == [("o1", (("ann", 1), "A"))]
        ((_, letter),) = d._records["letters"]
        assert (letter.key, letter.value) == (b"o1", value)
    shop = Shop()
    with Driver(shop.app) as d, pytest.raises(ProcessorFailed, match=f"shop-{between}-repartition"):
        d.send_bytes(_between(shop, between), b"o1", value)


def _between(shop: Shop, name: str) -> Any:
    (found,) = [
        topic for processor in shop.app.processors.values() for topic in processor.sources if topic.name == name
    ]
    return found


def test_tables_of_the_app_are_sides() -> None:
    app = App("shop", partitions=2)
    sold, moved = app.topic("sold", key=str, value=str), app.topic("moved", key=str, value=str)
    cars, owners, out = (
        app.table("cars", key=str, value=str),
        app.table("owners", key=str, value=str),
        app.topic("out", key=str, value=str),
    )

    @app.processor(sold, cars)
    def sell(sale: Any, cars: Any) -> None:
        cars.pop(sale.key, None)
        if sale.value:
            cars[sale.key] = sale.value

    @app.processor(moved, owners)
    def move(move: Any, owners: Any) -> None:
        owners[move.key] = move.value

    @app.foreign_key_join(cars, owners, out, key=lambda owner: owner, kind="left")
    def where(car: Any, owner: Any, out: Any) -> None:
        out.send(car.key, None if car.value is None else f"{car.value} in {owner.value if owner else '?'}")

    with Driver(app) as d:
        d.send(sold, "car", "ann", timestamp_ms=10)
        d.send(moved, "ann", "Rome", timestamp_ms=20)
        d.send(sold, "car", "bob", timestamp_ms=30)
        d.send(moved, "ann", "Oslo", timestamp_ms=40)
        d.send(sold, "car", "", timestamp_ms=50)
        sent = [(record.key, record.value, record.timestamp_ms) for record in d.records(out)]
    assert sent == [("car", "ann in ?", 10), ("car", "ann in Rome", 20), ("car", "bob in ?", 30), ("car", None, 50)]


def test_what_cannot_be_joined() -> None:
    app = App("bank")
    beats, ships = app.topic("beats", key=str, value=int), app.topic("ships", key=int, value=int)
    join: Any = app.foreign_key_join
    routed = app.table("routed", key=str, value=int, route=lambda key: key[0])
    for sides, options, message in (
        ((beats, ships), {"key": 3}, "foreign-key join pair: key=3 is not a function"),
        (
            (beats, ships),
            {"key": str, "kind": "outer"},
            'kind=.outer. is not one of "inner", "left"; a right row without',
        ),
        ((beats, routed), {"key": str}, "table 'routed' has route="),
        ((beats, 3), {"key": str}, "foreign-key join pair: 3 cannot be joined as a table"),
        ((App("other").topic("beats", key=str, value=int), ships), {"key": str}, "belongs to app 'other'"),
    ):
        with pytest.raises(DefinitionError, match=message):
            join(*sides, **options)(pair)
    with pytest.raises(DefinitionError, match="would call it for ever"):
        join(beats, ships, ships, key=lambda value: value)(lambda beat, ship, ships: None)
    with pytest.raises(TypeError, match="key"):
        join(beats, ships)


def pair(left: Any, right: Any) -> None: ...


def test_the_sides_need_no_equal_partitions_but_each_with_what_it_reads() -> None:
    shop = Shop()
    topology = shop.app.topology()
    counts = {name: topic.partitions for name, topic in topology.topics.items() if topic.kind == "repartition"}
    assert counts == {"shop-enrich-answer-repartition": 3, "shop-enrich-subscription-repartition": 2}
    assert [sub.partitions for sub in topology.subtopologies] == [2, 3]
    more = shop.app.topic("more", key=str, value=int, partitions=5)
    shop.app.processor(more, shop.customers)(lambda record, customers: None)
    with pytest.raises(TopologyError, match="customers has 2, more has 5"):
        shop.app.topology()
