"""A call that sets one key: it counts as any call does, and what it does not hold counts for nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator import App, Record, Table
from orchestrator.testing import Driver

Write = Callable[[Table[str, int], Record[str, int]], None]


def counted(write: Write) -> dict[str, int]:
    """The table after calls of `write` with values 1, 1, 2 of one key, the second of which fails."""
    app = App("app", partitions=1)
    events = app.topic("events", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int)

    @app.processor(events, sums, on_error="skip")
    def process(event: Record[str, int], sums: Table[str, int]) -> None:
        write(sums, event)
        if event.offset == 1:
            raise ValueError("no")

    with Driver(app) as driver:
        for value in (1, 1, 2):
            driver.send(events, "k", value)
        return driver.table(sums)


def add(sums: Table[str, int], event: Record[str, int]) -> None:
    sums[event.key] += event.value


def twice(sums: Table[str, int], event: Record[str, int]) -> None:
    sums[event.key] = 100
    sums[event.key] = sums[event.key] - 100 + event.value


def set_and_deleted(sums: Table[str, int], event: Record[str, int]) -> None:
    sums[event.key] = event.value
    del sums[event.key]


def deleted_and_set(sums: Table[str, int], event: Record[str, int]) -> None:
    sums.pop(event.key, None)
    sums[event.key] = event.value


def read_another(sums: Table[str, int], event: Record[str, int]) -> None:
    sums[event.key] = event.value + sums["another"]


@pytest.mark.parametrize(
    ("write", "expected"),
    [(add, {"k": 3}), (twice, {"k": 2}), (set_and_deleted, {}), (deleted_and_set, {"k": 2}), (read_another, {"k": 2})],
)
def test_what_a_call_of_one_key_leaves(write: Write, expected: dict[str, int]) -> None:
    assert counted(write) == expected


def test_what_can_change_in_place_is_looked_at_after_the_call() -> None:
    app = App("app", partitions=1)
    events = app.topic("events", key=str, value=int)
    lists = app.table("lists", key=str, value=list[int], default=list)

    @app.processor(events, lists)
    def process(event: Record[str, int], lists: Table[str, list[int]]) -> None:
        found = lists[event.key] = lists[event.key]
        found.append(event.value)

    with Driver(app) as driver:
        for value in (1, 2):
            driver.send(events, "k", value)
        assert driver.table(lists) == {"k": [1, 2]}
