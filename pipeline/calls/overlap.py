"""Several calls of one task at once (`concurrency=N`): which record's calls begin next, and what of them counts.

One rule: records count in their order. A record's calls begin when a lane is free and the last record of its key is
completed; what they did counts when all records before it count, so outputs, tables and positions are those of one call
at a time. What is completed behind a record that fails, or is not called any more, never was. A record that something
else of the task reads, one at a time, runs alone. Used by TaskProcess, a new Overlap for each run.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pipeline.calls.lanes import Draft, Lane
from pipeline.calls.retries import CallAgain, Waiting
from pipeline.records import RawRecord

Given = tuple[str, RawRecord]
More = Callable[[], Sequence[Given]]


class Calls(Protocol):
    """What a task does with single records; TaskProcess."""

    def at_once(self, topic: str) -> Mapping[str, int]:
        """How many calls of each processor of this topic may be under way at once; empty where one record is called at a
        time."""

    def reached(self, raw: RawRecord) -> int:
        """The task's stream time with this record, the next one in order."""

    async def call(self, lane: Lane, topic: str, raw: RawRecord, stream_ms: int) -> None:
        """The calls of one record. Raises ProcessorFailed, CallAgain."""

    async def alone(self, topic: str, raw: RawRecord) -> None:
        """A record that runs alone, whose calls count when they end. Raises ProcessorFailed, CallAgain."""

    def counts(self, topic: str, raw: RawRecord, index: int, draft: Draft) -> None:
        """A record's calls count."""

    def waits(self, waiting: Waiting | None) -> None:
        """A call waits for a client outside; None: it waits no more."""


class _Entry:
    """A record of the run that does not count yet."""

    __slots__ = ("draft", "failure", "index", "raw", "stream_ms", "task", "topic")

    def __init__(self, index: int, topic: str, raw: RawRecord, stream_ms: int) -> None:
        self.index = index
        self.topic = topic
        self.raw = raw
        self.stream_ms = stream_ms
        self.task: asyncio.Task[None] | None = None
        self.draft: Draft | None = None
        self.failure: BaseException | None = None


class Overlap:
    """One run. `goes_on`: whether calls may begin; `rests`: False where the caller does not wait between
    tries, and an error that waits ends the run."""

    def __init__(
        self, calls: Calls, lanes: list[Lane], goes_on: Callable[[], bool], more: More, *, rests: bool
    ) -> None:
        self._calls = calls
        self._free = list(lanes)
        self._goes_on = goes_on
        self._more = more
        self._rests = rests
        self._woken = asyncio.Event()
        self._given: deque[Given] = deque()
        self._drawn = 0
        self._entries: deque[_Entry] = deque()  # in order; the first one does not count yet
        self._ready: list[tuple[int, _Entry]] = []  # a heap: the key of none of them is under way
        self._keys: dict[bytes, deque[_Entry]] = {}  # keys under way, with the records that wait for that
        self._running: dict[int, _Entry] = {}
        self._of: Counter[str] = Counter()  # calls under way, by processor
        self._failed_at: int | None = None
        self._paused = self._probing = self._closed = False
        self._timers: set[asyncio.TimerHandle] = set()

    def nudge(self) -> None:
        """There may be more records, or calls may not go on."""
        self._woken.set()

    @property
    def is_idle(self) -> bool:
        return not self._running

    async def run(self, records: Sequence[Given]) -> None:
        """Until every record counts, or no further call may begin. Raises what the first record failed with that did."""
        self._given.extend(records)
        try:
            while True:
                self._woken.clear()
                self._count()
                if self._goes_on():
                    await self._begin_calls()
                if not self._running:
                    if self._entries and (failure := self._entries[0].failure) is not None:
                        raise failure
                    if not self._goes_on() or not (self._entries or self._given):
                        return
                await self._woken.wait()
        finally:
            await self._close()

    async def _close(self) -> None:
        """What is under way is undone; where that is not waited for, it counts nowhere all the same."""
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        tasks = [entry.task for entry in self._running.values() if entry.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ---- in order

    def _count(self) -> None:
        while self._entries and (draft := self._entries[0].draft) is not None:
            entry = self._entries.popleft()
            self._calls.counts(entry.topic, entry.raw, entry.index, draft)

    def _draw(self) -> bool:
        """Take the next record; False where there is none, or it must run alone and others are under way."""
        if not self._given:
            self._given.extend(self._more())
        if not self._given or not self._calls.at_once(self._given[0][0]):
            return False
        topic, raw = self._given.popleft()
        entry = _Entry(self._drawn, topic, raw, self._calls.reached(raw))
        self._drawn += 1
        self._entries.append(entry)
        if raw.key is not None and raw.key in self._keys:
            self._keys[raw.key].append(entry)
        else:
            if raw.key is not None:
                self._keys[raw.key] = deque()
            heapq.heappush(self._ready, (entry.index, entry))
        return True

    async def _begin_calls(self) -> None:
        while self._free and not self._paused and not (self._probing and self._running):
            if not self._ready and not (self._failed_at is None and self._draw()):
                break
            if self._ready and not self._begin(self._ready[0][1]):
                break
        if not self._entries and self._given and not self._paused and not self._calls.at_once(self._given[0][0]):
            topic, raw = self._given[0]
            await self._calls.alone(topic, raw)
            self._given.popleft()
            self._drawn += 1
            self._woken.set()

    def _begin(self, entry: _Entry) -> bool:
        """Begin a record's calls; False where one before it has failed, or its processors have enough to do."""
        if self._failed_at is not None and entry.index > self._failed_at:
            return False
        limits = self._calls.at_once(entry.topic)
        if any(self._of[name] >= limit for name, limit in limits.items()):
            return False
        self._of.update(limits.keys())
        heapq.heappop(self._ready)
        self._running[entry.index] = entry
        lane = self._free.pop()
        work = self._call(entry, lane)
        entry.task = asyncio.get_running_loop().create_task(work, name=f"call of {entry.topic}@{entry.raw.offset}")
        entry.task.add_done_callback(lambda task: self._over(entry, lane, task))
        return True

    # ---- one record

    async def _call(self, entry: _Entry, lane: Lane) -> None:
        lane.begin(entry.raw.key)
        try:
            await self._calls.call(lane, entry.topic, entry.raw, entry.stream_ms)
        except CallAgain as again:
            self._again(entry, again)
        except asyncio.CancelledError as error:
            if not self._closed and (self._failed_at is None or entry.index < self._failed_at):
                self._fails(entry, error)  # the user's code ended itself so
        except Exception as error:  # noqa: BLE001 - it is raised by the run, in its order
            self._fails(entry, error)
        else:
            if not self._closed:
                self._ended(entry, lane.end(entry.index))

    def _over(self, entry: _Entry, lane: Lane, task: asyncio.Task[None]) -> None:
        """Called for every call, also for one that was cancelled before its first step."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fails(entry, error)
        self._of.subtract(self._calls.at_once(entry.topic).keys())
        self._running.pop(entry.index, None)
        self._free.append(lane)
        self._woken.set()

    def _ended(self, entry: _Entry, draft: Draft) -> None:
        entry.draft = draft
        key = entry.raw.key
        if key is not None:
            waiting = self._keys[key]
            if waiting:
                following = waiting.popleft()
                heapq.heappush(self._ready, (following.index, following))
            else:
                del self._keys[key]
        if self._probing and not self._paused:
            self._probing = False
            self._calls.waits(None)

    def _fails(self, entry: _Entry, error: BaseException) -> None:
        """The records before it are completed; those behind it are not called, and undone where they are."""
        entry.failure = error
        self._failed_at = entry.index if self._failed_at is None else min(self._failed_at, entry.index)
        for index, other in self._running.items():
            if index > self._failed_at and other.task is not None:
                other.task.cancel()

    # ---- again

    def _again(self, entry: _Entry, again: CallAgain) -> None:
        """A retry holds up its key alone. An error that waits holds up the task: nothing begins for a while, then one
        call, and the others once that has ended well."""
        if again.waiting is None:
            self._later(again.delay_s, lambda: heapq.heappush(self._ready, (entry.index, entry)))
            return
        if not self._rests:
            self._fails(entry, again)
            return
        heapq.heappush(self._ready, (entry.index, entry))
        self._calls.waits(again.waiting)
        if not self._paused:
            self._paused = True
            self._later(again.delay_s, self._resume)

    def _resume(self) -> None:
        self._paused, self._probing = False, True

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        def due() -> None:
            self._timers.discard(timer)
            act()
            self._woken.set()

        timer = asyncio.get_running_loop().call_later(delay_s if self._rests else 0.0, due)
        self._timers.add(timer)
