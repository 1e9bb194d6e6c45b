"""Windowed tables in batches: by `at`, cut wherever something happens, closes or expires."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App, Hopping, ProcessorFailed, Sliding, Tumbling
from orchestrator.testing import Driver
from pipeline.errors import DefinitionError

MS = timedelta(milliseconds=1)


class Batches:
    """Adds up by batches; `batches` has the times of each."""

    def __init__(self, *, batch: bool, grace: int = 2) -> None:
        self.app = App("x")
        self.beats = self.app.topic("beats", key=str, value=int)
        self.late = self.app.topic("late", key=str, value=int)
        self.sums = self.app.table(
            "sums",
            key=str,
            value=int,
            default=int,
            window=Tumbling(milliseconds=10),
            grace=grace * MS,
            retain=15 * MS,
            on_late=self.late,
        )
        self.batches: list[list[int]] = []
        self.closed: list[Any] = []

        def add(beats: Any, sums: Any) -> None:
            self.batches.append([beat.timestamp_ms for beat in beats])
            for beat in beats:
                sums.at(beat.timestamp_ms)[beat.key] += beat.value

        def one(beat: Any, sums: Any) -> None:
            sums[beat.key] += beat.value

        if batch:
            self.app.processor(self.beats, self.sums, batch=True)(add)
        else:
            self.app.processor(self.beats, self.sums)(one)

        @self.app.when_closed(self.sums)
        def close(window: Any) -> None:
            self.closed.append((window.key, window.start_ms, window.value))

    def run(self, records: list[tuple[str, int]], cuts: set[int]) -> Any:
        with Driver(self.app) as d:
            at = 0
            for end in [*sorted(cuts), len(records)]:
                with d.together():
                    for key, time in records[at:end]:
                        d.send(self.beats, key, time + 1, timestamp_ms=time)
                at = end
            return d.table(self.sums), self.closed, d.items(self.late), d.late(self.sums)


@settings(max_examples=100, deadline=None)
@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=20),
    cuts=st.sets(st.integers(0, 20)),
)
def test_batches_give_the_answer_of_single_records(records: list[tuple[str, int]], cuts: set[int]) -> None:
    records = sorted(records, key=lambda record: record[1])
    cuts = {cut for cut in cuts if cut <= len(records)}
    assert Batches(batch=True).run(records, cuts) == Batches(batch=False).run(records, set())


def test_late_records_are_not_in_a_batch() -> None:
    batches = Batches(batch=True)
    with Driver(batches.app) as d:
        for time in (3, 30, 4, 31):
            d.send(batches.beats, "a", 1, timestamp_ms=time)
        assert d.items(batches.late) == [("a", 1)] and d.late(batches.sums) == 1
    assert batches.batches == [[3], [30], [31]]


def test_a_batch_ends_where_something_closes() -> None:
    batches = Batches(batch=True)
    batches.run([("a", time) for time in (1, 5, 11, 12, 13, 20, 24, 25, 40)], set())
    # 0..10 has closed at 12 and is gone at 25; 10..20 has closed at 22
    assert batches.batches == [[1, 5, 11], [12, 13, 20], [24], [25], [40]]


def test_without_at_it_is_refused() -> None:
    app = App("x")
    beats = app.topic("beats", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int, window=Tumbling(milliseconds=10))

    @app.processor(beats, sums, batch=True)
    def add(beats: Any, sums: Any) -> None:
        sums["a"] += 1

    with Driver(app) as d, pytest.raises(ProcessorFailed, match=r"use sums.at\(record.timestamp_ms\)"):
        d.send(beats, "a", 1)


def test_sliding_windows_take_no_batch() -> None:
    app = App("x")
    beats = app.topic("beats", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int, window=Sliding(milliseconds=10))
    with pytest.raises(DefinitionError, match="sliding windows 'sums'"):
        app.processor(beats, sums, batch=True)(lambda beats, sums: None)


def test_hopping_windows_in_batches() -> None:
    """A record out of order is counted in the windows that are open, as it is one by one."""
    answers = []
    for batch in (True, False):
        app = App("x")
        beats = app.topic("beats", key=str, value=int)
        window = Hopping(milliseconds=10, every=5 * MS)
        sums = app.table("sums", key=str, value=int, default=int, window=window, retain=99 * MS)

        def many(beats: Any, sums: Any) -> None:
            for beat in beats:
                for window in sums.at(beat.timestamp_ms):
                    window[beat.key] += 1

        def one(beat: Any, sums: Any) -> None:
            for window in sums:
                window[beat.key] += 1

        app.processor(beats, sums, batch=batch)(many if batch else one)
        with Driver(app) as d:
            for time in (3, 12, 8):
                d.send(beats, "a", 1, timestamp_ms=time)
            answers.append(d.table(sums))
    assert answers[0] == answers[1] == {("a", (0, 10)): 1, ("a", (5, 15)): 2, ("a", (10, 20)): 1}


def test_hopping_windows_that_have_closed_are_read_in_batches_too() -> None:
    """They are retained: one by one they were there, and a batch was given none."""
    answers = []
    for batch in (True, False):
        app = App("x")
        beats = app.topic("beats", key=str, value=int)
        window = Hopping(milliseconds=4, every=2 * MS)
        sums = app.table("sums", key=str, value=int, default=int, window=window, retain=100 * MS)
        seen: list[tuple[int, dict[str, int]]] = []

        def one(beat: Any, sums: Any, seen: list[Any] = seen) -> None:
            if beat.value:
                for window in sums.at(beat.timestamp_ms):
                    window[beat.key] += 1
            else:
                seen += [(window.start_ms, dict(window)) for window in sums.at(10)]

        def many(beats: Any, sums: Any, one: Any = one) -> None:
            for beat in beats:
                one(beat, sums)

        app.processor(beats, sums, batch=batch)(many if batch else one)
        with Driver(app) as d:
            d.send(beats, "a", 1, timestamp_ms=10)
            d.send(beats, "a", 0, timestamp_ms=50)
        answers.append(seen)
    assert answers[0] == answers[1] == [(8, {"a": 1}), (10, {"a": 1})]
