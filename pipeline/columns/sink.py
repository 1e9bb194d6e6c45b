"""A sink that takes arrays: `send(keys, values)`. One rule: a record of it is what `LiveSink.send` would have sent.

Where as many are sent as the batch has records, each has the time of its record, so that a function which sends one for
each gives one answer however batches are cut; others have the newest time of the batch, as with `batch=True`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from pipeline.columns import arrays
from pipeline.errors import CodecError
from pipeline.records import OutputRecord
from pipeline.sinks import LiveSink, checked_headers, checked_timestamp
from pipeline.tables.call_number import check
from pipeline.values.codecs import Codec
from pipeline.values.partitioner import partition_of

Bytes = list[bytes | None]


class ColumnSink(LiveSink):
    """Of one task. `times` are set for each call."""

    times: Any = None  # numpy's: the timestamps of the batch, in order

    def send(
        self,
        keys: Any,
        values: Any,
        *,
        timestamp_ms: Any = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """Sends a record for each place of the arrays; `values` None: tombstones. `timestamp_ms`: an array, or one for all.
        Raises PipelineError once the call has ended; CodecError."""
        if self.closed:
            check(self.call, "sink", self.topic)
        if keys is None and values is None:
            raise CodecError(f"sink {self.topic!r}: send() was given neither keys nor values; give an array")
        key_bytes = self._bytes(self._key_codec, keys, "keys")
        value_bytes = self._bytes(self._value_codec, values, "values")
        count = len(value_bytes if key_bytes is None else key_bytes)  # type: ignore[arg-type]
        if key_bytes is not None and value_bytes is not None and len(key_bytes) != len(value_bytes):
            raise CodecError(
                f"sink {self.topic!r}: send() was given {len(key_bytes)} keys and {len(value_bytes)} values"
            )
        times = self._times(timestamp_ms, count)
        shared = checked_headers(self.topic, headers) if headers else ()
        none: Bytes = [None] * count
        for key, value, at_ms in zip(key_bytes or none, value_bytes or none, times, strict=True):
            partition = partition_of(key, self.partitions, keyless=self._task_partition)
            self.sent.append(((self.topic, partition), OutputRecord(key, value, at_ms, shared)))

    def _bytes(self, codec: Codec[Any], given: Any, part: str) -> Bytes | None:
        if given is None:
            return None
        what = f"sink {self.topic!r}: {part} of send()"
        array = arrays.one_array(given, what)
        if not array.null_count:
            return arrays.encode(codec, array, what)  # type: ignore[return-value]
        rest = iter(arrays.encode(codec, array.drop_null(), what))
        return [next(rest) if is_there else None for is_there in array.is_valid().to_pylist()]

    def _times(self, given: Any, count: int) -> list[int]:
        if given is None:
            is_each = self.times is not None and len(self.times) == count
            return self.times.tolist() if is_each else [self.timestamp_ms] * count
        if isinstance(given, int):
            return [checked_timestamp(self.topic, given)] * count
        what = f"sink {self.topic!r}: timestamp_ms of send()"
        array = arrays.one_array(given, what)
        if len(array) != count or array.null_count or not pa.types.is_integer(array.type):
            raise CodecError(f"{what}: {len(array)} of {array.type}, {array.null_count} null, for {count} records")
        return [checked_timestamp(self.topic, one) for one in array.to_pylist()]
