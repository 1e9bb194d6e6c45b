"""What a task keeps at hand of its stores, and how much it forgets at once, changes no answer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App, Hopping, Session, Sliding, Tumbling
from orchestrator.testing import Driver
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from pipeline.time import session_store, timed_view, window_view
from tests.time.test_window_calls import WINDOWS, beats, played

MS = timedelta(milliseconds=1)


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
        patch.setattr(session_store, "_KNOWN_KEYS", most)
        found = played(records, WINDOWS[window], cuts, closes=closes, stops=False)
    assert expected == found


@pytest.mark.parametrize(
    "window",
    [
        Tumbling(10 * MS),
        Hopping(10 * MS, every=5 * MS),
        Sliding(10 * MS),
        Session(gap=10 * MS, merge=lambda a, b: a + b),
    ],
    ids=lambda window: type(window).__name__,
)
def test_what_has_expired_is_forgotten_in_parts(window: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_view, "MOST_FORGOTTEN", 3)
    app = App("parts")
    topic = app.topic("beats", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int, window=window)

    @app.processor(topic, sums)
    def beat(beat: Any, sums: Any) -> None:
        for one in sums if isinstance(window, Hopping | Sliding) else [sums]:
            one[beat.key] += beat.value

    store = DictStore()
    task = TaskProcess(app, app.topology().subtopologies[0], 0, {"sums": store}, {})

    def commit() -> int:
        changes = task.collect(in_parts=True)
        store.write(changes.writes.get("sums", {}))
        task.mark_applied()
        return len(changes.writes.get("sums", {}))

    codec = sums.value_codec
    task.run([("beats", SourceRecord(n, 1_000, b"key-%d" % n, codec.encode(1))) for n in range(40)])
    commit()
    kept = len(store.data)
    task.run([("beats", SourceRecord(40, 2_000, b"last", codec.encode(1)))])
    written = [commit()]
    while task.has_completed:
        written.append(commit())
    assert kept > 40 and len(written) > 10 and max(written) < 20, "never all at once, and no commit is left out"
    assert {key for key in store.data if b"key-" in key} == set(), "all of it is gone in the end"


def test_a_session_that_begins_where_a_closed_one_does_leaves_it() -> None:
    app = App("visits")
    topic = app.topic("beats", key=str, value=int)
    merge = lambda one, other: one + other  # noqa: E731
    visits = app.table(
        "visits",
        key=str,
        value=int,
        default=int,
        window=Session(gap=10 * MS, merge=merge),
        grace=0 * MS,
        retain=500 * MS,
    )

    @app.processor(topic, visits)
    def beat(beat: Any, visits: Any) -> None:
        visits[beat.key] += beat.value

    with Driver(app) as d:
        for at in (100, 105, 116, 100 + 16, 126):
            d.send(topic, "other", 1, timestamp_ms=at)
        d.send(topic, "ann", 1, timestamp_ms=120)
        d.send(topic, "other", 1, timestamp_ms=131)  # 120 has closed for ann at 130
        d.send(topic, "ann", 2, timestamp_ms=130)
        d.send(topic, "ann", 4, timestamp_ms=120)  # late alone, and not with the one at 130
        assert d.table(visits)[("ann", (120, 120))] == 1
        assert d.table(visits)[("ann", (120, 130))] == 6
        d.send(topic, "ann", 8, timestamp_ms=133)
        assert d.table(visits)[("ann", (120, 133))] == 14 and d.table(visits)[("ann", (120, 120))] == 1
