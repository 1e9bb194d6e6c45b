"""Sessions and sliding windows against their definitions, where records come out of order and little is retained."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator import App, Session, Sliding
from orchestrator.testing import Driver

Beat = tuple[str, int]
Closed = list[tuple[str, int, int, list[int]]]
Held = dict[tuple[str, tuple[int, int]], list[int]]
beats_of_two = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 40)), max_size=25)


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def played(
    window: Session | Sliding, grace: int, retain: int, beats: list[Beat], write: Callable[[Any, Any], None]
) -> tuple[Closed, Held, int]:
    """What closed, in order; what is held at the end; how many came late."""
    app = App("disorder", partitions=1)
    topic = app.topic("beats", key=str, value=int)
    held = app.table("held", key=str, value=list[int], default=list, window=window, grace=ms(grace), retain=ms(retain))
    closed: Closed = []
    app.processor(topic, held)(lambda beats, held: write(beats, held))

    @app.when_closed(held)
    def note(window: Any) -> None:
        closed.append((window.key, window.start_ms, window.end_ms, sorted(window.value)))

    with Driver(app) as driver:
        for key, at in beats:
            driver.send(topic, key, 1, timestamp_ms=at)
        held_now: Held = {(key, tuple(window)): sorted(value) for (key, window), value in driver.table(held).items()}
        return closed, held_now, driver.late(held)


def to_session(beat: Any, held: Any) -> None:
    held[beat.key] = [*held[beat.key], beat.timestamp_ms]


def to_each(beat: Any, held: Any) -> None:
    for window in held:
        window[beat.key] = [*window[beat.key], beat.timestamp_ms]


def sessions(gap: int, grace: int, retain: int, beats: list[Beat]) -> tuple[Closed, Held, int]:
    """By definition: (key, times) of the open ones and of all that have closed."""
    open_ones: list[tuple[str, list[int]]] = []
    closed: list[tuple[str, list[int]]] = []
    now = late = 0
    for key, at in beats:
        now = max(now, at)
        over = [one for one in open_ones if one[1][-1] + gap + grace < now]
        closed += sorted(over, key=lambda one: (one[1][-1], one[0]))
        open_ones = [one for one in open_ones if one not in over]
        met = [one for one in open_ones if one[0] == key and one[1][0] - gap <= at <= one[1][-1] + gap]
        if not met and at + gap + grace < now:
            late += 1
            continue
        open_ones = [one for one in open_ones if one not in met]
        open_ones.append((key, sorted([at, *(time for _, times in met for time in times)])))
    held = [one for one in [*closed, *open_ones] if one[1][-1] + gap + retain >= now]
    return (
        [(key, times[0], times[-1], times) for key, times in closed],
        {(key, (times[0], times[-1])): times for key, times in held},
        late,
    )


@settings(max_examples=150, deadline=None)
@given(beats=beats_of_two, gap=st.integers(1, 12), grace=st.integers(0, 5), more=st.integers(0, 20))
@example(
    beats=[("a", at) for at in (23, 40, 37, 27, 15, 7)], gap=12, grace=0, more=9
)  # the first closes within the next
def test_sessions(beats: list[Beat], gap: int, grace: int, more: int) -> None:
    window = Session(gap=ms(gap), merge=lambda earlier, later: earlier + later)
    assert played(window, grace, grace + more, beats, to_session) == sessions(gap, grace, grace + more, beats)


def sliding(size: int, grace: int, retain: int, beats: list[Beat]) -> tuple[Closed, Held, int]:
    """By definition, of records that are at most `grace` late."""
    now = max((at for _, at in beats), default=-1)
    starts = {(key, start) for key, at in beats for start in (max(0, at - size), at + 1)}
    held = {
        (key, start): sorted(at for other, at in beats if other == key and start <= at <= start + size)
        for key, start in starts
    }
    windows = sorted((start, key, times) for (key, start), times in held.items() if times)
    return (
        [(key, start, start + size + 1, times) for start, key, times in windows if start + size + grace < now],
        {(key, (start, start + size + 1)): times for start, key, times in windows if start + size + retain >= now},
        0,
    )


@settings(max_examples=150, deadline=None)
@given(beats=beats_of_two, size=st.integers(1, 12), grace=st.integers(0, 5), more=st.integers(0, 20))
@example(beats=[("a", 10), ("a", 13)], size=5, grace=0, more=0)  # the second takes over what the first's window held
def test_sliding_windows_take_over_what_has_closed(beats: list[Beat], size: int, grace: int, more: int) -> None:
    in_time: list[Beat] = []
    for key, at in beats:
        if all(at + grace >= other for _, other in in_time):
            in_time.append((key, at))
    got = played(Sliding(ms(size)), grace, grace + more, in_time, to_each)
    assert got == sliding(size, grace, grace + more, in_time)
