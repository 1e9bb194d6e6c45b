"""Sliding windows against their definition: every window that ends at a record or begins right after one, and all that
lies in it, whatever the order in which the records came."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App, Sliding
from orchestrator.testing import Driver

SIZE = 5


def expected(records: list[tuple[str, int]]) -> dict[tuple[str, tuple[int, int]], list[int]]:
    """By definition."""
    times: dict[str, list[int]] = defaultdict(list)
    for key, at in records:
        times[key].append(at)
    found = {}
    for key, all_times in times.items():
        starts = {max(0, at - SIZE) for at in all_times} | {at + 1 for at in all_times}
        for start in starts:
            inside = sorted(at for at in all_times if start <= at <= start + SIZE)
            if inside:
                found[key, (start, start + SIZE + 1)] = inside
    return found


@settings(max_examples=400, deadline=None)
@given(records=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 30)), max_size=14))
def test_windows_are_those_of_the_definition(records: list[tuple[str, int]]) -> None:
    app = App("slides")
    beats = app.topic("beats", key=str, value=int)
    grace = timedelta(seconds=1)
    slides = app.table("slides", key=str, value=list[int], default=list, window=Sliding(milliseconds=SIZE), grace=grace)

    @app.processor(beats, slides)
    def beat(beat: Any, slides: Any) -> None:
        for window in slides:
            window[beat.key] = sorted([*window[beat.key], beat.timestamp_ms])

    with Driver(app) as driver:
        for key, at in records:
            driver.send(beats, key, 1, timestamp_ms=at)
        assert driver.table(slides) == expected(records)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.sampled_from(["write", "look", "clear", "pop"])),
        min_size=1,
        max_size=14,
    ),
    st.booleans(),
)
def test_a_window_is_a_dict_of_the_keys_that_it_answers(records: list[tuple[str, int, str]], mutable: bool) -> None:
    """Iterated it had those alone that the call had written or held; `clear` cleared nothing."""
    app = App("x")
    beats = app.topic("beats", key=str, value=str)
    kind: Any = list[int] if mutable else int
    sums = app.table(
        "sums",
        key=str,
        value=kind,
        default=kind if not mutable else list,
        window=Sliding(milliseconds=6),
        grace=timedelta(milliseconds=40),
    )

    def agrees(window: Any) -> None:
        there = [key for key in "abc" if key in window]
        assert list(window) == there and len(window) == len(there) and bool(window) == bool(there)
        values = {key: window.get(key) for key in there}
        assert dict(window.items()) == values
        assert dict(window.range("b")) == {key: value for key, value in values.items() if key >= "b"}
        assert dict(window.range(None, "b")) == {key: value for key, value in values.items() if key < "b"}

    @app.processor(beats, sums)
    def count(beat: Any, sums: Any) -> None:
        for window in [*sums, *sums.at(beat.timestamp_ms), *sums.at(max(0, beat.timestamp_ms - 4))]:
            agrees(window)
        for window in sums:
            if beat.value == "write":
                window[beat.key] = [*window[beat.key], 1] if mutable else window[beat.key] + 1
            elif beat.value == "clear":
                window.clear()
                assert list(window) == [] and window.get(beat.key) is None
            elif beat.value == "pop" and window:
                window.popitem()
            agrees(window)

    with Driver(app) as d:
        for key, at_ms, what in records:
            d.send(beats, key, what, timestamp_ms=at_ms)
