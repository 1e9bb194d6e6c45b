"""The wall clock as tasks without records follow it."""

from __future__ import annotations

from workers.worker.steady_clock import LASTS_S, SteadyClock

HOUR = 3_600_000


class Times:
    """Seconds of the clock that is never set, and by how many milliseconds the one on the wall is wrong."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.wrong_ms = 0.0
        self.steady = SteadyClock(lambda: self.now_s, self.right_ms)

    def right_ms(self) -> int:
        return int(1_700_000_000_000 + self.now_s * 1000 + self.wrong_ms)

    def passed(self, seconds: float, wrong_ms: float) -> int:
        """How wrong the time to go by is that much later."""
        self.now_s += seconds
        self.wrong_ms = wrong_ms
        return self.steady.wall_ms() - int(1_700_000_000_000 + self.now_s * 1000)


def test_a_step_ahead_is_followed_once_it_has_lasted() -> None:
    times = Times()
    assert times.passed(1, 0) == 0
    assert times.passed(1, HOUR) == 0
    assert times.passed(LASTS_S - 1, HOUR) == 0
    assert times.passed(1, HOUR) == HOUR
    assert times.passed(1, HOUR) == HOUR


def test_one_that_goes_back_before_is_not_and_the_next_begins_anew() -> None:
    times = Times()
    assert times.passed(1, HOUR) == 0
    assert times.passed(LASTS_S - 1, 0) == 0
    assert times.passed(1, HOUR) == 0
    assert times.passed(LASTS_S - 1, HOUR) == 0


def test_a_step_back_and_a_clock_that_drifts_are_followed_at_once() -> None:
    times = Times()
    assert times.passed(1, -HOUR) == -HOUR
    assert [times.passed(1, -HOUR + 900 * n) for n in range(1, 5)] == [-HOUR + 900 * n for n in range(1, 5)]
