"""How long an async call may last: its timeout counts the time for which its process ran, in slices.

One rule: a call that does not last costs no timer. Most calls end within a turn of the loop, and a timer for each of them costs
more than many a call does. Used by `pipeline.calls.call`; each step has its Ticks.
"""

from __future__ import annotations

import asyncio

SLICES, SLICE_S = 8, 1.0  # a timeout counts down in so many slices at least, of so many seconds at most


class Countdown:
    """Ends a call after `seconds` in which this process ran. It counts down in slices, each when a timer fires: of the
    time for which the process stands still (SIGSTOP, a paused container) at most one slice counts. The timer is the call's
    own where the timeout is short; a long one costs a call no timer (`Ticks`) until its last slice."""

    __slots__ = ("_left", "_limit", "_loop", "_seen", "_slice", "_ticks", "_timer")

    def __init__(self, limit: asyncio.Timeout, seconds: float, ticks: Ticks) -> None:
        self._limit = limit
        self._left = seconds
        self._slice = min(SLICE_S, seconds / SLICES)
        self._loop = asyncio.get_running_loop()
        self._seen = self._loop.time()
        self._ticks = ticks
        self._timer: asyncio.TimerHandle | None = None
        if self._slice == SLICE_S:
            ticks.add(self, self._loop)
        else:
            self._timer = self._loop.call_later(self._slice, self.tick)

    def tick(self) -> None:
        now = self._loop.time()
        self._left -= min(self._slice, now - self._seen)
        self._seen = now
        if self._left <= 0:
            self._limit.reschedule(now)
            self.end()
        elif self._left <= self._slice or self._slice < SLICE_S:
            self.end()
            self._timer = self._loop.call_later(min(self._slice, self._left), self.tick)

    def end(self) -> None:
        self._ticks.drop(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Ticks:
    """The calls under way of one processor whose timeouts are long: one timer looks at all of them, a slice apart."""

    __slots__ = ("_calls", "_loop")

    def __init__(self) -> None:
        self._calls: dict[Countdown, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # of the timer that is set

    def add(self, call: Countdown, loop: asyncio.AbstractEventLoop) -> None:
        self._calls[call] = None
        if self._loop is not loop:
            self._loop = loop
            loop.call_later(SLICE_S, self._tick, loop)

    def drop(self, call: Countdown) -> None:
        self._calls.pop(call, None)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            return  # of a loop that was left for another
        for call in list(self._calls):
            call.tick()
        if self._calls:
            loop.call_later(SLICE_S, self._tick, loop)
        else:
            self._loop = None
