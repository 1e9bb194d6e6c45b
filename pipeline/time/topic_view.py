"""A topic as a table: the last record of each key, which processors read and never write.

One rule: the last to arrive wins, whatever its time; of a table with versions, the times are kept as well, so that it can
be read as of a time. Stored: `k` + key -> time of the record + value, and with versions `v` + key with its length + time ->
whether it is a value, and the value; and the task's stream time, from which on versions count, so that whoever takes the
task over answers as the one before.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from pipeline.errors import CodecError, PipelineError
from pipeline.records import LAST_MS, RawRecord
from pipeline.tables import expiry
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.tables.observed import Row, RowChange
from pipeline.tables.table import StoreView, Table, TableSpec, after_prefix
from pipeline.tables.view import TableView
from pipeline.time.timed_view import TIME_BYTES, Prefixed, read_time, time_bytes
from pipeline.values.codecs import FloatCodec, JsonCodec

K = TypeVar("K")
V = TypeVar("V")
LAST, _AFTER_LAST = b"k", b"l"
_VERSION = b"v"
_LENGTH_BYTES = 4
_GONE, _VALUE = b"\x00", b"\x01"
_FOR_EVER_MS = 1 << 62  # an entry has the form of an expiring table's: its time, then its value


class TopicTable(Table[K, V]):
    """A topic as a dict: the last value of each key. It is written by sending to the topic."""

    @abstractmethod
    def timestamp_ms(self, key: K) -> int:
        """The time of the record that wrote the key's value. Raises KeyError."""

    @abstractmethod
    def as_of(self, timestamp_ms: int) -> Mapping[K, V]:
        """The table as it was at a time, as far back as its `versions` go. Raises PipelineError without versions."""


class TopicTableView(TableView[K, V], TopicTable[K, V]):
    """See the module. `spec` is that of the keys as the user has them; `versions_ms`: how far back versions are kept."""

    def __init__(self, spec: TableSpec, store: StoreView, versions_ms: int | None) -> None:
        inner = TableSpec(
            spec.name,
            Prefixed(LAST, spec.key_codec),
            spec.value_codec,
            expire_ms=_FOR_EVER_MS,
            none_is_value=spec.none_is_value,
        )
        super().__init__(inner, store)
        self._keys = spec
        self._has_one_form = not isinstance(
            spec.key_codec, JsonCodec | FloatCodec
        )  # what is found by its key is as it came
        self.versions_ms = versions_ms
        self.is_observed = False  # the change that each record makes is kept until the next one
        self.change: RowChange | None = None

    def __setitem__(self, key: K, value: V) -> NoReturn:
        raise self._read_only()

    def __delitem__(self, key: K) -> NoReturn:
        raise self._read_only()

    def _read_only(self) -> PipelineError:
        name = self.spec.name
        return PipelineError(f"table {name!r} is what topic {name!r} holds; it is written by sending to the topic")

    def changes(self) -> dict[bytes, bytes | None]:
        """Nothing. Raises PipelineError where the call has changed a value in place."""
        if super().changes():
            raise self._read_only()
        return {}

    def prefix(self, start: Any) -> Iterator[tuple[K, V]]:
        first, end, bounded = self._keys.prefix_bounds(start)
        last = _AFTER_LAST if end is None else LAST + end
        return self._pairs(LAST + first, last, len(first) + 1 if bounded else None)

    def _present_pairs(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        return super()._present_pairs(start or LAST, stop or _AFTER_LAST)

    def timestamp_ms(self, key: K) -> int:
        """See TopicTable. Raises KeyError."""
        raw = self._stored(self._key(key))
        if raw is None:
            raise KeyError(key)
        return expiry.stream_time(raw[:TIME_BYTES])

    def as_of(self, timestamp_ms: int) -> Mapping[K, V]:
        """See TopicTable. Raises PipelineError without versions."""
        if self.versions_ms is None:
            name = self.spec.name
            raise PipelineError(f"table {name!r} keeps no versions; give app.table_of(..., versions=timedelta(...))")
        if type(timestamp_ms) is not int or timestamp_ms > LAST_MS:
            raise CodecError(
                f"table {self.spec.name!r}: as_of({timestamp_ms!r}) is no time; give milliseconds since 1970"
            )
        return _AsOf(self, timestamp_ms)

    # records of the topic

    def take(self, raw: RawRecord, stream_ms: int) -> None:
        """A record has come; it counts with the unit that is open."""
        if raw.key is None:
            return
        key = self._own_form(raw.key)
        before = self.row(key) if self.is_observed else None
        self.layers.put(self._entries_of(key, raw, stream_ms), raw.timestamp_ms)
        if self.is_observed:
            self.change = RowChange(key, before, self.row(key), raw.timestamp_ms)

    def row(self, key: bytes) -> Row | None:
        """The row of a key's bytes."""
        raw = self._stored(LAST + key)
        return None if raw is None else Row(raw[TIME_BYTES:], expiry.stream_time(raw[:TIME_BYTES]))

    def entries(self, raw: RawRecord, stream_ms: int) -> dict[bytes, bytes | None]:
        """What a record of the topic changes."""
        return self._entries_of(self._own_form(raw.key or b""), raw, stream_ms)

    def _own_form(self, key: bytes) -> bytes:
        """The bytes by which a key is found here: others may write it in another form, as JSON with spaces."""
        return key if self._has_one_form else self._keys.key_codec.encode(self._keys.key_codec.decode(key))

    def _entries_of(self, key: bytes, raw: RawRecord, stream_ms: int) -> dict[bytes, bytes | None]:
        value = raw.value
        result = {LAST + key: None if value is None else expiry.stored(value, raw.timestamp_ms)}
        if self.versions_ms is not None:
            head = version_head(key)
            result[head + time_bytes(raw.timestamp_ms)] = _GONE if value is None else _VALUE + value
            result.update(dict.fromkeys(self._out_of_date(head, stream_ms - self.versions_ms)))
        return result

    def _out_of_date(self, head: bytes, bound_ms: int) -> list[bytes]:
        """Versions that were replaced before the time down to which versions are kept."""
        if bound_ms < 0:
            return []
        return self.version_keys(head, bound_ms)[:-1]

    def version_keys(self, head: bytes, timestamp_ms: int) -> list[bytes]:
        """The versions of a key up to a time, in order."""
        pairs = self._merged(head, head + time_bytes(timestamp_ms + 1))
        return [k for k, raw in pairs if raw is not None]

    def version_at(self, key: K, timestamp_ms: int) -> bytes | None:
        """The bytes of the value that a key had at a time."""
        assert self.versions_ms is not None
        if timestamp_ms < 0 or timestamp_ms < self.stream_ms - self.versions_ms:
            return None
        found = self.version_keys(version_head(self._key(key)[1:]), timestamp_ms)
        raw = self._stored(found[-1]) if found else None
        return None if raw is None or raw[:1] == _GONE else raw[1:]

    def collect(self, stream_ms: int) -> tuple[dict[bytes, bytes | None], int]:
        if self.versions_ms is not None and stream_ms > self._kept_stream_ms:
            self._kept_stream_ms = stream_ms
            self.layers.remember(STREAM_TIME_KEY, expiry.stored_time(stream_ms))
        return self.layers.collect()


class GlobalView(TopicTableView[K, V]):
    """A table that is whole on every instance, and changes between any two calls."""

    def _stored(self, k: bytes) -> bytes | None:
        return self._store.get(k)

    def _current(self, k: bytes) -> bytes | None:
        return self.spec.live_value(self._store.get(k), self.stream_ms)


class _AsOf(Mapping[K, V]):
    """A table of a topic as it was at a time."""

    def __init__(self, view: TopicTableView[K, V], timestamp_ms: int) -> None:
        self._view = view
        self._at_ms = timestamp_ms

    def __getitem__(self, key: K) -> V:
        data = self._view.version_at(key, self._at_ms)
        if data is None:
            raise KeyError(key)
        value: V = self._view.spec.decode_value(data)
        return value

    def __iter__(self) -> Iterator[K]:
        seen: dict[bytes, None] = {}
        for k, raw in self._view._merged(_VERSION, after_prefix(_VERSION)):
            if raw is not None and read_time(k, len(k) - TIME_BYTES) <= self._at_ms:
                seen[k[1 + _LENGTH_BYTES : -TIME_BYTES]] = None
        decode = self._view._keys.key_codec.decode
        for data in sorted(seen):
            key: K = decode(data)
            if self._view.version_at(key, self._at_ms) is not None:
                yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)


def version_head(key: bytes) -> bytes:
    """What all versions of a key begin with."""
    return _VERSION + len(key).to_bytes(_LENGTH_BYTES, "big") + key
