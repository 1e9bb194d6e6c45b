"""Waiting for the log has an end, and that end is judged by a try that began after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from state.errors import LeaseLost, LogTimedOut, LogUnavailable, OutcomeUnknown, StateError
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


class Answers:
    """A log that gives these answers, each after a second; None: it waits for ever."""

    def __init__(self, *answers: Callable[[], StateError] | str | None) -> None:
        self.now = 100.0
        self.answers = list(answers)
        self.stands = asyncio.Event()  # one that waits for ever has begun to

    async def __call__(self) -> str:
        self.now += 1.0
        answer = self.answers.pop(0)
        if answer is None:
            self.stands.set()
            await asyncio.Event().wait()
        if not isinstance(answer, str):
            assert answer is not None
            raise answer()
        return answer


def away() -> StateError:
    return LogUnavailable("locked")


async def test_a_refusal_ends_the_wait() -> None:
    """One that lost its lease wrote nothing for hours: a moment without the log then was the end of its patience."""
    log = Answers(away, lambda: LeaseLost("taken"), away, "written")
    patience = Patience("write", LIMIT_S, lambda: log.now, End())
    with pytest.raises(LeaseLost):
        await patience(log)
    assert (patience.reason, patience.waits, patience.waited_s) == ("", 1, 2.0)
    log.now += 3_600.0
    assert await patience(log) == "written"
    assert (patience.reason, patience.waits, patience.waited_s) == ("", 2, 4.0)


async def test_a_call_that_is_given_up_waits_no_more() -> None:
    log = Answers(away, None, away, "written")
    patience = Patience("write", LIMIT_S, lambda: log.now, End())
    call = asyncio.create_task(patience(log))
    async with asyncio.timeout(10):
        await log.stands.wait()
    assert patience.reason == "locked"
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert patience.reason == ""
    log.now += 3_600.0
    assert await patience(log) == "written"


async def test_an_outcome_that_is_not_known_is_no_answer() -> None:
    log = Answers(away, lambda: OutcomeUnknown("who knows"), away, "written")
    patience = Patience("write", LIMIT_S, lambda: log.now, End())
    with pytest.raises(OutcomeUnknown):
        await patience(log)
    assert patience.reason == "locked"
    log.now += LIMIT_S
    with pytest.raises(LogTimedOut):
        await patience(log)
