"""The calls of a task whose one sync processor takes batches of one topic: no object but its Record is made for a record.

One rule: a call means what `Batches.call` says, atomic and with the same errors; where it cannot be made or fails, nothing
of it is anywhere, and Batches makes the calls that follow. Used by TaskProcess where `plain_batch` finds a task plain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.calls.batch import Batch
from pipeline.calls.call import CALL, DONE, FAILED, UNREADABLE, refuse_awaitable
from pipeline.calls.failed_calls import FailedCalls
from pipeline.calls.plain_calls import Progress
from pipeline.calls.steps import Step
from pipeline.calls.task_sources import Source
from pipeline.definitions.error_policy import WAIT
from pipeline.records import RawRecord, Record
from pipeline.values.codecs import as_it_came, quick_decode

if TYPE_CHECKING:
    from pipeline.calls.effects import Effects
    from pipeline.calls.plain_columns import PlainColumns


class PlainBatch:
    """Of one task and its one step. `partition` is the task's; `stream_ms` the stream time with the latest batch."""

    takes_columns = False

    def __init__(self, step: Step, source: Source, partition: int, on_error: FailedCalls) -> None:
        self._on_error = on_error
        self._step = step
        self._decode_key = quick_decode(source.key_codec)
        self._decode_value = None if as_it_came(source.value_codec) else quick_decode(source.value_codec)
        self._partition = partition
        self._needs_keys = any(table.is_by_record_key for table in step.tables)
        self.stream_ms = -1

    def call(self, task: Progress, records: Sequence[tuple[str, RawRecord]], stream_ms: int) -> str:
        """DONE, or why there was no call (UNREADABLE), or that nothing of one with several records counts (FAILED). Raises
        what a call that stops raises."""
        task.finished = len(records)  # none are left where the call is to be made again later
        found = self._call(records, stream_ms) if records else UNREADABLE
        if found != DONE:
            task.finished = 0
        return found

    def completed(self, effects: Effects, records: Sequence[tuple[str, RawRecord]]) -> int:
        """The latest call was of these, and is DONE. Returns the stream time with them."""
        effects.all_completed(records, self.stream_ms, is_one_topic=True)
        return self.stream_ms

    def _call(self, records: Sequence[tuple[str, RawRecord]], stream_ms: int) -> str:
        step, decode_key, decode_value, partition = self._step, self._decode_key, self._decode_value, self._partition
        try:
            made: list[Record[Any, Any]] = [
                Record(
                    None if raw.key is None else decode_key(raw.key),
                    raw.value if decode_value is None or raw.value is None else decode_value(raw.value),
                    raw.timestamp_ms,
                    raw.headers,
                    topic,
                    partition,
                    raw.offset,
                )
                for topic, raw in records
            ]
        except Exception:  # noqa: BLE001 - a codec of the user's may raise anything; who reads one by one decides
            return UNREADABLE
        newest = max([raw.timestamp_ms for _, raw in records])
        self.stream_ms = max(stream_ms, newest)
        keys = {raw.key for _, raw in records} if self._needs_keys else ()
        try:
            with step.open(newest, self.stream_ms, keys):
                result = step.function(Batch(made, step.looked_at) if step.sinks else made, *step.arguments)
                if result is not None:
                    refuse_awaitable(step.name, result)
        except step.failures as error:
            if error is step.fault:
                raise
            if len(records) > 1 and step.policy.of(error) != WAIT:
                return FAILED
            self._on_error.failed(step, *records[0], error)
        return DONE


def plain_batch(
    steps: Sequence[Step], sources: Mapping[str, Source], unit: str, partition: int, on_error: FailedCalls
) -> PlainBatch | PlainColumns | None:
    """Returns the calls of a task where one sync step takes batches, or columns, of one topic; else None."""
    if any(step.columns is not None for step in steps):
        from pipeline.calls.plain_columns import plain_columns  # with pyarrow, which others do not need

        return plain_columns(steps, sources, unit, on_error)
    if len(steps) != 1 or len(sources) != 1 or unit != CALL:
        return None
    (step,), (source,) = steps, sources.values()
    if not step.processor.batch or step.is_async or step.time_steps or source.steps or source.tables:
        return None
    return PlainBatch(step, source, partition, on_error)
