"""The calls of the plainest task, whose one sync processor or re-key takes one record at a time: no object is made for a call.

One rule: a call means what `TaskProcess.call` says, atomic and with the same errors; only what surrounds it is done once a
run instead of once a call. Used by TaskProcess where `plain_calls` finds a task plain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pipeline.calls.call import CALL, refuse_awaitable
from pipeline.calls.failed_calls import FailedCalls
from pipeline.calls.steps import Step
from pipeline.calls.task_sources import Source
from pipeline.records import RawRecord, Record
from pipeline.tables.view import TableView
from pipeline.values.codecs import SAME_BYTES, Codec, as_it_came, quick_decode


class Progress(Protocol):
    """How many records of the run are completed; read by the watch of long calls."""

    finished: int


class PlainCalls:
    """Of one task and its one step. `partition` is the task's."""

    def __init__(
        self, step: Step, key_codec: Codec[Any], value_codec: Codec[Any], partition: int, on_error: FailedCalls
    ) -> None:
        self._step = step
        self._decode_key = key_codec.decode
        self._decode_value = value_codec.decode
        self._quick_key = quick_decode(key_codec)
        self._quick_value = None if as_it_came(value_codec) else quick_decode(value_codec)
        self._partition = partition
        self._on_error = on_error
        alone = step.tables[0] if len(step.tables) == 1 and not step.sinks else None
        self._keep = step.keep if alone is None else alone.keep_alone
        self._keep_one = alone.keep_one if type(alone) is TableView else None
        is_fixed = type(key_codec) in SAME_BYTES
        self._same_keys = [t for t in step.tables if is_fixed and type(t.spec.key_codec) is type(key_codec)]
        self._expiring = [table for table in step.tables if table.spec.expire_ms is not None]

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
        step, partition = self._step, self._partition
        decode_key, decode_value = self._quick_key, self._quick_value
        function, arguments, send = step.function, step.arguments, step.send_rekeyed
        keep_one, keep, sinks, expiring = self._keep_one, self._keep, step.sinks, self._expiring
        if step.rekey is not None:

            def function(record: Record[Any, Any]) -> None:
                send(record, raw)

        own = [table for table in step.tables if table.is_by_record_key]
        expects = [table.expect for table in self._same_keys]
        done = 0
        step.begin()
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
                    record: Record[Any, Any] = Record(
                        decoded := None if key is None else decode_key(key),
                        value if decode_value is None or value is None else decode_value(value),
                        timestamp_ms,
                        raw.headers,
                        topic,
                        partition,
                        raw.offset,
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
                    try:
                        result = function(record, *arguments)
                        if result is not None:
                            refuse_awaitable(step.name, result)
                        if keep_one is None or not keep_one(stream_ms):
                            keep(stream_ms)
                    except step.failures as error:
                        step.forget()
                        if error is step.fault:
                            raise
                        self._on_error.failed(step, topic, raw, error)
                task.finished = done = done + 1
                if clock() >= until:
                    break
        finally:
            step.end()
        return stream_ms

    def _unreadable(self, topic: str, raw: RawRecord) -> Exception | None:
        """What the codecs say of a record that they cannot read."""
        try:
            self._decoded(topic, raw)
        except Exception as error:  # noqa: BLE001 - as where it was met first
            return error
        return None

    def _decoded(self, topic: str, raw: RawRecord) -> Record[Any, Any]:
        """Raises what a codec raises."""
        key, value = raw.key, raw.value
        record: Record[Any, Any] = Record(
            decoded := None if key is None else self._decode_key(key),
            None if value is None else self._decode_value(value),
            raw.timestamp_ms,
            raw.headers,
            topic,
            self._partition,
            raw.offset,
        )
        for table in self._same_keys:
            table.expect(decoded, key)
        return record


def plain_calls(
    steps: Sequence[Step], sources: Mapping[str, Source], unit: str, partition: int, on_error: FailedCalls
) -> PlainCalls | None:
    """Returns the calls of a task where one sync step takes one record at a time of one topic; else None."""
    if len(steps) != 1 or len(sources) != 1 or unit != CALL:
        return None
    (step,), (source,) = steps, sources.values()
    if step.is_async or source.batch_steps:
        return None
    return PlainCalls(step, source.key_codec, source.value_codec, partition, on_error)
