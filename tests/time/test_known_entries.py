"""What a task keeps at hand of its stores, and how much it forgets at once, changes no answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.time import timed_view, window_view
from tests.time.test_window_calls import WINDOWS, beats, played


@settings(max_examples=100, deadline=None)
@given(
    records=beats,
    window=st.sampled_from(sorted(WINDOWS)),
    cuts=st.sets(st.integers(0, 25)),
    closes=st.booleans(),
    most=st.integers(0, 3),
)
def test_nothing_at_hand_is_as_all_at_hand(records: Any, window: str, cuts: set[int], closes: bool, most: int) -> None:
    expected = played(records, WINDOWS[window], cuts, closes=closes, stops=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_view, "_KNOWN", most)
        patch.setattr(timed_view, "_MOST_FORGOTTEN", 1)
        found = played(records, WINDOWS[window], cuts, closes=closes, stops=False)
    without_stores = [(one[0], *one[2:]) for one in (expected, found)]
    assert without_stores[0] == without_stores[1]
