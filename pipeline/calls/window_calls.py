"""The calls of a task with one processor of windows or sessions, one record after the other, without a coroutine for each.

One rule: what counts is what `passing` would count. A record's one call is its unit, because no timer or join can make it
more than one; what closes before a record is left to `passing`. Made by TaskProcess where this fits, see `window_calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.calls.call import refuse_awaitable, without_waiting
from pipeline.calls.passing import Passing
from pipeline.calls.plain_calls import FAILURES, Progress
from pipeline.calls.steps import Item, Step, TimedStep
from pipeline.calls.task_sources import Source
from pipeline.records import TICK, RawRecord, Record
from pipeline.tables.view import TableView
from pipeline.time.position import BEFORE_DUE
from pipeline.time.session_view import SessionsView
from pipeline.time.timed_view import TimedView
from pipeline.time.window_view import WindowsView


class WindowCalls:
    """See the module text."""

    def __init__(
        self,
        step: TimedStep,
        source: Source,
        passing: Passing,
        *,
        closes: bool,
    ) -> None:
        self._step = step
        self._source = source
        self._passing = passing
        self._position = passing.position
        self._effects = passing.effects
        self._on_error = passing.on_error
        self._partition = passing.partition
        self._closes = closes  # a function is called when something closes

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
        position, passing, effects = self._position, self._passing, self._effects
        done = 0
        for topic, raw in records:
            timestamp_ms = raw.timestamp_ms
            if (
                self._closes
                and passing.has_due(timestamp_ms)
                and not without_waiting(passing.pass_to(timestamp_ms, lambda: clock() < until))
            ):
                break
            before = position.reached
            if timestamp_ms > before[0]:
                position.reached = position.settled = (timestamp_ms, BEFORE_DUE, b"")
            try:
                self._call(topic, raw)
            except BaseException:
                effects.begin()
                effects.undo()
                position.reached = position.settled = before
                raise
            task.finished = done = done + 1
            if clock() >= until:
                break
        return max(stream_ms, position.time_ms)

    def _call(self, topic: str, raw: RawRecord) -> None:
        """One record. Raises CallAgain, ProcessorFailed, or a store's error."""
        step, source, effects = self._step, self._source, self._effects
        key, timestamp_ms, stream_ms = raw.key, raw.timestamp_ms, self._position.reached[0]
        try:
            record: Record[Any, Any] = Record(
                None if key is None else source.key_codec.decode(key),
                None if raw.value is None else source.value_codec.decode(raw.value),
                timestamp_ms,
                raw.headers,
                topic,
                self._partition,
                raw.offset,
            )
        except Exception as error:  # noqa: BLE001 - a codec of the user's may raise anything; on_error decides
            self._on_error.failed(step, topic, raw, error, decoding=True)
            effects.end()
            return
        for view in step.timed:
            if view.is_late(record.key, timestamp_ms):
                self._passing.is_late(step, Item(record, raw, topic, stream_ms))
                effects.end()
                return
        step.belongs_to(record.key)
        step.open(timestamp_ms, stream_ms, (key,))
        try:
            try:
                result = step.function(record, *step.arguments)
                if result is not None:
                    refuse_awaitable(step.name, result)
                step.keep(stream_ms)
            except FAILURES as error:
                step.forget()
                if error is step.fault:
                    raise
                self._on_error.failed(step, topic, raw, error)
                effects.end()
        finally:
            step.end()
        if effects.outputs:
            effects.end()


def window_calls(
    steps: Sequence[Step],
    sources: Mapping[str, Source],
    tables: Mapping[str, TableView[Any, Any]],
    passing: Passing | None,
) -> WindowCalls | None:
    """Returns the calls of a task where one sync step takes one record at a time of one topic, and all that keeps time are
    windows and sessions; else None."""
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
