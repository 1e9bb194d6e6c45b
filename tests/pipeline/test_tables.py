"""A table behaves as a dict, in a test as in production: a model test, and every sentence about tables."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator import App, PipelineError, Record, Table
from orchestrator.testing import Driver
from pipeline.errors import CodecError, DefinitionError, WrongTask
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from pipeline.tables.table import STREAM_TIME_KEY, TableSpec
from pipeline.tables.view import TableView
from pipeline.values.partitioner import partition_of

KEYS = st.sampled_from(["", "a", "ab", "b", "ä", "zz"])
VALUES = st.lists(st.integers(0, 3), max_size=3)


class Place(msgspec.Struct, frozen=True):
    name: str


class Account(msgspec.Struct):
    amount: int = 0
    notes: list[str] = []


def spec(default: Any = None, **options: Any) -> TableSpec:
    return App("x").table("t", key=str, value=list[int], default=default, **options).spec


class TableModel(RuleBasedStateMachine):
    """Calls on a table and a dict side by side; a call may fail (nothing counts), batches are taken and settled."""

    @initialize(defaulted=st.booleans())
    def begin(self, defaulted: bool) -> None:
        self.defaulted = defaulted
        self.store = DictStore()
        self.table: TableView[str, list[int]] = TableView(spec(list if defaulted else None), self.store)
        self.model: dict[str, list[int]] = {}
        self.before: dict[str, list[int]] = {}
        self.untaken: list[dict[bytes, bytes | None]] = []

    def model_get(self, key: str) -> list[int]:
        """What `table[key]` gives; a default only stays if it is changed."""
        return self.model.get(key, [])

    @rule(key=KEYS, value=VALUES)
    def set(self, key: str, value: list[int]) -> None:
        self.table[key] = value
        self.model[key] = value

    @rule(key=KEYS)
    def read(self, key: str) -> None:
        if key in self.model or self.defaulted:
            assert self.table[key] == self.model_get(key)
        else:
            with pytest.raises(KeyError):
                self.table[key]

    @rule(key=KEYS, number=st.integers(0, 3))
    def change_in_place(self, key: str, number: int) -> None:
        if key in self.model or self.defaulted:
            self.table[key].append(number)
            self.model.setdefault(key, []).append(number)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        if key in self.model:
            del self.table[key]
            del self.model[key]
        else:
            with pytest.raises(KeyError):
                del self.table[key]

    @rule(key=KEYS, value=VALUES)
    def pop(self, key: str, value: list[int]) -> None:
        assert self.table.pop(key, value) == self.model.pop(key, value)

    @rule(key=KEYS)
    def pop_without_default(self, key: str) -> None:
        if key in self.model:
            assert self.table.pop(key) == self.model.pop(key)
        else:
            with pytest.raises(KeyError):
                self.table.pop(key)

    @rule(key=KEYS, value=VALUES)
    def setdefault_and_change(self, key: str, value: list[int]) -> None:
        self.table.setdefault(key, list(value)).append(9)
        self.model.setdefault(key, list(value)).append(9)

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        assert self.table.get(key) == self.model.get(key)
        assert self.table.get(key, [7]) == self.model.get(key, [7])
        assert (key in self.table) == (key in self.model)

    @rule(pairs=st.dictionaries(KEYS, VALUES, max_size=3))
    def update(self, pairs: dict[str, list[int]]) -> None:
        self.table |= {key: list(value) for key, value in pairs.items()}
        self.model |= {key: list(value) for key, value in pairs.items()}

    @rule()
    def popitem(self) -> None:
        if self.model:
            last = max(self.model, key=str.encode)
            assert self.table.popitem() == (last, self.model.pop(last))
        else:
            with pytest.raises(KeyError):
                self.table.popitem()

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.model.clear()

    @rule(start=st.none() | KEYS, stop=st.none() | KEYS)
    def range(self, start: str | None, stop: str | None) -> None:
        expected = [
            (key, value)
            for key, value in self.in_order()
            if (start is None or key.encode() >= start.encode()) and (stop is None or key.encode() < stop.encode())
        ]
        assert list(self.table.range(start, stop)) == expected

    @rule(start=KEYS)
    def prefix(self, start: str) -> None:
        assert list(self.table.prefix(start)) == [item for item in self.in_order() if item[0].startswith(start)]

    @rule()
    def change_all_in_place(self) -> None:
        for value in self.table.values():
            value.append(1)
        for value in self.model.values():
            value.append(1)

    @rule()
    def end_of_call(self) -> None:
        self.table.apply(self.table.changes(), 0)
        self.remember()

    @rule()
    def call_fails(self) -> None:
        self.table.forget()
        self.model = {key: list(value) for key, value in self.before.items()}

    @rule()
    def take(self) -> None:
        self.end_of_call()
        self.untaken.append(self.table.collect(self.table.stream_ms)[0])

    @precondition(lambda self: self.untaken)
    @rule()
    def settle(self) -> None:
        self.store.write(self.untaken.pop(0))
        self.table.mark_applied()

    def remember(self) -> None:
        # Values are shared with the table within a call, as with a dict; across calls they are not.
        self.model = {key: list(value) for key, value in self.model.items()}
        self.before = {key: list(value) for key, value in self.model.items()}

    def in_order(self) -> list[tuple[str, list[int]]]:
        return sorted(self.model.items(), key=lambda item: item[0].encode())

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "table"):
            return
        assert list(self.table.items()) == self.in_order()
        assert list(self.table) == [key for key, _ in self.in_order()]
        assert len(self.table) == len(self.model) and bool(self.table) == bool(self.model)
        assert self.table == self.model

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.end_of_call()
            for changes in (*self.untaken, self.table.collect(self.table.stream_ms)[0]):
                self.store.write(changes)
            fresh: TableView[str, list[int]] = TableView(spec(), self.store)
            assert fresh == self.model


TestTableModel = TableModel.TestCase
TestTableModel.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)


def app_with(function: Any, *, value: Any = int, partitions: int = 1, **options: Any) -> tuple[App, Any, Any]:
    """An app of one processor over a table `t` keyed by str."""
    app = App("x", partitions=partitions)
    source = app.topic("in", key=str, value=str)
    table = app.table("t", key=str, value=value, **options)
    app.processor(source, table)(function)
    return app, source, table


def test_a_default_only_read_is_not_stored() -> None:
    def read(record: Record[str, str], t: Table[str, list[int]]) -> None:
        assert t[record.key] == [] and record.key not in t and t.get(record.key) is None
        assert t.pop(record.key, None) is None

    app, source, table = app_with(read, value=list[int], default=list)
    with Driver(app) as driver:
        driver.send(source, "a", "")
        assert driver.table(table) == {}


@pytest.mark.parametrize("was_stored", [False, True])
@pytest.mark.parametrize("how", ["pop", "pop of what is not there", "del", "clear"])
def test_a_default_that_was_removed_counts_no_more(how: str, was_stored: bool) -> None:
    store = DictStore()
    table: TableView[str, list[int]] = TableView(spec(list), store)
    if was_stored:
        table["a"] = [7]
        table.apply(table.changes(), 0)
        del table["a"]
    held = table["a"]
    if how == "pop":
        assert table.pop("a", None) is None
    elif how == "clear":
        table.clear()
    else:
        with pytest.raises(KeyError):
            table.pop("a") if how.startswith("pop") else table.__delitem__("a")
    held.append(1)
    assert "a" not in table
    assert table["a"] == []
    assert table.changes() == ({b"a": None} if was_stored else {})


def test_values_changed_in_place_are_kept_in_all_shapes() -> None:
    def change(record: Record[str, str], t: Table[str, Account]) -> None:
        t[record.key].amount += 1
        t[record.key].notes.append(record.value)

    app, source, table = app_with(change, value=Account, default=Account)
    with Driver(app) as driver:
        driver.send(source, "a", "x")
        driver.send(source, "a", "y")
        assert driver.table(table) == {"a": Account(2, ["x", "y"])}


def test_a_value_changed_after_it_was_set_is_kept_as_it_was_at_the_end() -> None:
    def change(record: Record[str, str], t: Table[str, list[int]]) -> None:
        mine = [1]
        t[record.key] = mine
        mine.append(2)

    app, source, table = app_with(change, value=list[int])
    with Driver(app) as driver:
        driver.send(source, "a", "")
        assert driver.table(table) == {"a": [1, 2]}


def test_only_differences_are_writes() -> None:
    def touch(record: Record[str, str], t: Table[str, list[int]]) -> None:
        t[record.key] = [1]
        t[record.key].append(2)
        t[record.key].pop()

    from pipeline.process import TaskProcess
    from pipeline.records import SourceRecord

    app, _, _ = app_with(touch, value=list[int])
    store = DictStore()
    process = TaskProcess(app, app.topology().subtopologies[0], 0, {"t": store}, {})
    process.run([("in", SourceRecord(0, 0, b"a", b""))])
    changes = process.collect()
    assert changes.writes == {"t": {b"a": b"[1]"}}
    store.write(changes.writes["t"])
    process.mark_applied()
    process.run([("in", SourceRecord(1, 1, b"a", b""))])
    assert process.collect().writes == {}


def test_del_is_a_tombstone() -> None:
    def drop(record: Record[str, str], t: Table[str, int]) -> None:
        if record.value == "del":
            del t[record.key]
        else:
            t[record.key] = 1

    app, source, table = app_with(drop)
    with Driver(app) as driver:
        driver.send(source, "a", "")
        driver.send(source, "a", "del")
        assert driver.table(table) == {}


def test_none_is_a_value_only_if_the_type_says_so() -> None:
    def put(record: Record[str, str], t: Table[str, Any]) -> None:
        t[record.key] = None
        assert record.key in t and t[record.key] is None

    app, source, table = app_with(put, value=int | None)
    with Driver(app) as driver:
        driver.send(source, "a", "")
        assert driver.table(table) == {"a": None}
    app, source, table = app_with(put, value=int)
    with Driver(app) as driver, pytest.raises(PipelineError, match="None is not one of its values"):
        driver.send(source, "a", "")


def test_a_key_must_belong_to_the_task() -> None:
    def put(record: Record[str, str], t: Table[str, int]) -> None:
        t[record.value] = 1

    app, source, _ = app_with(put, partitions=8)
    with Driver(app) as driver:
        driver.send(source, "ann", "ann")
        with pytest.raises(PipelineError, match=r"key 'bob' belongs to 0_\d, this is 0_\d; rekey first") as raised:
            driver.send(source, "ann", "bob")
        assert isinstance(raised.value.__cause__, WrongTask)


@pytest.mark.parametrize("batch", [False, True])
def test_the_key_of_a_record_belongs_where_the_record_is(batch: bool) -> None:
    """Whoever wrote it there: so it needs no hash. Another record's key does, also where that was seen before."""

    def put(record: Record[str, str], t: Table[str, int]) -> None:
        t[record.value] = 1

    def put_all(records: Sequence[Record[str, str]], t: Table[str, int]) -> None:
        for record in records:
            put(record, t)

    app = App("x", partitions=8)
    table = app.table("t", key=str, value=int)
    processor: Any = app.processor(app.topic("in", key=str, value=str), table, batch=batch)
    processor(put_all if batch else put)
    sub, here = app.topology().subtopologies[0], partition_of(b"ann", 8)
    task = TaskProcess(app, sub, here, {"t": DictStore()}, {})
    assert partition_of(b"bob", 8) != here
    task.run([("in", SourceRecord(0, 0, b"bob", b"bob"))])
    with pytest.raises(PipelineError, match="rekey first"):
        task.run([("in", SourceRecord(1, 0, b"ann", b"bob"))])
    assert task.collect().writes == {"t": {b"bob": (1).to_bytes(8, "big")}}


def test_a_default_changed_in_place_must_belong_to_the_task_too() -> None:
    def put(record: Record[str, str], t: Table[str, list[int]]) -> None:
        t[record.value].append(1)

    app, source, table = app_with(put, partitions=8, value=list[int], default=list)
    with Driver(app) as driver:
        with pytest.raises(PipelineError, match="rekey first"):
            driver.send(source, "ann", "bob")
        assert driver.table(table) == {}


def test_route_and_local() -> None:
    app = App("x", partitions=8)
    source = app.topic("in", key=str, value=str)
    pairs = app.table("pairs", key=tuple[str, str], value=int, default=int, route=lambda key: key[0])
    seen = app.table("seen", key=str, value=int, default=int, local=True)

    @app.processor(source, pairs, seen)
    def count(record: Record[str, str], pairs: Table[tuple[str, str], int], seen: Table[str, int]) -> None:
        pairs[record.key, record.value] += 1
        assert list(pairs.prefix((record.key,))) == [item for item in pairs.range() if item[0][0] == record.key]
        seen["any key at all"] += 1

    with Driver(app) as driver:
        for key in ("ann", "an", "bob", "ann"):
            driver.send(source, key, "x")
        assert driver.table(pairs) == {("ann", "x"): 2, ("an", "x"): 1, ("bob", "x"): 1}
        tasks = [driver.table(seen, partition=n).get("any key at all", 0) for n in range(8)]
        assert sum(tasks) == 4 and max(tasks) < 4
        with pytest.raises(PipelineError, match="partition="):
            driver.table(seen)


@given(st.sets(st.tuples(st.sampled_from(["a", "ab", 'a"', "b,", "]"]), st.integers(-12, 12)), max_size=12))
def test_prefix_of_tuples_is_by_parts(keys: set[tuple[str, int]]) -> None:
    app = App("x")
    table = app.table("t", key=tuple[str, int], value=int).fake()
    for key in keys:
        table[key] = 1
    for first in ("a", "ab", 'a"', "b,", "]"):
        assert {key for key, _ in table.prefix((first,))} == {key for key in keys if key[0] == first}
        assert {key for key, _ in table.prefix((first, 1))} == {key for key in keys if key == (first, 1)}
    assert {key for key, _ in table.prefix(())} == keys


def test_a_prefix_has_the_form_of_the_parts() -> None:
    table = TableView(App("x").table("t", key=tuple[float, str], value=int).spec, DictStore())
    table[1, "a"] = 1
    assert list(table.prefix((1,))) == list(table.prefix(1.0)) == [((1.0, "a"), 1)]
    assert not list(table.prefix((1, "a", 2)))
    assert not list(table.prefix("no number"))


@pytest.mark.parametrize("type_", [UUID, Place, Literal["ab", "ac"]])
def test_prefix_is_refused_for_keys_that_have_no_parts(type_: Any) -> None:
    table = TableView(App("x").table("t", key=type_, value=int).spec, DictStore())
    with pytest.raises(PipelineError, match=r"prefix\(\) is for keys of str, bytes and tuple"):
        table.prefix("a")


def test_a_table_that_grows_while_it_is_iterated_is_told() -> None:
    table = App("x").table("t", key=str, value=int).fake()
    table["a"] = 1
    table["b"] = 2
    for key in table:
        table[key] += 1  # changing what is there is fine
    with pytest.raises(RuntimeError, match="changed size"):
        for key in table:
            table[key + "x"] = 1
    with pytest.raises(RuntimeError, match="changed size"):
        for key in table:
            del table[key]


def test_wrong_values_and_keys_are_named() -> None:
    table = App("x").table("t", key=str, value=int).fake()
    with pytest.raises(CodecError, match="value of table 't'"):
        table["a"] = "x"  # type: ignore[assignment]
    with pytest.raises(CodecError, match="key of table 't'"):
        table[1] = 1  # type: ignore[index]


def test_what_else_a_dict_does() -> None:
    table = App("x").table("t", key=str, value=list[int]).fake()
    table |= {"b": [2], "a": [1]}
    assert {"a": [0], "c": [3]} | table == {"a": [1], "b": [2], "c": [3]} and table | {"a": [0]} == {"a": [0], "b": [2]}
    assert list(reversed(table.items())) == [("b", [2]), ("a", [1])]
    assert list(reversed(table.keys())) == ["b", "a"] and list(reversed(table.values())) == [[2], [1]]
    assert ("a", [1]) in table.items() and "ab" not in table.items() and ("a", [1], 2) not in table.items()


def test_a_copy_is_a_dict_and_never_another_view_of_the_store() -> None:
    table = App("x").table("t", key=str, value=list[int]).fake()
    table["a"] = [1]
    shallow, deep = copy.copy(table), copy.deepcopy(table)
    table["a"].append(2)
    assert type(shallow) is type(deep) is dict
    assert (shallow, deep) == ({"a": [1, 2]}, {"a": [1]})


def test_a_table_kept_beyond_its_call_is_closed() -> None:
    kept: list[Table[str, int]] = []

    def keep(record: Record[str, str], t: Table[str, int]) -> None:
        kept.append(t)

    app, source, _ = app_with(keep)
    with Driver(app) as driver:
        driver.send(source, "a", "")
        for use in (lambda: kept[0].get("a"), lambda: list(kept[0]), lambda: kept[0].update(a=1)):
            with pytest.raises(PipelineError, match="after the call"):
                use()


# expire


def expiring(partitions: int = 1) -> tuple[App, Any, Any, list[Any]]:
    seen: list[Any] = []

    def look(record: Record[str, str], t: Table[str, int]) -> None:
        seen.append((record.key in t, len(t)))
        if record.value:
            t[record.key] = 1

    return (*app_with(look, partitions=partitions, expire=timedelta(seconds=1)), seen)


def test_expires_after_the_last_write_by_stream_time() -> None:
    app, source, table, seen = expiring()
    with Driver(app) as driver:
        driver.send(source, "a", "x", timestamp_ms=1000)
        driver.send(source, "a", "x", timestamp_ms=1900)  # the same value again is a write again
        driver.send(source, "b", "", timestamp_ms=2899)
        assert driver.table(table) == {"a": 1}
        driver.send(source, "a", "", timestamp_ms=2900)
        assert driver.table(table) == {}
        driver.send(source, "a", "", timestamp_ms=1000)  # a late record does not turn back time
    assert seen == [(False, 0), (True, 1), (False, 1), (False, 0), (False, 0)]


def test_stream_time_moves_with_the_table() -> None:
    """A task taken over must not see what its former owner had let go."""
    from pipeline.process import TaskProcess
    from pipeline.records import SourceRecord

    app, _, _, seen = expiring()
    store = DictStore()

    def run(offset: int, time: int, value: bytes) -> None:
        process = TaskProcess(app, app.topology().subtopologies[0], 0, {"t": store}, {})
        process.run([("in", SourceRecord(offset, time, b"a", value))])
        store.write(process.collect().writes.get("t", {}))

    run(0, 0, b"x")
    run(1, 5000, b"")
    run(2, 10, b"")
    assert [present for present, _ in seen] == [False, False, False]
    assert list(store.data) == [STREAM_TIME_KEY]  # and what expired is removed from the store


def test_everything_that_expired_is_removed_in_the_end() -> None:
    from pipeline.process import TaskProcess
    from pipeline.records import SourceRecord

    app, _, _, _ = expiring()
    store = DictStore()
    process = TaskProcess(app, app.topology().subtopologies[0], 0, {"t": store}, {})

    def run(records: Iterator[SourceRecord]) -> None:
        process.run([("in", record) for record in records])
        store.write(process.collect().writes["t"])
        process.mark_applied()

    run(SourceRecord(n, 0, b"b%d" % n, b"x") for n in range(1100))
    assert len(store.data) == 1101
    for step in range(9):  # keys that stay come first in order and must not hide the others from the sweep
        run(SourceRecord(n, 5000 + step, b"a%d" % n, b"x") for n in range(600))
    assert len(store.data) == 601


def test_expire_wants_a_timedelta() -> None:
    with pytest.raises(DefinitionError, match="timedelta"):
        App("x").table("t", key=str, value=int, expire=5)  # type: ignore[call-overload]


def test_upgrade_reads_what_the_type_cannot() -> None:
    class Old(msgspec.Struct):
        amount: int

    class New(msgspec.Struct):
        amount: int
        currency: str

    app = App("x")
    store = DictStore()
    store.write({b"a": msgspec.json.encode(Old(5)), b"b": msgspec.json.encode(New(6, "EUR"))})
    table = app.table("t", key=str, value=New, upgrade=lambda old: New(old["amount"], "USD"))
    view: TableView[str, New] = TableView(table.spec, store)
    assert view == {"a": New(5, "USD"), "b": New(6, "EUR")}
    view.apply(view.changes(), 0)
    assert view.collect(view.stream_ms)[0] == {}  # having been read is no write


def test_what_upgrade_gives_is_a_value_of_the_table() -> None:
    """Values that were int come as their eight bytes; a Struct takes these for a number, and went on with them."""

    class Total(msgspec.Struct):
        amount: int

    store = DictStore()
    store.write({b"a": (-5).to_bytes(8, "big", signed=True)})
    wrong = App("x").table("t", key=str, value=Total, upgrade=lambda old: Total(old))
    with pytest.raises(CodecError, match=r"table 't': upgrade= gave Total\(amount=b'.*which is no value of it"):
        TableView(wrong.spec, store)["a"]
    table = App("x").table(
        "t", key=str, value=Total, upgrade=lambda old: Total(int.from_bytes(old, "big", signed=True))
    )
    assert TableView(table.spec, store) == {"a": Total(-5)}


@pytest.mark.parametrize(
    ("new", "stored", "upgraded"),
    [
        (int, b'{"n":10}', 10),
        (float, b'{"n":10}', 10.0),
        (int, b'{"n":1}', 1),
        (int, b"12:30:45", 45_045),
        (int, b"12345678", 12_345_678),
    ],
)
def test_eight_bytes_of_json_or_text_are_upgraded_to_a_number_as_others_are(
    new: type, stored: bytes, upgraded: float
) -> None:
    """They were read as a number themselves: a count of 10 was 8872775309157544061."""

    def upgrade(old: Any) -> Any:
        if isinstance(old, bytes):
            hours, minutes, seconds = map(int, old.split(b":"))
            return new(hours * 3600 + minutes * 60 + seconds)
        return new(old["n"] if isinstance(old, dict) else old)

    store = DictStore()
    store.write({b"a": stored, b"b": table_bytes(new, 7), b"c": table_bytes(new, 1_700_000_000_000_000_000)})
    view: TableView[str, Any] = TableView(App("x").table("t", key=str, value=new, upgrade=upgrade).spec, store)
    assert view["a"] == upgraded and view == {"a": upgraded, "b": 7, "c": 1_700_000_000_000_000_000}
    view["a"] += 1
    view.apply(view.changes(), 0)
    assert view.collect(view.stream_ms)[0] == {b"a": table_bytes(new, upgraded + 1)}


def table_bytes(kind: type, value: float) -> bytes:
    return App("x").table("t", key=str, value=kind).spec.encode_value(kind(value))


def test_default_options_are_checked() -> None:
    for options, match in (
        ({"default": 0}, "default=0 is not a function"),
        ({"default": str}, "does not make one of its values"),
        ({"route": "x"}, "route='x' is not a function"),
        ({"route": len, "local": True}, "give one"),
    ):
        with pytest.raises(DefinitionError, match=match):
            App("x").table("t", key=str, value=int, **options)
