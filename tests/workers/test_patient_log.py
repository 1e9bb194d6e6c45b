"""Waiting for the log has an end, and that end is judged by a try that began after it."""

from __future__ import annotations

import pytest

from state.errors import LogTimedOut, LogUnavailable
from workers.log.patient_log import End, Patience

LIMIT_S = 10.0


class Calls:
    """Tries of one call: each takes `lasts` seconds of a clock of its own and fails before `back_s`."""

    def __init__(self, *lasts: float, back_s: float) -> None:
        self.now = 100.0
        self.made = 0
        self._lasts = list(lasts)
        self._back_s = 100.0 + back_s

    def clock(self) -> float:
        return self.now

    async def once(self) -> str:
        self.made += 1
        failed = self.now < self._back_s  # as the log was when the try began
        self.now += self._lasts.pop(0)
        if failed:
            raise LogUnavailable("disk full")
        return "written"

    def patience(self) -> Patience:
        return Patience("write", LIMIT_S, self.clock, End())


async def test_a_try_that_was_stopped_in_between_is_made_again() -> None:
    """The process was stopped within its second try, and the log came back meanwhile."""
    calls = Calls(1.0, 60.0, 0.1, back_s=30.0)
    assert await calls.patience()(calls.once) == "written"
    assert calls.made == 3


async def test_a_log_that_stays_away_ends_the_wait() -> None:
    calls = Calls(1.0, 60.0, 0.1, back_s=1_000.0)
    with pytest.raises(LogTimedOut, match="could not be used for 10 s"):
        await calls.patience()(calls.once)
    assert calls.made == 3


async def test_a_log_that_comes_back_within_the_limit_is_used() -> None:
    calls = Calls(4.0, 4.0, 0.1, back_s=8.0)
    assert await calls.patience()(calls.once) == "written"
