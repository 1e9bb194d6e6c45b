"""How long calls wait for a log that is busy, full or away, and what an operator reads of it.

One rule: a wait is that of the calls that began it, those that the log refused and those it did not answer; it is over, and the line
says so, when none of them is left. Its end is judged by a try that began past the limit. Used by patient_log.py, which has one
of these for reads and one for writes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from state.errors import LeaseGivenUp, LogTimedOut, LogUnavailable, OutcomeUnknown, StateError

T = TypeVar("T")

log = logging.getLogger("orchestrator.log")
PAUSE_S, PAUSE_MAX_S = 0.02, 1.0
SILENT_S = 5.0  # without an answer to any call: longer than an election among brokers, or a disk's hiccup
UNCLEAR_S = 10.0  # between outcomes that are not known: what is asked more rarely shows nothing of the time between
LATE_S = 1.0  # a look that comes so much later finds that this process stood still, not the log


class End:
    """Of waiting for one log: once a call has waited too long, others try once and do not wait, until one is answered. And the last
    wait that ended without an answer: when it began, and when it ended."""

    def __init__(self) -> None:
        self.reason = ""
        self.since, self.over_at = 0.0, -math.inf


class Patience:
    """How long calls of one kind ("read", "write") have been waiting for the log. `end`: of waiting, for both kinds."""

    def __init__(self, kind: str, limit_s: float, clock: Callable[[], float], end: End) -> None:
        self.reason = ""  # of the wait; "" where nothing waits
        self.waits = 0
        self.waited_s = 0.0  # in waits that are over
        self._end = end
        self._kind = kind
        self._limit_s = limit_s
        self._clock = clock
        self._since = 0.0
        self._first = ""  # what the log refused first in this wait
        self._counted_from = 0.0  # of `waited_s`
        self._limit_from = 0.0  # since then nothing has shown that the log can be used by who waits
        self._under_way: set[object] = set()  # calls
        self._stuck: set[object] = set()  # of these: refused, or not answered when the wait began
        self._last_answer_at = 0.0  # when the log answered last, or the first of these calls began
        self._unclear_since, self._unclear_at = 0.0, -math.inf  # the first and the last of outcomes that are not known
        self._is_silent = False  # the reason is that calls under way have no answer
        self._look: asyncio.TimerHandle | None = None

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of `call`, made again until the log can be used. Raises LogTimedOut."""
        pause, own, is_given_up = PAUSE_S, object(), False  # `own`: which call this is
        self._begins(own)
        try:
            while True:
                begun = self._clock()
                try:
                    answer = await call()
                except LogUnavailable as error:
                    if self._end.reason:
                        raise LogTimedOut(self._end.reason) from error
                    self._stuck.add(own)
                    self._away(error, begun)
                    await asyncio.sleep(min(pause, self._left_s()))
                    pause = min(PAUSE_MAX_S, pause * 2)
                except (LogTimedOut, LeaseGivenUp):  # no answer of the log
                    raise
                except OutcomeUnknown as error:
                    self._unclear(error, begun)
                    raise
                except StateError:  # a refusal is an answer
                    self._answered(own)
                    raise
                else:
                    self._answered(own)
                    return answer
        except asyncio.CancelledError:
            is_given_up = True
            raise
        finally:
            self._ends(own, is_given_up=is_given_up)

    def _begins(self, call: object) -> None:
        """One look serves all calls: a timer for each would cost more than most of them."""
        if not self._under_way:
            self._last_answer_at = self._clock()
        self._under_way.add(call)
        if self._look is None:
            self._look_in(SILENT_S)

    def _ends(self, call: object, *, is_given_up: bool) -> None:
        """Of one without an answer, too: where no other waits, none is left that would get it."""
        self._under_way.discard(call)
        if call in self._stuck:
            self._stuck.discard(call)
            if not self._stuck and (is_given_up or self._is_silent):
                self._over()

    def _look_in(self, seconds: float) -> None:
        self._look = asyncio.get_running_loop().call_later(seconds, self._look_now, self._clock() + seconds)

    def _look_now(self, due: float) -> None:
        """A call may last for as long as a port's own tries do, half a minute on Kafka: an operator sees it before."""
        self._look = None
        if not self._under_way:
            return
        now = self._clock()
        if now - due > LATE_S:
            self._last_answer_at = now
        silent_s = now - self._last_answer_at
        if silent_s >= SILENT_S and not self.reason:
            self._is_silent = True
            self._stuck |= self._under_way
            self._begin_wait(self._last_answer_at, f"no answer for {SILENT_S:g} s")
        self._look_in(SILENT_S - silent_s if silent_s < SILENT_S else SILENT_S)

    def _left_s(self) -> float:
        """Seconds to the last try: at the limit, or soon where that has passed."""
        return max(PAUSE_S, self._limit_from + self._limit_s - self._clock())

    def _away(self, error: LogUnavailable, begun: float) -> None:
        """Gives up after a try that began past the limit. One that began before it shows nothing about the log as it is now: the
        process may have been stopped in between."""
        self._last_answer_at = self._clock()
        if not self.reason or self._is_silent:
            self._begin_wait(self._since if self._is_silent else begun, str(error))
        self._first = self._first or str(error)
        self.reason, self._is_silent = str(error), False
        if begun - self._limit_from >= self._limit_s:
            self._give_up(error)

    def _unclear(self, error: OutcomeUnknown, begun: float) -> None:
        """Who asked looks what became of it, and tries again: where one try after the other ends so, as on a disk that fails, nothing else
        would end it."""
        before, self._unclear_at = self._unclear_at, self._clock()
        if begun - before > UNCLEAR_S:
            self._unclear_since = self._unclear_at  # not since it began: the process may have been stopped in between
        if begun - self._unclear_since >= self._limit_s:
            self._give_up(error)

    def _give_up(self, error: StateError) -> NoReturn:
        before = f"{self._first}; by now " if self._first not in ("", str(error)) else ""
        self._end.reason = (
            f"the log could not be used for {self._limit_s:g} s ({before}{error}); nothing is lost: what was not committed is "
            "processed again at the next start; --log-timeout says how long to wait"
        )
        raise LogTimedOut(self._end.reason) from error

    def _begin_wait(self, since: float, reason: str) -> None:
        """Soon after one that ended without an answer, as where the coordinator gave its lease up meanwhile, it goes on."""
        if not self.reason:
            self.waits += 1
            self._counted_from = since
            if since - self._end.over_at < UNCLEAR_S:
                since = self._end.since
        self._since = self._limit_from = since
        self.reason = reason
        log.warning("waiting for the log to be %s: %s", "written" if self._kind == "write" else "read", reason)

    def _answered(self, call: object) -> None:
        """The wait is over once none waits of those that began it: a log may take what others write, of other partitions. A commit is all
        of its worker's; a read that waits is one task's, and ends no worker whose others go on."""
        self._end.reason, self._last_answer_at, self._unclear_at = "", self._clock(), -math.inf
        self._end.over_at = -math.inf
        self._stuck.discard(call)
        if self.reason and not self._stuck:
            log.warning("the log can be used again after %.1f s", self._clock() - self._since)
            self._over(is_answered=True)
        elif self._kind == "read":
            self._limit_from = self._clock()

    def _over(self, *, is_answered: bool = False) -> None:
        self.waited_s += self._clock() - self._counted_from
        self.reason, self._first, self._is_silent = "", "", False
        if not is_answered:
            self._end.since, self._end.over_at = self._since, self._clock()
