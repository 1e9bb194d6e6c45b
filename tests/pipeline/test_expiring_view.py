"""A table that expires is one table, whichever steps a call takes: ExpiringView gives, writes and refuses what TableView does."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App, Record, Table
from orchestrator.testing import Driver
from pipeline.errors import PipelineError
from pipeline.tables.dict_store import DictStore
from pipeline.tables.expiring_view import ExpiringView
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.tables.table import TableSpec
from pipeline.tables.view import TableView

KEYS = st.sampled_from(["a", "b", "c"])
LISTS = st.lists(st.integers(0, 2), max_size=2)
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, st.integers(-3, 3) | st.none() | LISTS),
    st.tuples(st.sampled_from(["read", "get", "delete", "add", "grow"]), KEYS, st.none()),
    st.tuples(st.just("list"), KEYS, st.none()),
)
CALLS = st.lists(
    st.tuples(st.integers(0, 30), st.lists(STEPS, max_size=4), st.sampled_from(["keep", "keep", "fail", "commit"])),
    max_size=12,
)


def spec(default: Any) -> TableSpec:
    kind: Any = int | list[int]
    return App("x").table("t", key=str, value=kind, default=default, expire=timedelta(milliseconds=40)).spec


def done(table: TableView[str, Any], what: str, key: str, value: Any) -> object:
    """What a step gives, or the class of what it raises."""
    try:
        match what:
            case "set":
                table[key] = copy.deepcopy(value)
            case "read":
                return str(table[key])
            case "get":
                return str(table.get(key, "none"))
            case "delete":
                del table[key]
            case "add":
                table[key] += 1
            case "grow":
                table[key].append(9)
            case "list":
                return str(list(table.items()))
    except (KeyError, TypeError, AttributeError, PipelineError) as error:
        return type(error)
    return None


def outcome(kind: type[TableView[str, Any]], default: Any, calls: Any) -> list[object]:
    """All that the calls give, and the stored bytes after each commit."""
    store, seen, now_ms = DictStore(), list[object](), 0
    table = kind(spec(default), store)
    table.layers.most_known = 0  # what is not waiting is read from the store
    for later_ms, steps, ends in calls:
        now_ms += later_ms
        table.stream_ms = now_ms
        seen += [done(table, *step) for step in steps]
        try:
            if ends == "fail":
                table.forget()
            else:
                table.keep_alone(now_ms)
        except PipelineError as error:
            seen.append(type(error))
            table.forget()
        if ends == "commit":
            writes, at_ms = table.collect(now_ms)
            store.write(writes)
            table.mark_applied()
            seen += [dict(writes), at_ms, dict(store.data)]
    return seen


@given(st.sampled_from([None, int, list]), CALLS)
@settings(max_examples=300, deadline=None)
def test_it_is_the_same_table(default: Any, calls: Any) -> None:
    assert outcome(ExpiringView, default, calls) == outcome(TableView, default, calls)


@pytest.mark.parametrize("batch", [False, True])
def test_the_key_of_its_own_time_is_refused(batch: bool) -> None:
    """A record with this key wrote over the time of the table."""
    app = App("x", partitions=1)
    events = app.topic("events", key=bytes, value=bytes)
    counts = app.table("counts", key=bytes, value=int, default=int, expire=timedelta(days=1))

    def count(event: Record[bytes, bytes], counts: Table[bytes, int]) -> None:
        counts[event.key] += 1

    def count_all(found: list[Record[bytes, bytes]], counts: Table[bytes, int]) -> None:
        for event in found:
            count(event, counts)

    app.processor(events, counts, batch=batch)(count_all if batch else count)
    with Driver(app) as driver, pytest.raises(PipelineError, match="is reserved"):
        driver.send(events, STREAM_TIME_KEY, b"", timestamp_ms=1_000)
