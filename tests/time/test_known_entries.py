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
from pipeline.time import numbers_at_hand, session_store, timed_view, window_view
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
        patch.setattr(numbers_at_hand, "MOST", most)
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


@pytest.mark.parametrize("kind", ["join", "session", "sliding"])
def test_what_waited_when_a_call_failed_is_found_in_the_store_later(kind: str) -> None:
    """It was written and not in the store when the call was undone; then the store had it, and it was known no more."""
    app, failed = App("waited"), set[str]()
    topic, others = app.topic("beats", key=str, value=str), app.topic("others", key=str, value=str)
    out = app.topic("out", key=str, value=str)

    def fails_once(value: str) -> None:
        if value == "bad" and not failed:
            failed.add(value)
            raise ValueError(value)

    if kind == "join":

        @app.join(topic, others, out, within=100 * MS, retries=1)
        def meet(left: Any, right: Any, out: Any) -> None:
            fails_once(left.value)
            out.send(left.key, left.value + right.value)

        beats = [("beats", "a", "A"), ("beats", "b", "bad"), ("beats", "b", "B"), ("others", "b", "x")]
    else:
        windows: Any = Sliding(100 * MS) if kind == "sliding" else Session(gap=100 * MS, merge=lambda a, b: a + b)
        met = app.table("met", key=str, value=str, default=str, window=windows)

        @app.processor(topic, met, out, retries=1)
        def meet_again(beat: Any, met: Any, out: Any) -> None:
            fails_once(beat.value)
            for one in list(met) if kind == "sliding" else [met]:
                one[beat.key] += beat.value
                out.send(beat.key, one[beat.key])

        beats = [("beats", "a", "A"), ("beats", "b", "bad")]
    subtopology = app.topology().subtopologies[0]
    store, offsets = DictStore(), {"beats": 0, "others": 0}
    task = TaskProcess(app, subtopology, 0, dict.fromkeys(subtopology.tables, store), {"out": 1})
    codec = topic.value_codec

    def take(name: str, key: str, value: str, at_ms: int) -> None:
        record = SourceRecord(offsets[name], at_ms, key.encode(), codec.encode(value))
        while not task.run([(name, record)]):  # a call that has failed is made again
            pass
        offsets[name] += 1

    def commit() -> dict[tuple[str, int], list[Any]]:
        changes = task.collect()
        for writes in changes.writes.values():
            store.write(writes)
        task.mark_applied()
        return changes.outputs

    for name, key, value in beats:
        take(name, key, value, 1_000)
    commit()
    assert failed
    for view in task._tables.values():
        view.layers.most_known = 3
    for number in range(10):
        take("beats", f"z{number}", "z", 1_000)
    commit()
    take("others" if kind == "join" else "beats", "a", "y", 1_010)
    assert "Ay" in [codec.decode(record.value) for record in commit()["out", 0]]


@pytest.mark.parametrize("most_known", [1, 30_000])
def test_a_default_behind_a_deletion_is_written_as_one_that_was_read(
    most_known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call sets a new key, removes it, and changes the default that it gets then: the key was in no store that was
    asked, so its entry never expired, and a window of which something was stored was taken for one without entries."""
    monkeypatch.setattr(window_view, "_KNOWN", most_known)
    app = App("anew")
    topic = app.topic("beats", key=str, value=int)
    lists = app.table("lists", key=str, value=list[int], default=list, window=Tumbling(10 * MS), retain=20 * MS)
    seen: dict[tuple[str, int], list[int]] = {}

    @app.processor(topic, lists)
    def beat(beat: Any, lists: Any) -> None:
        if beat.value == 1:
            lists[beat.key] = [0]
            del lists[beat.key]
        seen[beat.key, beat.timestamp_ms] = list(lists[beat.key])
        lists[beat.key].append(beat.value)

    store = DictStore()
    task = TaskProcess(app, app.topology().subtopologies[0], 0, {"lists": store}, {})
    beats = [("z", 9, 1), ("y", 9, 100), ("y", 9, 101)]  # what lies before 70 ms is forgotten from here on
    beats += [("a", 1, 125), ("a", 2, 126), ("a", 3, 127), ("b", 1, 128), ("q", 9, 300), ("q", 9, 600)]
    for offset, (key, value, at_ms) in enumerate(beats):
        task.run([("beats", SourceRecord(offset, at_ms, key.encode(), topic.value_codec.encode(value)))])
        store.write(task.collect().writes.get("lists", {}))
        task.mark_applied()
    assert [seen["a", at_ms] for at_ms in (125, 126, 127)] == [[], [1], [1, 2]]
    assert [key for key in store.data if key.endswith((b"a", b"b"))] == [], "what has expired is gone from the store"
