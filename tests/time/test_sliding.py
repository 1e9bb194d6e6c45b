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
