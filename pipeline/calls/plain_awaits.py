"""The calls of a task whose one async processor takes one record at a time, each after the one before it.

One rule: a call means what `TaskProcess.wait_for` says, atomic and with the same errors and the same timeout; a record is
completed as soon as its call has ended, since a commit may come while the next one waits. Used by TaskProcess where
`plain_awaits` finds a task plain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from pipeline.calls.call import CALL, cancellations, cancelled_itself, counted, ended, let_off
from pipeline.calls.failed_calls import FailedCalls
from pipeline.calls.plain_calls import PlainCalls, Progress
from pipeline.calls.steps import Step
from pipeline.calls.task_sources import Source
from pipeline.records import RawRecord, Record
from pipeline.sinks import LiveSink
from pipeline.tables import call_number
from pipeline.tables.view import TableView

if TYPE_CHECKING:
    from pipeline.calls.effects import Effects


class PlainAwaits(PlainCalls):
    """Of one task and its one step."""

    async def run_async(
        self,
        task: Progress,
        effects: Effects,
        records: Sequence[tuple[str, RawRecord]],
        clock: Callable[[], float],
        until: float,
    ) -> None:
        """See TaskProcess.run_async; `effects` has each record as soon as it is completed. Raises CallAgain, ProcessorFailed."""
        step, partition, keep, stream_ms = self._step, self._partition, self._keep, effects.stream_time_ms
        decode_key, decode_value = self._quick_key, self._quick_value
        function, arguments, completed, failed_calls = step.function, step.arguments, effects.completed, self._on_error
        sinks, expiring, cancelled = step.sinks, self._expiring, cancellations()
        used: list[TableView[Any, Any] | LiveSink] = [*step.tables, *sinks]
        own = [table for table in step.tables if table.is_by_record_key]
        expects = [table.expect for table in self._same_keys]
        if (countdown := step.countdown) is not None:
            now = (loop := countdown.of_this_task()).time
        task.finished, done, before = 0, 0, cancelled()
        step.begin()  # nothing else runs between the end of a call and the beginning of the next one
        for table in expiring:
            table.stream_ms = stream_ms
        try:
            for topic, raw in records:
                key, value, timestamp_ms = raw.key, raw.value, raw.timestamp_ms
                if timestamp_ms > stream_ms:
                    stream_ms = timestamp_ms
                    for table in expiring:
                        table.stream_ms = timestamp_ms
                try:
                    decoded = None if key is None else decode_key(key)
                    read = value if decode_value is None or value is None else decode_value(value)
                    record: Record[Any, Any] = Record(
                        decoded, read, timestamp_ms, raw.headers, topic, partition, raw.offset
                    )
                except Exception as error:  # noqa: BLE001 - a codec of the user's may raise anything; on_error decides
                    self._on_error.failed(step, topic, raw, self._unreadable(topic, raw) or error, decoding=True)
                else:
                    for table in own:
                        table.record_keys = (key,)
                    for expect in expects:
                        expect(decoded, key)
                    for sink in sinks:
                        sink.timestamp_ms = timestamp_ms
                    number = call_number.begin()
                    for given in used:
                        given.call = number
                    try:
                        call = function(record, *arguments)
                        if countdown is None or type(call) is not CoroutineType:
                            await call
                        elif not countdown.is_long:
                            await counted(step.name, countdown, call)
                        else:  # as `counted` does it, for less than a Python call more
                            countdown.begun, countdown.is_under_way = now(), True
                            if countdown.watched is not loop:
                                countdown.watch(loop)
                            await call
                            if countdown.was_looked_at:
                                countdown.end()
                            countdown.is_under_way = False
                        if cancelled() > before or failed_calls.are_undone:
                            self._goes_on(before)
                        keep(stream_ms)
                    except BaseException as error:  # noqa: BLE001 - what is no failure of the call is raised again
                        self._failed(topic, raw, error, before)
                completed(topic, raw)
                task.finished = done = done + 1
                if clock() >= until:
                    break
        finally:
            step.end()

    def _goes_on(self, before: int) -> None:
        """The call has ended well, and its asyncio task had been cancelled. Raises CancelledError where it is undone."""
        self._on_error.refuse_undone(self._step)
        let_off(before)

    def _failed(self, topic: str, raw: RawRecord, error: BaseException, before: int) -> None:
        """The call has ended with an error, and nothing of it counts. Raises it where it is no failure of the call."""
        step = self._step
        error = ended(step.name, step.countdown, error)
        step.forget()
        failure = error if isinstance(error, step.failures) else cancelled_itself(step.name, error, before)
        if failure is None or failure is step.fault:
            raise error
        let_off(before)
        self._on_error.failed(step, topic, raw, failure)


def plain_awaits(
    steps: Sequence[Step], sources: Mapping[str, Source], unit: str, partition: int, on_error: FailedCalls
) -> PlainAwaits | None:
    """Returns the calls of a task where one async step takes one record at a time of one topic; else None."""
    if len(steps) != 1 or len(sources) != 1 or unit != CALL:
        return None
    (step,), (source,) = steps, sources.values()
    if not step.is_async or step.processor.concurrency > 1 or source.batch_steps or source.tables:
        return None
    return PlainAwaits(step, source.key_codec, source.value_codec, partition, on_error)
