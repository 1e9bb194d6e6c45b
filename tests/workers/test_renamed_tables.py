"""The line about a table that a new version of an app has under another name. Law: one line for each table that begins empty in place of another."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import App, Tumbling
from state.log.memory import MemoryLog
from workers.missing_inputs import prepare_and_say


def version(**tables: dict[str, Any]) -> App:
    app = App("bank", partitions=2)
    source = app.topic("in", key=str, value=int)
    declared = [app.table(name, **{"key": str, "value": int, **options}) for name, options in tables.items()]
    names = ", ".join(tables)
    namespace: dict[str, Any] = {}
    exec(f"def settle(record, {names}): ...", namespace)  # its parameters carry the tables' names
    app.processor(source, *declared)(namespace["settle"])
    return app


async def said(*versions: App) -> list[str]:
    """At the start of the last of them."""
    log, lines = MemoryLog(), list[str]()
    for app in versions:
        lines.clear()
        await prepare_and_say(log, app, "sqlite:x", lines.append)
    return lines


LINE = "table totals is new and begins empty; sums, of the same types, is not in this version: a table that is renamed is another one"


async def test_one_that_was_renamed_is_said_once() -> None:
    old, new = version(sums={}, names={"value": str}), version(totals={}, names={"value": str})
    assert await said(old, new) == [LINE]
    assert await said(old, new, new) == []
    assert await said(old, new, old) == [], "the way back finds its own"


@pytest.mark.parametrize(
    "new",
    [
        version(sums={}, totals={}),
        version(totals={"value": str}),
        version(totals={"key": int}),
        version(totals={"window": Tumbling(days=1)}),
    ],
    ids=["one more", "another value", "another key", "a window"],
)
async def test_one_that_replaces_none_is_not(new: App) -> None:
    assert await said(version(sums={}), new) == []
    assert await said(new) == []


def rates(name: str) -> App:
    app = App("bank", partitions=2)
    source, sums = app.topic("in", key=str, value=int), app.table("sums", key=str, value=int)
    of = app.table_of(app.topic(name, key=str, value=int))
    namespace: dict[str, Any] = {}
    exec(f"def settle(record, sums, {name}): ...", namespace)
    app.processor(source, sums, of)(namespace["settle"])
    return app


async def test_the_table_of_another_topic_begins_with_that() -> None:
    lines = await said(rates("rates1"), rates("rates2"))
    assert not [line for line in lines if "begins empty" in line]
