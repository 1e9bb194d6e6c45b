"""The calls of a task with one processor of windows or sessions, one record after the other, without a coroutine for each.

One rule: what counts is what `passing` would count. A record's one call is its unit, because no timer or join can make it
more than one; what closes before a record is left to `passing`. Made by TaskProcess where this fits, see `window_calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.calls.call import refuse_awaitable, without_waiting
from pipeline.calls.join_calls import JoinCalls, join_calls
from pipeline.calls.passing import Passing
from pipeline.calls.plain_calls import Progress
from pipeline.calls.steps import Item, Step, TimedStep
from pipeline.calls.task_sources import Source
from pipeline.records import TICK, RawRecord, Record
from pipeline.tables.view import TableView
from pipeline.time.position import BEFORE_DUE
from pipeline.time.session_view import SessionsView
from pipeline.time.timed_view import ByUserKey, TimedView
from pipeline.time.window_view import WindowsView


class WindowCalls:
    """See the module text."""

    def __init__(self, step: TimedStep, source: Source, passing: Passing, *, closes: bool) -> None:
        self._step = step
        self._passing = passing
        self._closes = closes  # a function is called when something closes
        self._own = [table for table in step.tables if table.is_by_record_key]
        self._expiring = [table for table in step.tables if table.spec.expire_ms is not None]
        self._others = bool(step.sliding or self._expiring or step.observed or step.sinks)
        self._decode_key, self._decode_value = source.key_codec.decode, source.value_codec.decode
        self._keep = step.tables[0].keep_alone if len(step.tables) == 1 and not step.sinks else step.keep
        # What one window table's calls set to numbers may wait for each other.
        alone = step.tables if len(step.tables) == 1 and not step.sliding else []
        self._gathering = [view for view in alone if isinstance(view, WindowsView | SessionsView)]
        self._same_keys = [
            view for view in step.timed if isinstance(view, ByUserKey) and view.has_keys_of(source.key_codec)
        ]

    def run(
        self,
        task: Progress,
        records: Sequence[tuple[str, RawRecord]],
        clock: Callable[[], float],
        until: float,
        stream_ms: int,
    ) -> int:
        """See TaskProcess.run; returns the stream time with the last record. `task` knows at any moment how many records are
        completed. Raises what a call that stops raises."""
        position, passing, step = self._passing.position, self._passing, self._step
        call, closes, keep = self._call, self._closes, self._keep
        function, arguments, sends = step.function, step.arguments, bool(step.sinks)
        done = 0
        self._begin()
        try:
            for topic, raw in records:
                timestamp_ms = raw.timestamp_ms
                if closes and passing.has_due(timestamp_ms):
                    self._end()
                    if not without_waiting(passing.pass_to(timestamp_ms, lambda: clock() < until)):
                        break
                    self._begin()
                before = position.reached
                if timestamp_ms > before[0]:
                    position.reached = position.settled = (timestamp_ms, BEFORE_DUE, b"")
                try:
                    record = call(topic, raw, timestamp_ms)
                    if record is not None:
                        try:
                            result = function(record, *arguments)
                            if result is not None:
                                refuse_awaitable(step.name, result)
                            keep(position.reached[0])
                        except step.failures as error:
                            self._failed(topic, raw, error)
                        if sends and passing.effects.outputs:
                            passing.effects.end()
                except BaseException:
                    passing.effects.begin()
                    passing.effects.undo()
                    position.reached = position.settled = before
                    raise
                task.finished = done = done + 1
                if clock() >= until:
                    break
        finally:
            self._end()
        return max(stream_ms, position.time_ms)

    def _begin(self) -> None:
        self._step.begin()
        for view in self._gathering:
            view.gather(True)

    def _end(self) -> None:
        self._step.end()
        for view in self._gathering:
            view.gather(False)

    def _failed(self, topic: str, raw: RawRecord, error: BaseException) -> None:
        """Raises CallAgain, ProcessorFailed, or a store's error."""
        self._step.forget()
        if error is self._step.fault:
            raise error
        self._passing.on_error.failed(self._step, topic, raw, error)
        self._passing.effects.end()

    def _call(self, topic: str, raw: RawRecord, timestamp_ms: int) -> Record[Any, Any] | None:
        """A record is next: what its call is to have, at its time. None where it is not called. Raises ProcessorFailed."""
        step, passing = self._step, self._passing
        raw_key, raw_value = raw.key, raw.value
        try:
            key = None if raw_key is None else self._decode_key(raw_key)
            value = None if raw_value is None else self._decode_value(raw_value)
        except Exception as error:  # noqa: BLE001 - a codec of the user's may raise anything; on_error decides
            passing.on_error.failed(step, topic, raw, error, decoding=True)
            passing.effects.end()
            return None
        record: Record[Any, Any] = Record(key, value, timestamp_ms, raw.headers, topic, passing.partition, raw.offset)
        if raw_key is not None:
            for same in self._same_keys:
                same.user_key, same.user_bytes = key, raw_key
        for view in step.timed:
            if view.is_late(key, timestamp_ms):
                passing.is_late(step, Item(record, raw, topic, passing.position.reached[0]))
                passing.effects.end()
                return None
            view.at_ms = timestamp_ms
        for own in self._own:
            own.record_keys = (raw_key,)
        if self._others:
            self._set_others(key, timestamp_ms)
        return record

    def _set_others(self, key: Any, timestamp_ms: int) -> None:
        step = self._step
        for sliding in step.sliding:
            sliding.record_key = key
        for expiring in self._expiring:
            expiring.stream_ms = self._passing.position.reached[0]
        for observed in step.observed:
            observed.at_ms = timestamp_ms
        for sink in step.sinks:
            sink.timestamp_ms = timestamp_ms


def window_calls(
    steps: Sequence[Step],
    sources: Mapping[str, Source],
    tables: Mapping[str, TableView[Any, Any]],
    passing: Passing | None,
) -> WindowCalls | JoinCalls | None:
    """Returns the calls of a task where one sync step takes one record at a time of one topic, and all that keeps time are
    windows and sessions, or where one joins two topics; else None."""
    if (joined := join_calls(steps, sources, tables, passing)) is not None:
        return joined
    own = [step for step in steps if step.processor.due is None]
    topics = [source for topic, source in sources.items() if topic != TICK]
    if passing is None or len(own) != 1 or len(topics) != 1 or any(step.is_async for step in steps):
        return None
    (step,), (source,) = own, topics
    timed = [table for table in tables.values() if isinstance(table, TimedView)]
    if not isinstance(step, TimedStep) or not all(isinstance(table, WindowsView | SessionsView) for table in timed):
        return None
    if step.rekey is not None or source.batch_steps or source.tables or source.max_ahead_ms is not None:
        return None
    if passing.joins_tables:
        return None
    return WindowCalls(step, source, passing, closes=len(steps) > len(own))
