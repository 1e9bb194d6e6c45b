"""The calls of a task whose one processor takes columns of one topic: of records that come in columns no object is made.

One rule: a call means what `Batches.call` says, atomic and with the same errors; where it cannot be made or fails, nothing
of it is anywhere, and Batches makes the calls that follow, with arrays out of its records. Loaded, by `plain_batch`, only
where a task has such a processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.calls.call import CALL, DONE, FAILED, UNREADABLE, refuse_awaitable
from pipeline.calls.failed_calls import FailedCalls
from pipeline.calls.plain_calls import Progress
from pipeline.columns.arguments import ColumnArguments
from pipeline.columns.raw import RawColumns, in_columns
from pipeline.definitions.error_policy import WAIT
from pipeline.records import RawRecord

if TYPE_CHECKING:
    from pipeline.calls.effects import Effects
    from pipeline.calls.steps import Step
    from pipeline.calls.task_sources import Source


class PlainColumns:
    """The calls of a task whose one processor takes columns of one topic; see PlainBatch."""

    takes_columns = True

    def __init__(self, step: Step, given: ColumnArguments, on_error: FailedCalls) -> None:
        self._step = step
        self._given = given
        self._on_error = on_error
        self.stream_ms = -1

    def call(self, task: Progress, records: Sequence[tuple[str, RawRecord]], stream_ms: int) -> str:
        """DONE, or why there was no call (UNREADABLE), or that nothing of one with several records counts (FAILED). Raises
        what a call that stops raises."""
        task.finished = len(records)  # none are left where the call is to be made again later
        found = self._call(in_columns(records), stream_ms) if records else UNREADABLE
        if found != DONE:
            task.finished = 0
        return found

    def completed(self, effects: Effects, records: Sequence[tuple[str, RawRecord]]) -> int:
        """The latest call was of these, and is DONE. Returns the stream time with them."""
        raw = in_columns(records)
        effects.completed_of_one(raw.topic, int(raw.offsets[-1]) + 1, len(raw), self.stream_ms)
        return self.stream_ms

    def _call(self, raw: RawColumns, stream_ms: int) -> str:
        step = self._step
        try:
            columns = self._given.of(raw, step.sinks)
        except Exception:  # noqa: BLE001 - a codec of the user's may raise anything; who reads one by one decides
            return UNREADABLE
        newest = int(raw.timestamps.max())
        self.stream_ms = max(stream_ms, newest)
        try:
            with step.open(newest, self.stream_ms):
                result = step.function(columns, *step.arguments)
                if result is not None:
                    refuse_awaitable(step.name, result)
        except step.failures as error:
            if error is step.fault:
                raise
            if len(raw) > 1 and step.policy.of(error) != WAIT:
                return FAILED
            self._on_error.failed(step, *raw[0], error)
        return DONE


def plain_columns(
    steps: Sequence[Step], sources: Mapping[str, Source], unit: str, on_error: FailedCalls
) -> PlainColumns | None:
    """Returns the calls of a task where one step takes columns of one topic; else None."""
    if len(steps) != 1 or len(sources) != 1 or unit != CALL:
        return None
    (step,), (source,) = steps, sources.values()
    (topic,) = step.processor.sources
    if step.columns is None or step.time_steps or source.steps or source.tables:
        return None
    if source.value_codec is not topic.value_codec:  # whether a value has a time is looked at for each
        return None
    return PlainColumns(step, step.columns, on_error)
