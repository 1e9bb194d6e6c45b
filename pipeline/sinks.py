"""Where a processor sends records. One rule: what is sent is encoded at once, so later changes of it do not count.

`Sink` is what a user function declares. `LiveSink` collects for one task; `FakeSink` is a list for a test of the
function alone. Nothing is written here: a call's sends become outputs when the call has ended well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, Generic, TypeVar

from pipeline.errors import CodecError
from pipeline.records import LAST_MS, Headers, OutputRecord, Record
from pipeline.tables.call_number import NOBODY, check, current
from pipeline.values.codecs import QUICK_ERRORS, Codec, quick_encode
from pipeline.values.partitioner import partition_of

K_contra = TypeVar("K_contra", contravariant=True)
V_contra = TypeVar("V_contra", contravariant=True)
K = TypeVar("K")
V = TypeVar("V")

Sent = tuple[tuple[str, int], OutputRecord]


class Sink(ABC, Generic[K_contra, V_contra]):
    """A topic to send to."""

    @abstractmethod
    def send(
        self,
        key: K_contra | None,
        value: V_contra | None,
        *,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """Send a record when this call ends well. `value` None is a tombstone; the timestamp is the record's unless
        given. A record without key goes to the partition of the task's own number."""


def encoded(
    topic: str, key_codec: Codec[Any], value_codec: Codec[Any], key: Any, value: Any
) -> tuple[bytes | None, bytes | None]:
    """Key and value as bytes; None stays None. Raises CodecError naming topic and part."""
    try:
        key_bytes = None if key is None else key_codec.encode(key)
    except CodecError as error:
        raise CodecError(f"key for topic {topic!r}: {error}") from None
    try:
        return key_bytes, None if value is None else value_codec.encode(value)
    except CodecError as error:
        raise CodecError(f"value for topic {topic!r}, key {key!r}: {error}") from None


def checked_headers(topic: str, headers: Iterable[tuple[str, bytes]]) -> Headers:
    """Headers as a tuple of pairs. Raises CodecError where one is not (str, bytes)."""
    if not isinstance(headers, Iterable):
        raise CodecError(f"headers for topic {topic!r}: {headers!r} is no list of pairs (str, bytes)")
    result = tuple(headers.items()) if isinstance(headers, dict) else tuple(headers)
    for header in result:
        if not (isinstance(header, tuple) and len(header) == 2):
            raise CodecError(f"headers for topic {topic!r}: {header!r} is not a pair (str, bytes)")
        if not (isinstance(header[0], str) and isinstance(header[1], bytes)):
            raise CodecError(f"headers for topic {topic!r}: {header!r} is not a pair (str, bytes)")
        if not header[0].isascii() and not _is_unicode(header[0]):
            raise CodecError(f"headers for topic {topic!r}: the name {header[0]!r} is not valid Unicode")
    return result


def _is_unicode(text: str) -> bool:
    """False where it has halves of pairs, which no UTF-8 can have."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def checked_timestamp(topic: str, timestamp_ms: int) -> int:
    """A timestamp in whole milliseconds, as the log keeps it. Raises CodecError."""
    return checked_time(f"timestamp_ms for topic {topic!r}", timestamp_ms)


def checked_time(what: str, found: int) -> int:
    """A time that the log can keep. Raises CodecError."""
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= LAST_MS:
        raise CodecError(f"{what}: {found!r} is no time in milliseconds since 1970")
    return found


class LiveSink(Sink[Any, Any]):
    """The sink of one task. `sent` is the list the task empties after each call; `timestamp_ms` is set before each."""

    def __init__(
        self,
        topic: str,
        key_codec: Codec[Any],
        value_codec: Codec[Any],
        *,
        partitions: int,
        task_partition: int,
        sent: list[Sent],
    ) -> None:
        self.topic = topic
        self.sent = sent
        self.timestamp_ms = 0
        self.closed = True  # between calls, and while one is under way that may wait: `call` has its number then
        self.call = NOBODY
        self._key_codec = key_codec
        self._value_codec = value_codec
        self._encode_key, self._encode_value = quick_encode(key_codec), quick_encode(value_codec)
        self._task_partition = task_partition
        self.has_partitions(partitions)

    def send(
        self,
        key: Any,
        value: Any,
        *,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """See `Sink.send`. Raises PipelineError once the call has ended; CodecError."""
        if self.closed and self.call != current():
            check(self.call, "sink", self.topic)
        try:
            key_bytes = None if key is None else self._encode_key(key)
            value_bytes = None if value is None else self._encode_value(value)
        except QUICK_ERRORS:
            key_bytes, value_bytes = encoded(self.topic, self._key_codec, self._value_codec, key, value)  # says which
        time = self.timestamp_ms if timestamp_ms is None else checked_timestamp(self.topic, timestamp_ms)
        output = OutputRecord(key_bytes, value_bytes, time, checked_headers(self.topic, headers) if headers else ())
        place = self._places[partition_of(key_bytes, self.partitions, keyless=self._task_partition)]
        self.sent.append((place, output))

    def has_partitions(self, partitions: int) -> None:
        """So many are there, from now on."""
        self.partitions = partitions
        self._places = [(self.topic, number) for number in range(partitions)]

    def send_encoded(self, key: Any, value: bytes | None, headers: Headers) -> None:
        """A value whose bytes are there already (a re-key)."""
        try:
            key_bytes = None if key is None else self._encode_key(key)
        except QUICK_ERRORS:
            key_bytes, _ = encoded(self.topic, self._key_codec, self._value_codec, key, None)  # says which
        place = self._places[partition_of(key_bytes, self.partitions, keyless=self._task_partition)]
        self.sent.append((place, OutputRecord(key_bytes, value, self.timestamp_ms, headers)))


class FakeSink(list[tuple[K | None, V | None]], Sink[K, V]):
    """A list of the (key, value) pairs sent, for a test of the function alone; `records` has the rest of each."""

    def __init__(self, topic: str, key_codec: Codec[K], value_codec: Codec[V]) -> None:
        super().__init__()
        self.records: list[Record[K | None, V | None]] = []
        self._topic = topic
        self._key_codec = key_codec
        self._value_codec = value_codec

    def send(
        self,
        key: K | None,
        value: V | None,
        *,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        encoded(self._topic, self._key_codec, self._value_codec, key, value)
        key, value = deepcopy((key, value))  # as it is now
        time = 0 if timestamp_ms is None else checked_timestamp(self._topic, timestamp_ms)
        self.records.append(
            Record(key, value, timestamp_ms=time, headers=checked_headers(self._topic, headers), topic=self._topic)
        )
        self.append((key, value))
