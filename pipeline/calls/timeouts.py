"""How long an async call may last: its timeout counts the time for which its process ran, in slices.

One rule: a call that does not last costs no timer. Most calls end within a turn of the loop, and a timer for each of them costs
more than many a call does. Used by `pipeline.calls.call`; each step has its Countdown, for its calls follow each other.
"""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 30.0  # at least, before a call that goes on is cancelled again: it may have to clean up
SLICES, SLICE_S = 8, 1.0  # a timeout counts down in so many slices at least, of so many seconds at most


class Countdown:
    """Cancels the task of a call after `seconds` in which this process ran. It counts down in slices, each when a timer
    fires: of the time for which the process stands still (SIGSTOP, a paused container) at most one slice counts. The timer
    is the call's own where the timeout is short; a long one has one timer for all calls of its step until the last slice.
    A call that goes on all the same is cancelled again after as long, and not before AGAIN_S."""

    __slots__ = (
        "_cancelled",
        "_counted",
        "_its_loop",
        "_left",
        "_seen",
        "_slice",
        "_task",
        "_timer",
        "begun",
        "is_long",
        "is_over",
        "is_under_way",
        "seconds",
        "was_looked_at",
        "watched",
    )

    def __init__(self, seconds: float) -> None:
        self.seconds = self._left = seconds
        self._slice = min(SLICE_S, seconds / SLICES)
        self.is_long = self._slice >= SLICE_S  # whose calls have one timer
        # Of a long one whoever makes the calls sets these two, and looks at the third as a call has ended: most calls then cost no
        # more than that.
        self.begun = 0.0
        self.is_under_way = self.was_looked_at = False
        self._counted = self._seen = 0.0  # of which call, by when it began; until when
        self._task: asyncio.Task[Any] | None = None  # in which the calls are made
        self._its_loop: asyncio.AbstractEventLoop | None = None
        self._cancelled = 0  # by this one, of the call under way
        self.watched: asyncio.AbstractEventLoop | None = None  # of the timer for all calls, where it is set
        self._timer: asyncio.TimerHandle | None = None  # the call's own
        self.is_over = False  # the time of the call under way

    def of_this_task(self) -> asyncio.AbstractEventLoop:
        """The calls that follow are made in the asyncio task that calls this; returns its loop."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._its_loop = loop = task.get_loop()
        return loop

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Of a long one: looks at the calls that are made in this loop, for as long as it finds one under way."""
        if self.watched is not loop:
            self.watched = loop
            loop.call_later(SLICE_S, self._look, loop)

    def begin(self) -> None:
        """A call waits for the first time."""
        loop = self._its_loop
        assert loop is not None
        self.is_over, self.is_under_way = False, True
        self._left, self._seen = self.seconds, loop.time()
        self.begun = self._counted = self._seen
        if self.is_long:
            self.watch(loop)
        else:
            self._timer = loop.call_later(self._slice, self._tick, loop)

    def end(self) -> bool:
        """The call has ended. Returns whether a cancellation that it ended with may have been this one. How often its task has been
        cancelled does not tell whether another came, as a TaskGroup that fails leaves a count behind; that calls are undone stands in FailedCalls."""
        was_cancelled = self.is_over and self.is_under_way
        self.is_over = self.is_under_way = self.was_looked_at = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._cancelled and self._task is not None:
            self._cancelled -= 1
            self._task.uncancel()
        return was_cancelled

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.watched is not loop:
            return  # of a loop that was left for another
        if not self.is_under_way:
            self.watched = None
            return
        self.was_looked_at = True
        if self._counted != self.begun:
            self._left, self._seen = self.seconds, self.begun
            self._counted = self.begun
        if self._timer is None:
            self._tick(loop)
        loop.call_later(SLICE_S, self._look, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """A slice has passed, or some of it."""
        now = loop.time()
        self._left -= min(self._slice, now - self._seen)
        self._seen, self._timer = now, None
        if self._left <= 0 and self._task is not None:
            self.is_over, self._left = True, max(self.seconds, AGAIN_S)
            self._cancelled += 1
            self._task.cancel()
        if self._left <= self._slice or not self.is_long:
            self._timer = loop.call_later(min(self._slice, self._left), self._tick, loop)
