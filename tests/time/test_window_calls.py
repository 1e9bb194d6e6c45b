"""The calls of windows without a coroutine for each give what those of any task give."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline.process
from orchestrator import App, Hopping, ProcessorFailed, Session, SessionTable, Sliding, Tumbling
from orchestrator.testing import Driver

MS = timedelta(milliseconds=1)
WINDOWS = {
    "tumbling": Tumbling(10 * MS),
    "hopping": Hopping(10 * MS, every=4 * MS),
    "sliding": Sliding(6 * MS),
    "session": Session(gap=5 * MS, merge=lambda one, other: one + other),
}
beats = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.integers(0, 12)), max_size=25)


def played(records: Any, window: Any, cuts: set[int], *, closes: bool, stops: bool) -> tuple[Any, ...]:
    """All that an app does with the records: what is sent, kept, late, and where it stops."""
    app = App("windows")
    topic, out = app.topic("beats", key=str, value=int), app.topic("out", key=str, value=str)
    late, dead = app.topic("late", key=str, value=int), app.topic("dead", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int, window=window, grace=3 * MS, retain=20 * MS, on_late=late)
    counts = app.table("counts", key=str, value=int, default=int, expire=40 * MS)

    @app.processor(topic, sums, counts, out, on_error={KeyError: dead, ValueError: "stop" if stops else "skip"})
    def beat(beat: Any, sums: Any, counts: Any, out: Any) -> None:
        counts[beat.key] += 1
        for one in sums if isinstance(window, Hopping | Sliding) else [sums]:
            one[beat.key] += beat.value
        out.send(beat.key, f"{beat.value} {counts[beat.key]}")
        if beat.value > 10:
            raise (KeyError if beat.value == 11 else ValueError)(beat.value)

    if closes:

        @app.when_closed(sums, out)
        def close(window: Any, out: Any) -> None:
            out.send(window.key, f"{window.start_ms}-{window.end_ms} {window.value}")

    stopped: list[str] = []
    parts: list[list[Any]] = [[]]
    for number, record in enumerate(records):
        if number in cuts:
            parts.append([])
        parts[-1].append(record)
    with Driver(app) as d:
        for part in parts:
            try:
                with d.together():
                    for key, at, value in part:
                        d.send(topic, key, value, timestamp_ms=at)
            except ProcessorFailed as error:
                stopped.append(str(error))
                break
        tables = [dict(store.data) for stores in d._stores.values() for store in stores.values()]
        sent = [(r.key, r.value, r.timestamp_ms, r.headers) for name in (out, late, dead) for r in d.records(name)]
        return sent, tables, d.late(sums), stopped, d.table(sums), d.table(counts)


@settings(max_examples=150, deadline=None)
@given(
    records=beats,
    window=st.sampled_from(sorted(WINDOWS)),
    cuts=st.sets(st.integers(0, 25)),
    closes=st.booleans(),
    stops=st.booleans(),
)
def test_they_give_what_the_calls_of_any_task_give(
    records: Any, window: str, cuts: set[int], closes: bool, stops: bool
) -> None:
    fast = played(records, WINDOWS[window], cuts, closes=closes, stops=stops)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.process, "window_calls", lambda *arguments: None)
        assert fast == played(records, WINDOWS[window], cuts, closes=closes, stops=stops)


OPERATIONS: dict[str, Callable[[Any, str], Any]] = {
    "add": lambda one, key: one.__setitem__(key, one[key] + 1),
    "add nothing": lambda one, key: one.__setitem__(key, one[key] + 0),
    "set": lambda one, key: one.__setitem__(key, 7),
    "set true": lambda one, key: one.__setitem__(key, True),
    "set too much": lambda one, key: one.__setitem__(key, one[key] + (1 << 63)),
    "set a text": lambda one, key: one.__setitem__(key, "7"),
    "read": lambda one, key: one[key],
    "get": lambda one, key: one.get(key),
    "ask": lambda one, key: key in one,
    "pop": lambda one, key: one.pop(key, None),
    "delete": lambda one, key: one.__delitem__(key),
    "set default": lambda one, key: one.setdefault(key, 3),
    "show": lambda one, key: dict(one),
    "count": lambda one, key: len(one),
    "bounds": lambda one, key: one.window(key) if isinstance(one, SessionTable) else None,
    "fail": lambda one, key: 1 // 0,
}
OFTEN = ("add", "set", "read", "fail") * 4
asked = st.lists(
    st.tuples(
        st.sampled_from("aab"),
        st.integers(0, 40),
        st.lists(
            st.tuples(st.sampled_from([*OFTEN, *OPERATIONS]), st.sampled_from(["", "", "", "b", "before"])), max_size=5
        ),
    ),
    max_size=20,
)


def asked_of(records: Any, window: Any, cuts: set[int], *, closes: bool, value: type, sends: bool) -> tuple[Any, ...]:
    """All that an app of one table does, whose calls ask its windows for anything."""
    app = App("asked", partitions=1)
    topic, out = app.topic("beats", key=str, value=list[tuple[str, str]]), app.topic("out", key=str, value=str)
    sums = app.table("sums", key=str, value=value, default=value, window=window, grace=3 * MS, retain=20 * MS)
    seen: list[str] = []

    def answers(beat: Any, sums: Any) -> list[str]:
        found: list[str] = []
        for name, other in beat.value:
            here = sums.at(beat.timestamp_ms - 4) if other == "before" else sums
            for one in here if isinstance(window, Hopping) else [here]:
                found.append(f"{name} {OPERATIONS[name](one, other if other == 'b' else beat.key)}")
        return found

    if sends:

        @app.processor(topic, sums, out, on_error="skip")
        def send(beat: Any, sums: Any, out: Any) -> None:
            out.send(beat.key, str(answers(beat, sums)))

    else:

        @app.processor(topic, sums, on_error="skip")
        def beat(beat: Any, sums: Any) -> None:
            seen.extend(answers(beat, sums))

    if closes:

        @app.when_closed(sums, out)
        def close(window: Any, out: Any) -> None:
            out.send(window.key, f"{window.start_ms}-{window.end_ms} {window.value}")

    with Driver(app) as d:
        for number, (key, at, operations) in enumerate(records):
            if number == 0 or number in cuts:
                with d.together():
                    end = min((cut for cut in cuts if cut > number), default=len(records))
                    for key, at, operations in records[number:end]:
                        d.send(topic, key, operations, timestamp_ms=at)
        tables = [dict(store.data) for stores in d._stores.values() for store in stores.values()]
        sent = [(r.key, r.value, r.timestamp_ms) for r in d.records(out)]
        return sent, seen, tables, d.late(sums), d.table(sums)


def shortly_after_each_other(records: Any, steps: list[int]) -> list[Any]:
    """The records at other times, so that most calls meet what those before have met."""
    return [(key, max(0, at), asks) for (key, _, asks), at in zip(records, accumulate(steps), strict=False)]


steps_of_time = st.lists(st.integers(-1, 3), min_size=20, max_size=20)


@settings(max_examples=400, deadline=None)
@given(
    records=asked,
    steps=st.none() | steps_of_time,
    window=st.sampled_from(["tumbling", "hopping", "hopping", "session"]),
    cuts=st.sets(st.integers(0, 20), max_size=8),
    closes=st.booleans(),
    value=st.sampled_from([int, int, float]),
    sends=st.booleans(),
)
def test_numbers_that_wait_are_seen_wherever_they_are_asked_for(
    records: Any, steps: list[int] | None, window: str, cuts: set[int], closes: bool, value: type, sends: bool
) -> None:
    options: dict[str, Any] = {"closes": closes, "value": value, "sends": sends}
    times = records if steps is None else shortly_after_each_other(records, steps)
    fast = asked_of(times, WINDOWS[window], cuts, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.process, "window_calls", lambda *arguments: None)
        assert fast == asked_of(times, WINDOWS[window], cuts, **options)


@settings(max_examples=250, deadline=None)
@given(
    records=asked,
    steps=steps_of_time,
    cuts=st.sets(st.integers(0, 20)),
    closes=st.booleans(),
    sends=st.booleans(),
)
def test_a_session_that_grows_is_seen_wherever_it_is_asked_for(
    records: Any, steps: list[int], cuts: set[int], closes: bool, sends: bool
) -> None:
    """Most calls meet the one session of their key."""
    close = shortly_after_each_other(records, steps)
    options: dict[str, Any] = {"closes": closes, "value": int, "sends": sends}
    fast = asked_of(close, WINDOWS["session"], cuts, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.process, "window_calls", lambda *arguments: None)
        assert fast == asked_of(close, WINDOWS["session"], cuts, **options)
