"""Calls that count together and fail for good: each is tried as often as its `retries=` says, and then left out.

What was due, pairs of a join and rows of a table shared one count, which each call that ended well began anew: with two of them the
task went round for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from orchestrator import App, Tumbling
from orchestrator.testing import Driver

MS = timedelta(milliseconds=1)
MOST = 40


class GoesRound(BaseException):
    """The task tries for ever: no error of a function, which it would try again."""


class Tried:
    """An app whose function `bad` fails for some keys, always; `called`: with which."""

    def __init__(self) -> None:
        self.app = App("tried", partitions=1)
        self.one, self.two = (self.app.topic(name, key=str, value=str) for name in ("one", "two"))
        self.dead = self.app.topic("dead", key=str, value=str)
        self.called: Counter[str] = Counter()

    def bad(self, what: str) -> None:
        self.called[what] += 1
        if sum(self.called.values()) > MOST:
            raise GoesRound(self.called)
        if what.startswith("bad"):
            raise ValueError(what)


def pairs(tried: Tried, *, alone: bool) -> None:
    @tried.app.join(tried.one, tried.two, within=5 * MS, retries=2, on_error=tried.dead)
    def pair(one: Any, two: Any) -> None:
        tried.bad(one.value)

    if not alone:
        counts = tried.app.table("counts", key=str, value=int, default=int, window=Tumbling(5 * MS))
        tried.app.processor(tried.one, counts)(lambda one, counts: None)


def closed(tried: Tried) -> None:
    sums = tried.app.table("sums", key=str, value=str, window=Tumbling(5 * MS))

    @tried.app.processor(tried.one, sums)
    def count(one: Any, sums: Any) -> None:
        sums[one.key] = one.value

    for what in ("good", "bad 1", "bad 2"):

        def call(window: Any, what: str = what) -> None:
            if window.value == "bad 1":
                tried.bad(what)

        call.__name__ = what.replace(" ", "_")
        tried.app.when_closed(sums, retries=2, on_error=tried.dead)(call)


def timers(tried: Tried) -> None:
    due = tried.app.timers("due", key=str)

    @tried.app.processor(tried.two, due)
    def fill(two: Any, due: Any) -> None:
        due["good"], due["bad 1"], due["bad 2"] = 0, 1, 2

    @tried.app.when_due(due, retries=2, on_error=tried.dead)
    def call(due: Any) -> None:
        tried.bad(due.key)


def tables(tried: Tried) -> None:
    rows = tried.app.table("rows", key=str, value=str)

    @tried.app.processor(tried.two, rows)
    def fill(two: Any, rows: Any) -> None:
        for what in ("good", "bad 1", "bad 2"):
            rows[what] = two.value

    @tried.app.table_join(rows, tried.app.table_of(tried.one), kind="left", retries=2, on_error=tried.dead)
    def call(row: Any, other: Any) -> None:
        tried.bad(row.key)


FORMS: dict[str, Callable[[Tried], None]] = {
    "pairs": lambda tried: pairs(tried, alone=True),
    "pairs beside windows": lambda tried: pairs(tried, alone=False),
    "closed": closed,
    "timers": timers,
    "tables": tables,
}


@pytest.mark.parametrize("form", FORMS)
def test_each_is_tried_as_often_as_it_says(form: str) -> None:
    tried = Tried()
    FORMS[form](tried)
    with Driver(tried.app) as d:
        for at_ms, value in enumerate(["bad 1", "bad 2", "good"] if form.startswith("pairs") else ["bad 1"]):
            d.send(tried.one, "k", value, timestamp_ms=at_ms)
        d.send(tried.two, "k", "x", timestamp_ms=4)
        d.send(tried.one, "k", "last", timestamp_ms=20)
        # The first goes by `on_error` at once where the second is tried again.
        assert tried.called["bad 1"] == 3 + 2 and tried.called["bad 2"] == 3
        assert tried.called["good"] >= 1
        assert len(d.records(tried.dead)) == 2


def test_calls_for_one_row_that_count_together_have_their_own_tries() -> None:
    """A record's pairs each change a row of its key: the join of tables is called for each, at one time."""
    app = App("rows", partitions=1)
    one = app.topic("one", key=str, value=str)
    rows, dead = app.table("rows", key=str, value=str), app.topic("dead", key=str, value=str)
    due = app.timers("due", key=str)
    called: dict[str, Counter[str]] = {"row": Counter(), "due": Counter()}

    @app.join(one, one, rows, due, within=5 * MS)
    def pair(left: Any, right: Any, rows: Any, due: Any) -> None:
        rows[left.key] = f"{left.value}{right.value}"
        due[left.key] = 0

    def fails_once(kind: str, what: str) -> None:
        called[kind][what] += 1
        if called[kind][what] == 1:
            raise ValueError(what)

    @app.table_join(rows, app.table_of(app.topic("two", key=str, value=str)), kind="left", retries=1, on_error=dead)
    def row(row: Any, two: Any) -> None:
        fails_once("row", row.value)

    @app.when_due(due, rows, retries=1, on_error=dead)
    def call(due: Any, rows: Any) -> None:
        fails_once("due", rows[due.key])

    with Driver(app) as d:
        d.send(one, "k", "a", timestamp_ms=1)
        d.send(one, "k", "b", timestamp_ms=1)
        assert d.records(dead) == [] and set(called["row"]) == set(called["due"]) == {"aa", "ba", "ab", "bb"}
        assert min(called["row"].values()) > 1 < min(called["due"].values())


def test_calls_that_are_made_again_are_no_loop() -> None:
    """What a call makes due in the past is counted against a loop: each time that its record was tried anew, once more."""
    app = App("again", partitions=1)
    beats = app.topic("beats", key=str, value=int)
    due = app.timers("due", key=str)
    tries = Counter[str]()

    @app.processor(beats, due)
    def fill(beat: Any, due: Any) -> None:
        for number in range(1_000):
            due[f"{number:04}"] = 1

    @app.when_due(due, retries=12)
    def call(due: Any) -> None:
        tries[due.key] += 1
        if due.key == "0999" and tries[due.key] < 12:
            raise ConnectionError("away")

    with Driver(app) as d:
        d.send(beats, "a", 1, timestamp_ms=5)
    assert set(tries.values()) == {12} and len(tries) == 1_000
