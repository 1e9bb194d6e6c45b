"""A call sees the record as it lies in the log, whatever calls before it did to theirs: other processors, and a batch that failed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from orchestrator import App, Tumbling
from orchestrator.testing import Driver

MS = timedelta(milliseconds=1)
FORMS = ["record", "batch", "async", "async batch", "at once"]
PAIRS = [
    (first, second)
    for first in FORMS
    for second in FORMS
    if "at once" not in (first, second)
    or {first, second} <= {"at once", "record"}  # which no other form may read beside
]


def app_of(forms: list[str]) -> App:
    """Each of its processors counts up a field of the record in place, fails where it has a 10, and sends what it has."""
    app = App("m", on_error="skip")
    numbers = app.topic("in", key=str, value=dict[str, int])
    out = app.topic("out", key=str, value=int)
    for nth, form in enumerate(forms):
        name = f"p{nth}"

        def function(given: Any, out: Any, form: str = form, name: str = name) -> None:
            for record in given if "batch" in form else [given]:
                record.value["n"] += 1
                if record.value["n"] == 10:
                    raise ValueError("there was a 9")
                out.send(name, record.value["n"])

        async def waits(given: Any, out: Any, function: Any = function) -> None:
            await asyncio.sleep(0)
            function(given, out)

        chosen = waits if form in ("async", "async batch", "at once") else function
        chosen.__name__ = name
        kinds: dict[str, Any] = {"batch": True} if "batch" in form else {"concurrency": 4} if form == "at once" else {}
        app.processor(numbers, out, **kinds)(chosen)
    return app


def sent_by(forms: list[str], numbers: list[int]) -> list[list[int]]:
    app = app_of(forms)
    with Driver(app) as driver:
        with driver.together():
            for number in numbers:
                driver.send(app.topics["in"], "k", {"n": number})
        items = driver.items(app.topics["out"])
    return [[number for name, number in items if name == f"p{nth}"] for nth in range(len(forms))]


@pytest.mark.parametrize("form", FORMS)
def test_a_call_after_a_batch_that_failed_sees_its_record_as_it_came(form: str) -> None:
    assert sent_by([form], [1, 2, 9, 3]) == [[2, 3, 4]]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_processor_sees_its_record_as_it_came(first: str, second: str) -> None:
    assert sent_by([first, second], [1, 9, 2]) == [[2, 3]] * 2


@pytest.mark.parametrize("fails", [False, True])
def test_a_function_of_a_closed_window_sees_what_it_held(fails: bool) -> None:
    app = App("m", on_error="skip")
    numbers = app.topic("in", key=str, value=dict[str, int])
    held = app.table("held", key=str, value=dict[str, int], default=dict, window=Tumbling(milliseconds=10))
    out = app.topic("out", key=str, value=int)

    @app.processor(numbers, held)
    def hold(record: Any, held: Any) -> None:
        held[record.key]["n"] = record.value["n"]

    for name in ("first", "second"):

        def closed(window: Any, out: Any, name: str = name) -> None:
            window.value["n"] += 1
            if name == "first" and fails:
                raise ValueError("not this one")
            out.send(name, window.value["n"])

        closed.__name__ = name
        app.when_closed(held, out)(closed)
    with Driver(app) as driver:
        driver.send(numbers, "k", {"n": 1}, timestamp_ms=1)
        driver.send(numbers, "k", {"n": 1}, timestamp_ms=100)
        assert driver.items(out) == [("first", 2)] * (not fails) + [("second", 2)]


@pytest.mark.parametrize("kinds", [{}, {"kind": "left"}])
def test_each_match_of_a_record_sees_it_as_it_came(kinds: dict[str, Any]) -> None:
    app = App("m", on_error="skip")
    left, right = (app.topic(name, key=str, value=dict[str, int]) for name in ("left", "right"))
    out = app.topic("out", key=str, value=int)

    @app.join(left, right, out, within=100 * MS, **kinds)
    def pairs(left: Any, right: Any, out: Any) -> None:
        right.value["n"] += 1
        out.send(left.key, right.value["n"])

    with Driver(app) as driver:
        for at_ms in (1, 2, 3):
            driver.send(left, "k", {"n": 0}, timestamp_ms=at_ms)
        driver.send(right, "k", {"n": 5}, timestamp_ms=4)
        assert [number for _, number in driver.items(out)] == [6, 6, 6]


@pytest.mark.parametrize("forms", [["record", "record"], ["async batch", "batch"]])
def test_a_key_is_as_it_came_too(forms: list[str]) -> None:
    app = App("m")
    numbers = app.topic("in", key=list[int], value=int)
    out = app.topic("out", key=str, value=list[int])
    for nth, form in enumerate(forms):

        def function(given: Any, out: Any, form: str = form, name: str = f"p{nth}") -> None:
            for record in given if "batch" in form else [given]:
                record.key.append(9)
                out.send(name, record.key)

        async def waits(given: Any, out: Any, function: Any = function) -> None:
            function(given, out)

        chosen = waits if "async" in form else function
        chosen.__name__ = f"p{nth}"
        app.processor(numbers, out, batch="batch" in form)(chosen)
    with Driver(app) as driver:
        driver.send(numbers, [1], 1)
        assert sorted(driver.items(out)) == [("p0", [1, 9]), ("p1", [1, 9])]
