"""A topic as a table, of the task or of every instance."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from orchestrator import App, PipelineError, ProcessorFailed
from orchestrator.testing import Driver
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore

MS = timedelta(milliseconds=1)


class Shop:
    """Orders look at customers, and run what the test says."""

    def __init__(self, declare: Callable[[App, Any], Any], **options: Any) -> None:
        self.app = App("shop", partitions=2)
        self.customers_topic = self.app.topic(
            "customers", key=str, value=list[str], partitions=options.pop("customers", 2)
        )
        self.orders = self.app.topic("orders", key=str, value=int)
        self.customers = declare(self.app, self.customers_topic)
        self.seen: list[Any] = []
        self.body: Callable[[Any, Any], Any] = lambda order, customers: customers.get(order.key)

        @self.app.processor(self.orders, self.customers, **options)
        def order(order: Any, customers: Any) -> None:
            self.seen.append(self.body(order, customers))

    def ask(self, driver: Driver, key: str, body: Callable[[Any, Any], Any] | None = None, **more: Any) -> Any:
        if body is not None:
            self.body = body
        driver.send(self.orders, key, 1, **more)
        return self.seen[-1]


def of_topic(app: App, topic: Any) -> Any:
    return app.table_of(topic)


def test_the_last_to_arrive_wins_whatever_its_time() -> None:
    shop = Shop(of_topic)
    with Driver(shop.app) as d:
        d.send(shop.customers_topic, "ann", ["A"], timestamp_ms=50)
        d.send(shop.customers_topic, "ann", ["B"], timestamp_ms=20)
        assert shop.ask(d, "ann", lambda order, customers: (customers["ann"], customers.timestamp_ms("ann"))) == (
            ["B"],
            20,
        )
        assert d.table(shop.customers) == {"ann": ["B"]}
        d.send(shop.customers_topic, None, ["nobody"], timestamp_ms=60)
        d.send(shop.customers_topic, "ann", None, timestamp_ms=70)
        assert shop.ask(d, "ann", lambda order, customers: customers.get("ann")) is None
        assert d.table(shop.customers) == {}


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("is_both", [False, True])
def test_a_batch_has_it_as_single_records_do(batch: bool, is_both: bool) -> None:
    app = App("shop", partitions=1)
    orders, names = app.topic("orders", key=str, value=str), app.topic("names", key=str, value=str)
    out = app.topic("out", key=str, value=str)
    source = names if is_both else orders
    known = app.table_of(names, alias="known")

    def one(order: Any, known: Any, out: Any) -> None:
        out.send(order.key, f"{order.topic} {order.value} {known.get('ann')}")

    def many(orders: Any, known: Any, out: Any) -> None:
        for order in orders:
            one(order, known, out)

    app.processor(source, known, out, batch=batch)(many if batch else one)
    with Driver(app) as d:
        d.send(names, "ann", "A", timestamp_ms=1)
        d.send(source, "bob", "B", timestamp_ms=2)
        d.send(names, "ann", "C", timestamp_ms=3)
        d.send(source, "bob", "D", timestamp_ms=4)
        sent = [value for _, value in d.items(out)]
        assert d.table(known)["ann"] == "C"
    if is_both:
        assert sent == ["names A A", "names B A", "names C C", "names D C"]
    else:
        assert sent == ["orders B A", "orders D C"]


def test_it_behaves_as_a_dict() -> None:
    shop = Shop(of_topic)

    def body(order: Any, customers: Any) -> Any:
        assert "ann" in customers and "nobody" not in customers and len(customers) == 1
        with pytest.raises(KeyError):
            customers["nobody"]
        with pytest.raises(KeyError):
            customers.timestamp_ms("nobody")
        return dict(customers), dict(customers.prefix("a")), list(customers)

    with Driver(shop.app) as d:
        d.send(shop.customers_topic, "ann", ["A"])
        assert shop.ask(d, "ann", body) == ({"ann": ["A"]}, {"ann": ["A"]}, ["ann"])


@pytest.mark.parametrize(
    "write",
    [
        lambda order, customers: customers.__setitem__("ann", ["C"]),
        lambda order, customers: customers.pop("ann"),
        lambda order, customers: customers["ann"].append("C"),
    ],
)
def test_nobody_writes_it_but_the_topic(write: Callable[[Any, Any], Any]) -> None:
    shop = Shop(of_topic)
    with Driver(shop.app) as d:
        d.send(shop.customers_topic, "ann", ["A"])
        with pytest.raises(ProcessorFailed, match="it is written by sending to the topic"):
            shop.ask(d, "ann", write)
        assert d.table(shop.customers) == {"ann": ["A"]}


def test_a_record_is_in_it_before_processors_of_the_same_record() -> None:
    app = App("shop")
    topic = app.topic("customers", key=str, value=str)
    customers = app.table_of(topic, alias="known")
    seen: list[Any] = []

    @app.processor(topic, customers)
    def each(record: Any, known: Any) -> None:
        seen.append((record.value, known.get(record.key)))
        if record.value == "bad":
            raise ValueError

    with Driver(app) as d:
        d.send(topic, "ann", "A")
        with pytest.raises(ProcessorFailed):
            d.send(topic, "ann", "bad")
        assert d.table(customers) == {"ann": "A"}  # of a record that stops nothing counts
    assert seen == [("A", "A"), ("bad", "bad")]


def test_versions() -> None:
    shop = Shop(lambda app, topic: app.table_of(topic, versions=100 * MS))

    def as_of(at: int) -> Callable[[Any, Any], Any]:
        return lambda order, customers: (customers.as_of(at).get("ann"), dict(customers.as_of(at)))

    with Driver(shop.app) as d:
        for at, value in ((10, ["A"]), (40, ["C"]), (20, ["B"]), (60, None), (70, ["D"])):
            d.send(shop.customers_topic, "ann", value, timestamp_ms=at)
        found = {
            at: shop.ask(d, "ann", as_of(at), timestamp_ms=80)[0] for at in (9, 10, 19, 20, 39, 40, 59, 60, 69, 70, 99)
        }
        assert found == {
            9: None, 10: ["A"], 19: ["A"], 20: ["B"], 39: ["B"], 40: ["C"], 59: ["C"], 60: None, 69: None, 70: ["D"], 99: ["D"],
        }  # fmt: skip
        assert shop.ask(d, "ann", as_of(25), timestamp_ms=125) == (["B"], {"ann": ["B"]})
        assert shop.ask(d, "ann", as_of(25), timestamp_ms=126) == (None, {})  # further back than versions are kept
        d.send(shop.customers_topic, "ann", ["E"], timestamp_ms=300)
        stores = [stores["customers"] for stores in d._stores.values() if stores["customers"].data]
        kept = [key for store in stores for key in store.data if key.startswith(b"v")]
        assert len(kept) == 2  # that of 70, which still counts at 200, and the new one


def test_a_task_that_is_taken_over_keeps_no_older_versions_than_before() -> None:
    shop = Shop(lambda app, topic: app.table_of(topic, versions=100 * MS))
    shop.body = lambda order, customers: customers.as_of(order.timestamp_ms).get("ann")
    (sub,) = shop.app.topology().subtopologies
    stores, counts = {"customers": DictStore()}, {"customers": 1, "orders": 1}

    def taken_over(*records: tuple[str, SourceRecord]) -> None:
        process = TaskProcess(shop.app, sub, 0, stores, counts)
        assert process.run(list(records), lambda: 0, 1) == len(records)
        stores["customers"].write(process.collect().writes.get("customers", {}))

    order = (1).to_bytes(8, "big")
    taken_over(
        ("customers", SourceRecord(0, 10, b"ann", b'["A"]')),
        ("orders", SourceRecord(0, 150, b"bob", order)),
        ("orders", SourceRecord(1, 50, b"ann", order)),
    )
    taken_over(("orders", SourceRecord(2, 49, b"ann", order)), ("orders", SourceRecord(3, 50, b"ann", order)))
    assert shop.seen == [["A"], ["A"], None, ["A"]]


def test_versions_that_were_not_asked_for() -> None:
    shop = Shop(of_topic)
    with Driver(shop.app) as d, pytest.raises(ProcessorFailed, match="keeps no versions"):
        shop.ask(d, "ann", lambda order, customers: customers.as_of(5))


@pytest.mark.parametrize("wrong", [None, "now", 1.5, True, 10**30])
def test_a_version_of_no_time(wrong: Any) -> None:
    shop = Shop(lambda app, topic: app.table_of(topic, versions=100 * MS))
    with Driver(shop.app) as d, pytest.raises(ProcessorFailed, match=r"table 'customers': as_of\(.*\) is no time"):
        shop.ask(d, "ann", lambda order, customers: customers.as_of(wrong).get("ann"))


def test_partitions_must_be_equal_but_for_a_global_table() -> None:
    with pytest.raises(PipelineError, match="partition counts differ"):
        Shop(of_topic, customers=3).app.topology()
    shop = Shop(lambda app, topic: app.global_table(topic), customers=3)
    with Driver(shop.app) as d:
        for key in ("ann", "bob", "cid", "dot"):
            d.send(shop.customers_topic, key, [key.upper()], timestamp_ms=1_000)
        assert d.table(shop.customers) == {key: [key.upper()] for key in ("ann", "bob", "cid", "dot")}
        everybody = shop.ask(d, "ann", lambda order, customers: sorted(customers))
        assert everybody == ["ann", "bob", "cid", "dot"]
        assert shop.ask(d, "bob", lambda order, customers: customers["ann"]) == ["ANN"]
        d.send(shop.customers_topic, "ann", None)
        assert shop.ask(d, "bob", lambda order, customers: customers.get("ann")) is None


def test_a_global_table_moves_no_time() -> None:
    app = App("shop")
    rates, orders = app.topic("rates", key=str, value=int), app.topic("orders", key=str, value=int)
    known, silent = app.global_table(rates), app.timers("silent", key=str)
    due: list[str] = []

    @app.processor(orders, known, silent)
    def order(order: Any, rates: Any, silent: Any) -> None:
        silent[order.key] = order.timestamp_ms + 40

    @app.when_due(silent, known)
    def gone(timer: Any, rates: Any) -> None:
        due.append(rates["usd"])

    with Driver(app) as d:
        d.send(orders, "ann", 1, timestamp_ms=10)
        d.send(rates, "usd", 3, timestamp_ms=900)
        assert due == []
        d.send(orders, "bob", 1, timestamp_ms=60)
        assert due == [3]


def test_a_topic_that_is_a_global_table_is_a_source_like_any_other() -> None:
    """As a source its records belong to tasks, and so do timers that are set for them: each in the task of its key."""
    app: Any = App("shop", partitions=3)
    rates = app.topic("rates", key=str, value=int)
    known, silent = app.global_table(rates, alias="known"), app.timers("silent", key=str)
    due: list[tuple[str, int, list[str]]] = []

    @app.processor(rates, silent)
    def rate(rate: Any, silent: Any) -> None:
        silent[rate.key] = rate.timestamp_ms + 10

    @app.when_due(silent, known)
    def gone(timer: Any, known: Any) -> None:
        due.append((timer.key, timer.timestamp_ms, sorted(known)))

    with Driver(app) as d:
        for at_ms, key in enumerate("abcd"):
            d.send(rates, key, at_ms, timestamp_ms=at_ms)
        assert d.table(silent) == {"a": 10, "b": 11, "c": 12, "d": 13} and due == []
        d.advance(12)  # its own millisecond is not passed
        assert sorted(due) == [("a", 10, list("abcd")), ("b", 11, list("abcd"))]
        assert d.table(known) == {"a": 0, "b": 1, "c": 2, "d": 3} and d.table(silent) == {"c": 12, "d": 13}


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("is_both", [False, True])
@pytest.mark.parametrize(("key", "value"), [(b"\xff", b"[]"), (b"ann", b"no list")])
def test_what_cannot_be_read_goes_by_on_error_and_is_not_in_the_table(
    batch: bool, is_both: bool, key: bytes, value: bytes
) -> None:
    """Else each call that looks at the row fails for it, and no other record of the key is to blame."""
    for on_error in ("stop", "skip", "dead"):
        app = App("shop", partitions=1)
        orders, dead = app.topic("orders", key=str, value=int), app.topic("dead", key=bytes, value=bytes)
        names = app.topic("names", key=str, value=list[str])
        known, seen = app.table_of(names, alias="known"), list[Any]()
        policy: Any = dead if on_error == "dead" else on_error

        @app.processor(names if is_both else orders, known, on_error=policy, batch=batch)
        def look(order: Any, known: Any) -> None:
            seen.append(dict(known))  # noqa: B023 - it is called in this round alone

        with Driver(app) as d:
            d.send(names, "ann", ["A"], timestamp_ms=1)
            if on_error == "stop":
                with pytest.raises(ProcessorFailed, match="look cannot read names-0@1"):
                    d.send_bytes(names, key, value, timestamp_ms=2)
                continue
            d.send_bytes(names, key, value, timestamp_ms=2)
            d.send(orders, "ann", 1, timestamp_ms=3)
            d.send(names, "bob", ["B"], timestamp_ms=4)
            assert d.table(known) == {"ann": ["A"], "bob": ["B"]}
            assert seen == ([{"ann": ["A"]}, {"ann": ["A"], "bob": ["B"]}] if is_both else [{"ann": ["A"]}])
            assert [letter.value for letter in d.records(dead)] == ([value] if on_error == "dead" else [])


@pytest.mark.parametrize(("key", "value"), [(b"\xff", b"[]"), (b"\xff", None), (b"ann", b"no list"), (b"ann", b"[]")])
def test_what_cannot_be_read_is_not_in_a_global_table(key: bytes, value: bytes | None) -> None:
    """Else each call that looks at the row fails for it. Whoever may not go without it stops; the others keep what was there."""
    for on_error in ("stop", "skip", "dead", {KeyError: "stop"}):
        app = App("shop", on_error="skip")
        orders, dead = app.topic("orders", key=str, value=int), app.topic("dead", key=bytes, value=bytes)
        names = app.topic("names", key=str, value=list[str], timestamp=lambda names: len(names[0]))
        known, seen = app.global_table(names), list[Any]()
        policy: Any = dead if on_error == "dead" else on_error

        @app.processor(orders, known, on_error=policy)
        def look(order: Any, names: Any) -> None:
            seen.append(dict(names))  # noqa: B023 - it is called in this round alone

        with Driver(app) as d:
            d.send(names, "ann", ["A"])
            if on_error == "stop":
                with pytest.raises(ProcessorFailed, match="look cannot read names-0@1, a record of a global table: "):
                    d.send_bytes(names, key, value)
            else:
                d.send_bytes(names, key, value)
            d.send(orders, "ann", 1)
            d.send(names, "ann", ["B"])
            d.send(orders, "ann", 1)
            assert d.table(known) == {"ann": ["B"]} and not d.items(dead)
        assert seen == [{"ann": ["A"]}, {"ann": ["B"]}]


@pytest.mark.parametrize("declare", [App.table_of, App.global_table])
@pytest.mark.parametrize(
    ("type_", "key", "forms"),
    [
        (tuple[str, int], ("ann", 1), [b'["ann", 1]', b'["ann",1]', b'[ "\\u0061nn",1 ]']),
        (Decimal, Decimal("1.5"), [b'"1.50"', b"1.5"]),
        (float, 0.0, [b"\x80" + bytes(7), bytes(8)]),
    ],
)
def test_a_key_is_found_in_whatever_form_it_was_written(declare: Any, type_: Any, key: Any, forms: list[bytes]) -> None:
    app: Any = App("shop")
    orders, names = app.topic("orders", key=str, value=int), app.topic("names", key=type_, value=str)
    known, seen = declare(app, names), list[Any]()

    @app.processor(orders, known)
    def look(order: Any, names: Any) -> None:
        seen.append((names.get(key), dict(names)))

    with Driver(app) as d:
        for number, form in enumerate(forms):
            d.send_bytes(names, form, f"{number}".encode())
            d.send(orders, "ann", 1)
        d.send_bytes(names, forms[0], None)
        d.send(orders, "ann", 1)
    assert seen == [*((f"{number}", {key: f"{number}"}) for number in range(len(forms))), (None, {})]


def test_rows_are_joined_in_whatever_form_their_keys_were_written() -> None:
    app: Any = App("shop")
    Key = tuple[str, int]
    prices, names = app.topic("prices", key=Key, value=int), app.topic("names", key=Key, value=str)
    tags = app.topic("tags", key=str, value=tuple[str, int])
    out = app.topic("out", key=str, value=str)

    @app.table_join(prices, names, out)
    def match(price: Any, name: Any, out: Any) -> None:
        out.send("join", f"{price.key} {price.value} {name and name.value}")

    @app.foreign_key_join(tags, names, out, key=lambda tag: tag)
    def tagged(tag: Any, name: Any, out: Any) -> None:
        out.send("tag", f"{tag.value} {name and name.value}")

    with Driver(app) as d:
        d.send_bytes(names, b'["ann", 1]', b"Ann")
        d.send(prices, ("ann", 1), 5)
        d.send(tags, "x", ("ann", 1))
        d.send_bytes(names, b'[ "ann", 1]', b"Anna")
        assert sorted(d.items(out)) == [
            ("join", "('ann', 1) 5 Ann"),
            ("join", "('ann', 1) 5 Anna"),
            ("tag", "('ann', 1) Ann"),
            ("tag", "('ann', 1) Anna"),
        ]


def test_fakes() -> None:
    app = App("shop")
    topic = app.topic("customers", key=str, value=str)
    fake = app.table_of(topic).fake({"ann": "A"}, timestamp_ms=7)
    assert fake == {"ann": "A"} and fake.timestamp_ms("ann") == 7
    fake = app.global_table(topic).fake({"ann": "A"})
    assert fake == {"ann": "A"}
