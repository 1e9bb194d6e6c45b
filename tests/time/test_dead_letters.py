"""Dead letters of calls that have no one record: what time makes due, and joins."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator import App, Session, Tumbling
from orchestrator.testing import Driver

MS = timedelta(milliseconds=1)


def due(what: Any) -> None:
    raise ValueError("no")


def pair(left: Any, right: Any) -> None:
    raise ValueError("no")


class Letters:
    """Everything that is called by time, failing, with one topic for what becomes of it."""

    def __init__(self) -> None:
        app = self.app = App("letters")
        self.letters = app.topic("dead", key=str, value=int)
        self.beats, self.ships = app.topic("beats", key=str, value=int), app.topic("ships", key=str, value=int)

    def found(self, driver: Driver) -> list[tuple[Any, Any, int, dict[str, str]]]:
        shown = []
        for record in driver.records(self.letters):
            headers = {name.removeprefix("error-"): value.decode() for name, value in record.headers}
            for name in ("where", "type", "task", "processor", "partition", "message"):
                assert headers.pop(name), name
            shown.append((record.key, record.value, record.timestamp_ms, headers))
        return shown


def test_a_timer() -> None:
    case = Letters()
    silent = case.app.timers("silent", key=str)
    case.app.processor(case.beats, silent)(lambda beat, silent: silent.update({beat.key: beat.timestamp_ms + 5}))
    case.app.when_due(silent, on_error=case.letters)(due)
    with Driver(case.app) as d:
        d.send(case.beats, "ann", 7, timestamp_ms=10)
        d.advance(20)
        text = "the timer of 'ann' due at 15 ms of 'silent'"
        assert case.found(d) == [("ann", None, 15, {"topic": "silent", "offset": "-1", "due": text})]


@pytest.mark.parametrize(
    ("window", "bounds"),
    [(Tumbling(10 * MS), (10, 20)), (Session(gap=3 * MS, merge=lambda one, other: one + other), (11, 12))],
)
def test_a_window(window: Any, bounds: tuple[int, int]) -> None:
    case = Letters()
    sums = case.app.table("sums", key=str, value=int, default=int, window=window)

    def add(beat: Any, sums: Any) -> None:
        sums[beat.key] += beat.value

    case.app.processor(case.beats, sums)(add)
    case.app.when_closed(sums, on_error=case.letters)(due)
    with Driver(case.app) as d:
        d.send(case.beats, "ann", 7, timestamp_ms=11)
        d.send(case.beats, "ann", 1, timestamp_ms=12)
        d.advance(50)
        ((key, value, at_ms, headers),) = case.found(d)
    assert (key, value) == ("ann", 8) and at_ms == (19 if bounds[0] == 10 else 12)
    assert (headers["start-ms"], headers["end-ms"]) == (str(bounds[0]), str(bounds[1]))
    assert headers["due"].endswith(f"of 'ann' from {bounds[0]} to {bounds[1]} ms of table 'sums'")


def test_a_pair_of_a_join_and_a_record_that_nothing_matched() -> None:
    case = Letters()
    case.app.join(case.beats, case.ships, within=5 * MS, kind="left", on_error=case.letters)(pair)
    with Driver(case.app) as d:
        d.send(case.beats, "ann", 1, timestamp_ms=10)
        d.send(case.ships, "ann", 2, timestamp_ms=8)
        d.send(case.beats, "bob", 3, timestamp_ms=11)
        d.advance(50)
        matched, alone = case.found(d)
    places = {"left": "beats-0@0", "left-ms": "10", "right": "ships-0@0", "right-ms": "8"}
    assert matched == ("ann", 2, 10, {"topic": "ships", "offset": "0", **places})  # the later one's time
    text = "a record of 'pair-join' that nothing matched"
    named = {"topic": "pair-join", "offset": "-1", "due": text, "left": "beats-0@1", "left-ms": "11"}
    assert alone == ("bob", 3, 11, named)


def test_a_row_of_joined_tables() -> None:
    case = Letters()
    sums = case.app.table("sums", key=str, value=int, default=int)

    def add(beat: Any, sums: Any) -> None:
        sums[beat.key] += beat.value

    case.app.processor(case.beats, sums)(add)
    case.app.table_join(sums, case.ships, kind="left", on_error=case.letters)(pair)
    with Driver(case.app) as d:
        d.send(case.beats, "ann", 1, timestamp_ms=10)
        d.send(case.ships, "ann", 2, timestamp_ms=8)
        of_table, of_record = case.found(d)
    text = "the row b'ann' of table 'sums'"
    assert of_table == ("ann", 1, 10, {"topic": "sums", "offset": "-1", "due": text, "table": "sums"})
    assert of_record == ("ann", 2, 8, {"topic": "ships", "offset": "0"})


def test_a_row_that_a_foreign_key_names() -> None:
    case = Letters()
    case.app.foreign_key_join(case.beats, case.ships, key=lambda value: "ann", on_error=case.letters)(pair)
    with Driver(case.app) as d:
        d.send(case.beats, "b1", 1, timestamp_ms=10)
        d.send(case.ships, "ann", 2, timestamp_ms=12)
        ((key, value, at_ms, headers),) = case.found(d)
    assert (key, value, at_ms, headers["left-ms"]) == ("b1", 1, 12, "10")
    assert headers["due"] == "the row 'b1' of 'beats' that 'ships' answered"
