"""Windowed tables, sessions and timers as a function sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import Any

import pytest

from orchestrator import App, Hopping, PipelineError, ProcessorFailed, Session, Sliding, Tumbling, Window, WindowClosed
from orchestrator.testing import Driver

TEN = Tumbling(milliseconds=10)
MS = timedelta(milliseconds=1)


class Beats:
    """An app with a topic, whose processor is given table or timers, and runs what the test says."""

    def __init__(self, make: Callable[[App], Any], **options: Any) -> None:
        self.app = App("bank")
        self.beats = self.app.topic("beats", key=str, value=int)
        self.out = self.app.topic("out", key=str, value=str)
        self.kept = make(self.app)
        self.seen: list[Any] = []
        self.body: Callable[[Any, Any], Any] = lambda record, kept: None

        def beat(record: Any, kept: Any) -> None:
            self.seen.append(self.body(record, kept))

        self.app.processor(self.beats, self.kept, alias={self.kept: "kept"}, **options)(beat)


def sums(app: App, **options: Any) -> Any:
    given = {"key": str, "value": int, "default": int, "window": TEN, **options}
    return app.table("sums", **given)


def call(driver: Driver, beats: Beats, at: int, body: Callable[[Any, Any], Any], key: str = "ann") -> Any:
    beats.body = body
    driver.send(beats.beats, key, 1, timestamp_ms=at)
    return beats.seen[-1]


def test_a_window_is_a_dict() -> None:
    beats = Beats(sums)
    with Driver(beats.app) as d:

        def body(record: Any, sums: Any) -> Any:
            sums["ann"] += 1
            sums["bob"] = 5
            sums["cid"] = 6
            del sums["cid"]
            assert sums["nobody"] == 0 and "nobody" not in sums and sums.get("nobody") is None
            with pytest.raises(KeyError):
                del sums["nobody"]
            assert list(sums) == ["ann", "bob"] and len(sums) == 2 and sums == {"ann": 1, "bob": 5}
            assert dict(sums.range("b")) == {"bob": 5} and dict(sums.prefix("a")) == {"ann": 1}
            assert sums.pop("bob") == 5 and sums.setdefault("bob", 7) == 7 and sums.popitem() == ("bob", 7)
            return sums.start_ms, sums.end_ms

        assert call(d, beats, 13, body) == (10, 20)
        assert d.table(beats.kept) == {("ann", (10, 20)): 1}
        assert call(d, beats, 14, lambda record, sums: dict(sums)) == {"ann": 1}
        assert call(d, beats, 25, lambda record, sums: dict(sums)) == {}


def test_values_changed_in_place_are_kept() -> None:
    beats = Beats(lambda app: app.table("lists", key=str, value=list[int], default=list, window=TEN))
    with Driver(beats.app) as d:
        call(d, beats, 3, lambda record, lists: lists["ann"].append(1))
        call(d, beats, 4, lambda record, lists: lists["ann"].append(2))
        assert d.table(beats.kept) == {("ann", (0, 10)): [1, 2]}
        call(d, beats, 5, lambda record, lists: lists["bob"])
        assert d.table(beats.kept) == {("ann", (0, 10)): [1, 2]}


def test_at_another_time() -> None:
    """Read while retained, written while open, forgotten after that."""
    beats = Beats(lambda app: sums(app, grace=5 * MS, retain=20 * MS))

    def add(ms: int) -> Callable[[Any, Any], Any]:
        def body(record: Any, sums: Any) -> None:
            sums.at(ms)["ann"] += 1

        return body

    def read(record: Any, sums: Any) -> Any:
        before = sums.at(3)
        return before["ann"], "ann" in before, before.get("ann"), dict(before), (before.start_ms, before.end_ms)

    with Driver(beats.app) as d:
        call(d, beats, 14, add(3))
        assert call(d, beats, 15, read) == (1, True, 1, {"ann": 1}, (0, 10))
        with pytest.raises(
            ProcessorFailed, match="WindowClosed: table 'sums': the window from 0 to 10 ms and its grace"
        ):
            call(d, beats, 15, add(3))
    with Driver(beats.app) as d:
        call(d, beats, 14, add(3))
        assert call(d, beats, 29, read)[0] == 1  # 9 + 20
        assert call(d, beats, 30, read) == (0, False, None, {}, (0, 10))
        assert call(d, beats, 30, lambda record, sums: sums.at(99).start_ms) == 90
        call(d, beats, 30, add(99))  # a window that is yet to come is open
        assert d.table(beats.kept) == {("ann", (90, 100)): 1}


def test_a_closed_window_is_not_changed_in_place_either() -> None:
    beats = Beats(lambda app: app.table("lists", key=str, value=list[int], default=list, window=TEN, retain=50 * MS))
    with Driver(beats.app) as d:
        call(d, beats, 3, lambda record, lists: lists["ann"].append(1))
        with pytest.raises(ProcessorFailed) as failed:
            call(d, beats, 13, lambda record, lists: lists.at(3)["ann"].append(2))
        assert isinstance(failed.value.__cause__, WindowClosed)
        with pytest.raises(ProcessorFailed, match="WindowClosed"):
            call(d, beats, 13, lambda record, lists: lists.at(3).__delitem__("ann"))


@pytest.mark.parametrize("at", [3, -3])
def test_nor_is_one_that_is_forgotten(at: int) -> None:
    """Such a window is empty; the default that it gives is not stored, and a change of it is not lost without a word."""
    beats = Beats(lambda app: app.table("lists", key=str, value=list[int], default=list, window=TEN))

    def twice(record: Any, lists: Any) -> bool:
        window = lists.at(at)
        return window["ann"] == [] and window["ann"] is window["ann"] and "ann" not in window

    with Driver(beats.app) as d:
        call(d, beats, 3, lambda record, lists: lists["ann"].append(1))
        assert call(d, beats, 13, twice)
        with pytest.raises(ProcessorFailed) as failed:
            call(d, beats, 13, lambda record, lists: lists.at(at)["ann"].append(2))
        assert isinstance(failed.value.__cause__, WindowClosed)


def test_hopping_windows_are_seen_one_by_one() -> None:
    window = Hopping(milliseconds=10, every=5 * MS)
    beats = Beats(lambda app: app.table("sums", key=str, value=int, default=int, window=window, retain=99 * MS))
    with Driver(beats.app) as d:
        assert call(d, beats, 12, lambda record, sums: [(w.start_ms, w.end_ms) for w in sums]) == [(5, 15), (10, 20)]
        assert call(d, beats, 17, lambda record, sums: [w.start_ms for w in sums.at(12)]) == [5, 10]
        assert call(d, beats, 12, lambda record, sums: [w.start_ms for w in sums]) == [10]
        with pytest.raises(ProcessorFailed, match="is read window by window"):
            call(d, beats, 17, lambda record, sums: sums["ann"])


def session(app: App, **options: Any) -> Any:
    def merge(earlier: list[int], later: list[int]) -> list[int]:
        return [*earlier, *later]

    window = Session(gap=5 * MS, merge=merge)
    return app.table("visits", key=str, value=list[int], default=list, window=window, **options)


def test_sessions_are_a_dict_and_have_bounds() -> None:
    beats = Beats(session)
    with Driver(beats.app) as d:
        call(d, beats, 10, lambda record, visits: visits["ann"].append(10))
        call(d, beats, 20, lambda record, visits: None, key="bob")

        def body(record: Any, visits: Any) -> Any:
            before = visits.window("ann")
            assert "bob" not in visits and visits.window("bob") is None
            visits["ann"] = [*visits["ann"], record.timestamp_ms]
            return before, visits.window("ann"), dict(visits), len(visits)

        assert call(d, beats, 15, body) == (None, Window(15, 15), {"ann": [15]}, 1)  # that of 10 closed at 15
        assert call(d, beats, 17, body) == (Window(15, 15), Window(15, 17), {"ann": [15, 17]}, 1)
        assert d.table(beats.kept) == {("ann", (15, 17)): [15, 17]}
        call(d, beats, 20, lambda record, visits: visits.pop("ann"))
        assert d.table(beats.kept) == {}


def test_the_bounds_of_a_session_are_those_of_the_running_call() -> None:
    beats = Beats(session)

    def in_place(record: Any, visits: Any) -> Any:
        visits["ann"].append(record.timestamp_ms)
        return visits.window("ann")

    def looked_at(record: Any, visits: Any) -> Any:
        return visits["ann"] and visits.window("ann")

    def deleted(record: Any, visits: Any) -> Any:
        visits.pop("ann")
        return visits.window("ann")

    with Driver(beats.app) as d:
        assert call(d, beats, 10, in_place) == Window(10, 10)
        assert call(d, beats, 12, looked_at) == Window(10, 10)
        assert call(d, beats, 14, in_place) == Window(10, 14)
        assert call(d, beats, 15, deleted) is None
        assert d.table(beats.kept) == {}


@pytest.mark.parametrize(
    "look", [lambda visits: visits.window("a"), lambda visits: visits.get("a"), lambda visits: "a" in visits]
)
@pytest.mark.parametrize("is_one_function", [False, True])
def test_a_look_at_a_session_keeps_nothing_of_it_for_later_calls(
    look: Callable[[Any], Any], is_one_function: bool
) -> None:
    """A closed one was merged with the record of a later call at the same time, because it was open when it was looked at."""
    app = App("looks")
    beats, looks = app.topic("beats", key=str, value=str), app.topic("looks", key=str, value=str)
    merged = Session(gap=5 * MS, merge=lambda earlier, later: earlier + later)
    visits = app.table("visits", key=str, value=str, default=str, window=merged, retain=50 * MS)

    def beat(beat: Any, visits: Any) -> None:
        if beat.value:
            visits[beat.key] += beat.value
        else:
            look(visits)

    if is_one_function:
        looks = beats
    else:
        app.processor(looks, visits)(lambda looks, visits: look(visits))
    app.processor(beats, visits)(beat)
    with Driver(app, partitions=1) as d:
        with d.together() if is_one_function else nullcontext():
            d.send(beats, "a", "1", timestamp_ms=0)
            d.send(looks, "b", "", timestamp_ms=5)
            d.send(looks, "b", "", timestamp_ms=6)  # a's has closed
            d.send(beats, "a", "2", timestamp_ms=5)
        assert d.table(visits) == {("a", (0, 0)): "1", ("a", (5, 5)): "2"}


@pytest.mark.parametrize(
    "window", [Sliding(5 * MS), Session(gap=5 * MS, merge=lambda earlier, later: earlier + later), TEN]
)
def test_a_record_that_is_tried_again_counts_once_where_another_function_has_looked(window: Any) -> None:
    app = App("again")
    beats = app.topic("beats", key=str, value=str)
    counts: Any = app.table("counts", key=str, value=str, default=str, window=window)
    fails = [True]

    @app.processor(beats, counts)
    def beat(beat: Any, counts: Any) -> None:
        for one in counts if isinstance(window, Sliding) else [counts]:
            one[beat.key] += beat.value

    @app.processor(beats, counts)
    def looked(beat: Any, counts: Any) -> None:
        for one in counts if isinstance(window, Sliding) else [counts]:
            assert one.get(beat.key) == "1"

    @app.processor(beats, retries=1)
    def fail(beat: Any) -> None:
        if fails and fails.pop():
            raise ValueError("once")

    with Driver(app, partitions=1) as d:
        d.send(beats, "a", "1", timestamp_ms=20)
        assert list(d.table(counts).values()) == ["1"]


def test_a_session_grows_with_a_value_that_stays() -> None:
    window = Session(gap=5 * MS, merge=lambda earlier, later: earlier)
    beats = Beats(lambda app: app.table("visits", key=str, value=str, window=window))
    with Driver(beats.app) as d:
        for at in (1, 4, 9):
            call(d, beats, at, lambda record, visits: visits.__setitem__("ann", "here"))
        assert d.table(beats.kept) == {("ann", (1, 9)): "here"}
        call(d, beats, 12, lambda record, visits: visits.get("ann"))  # reading alone does not prolong it
        assert d.table(beats.kept) == {("ann", (1, 9)): "here"}


def test_sessions_at_another_time() -> None:
    beats = Beats(lambda app: session(app, retain=30 * MS))
    with Driver(beats.app) as d:
        call(d, beats, 10, lambda record, visits: visits["ann"].append(10))
        call(d, beats, 20, lambda record, visits: visits["ann"].append(20))
        assert call(d, beats, 20, lambda record, visits: visits.at(11).get("ann")) == [10]
        assert call(d, beats, 20, lambda record, visits: visits.at(16).get("ann")) == [20]
        with pytest.raises(ProcessorFailed, match="WindowClosed: table 'visits': a session with its last record at 14"):
            call(d, beats, 20, lambda record, visits: visits.at(14).__setitem__("bob", [1]))

        def caught(record: Any, visits: Any) -> None:
            for change in (lambda: visits.at(14).__setitem__("ann", [1]), lambda: visits.at(11).pop("ann")):
                with pytest.raises(WindowClosed):  # where it is written, as of any window
                    change()
            visits["ann"] = [2]

        call(d, beats, 21, caught)
        assert d.table(beats.kept) == {("ann", (10, 10)): [10], ("ann", (20, 21)): [2]}


def timers(app: App) -> Any:
    return app.timers("silent", key=str)


def test_timers_are_a_mapping() -> None:
    beats = Beats(timers)
    with Driver(beats.app) as d:

        def body(record: Any, silent: Any) -> Any:
            silent["ann"] = 50
            silent["bob"] = 60
            silent["ann"] = 40
            silent["cid"] = 70
            del silent["cid"]
            assert silent.pop("bob") == 60
            assert dict(silent.prefix("a")) == {"ann": 40} and dict(silent.range("b")) == {}
            return dict(silent), len(silent), silent.get("nobody"), "ann" in silent

        assert call(d, beats, 1, body) == ({"ann": 40}, 1, None, True)
        assert d.table(beats.kept) == {"ann": 40}
        call(d, beats, 41, lambda record, silent: None)
        assert d.table(beats.kept) == {}


@pytest.mark.parametrize("time", [-1, "soon", 1.5, True, 1 << 63])
def test_no_time_for_a_timer(time: Any) -> None:
    beats = Beats(timers)
    with Driver(beats.app) as d, pytest.raises(ProcessorFailed, match="is no time"):
        call(d, beats, 1, lambda record, silent: silent.__setitem__("ann", time))


@pytest.mark.parametrize(
    ("key", "time", "is_refused"), [("ann", 30, True), ("ann", 20, True), ("bob", 30, False), ("ann", 31, False)]
)
def test_a_timer_in_its_own_call(key: str, time: int, is_refused: bool) -> None:
    beats = Beats(timers)

    @beats.app.when_due(beats.kept, beats.kept)
    def due(due: Any, silent: Any) -> None:
        assert due.key not in silent
        if due.key == "ann" and "set" not in done:
            done.append("set")
            silent[key] = time

    done: list[str] = []
    with Driver(beats.app) as d:
        call(d, beats, 1, lambda record, silent: silent.__setitem__("ann", 30))
        if is_refused:
            with pytest.raises(ProcessorFailed, match="in its own call at 30") as failed:
                call(d, beats, 90, lambda record, silent: None)
            assert "the timer of 'ann' due at 30 ms of 'silent' in task 0_0" in str(failed.value)
        else:
            call(d, beats, 90, lambda record, silent: None)


def test_the_functions_of_one_timer_are_called_before_what_is_due_later() -> None:
    """Also where one call made several due in the past: as if time had passed them one after the other."""
    beats = Beats(timers)
    called: list[tuple[str, str, int]] = []

    @beats.app.when_due(beats.kept, beats.kept)
    def first(due: Any, silent: Any) -> None:
        called.append(("first", due.key, due.timestamp_ms))
        if due.timestamp_ms == 3:
            silent["ann"], silent["cid"] = 6, 1

    @beats.app.when_due(beats.kept)
    def second(due: Any) -> None:
        called.append(("second", due.key, due.timestamp_ms))

    def fill(record: Any, silent: Any) -> None:
        silent["ann"], silent["bob"] = 3, 5

    with Driver(beats.app) as d:
        call(d, beats, 9, fill)
    assert called == [
        ("first", "ann", 3),
        ("first", "cid", 1),  # due in the past of the call that made it so
        ("second", "cid", 1),
        ("second", "ann", 3),
        ("first", "bob", 5),
        ("second", "bob", 5),
        ("first", "ann", 6),
        ("second", "ann", 6),
    ]


def test_timers_that_make_each_other_due_for_ever() -> None:
    beats = Beats(timers, on_error="skip")

    @beats.app.when_due(beats.kept, beats.kept, on_error="skip")
    def due(due: Any, silent: Any) -> None:
        count[0] += 1
        silent["b" if due.key == "a" else "a"] = 5

    count = [0]
    with Driver(beats.app) as d:
        call(d, beats, 10, lambda record, silent: silent.__setitem__("a", 5))
        assert count[0] == 10_000


def test_many_windows_close_at_once() -> None:
    """A fault is a loop of calls, not that there is much to close."""
    beats = Beats(lambda app: sums(app))
    closed: list[str] = []

    @beats.app.when_closed(beats.kept)
    def close(window: Any) -> None:
        closed.append(window.key)

    def fill(record: Any, sums: Any) -> None:
        for number in range(12_000):
            sums[f"{number:06}"] = 1

    with Driver(beats.app) as d:
        call(d, beats, 1, fill)
        call(d, beats, 30, lambda record, sums: None)
    assert closed == [f"{number:06}" for number in range(12_000)]


def test_errors_of_due_calls_go_by_their_policy() -> None:
    beats = Beats(timers)
    dead = beats.app.topic("dead", key=bytes, value=bytes)

    @beats.app.when_due(beats.kept, beats.out, on_error=dead)
    def due(due: Any, out: Any) -> None:
        out.send(due.key, "never")
        raise ValueError("no")

    with Driver(beats.app) as d:
        call(d, beats, 1, lambda record, silent: silent.__setitem__("ann", 30))
        call(d, beats, 40, lambda record, silent: None)
        assert d.table(beats.kept) == {} and d.items(beats.out) == []
        (letter,) = d.records(dead)
        assert letter.key == b"ann" and letter.timestamp_ms == 30 and dict(letter.headers)["error-message"] == b"no"


def test_a_due_call_that_stops_never_was() -> None:
    beats = Beats(timers)
    broken = [True]

    @beats.app.when_due(beats.kept, beats.out)
    def due(due: Any, out: Any) -> None:
        out.send(due.key, "x")
        if broken[0] and due.key == "bob":
            raise ValueError("no")

    def fill(record: Any, silent: Any) -> None:
        silent["ann"], silent["bob"] = 30, 31

    with Driver(beats.app) as d:
        call(d, beats, 1, fill)
        with pytest.raises(ProcessorFailed, match="the timer of 'bob'"):
            call(d, beats, 40, lambda record, silent: None)
        assert d.items(beats.out) == [("ann", "x")] and d.table(beats.kept) == {"bob": 31}
        broken[0] = False
        call(d, beats, 50, lambda record, silent: None)
        assert d.items(beats.out) == [("ann", "x"), ("bob", "x")]


def test_retries_of_a_due_call() -> None:
    beats = Beats(timers)
    tries: list[str] = []

    @beats.app.when_due(beats.kept, beats.out, retries=2, backoff=0.001)
    def due(due: Any, out: Any) -> None:
        tries.append(due.key)
        out.send(due.key, "x")
        if tries.count(due.key) < 3:
            raise ConnectionError("away")

    def fill(record: Any, silent: Any) -> None:
        silent["ann"], silent["bob"] = 30, 31

    with Driver(beats.app) as d:
        call(d, beats, 1, fill)
        call(d, beats, 40, lambda record, silent: None)
        assert tries == ["ann"] * 3 + ["bob"] * 3
        assert d.items(beats.out) == [("ann", "x"), ("bob", "x")]


def test_late_records_go_where_the_table_says() -> None:
    app = App("bank")
    beats, late = app.topic("beats", key=str, value=int), app.topic("late", key=str, value=int)
    one = app.table("one", key=str, value=int, default=int, window=TEN, on_late=late)
    two = app.table("two", key=str, value=int, default=int, window=TEN, grace=50 * MS, on_late=late)
    calls: list[str] = []

    @app.processor(beats, one, two)
    def both(beat: Any, one: Any, two: Any) -> None:
        calls.append(f"both {beat.value}")

    @app.processor(beats)
    def plain(beat: Any) -> None:
        calls.append(f"plain {beat.value}")

    with Driver(app) as d:
        d.send(beats, "ann", 1, timestamp_ms=30)
        d.send(beats, "ann", 2, timestamp_ms=3, headers=[("a", b"b")])
        assert calls == ["both 1", "plain 1", "plain 2"]
        (record,) = d.records(late)
        assert (record.key, record.value, record.timestamp_ms, record.headers) == ("ann", 2, 3, (("a", b"b"),))
        assert (d.late(one), d.late(two)) == (1, 0)
        d.send(beats, "ann", 3, timestamp_ms=99)
        d.send(beats, "ann", 4, timestamp_ms=1)
        assert (d.late(one), d.late(two)) == (2, 1) and len(d.records(late)) == 2
        with pytest.raises(PipelineError, match="neither a windowed table nor"):
            d.late(both)


def test_fakes() -> None:
    app = App("bank")
    hourly = app.table("hourly", key=str, value=int, default=int, window=TEN)
    rolling = app.table("rolling", key=str, value=int, default=int, window=Hopping(milliseconds=10, every=5 * MS))
    fake = hourly.fake()
    fake["ann"] += 1
    fake.at(25)["ann"] += 2
    assert fake == {"ann": 1} and fake.at(29) == {"ann": 2} and (fake.start_ms, fake.end_ms) == (0, 10)
    windows = rolling.fake(12)
    for window in windows:
        window["ann"] += 1
    assert [(window.start_ms, dict(window)) for window in windows] == [(5, {"ann": 1}), (10, {"ann": 1})]
    silent = app.timers("silent", key=str).fake()
    silent["ann"] = 5
    assert silent == {"ann": 5}
    visits = session(app).fake(7)
    visits["ann"].append(1)
    assert visits == {"ann": [1]}


def test_a_key_of_another_task_is_refused() -> None:
    beats = Beats(timers)
    wide = App("wide", partitions=4)
    topic = wide.topic("beats", key=str, value=int)
    kept = {"silent": wide.timers("silent", key=str), "sums": sums(wide), "visits": session(wide)}
    errors: list[str] = []
    taken: dict[str, list[str]] = {name: [] for name in kept}

    @wide.processor(topic, *kept.values())
    def beat(beat: Any, silent: Any, sums: Any, visits: Any) -> None:
        for key in "abcdefgh":
            for name, table, value in (("silent", silent, 5), ("sums", sums, 1), ("visits", visits, [1])):
                try:
                    table[key] = value
                    taken[name].append(key)
                except PipelineError as error:
                    errors.append(str(error))

    with Driver(wide) as d:
        d.send(topic, "a", 1)
    assert taken["silent"] == taken["sums"] == taken["visits"] != []
    assert len([error for error in errors if "rekey first" in error]) == len(errors) > 9
    assert any("timers 'silent': key '" in error for error in errors)
    assert beats.seen == []


def test_async_functions_keep_the_same_order() -> None:
    app = App("x")
    beats, out = app.topic("beats", key=str, value=int), app.topic("out", key=str, value=str)
    silent = app.timers("silent", key=str)
    table = sums(app)

    @app.processor(beats, table, silent)
    async def beat(beat: Any, sums: Any, silent: Any) -> None:
        await asyncio.sleep(0)
        sums[beat.key] += beat.value
        silent[beat.key] = max(0, beat.timestamp_ms - 2)  # due in the past
        await asyncio.sleep(0)

    @app.when_due(silent, out)
    async def gone(due: Any, out: Any) -> None:
        await asyncio.sleep(0)
        out.send(due.key, f"due {due.timestamp_ms}")

    @app.when_closed(table, out)
    async def close(window: Any, out: Any) -> None:
        await asyncio.sleep(0)
        out.send(window.key, f"closed {window.value}")

    with Driver(app) as d:
        with d.together():
            for at, key in ((3, "ann"), (4, "bob"), (15, "ann")):
                d.send(beats, key, 1, timestamp_ms=at)
        assert d.items(out) == [
            ("ann", "due 1"),
            ("bob", "due 2"),
            ("ann", "closed 1"),
            ("bob", "closed 1"),
            ("ann", "due 13"),
        ]
        assert [record.timestamp_ms for record in d.records(out)] == [1, 2, 9, 9, 13]


def test_a_time_before_0_holds_nothing() -> None:
    """As an hour before the first records has: it is read as empty, and cannot be written."""
    app = App("x")
    beats = app.topic("beats", key=str, value=int)
    hourly = app.table("hourly", key=str, value=int, default=int, window=Tumbling(hours=1), retain=timedelta(days=1))
    rolling = app.table(
        "rolling", key=str, value=int, default=int, window=Hopping(hours=1, every=timedelta(minutes=30))
    )
    visits = session(app)
    seen: list[Any] = []

    @app.processor(beats, hourly, rolling, visits)
    def beat(beat: Any, hourly: Any, rolling: Any, visits: Any) -> None:
        hourly[beat.key] += 1
        visits[beat.key].append(1)
        before = hourly.at(beat.timestamp_ms - 3_600_000)
        assert before["ann"] == 0 and "ann" not in before and len(before) == 0 and dict(before) == {}
        assert (
            list(rolling.at(-1)) == [] and visits.at(-100).get("ann") is None and visits.at(-100).window("ann") is None
        )
        for table in (before, visits.at(-100)):
            try:
                table["ann"] = 1 if table is before else [1]
            except WindowClosed:
                seen.append("closed")
        seen.append(before.get(beat.key))

    with Driver(app) as d:
        for at in (0, 1_000):
            d.send(beats, "ann", 1, timestamp_ms=at)
    assert seen == 2 * ["closed", "closed", None]


@pytest.mark.parametrize(
    "window",
    [
        Tumbling(seconds=1),
        Hopping(seconds=1, every=timedelta(milliseconds=500)),
        Sliding(seconds=1),
        Session(gap=timedelta(seconds=1), merge=lambda earlier, later: earlier + later),
    ],
    ids=lambda window: type(window).__name__,
)
@pytest.mark.parametrize("how", ["pop", "del", "clear"])
def test_a_default_that_was_removed_counts_no_more(window: Any, how: str) -> None:
    app = App("x", partitions=1)
    beats = app.topic("beats", key=str, value=int)
    lists = app.table("lists", key=str, value=list[int], default=list, window=window)

    @app.processor(beats, lists)
    def add(beat: Any, lists: Any) -> None:
        for one in lists if isinstance(window, Hopping | Sliding) else [lists]:
            held = one[beat.key]
            with suppress(KeyError):
                one.clear() if how == "clear" else one.pop(beat.key) if how == "pop" else one.__delitem__(beat.key)
            held.append(1)
            one[beat.key].append(2)

    with Driver(app) as driver:
        driver.send(beats, "k", 1, timestamp_ms=5)
        assert list(driver.table(lists).values()) == [[2]]
