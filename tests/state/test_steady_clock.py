"""The wall clock for what cannot be taken back."""

from __future__ import annotations

from state.steady_clock import FAR_MS, LASTS_S, LOOKS, SteadyClock

HOUR, YEAR = 3_600_000, 365 * 86_400_000
RIGHT_MS = 1_700_000_000_000


class Times:
    """Seconds of the clock that is never set, and by how many milliseconds the one on the wall is wrong."""

    def __init__(self, wrong_ms: int = 0) -> None:
        self.now_s = 50.0
        self.wrong_ms = wrong_ms
        self.steady = SteadyClock(lambda: self.now_s, self.shown_ms, "what waits follows it")

    @property
    def right_ms(self) -> int:
        return int(RIGHT_MS + self.now_s * 1000)

    def shown_ms(self) -> int:
        return self.right_ms + self.wrong_ms

    def after(self, seconds: float, wrong_ms: int, looks_each_s: float = 1.0) -> int:
        """How wrong the time to go by is that much later, where the clock was as wrong all the while."""
        self.wrong_ms, until_s = wrong_ms, self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += min(looks_each_s, until_s - self.now_s)
            found = self.steady.wall_ms() - self.right_ms
        return found


def test_a_step_ahead_is_followed_once_it_has_lasted() -> None:
    times = Times()
    assert times.after(1, 0) == 0
    assert times.after(LASTS_S, HOUR) == 0
    assert times.after(1, HOUR) == HOUR
    assert times.after(1, HOUR) == HOUR


def test_one_that_goes_back_before_is_not_and_the_next_begins_anew() -> None:
    times = Times()
    assert times.after(LASTS_S - 1, HOUR) == 0
    assert times.after(1, 0) == 0
    assert times.after(LASTS_S, HOUR) == 0


def test_a_further_step_waits_as_long_as_the_first() -> None:
    """The minute of a step of two seconds was counted for one of a year that came at its end."""
    times = Times()
    assert times.after(LASTS_S, 2_000) == 0
    assert times.after(4, YEAR) == 0
    assert times.after(LASTS_S, 2_000) == 0
    assert times.after(1, 2_000) == 2_000


def test_few_looks_show_nothing_and_rare_ones_do_in_the_end() -> None:
    """A worker in long calls looks rarely; it was behind for ever."""
    times = Times()
    assert times.after(1, YEAR) == 0
    assert times.after((LOOKS - 1) * LASTS_S, YEAR, looks_each_s=LASTS_S) == 0
    assert times.after(LASTS_S, YEAR, looks_each_s=LASTS_S) == YEAR


def test_a_step_back_and_a_clock_that_drifts_are_followed_at_once() -> None:
    times = Times()
    assert times.after(1, -HOUR) == -HOUR
    assert [times.after(1, -HOUR + 900 * n) for n in range(1, 5)] == [-HOUR + 900 * n for n in range(1, 5)]


def test_a_process_that_has_just_begun_may_have_begun_with_a_wrong_clock() -> None:
    times = Times(YEAR)
    assert times.after(1, YEAR) == YEAR, "there is nothing to compare it with"
    former = times.right_ms - 2_000
    assert not times.steady.is_likely(times.shown_ms(), former)
    assert times.steady.is_likely(former + FAR_MS, former)
    assert times.after(1, 0) == 0
    assert times.steady.is_likely(times.shown_ms(), former)
    times.after(LASTS_S, 0)
    assert times.steady.is_likely(former + YEAR, former), "a topic may have been quiet for a year"
