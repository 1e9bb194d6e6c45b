"""Waiting for the log has an end, and that end is judged by a try that began after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from state.errors import LeaseGivenUp, LeaseLost, LogTimedOut, LogUnavailable, OutcomeUnknown, StateError
from tests.often import often
from tests.process_simulation.chance import Order
from tests.process_simulation.loop import VirtualLoop
from workers.log.patience import SILENT_S, End, Patience

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


async def test_outcomes_that_are_never_known_end_the_wait_as_well() -> None:
    """A disk on which each commit fails in the end."""
    unknown = lambda: OutcomeUnknown("who knows")  # noqa: E731
    log = Answers(unknown, "written", *[unknown] * 9)
    patience = Patience("write", LIMIT_S, lambda: log.now, End())
    with pytest.raises(OutcomeUnknown):
        await patience(log)
    assert await patience(log) == "written"
    for seconds in (
        LIMIT_S,
        60.0,
        LIMIT_S / 2,
    ):  # since the last answer, since the last of them, and one beside another
        log.now += seconds
        with pytest.raises(OutcomeUnknown):
            await patience(log)
    log.now += LIMIT_S
    with pytest.raises(LogTimedOut, match="who knows"):
        await patience(log)


def in_virtual_time(work: Callable[[VirtualLoop, Patience], Awaitable[None]]) -> None:
    loop = VirtualLoop(1, Order(1, 0.0))
    try:
        loop.run_until_complete(work(loop, Patience("write", LIMIT_S, loop.time, End())))
    finally:
        loop.close()


def answers_after(seconds: float, error: StateError | None = None) -> Callable[[], Awaitable[str]]:
    async def call() -> str:
        await asyncio.sleep(seconds)
        if error is not None:
            raise error
        return "written"

    return call


def test_a_log_that_gives_no_answer_is_reported_while_the_call_lasts(caplog: pytest.LogCaptureFixture) -> None:
    """A request to brokers that are away fails after half a minute; until then nothing showed it."""

    async def work(loop: VirtualLoop, patience: Patience) -> None:
        call = asyncio.create_task(patience(answers_after(SILENT_S + 3.0)))
        await asyncio.sleep(SILENT_S - 0.5)
        assert patience.reason == ""
        await asyncio.sleep(1.0)
        assert patience.reason == "no answer for 5 s"
        assert await call == "written"
        assert (patience.reason, patience.waits, round(patience.waited_s, 1)) == ("", 1, SILENT_S + 3.0)

    in_virtual_time(work)
    assert caplog.messages == [
        "waiting for the log to be written: no answer for 5 s",
        "the log can be used again after 8.0 s",
    ]


def test_it_is_the_log_that_is_silent_and_not_one_call() -> None:
    async def work(loop: VirtualLoop, patience: Patience) -> None:
        call = asyncio.create_task(patience(answers_after(4 * SILENT_S)))
        while not call.done():
            await patience(answers_after(SILENT_S - 1.0))
            assert (patience.reason, patience.waits) == ("", 0)

    in_virtual_time(work)


def test_the_wait_is_that_of_the_calls_that_began_it(caplog: pytest.LogCaptureFixture) -> None:
    """A topic of which a replica is missing takes no commit, and facts are written beside it: the log could be used again, the
    lines said, and could not five seconds later; `--log-timeout` began anew each time, and so never came."""

    async def work(loop: VirtualLoop, patience: Patience) -> None:
        answers = [answers_after(SILENT_S + 1.0, LogUnavailable("a replica is missing")), answers_after(3.0)]
        call = asyncio.create_task(patience(lambda: answers.pop(0)()))
        await asyncio.sleep(SILENT_S + 0.5)
        for reason in ("no answer for 5 s", "a replica is missing"):
            assert patience.reason == reason
            await patience(answers_after(0.1))
            assert (patience.reason, patience.waits) == (reason, 1)
            await asyncio.sleep(1.0)
        await call
        assert (patience.reason, patience.waits) == ("", 1)

    in_virtual_time(work)
    assert [one.partition(":")[0] for one in caplog.messages] == [
        "waiting for the log to be written",
        "waiting for the log to be written",
        "the log can be used again after 9.0 s",
    ]


@pytest.mark.parametrize("kind", often(("write", "read"), "write"))
async def test_a_commit_that_waits_is_not_put_off_by_other_writes_and_a_read_ends_no_worker_whose_others_go_on(
    kind: str,
) -> None:
    log = Answers(*[away] * 20, "at last")
    patience, beside = Patience(kind, LIMIT_S, lambda: log.now, End()), Answers(*["answered"] * 21)

    async def both() -> str:
        await patience(beside)
        return await log()

    if kind == "write":
        with pytest.raises(LogTimedOut):
            await patience(both)
    else:
        assert await patience(both) == "at last"


async def test_who_gives_a_lease_up_by_itself_had_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The line said that the log could be used again, and the next one that it does not answer."""
    log = Answers(away, lambda: LeaseGivenUp("silent"))
    patience = Patience("write", LIMIT_S, lambda: log.now, End())
    with pytest.raises(LeaseGivenUp):
        await patience(log)
    assert "can be used again" not in caplog.text


def test_a_wait_soon_after_one_without_an_answer_goes_on_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """A coordinator gave its lease up after a quarter of a minute, and read the log from then on: the line had the time from there."""

    async def work(loop: VirtualLoop, patience: Patience) -> None:
        reads = Patience("read", LIMIT_S, loop.time, patience._end)
        with pytest.raises(LeaseGivenUp):
            await patience(answers_after(15.0, LeaseGivenUp("silent")))
        assert await reads(answers_after(15.0)) == "written"
        assert (patience.waits, round(patience.waited_s), reads.waits, round(reads.waited_s)) == (1, 15, 1, 15)
        await asyncio.sleep(1.0)
        with pytest.raises(LeaseGivenUp):
            await patience(answers_after(15.0, LeaseGivenUp("silent")))
        assert await reads(answers_after(1.0)) == "written"  # which is an answer
        assert await patience(answers_after(6.0)) == "written"

    in_virtual_time(work)
    ends = [one for one in caplog.messages if "can be used" in one]
    assert ends == ["the log can be used again after 30.0 s", "the log can be used again after 6.0 s"]


async def test_the_end_names_what_was_refused_first() -> None:
    """A topic without enough replicas: what came after it was a transaction whose markers are not written, and named no topic."""
    log = Answers(lambda: LogUnavailable("out-3: a replica is missing"), *[lambda: LogUnavailable("markers")] * 20)
    with pytest.raises(
        LogTimedOut, match=r"could not be used for 10 s .out-3: a replica is missing; by now markers.; nothing"
    ):
        await Patience("write", LIMIT_S, lambda: log.now, End())(log)


def test_the_reason_of_a_log_that_was_silent_takes_its_place(caplog: pytest.LogCaptureFixture) -> None:
    async def work(loop: VirtualLoop, patience: Patience) -> None:
        answers = [answers_after(SILENT_S + 1.0, LogUnavailable("unreachable")), answers_after(1.0)]
        call = asyncio.create_task(patience(lambda: answers.pop(0)()))
        await asyncio.sleep(SILENT_S + 1.5)
        assert patience.reason == "unreachable"
        await call
        assert (patience.reason, patience.waits) == ("", 1)

    in_virtual_time(work)
    assert [one.rpartition(": ")[2] for one in caplog.messages[:2]] == ["no answer for 5 s", "unreachable"]


def test_a_process_that_stood_still_does_not_call_the_log_silent() -> None:
    async def work(loop: VirtualLoop, patience: Patience) -> None:
        call = asyncio.create_task(patience(answers_after(SILENT_S + 1.0)))
        await asyncio.sleep(1.0)
        loop._now += 60.0
        await call
        assert patience.waits == 0

    in_virtual_time(work)


def test_a_silent_call_that_is_given_up_waits_no_more() -> None:
    async def work(loop: VirtualLoop, patience: Patience) -> None:
        call = asyncio.create_task(patience(answers_after(60.0)))
        await asyncio.sleep(SILENT_S + 1.0)
        assert patience.reason
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert patience.reason == ""

    in_virtual_time(work)
