"""Event time out of a record's value: `app.topic(..., timestamp=lambda value: ..., max_ahead=...)`.

One rule: a record has one time, and its task takes it in the order of that time. So it is given where records are fetched;
what cannot be read, or gives no time, keeps the log's and fails by `on_error` when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from pipeline.errors import CodecError, DefinitionError, PipelineError
from pipeline.records import LAST_MS, RawRecord, SourceRecord
from pipeline.time.durations import duration_ms
from pipeline.values.codecs import Codec

Timestamp = Callable[[Any], int]


class TooFarAhead(PipelineError):
    """A record's time is further ahead of its task's stream time than its topic allows."""

    def __init__(self, message: str, stream_ms: int) -> None:
        super().__init__(message)
        self._stream_ms = stream_ms

    def moving_no_time(self, raw: RawRecord) -> RawRecord:
        """The record at the stream time that it was compared with."""
        return SourceRecord(raw.offset, self._stream_ms, raw.key, raw.value, raw.headers)


class EventTime:
    """Of a topic. `timestamp` gives the time of a value; None: the log's is used."""

    def __init__(self, topic: str, codec: Codec[Any], timestamp: Any, max_ahead: Any) -> None:
        what = f"topic {topic!r}"
        if timestamp is not None and not callable(timestamp):
            raise DefinitionError(
                f"{what}: timestamp={timestamp!r} is not a function; write timestamp=lambda value: ..."
            )
        self.timestamp: Timestamp | None = timestamp
        self.max_ahead_ms = None if max_ahead is None else duration_ms(what, "max_ahead", max_ahead, least_ms=1)
        self._codec = codec

    def of(self, value: Any) -> int:
        """The time of a value. Raises CodecError where it is none."""
        assert self.timestamp is not None
        try:
            found = self.timestamp(value)
        except (Exception, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # as of sys.exit(), which would end the worker
            raise CodecError(f"timestamp= raised {type(error).__name__}") from error
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= LAST_MS:
            raise CodecError(f"timestamp= gave {found!r}, which is no time in milliseconds since 1970")
        return found

    def stamped(self, records: Sequence[RawRecord]) -> Sequence[RawRecord]:
        """The records with their own times."""
        return records if self.timestamp is None else [self._stamped(record) for record in records]

    def _stamped(self, raw: RawRecord) -> RawRecord:
        if raw.value is None:
            return raw
        try:
            at_ms = self.of(self._codec.decode(raw.value))
        except Exception:  # noqa: BLE001 - the user's codec and function may raise anything; it is reported when its turn comes
            return raw
        return SourceRecord(raw.offset, at_ms, raw.key, raw.value, raw.headers)

    def codec(self) -> Codec[Any]:
        """The codec of values as a task reads them: one that gives no time cannot be read."""
        return self._codec if self.timestamp is None else _Timed(self, self._codec)


class _Timed:
    """A codec of values that have a time."""

    def __init__(self, event_time: EventTime, codec: Codec[Any]) -> None:
        self._event_time = event_time
        self._codec = codec

    def encode(self, value: Any) -> bytes:
        return self._codec.encode(value)

    def decode(self, data: bytes) -> Any:
        value = self._codec.decode(data)
        self._event_time.of(value)
        return value


def too_far_ahead(raw: RawRecord, stream_ms: int, max_ahead_ms: int) -> TooFarAhead | None:
    """What is wrong with the time of a record; None where nothing is. Before any record there is nothing to compare."""
    if stream_ms < 0 or raw.timestamp_ms <= stream_ms + max_ahead_ms:
        return None
    return TooFarAhead(
        f"its time {raw.timestamp_ms} is {_shown(raw.timestamp_ms - stream_ms)} ahead of stream time {stream_ms}, and max_ahead="
        f"{timedelta(milliseconds=max_ahead_ms)}; it would make all others late",
        stream_ms,
    )


def _shown(ahead_ms: int) -> str:
    try:
        return str(timedelta(milliseconds=ahead_ms))
    except OverflowError:  # as of nanoseconds that were taken for milliseconds
        return f"{ahead_ms} ms"
