"""A task that is interrupted between calls of one time goes on with the very next one also where a new version of the app declares other
tables before or behind those that keep its time: its position is that of each table, not the number of a declaration."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator import App, Session, Tumbling
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from pipeline.time import position

MS = timedelta(milliseconds=1)
KEYS = [f"k{number}" for number in range(6)]
CHANGES = [((), ("new",)), (("new",), ()), (("new",), ("new", "newer")), (("new", "newer"), ("newer",))]


def version(kind: str, before: tuple[str, ...], called: list[str]) -> App:
    """Windows, sessions or records of a join of six keys that are over at one time; `before`: tables that are declared before."""
    app = App("app", partitions=1)
    one, two = (app.topic(name, key=str, value=int) for name in ("one", "two"))
    others = [
        app.table(name, key=str, value=int, default=int, window=Tumbling(5 * MS), retain=99 * MS) for name in before
    ]

    def note(one: Any, other: Any = None) -> None:
        called.append((one or other).key)

    def count(record: Any, *tables: Any) -> None:
        for table in tables:
            table[record.key] += 1

    if kind == "join":
        app.join(one, two, within=4 * MS, kind="outer")(note)
        tables = [app.table("more", key=str, value=int, default=int, window=Tumbling(50 * MS), retain=99 * MS)]
    else:
        window = Tumbling(5 * MS) if kind == "windows" else Session(gap=4 * MS, merge=int.__add__)
        tables = [app.table("sums", key=str, value=int, default=int, window=window, retain=99 * MS)]
        app.when_closed(tables[0])(note)
    for table in [*others, *tables]:
        by_name = {table: "table"}
        exec(f"def of_{table.name}(record, table): count(record, table)", scope := {"count": count})
        app.processor(one, table, alias=by_name)(scope[f"of_{table.name}"])
    return app


def opened(app: App, stores: dict[str, DictStore]) -> TaskProcess:
    (subtopology,) = app.topology().subtopologies
    here = {name: stores.setdefault(name, DictStore()) for name in subtopology.tables}
    return TaskProcess(app, subtopology, 0, here, {"one": 1, "two": 1})


def commit(task: TaskProcess, stores: dict[str, DictStore]) -> None:
    for name, written in task.collect().writes.items():
        stores[name].write(written)
    task.mark_applied()


@pytest.mark.parametrize("kind", ["windows", "sessions", "join"])
@pytest.mark.parametrize(("first", "then"), CHANGES)
@pytest.mark.parametrize("done", range(1, 6))
def test_each_call_of_a_time_is_made_once(kind: str, first: tuple[str, ...], then: tuple[str, ...], done: int) -> None:
    called: list[str] = []
    stores: dict[str, DictStore] = {}
    task = opened(version(kind, first, called), stores)
    records = [("one", SourceRecord(n, 0, key.encode(), (1).to_bytes(8, "big"))) for n, key in enumerate(KEYS)]
    records.append(("one", SourceRecord(len(KEYS), 30, b"last", (1).to_bytes(8, "big"))))
    task.run(records[:-1])
    task.run(records[-1:], lambda: len(called) >= done, 1)  # as at the end of a turn
    assert called == KEYS[:done]
    commit(task, stores)

    task = opened(version(kind, then, called), stores)
    task.run(records[-1:])
    assert called == KEYS


@pytest.mark.parametrize("reached", range(position.ORDERS * 3 + 1))
def test_a_position_is_read_as_it_was_stored_by_the_table_that_it_is_of(reached: int) -> None:
    orders = [position.ORDERS * number for number in range(3)]
    own = [order for order in orders if order <= reached <= order + 1]
    place = 7, reached, b"key" if own else b""
    found = [position.read(position.stored(place, order), order) for order in orders]
    assert max(found) == place if own else max(found)[:2] <= place[:2]
    for order, one in zip(orders, found, strict=True):
        assert (one[1] >= order + 2) == (reached >= order + 2), "what is behind a table's own is behind it"
