"""The one implementation of Table: a store, what was written since, and what one call has in its hands.

One rule: nothing of a call counts before the call has ended well; `changes()` says what it would write (and may
raise), `apply()` makes it count, `forget()` drops it. Between the store and the call lie the writes of earlier calls
(`pipeline.tables.write_layers`): `take()` hands them out, and they stay visible until `settle()` says that the store has them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import Any, Final, TypeVar, cast

from pipeline.errors import CodecError
from pipeline.tables.call_number import NOBODY, check, current
from pipeline.tables.expiry import STREAM_TIME_KEY, stored_time
from pipeline.tables.sweep import Sweep
from pipeline.tables.table import IMMUTABLE, StoreView, Table, TableSpec, stored_stream_time
from pipeline.tables.write_layers import WriteLayers
from pipeline.values.codecs import QUICK_ERRORS, quick_encode

K = TypeVar("K")
V = TypeVar("V")

MISSING: Final[Any] = object()
DELETED: Final[Any] = object()
_OWNED_KEYS = 10_000


class TableView(Table[K, V]):
    """See the module. `check_owner(key, key_bytes)` raises WrongTask; None where a task may write any key.
    `is_by_record_key`: a key belongs where the record of that key does, so those of a call's records need no check."""

    def __init__(
        self,
        spec: TableSpec,
        store: StoreView,
        check_owner: Callable[[Any, bytes], None] | None = None,
        *,
        is_by_record_key: bool = False,
    ) -> None:
        self.spec = spec
        self.closed = False  # True between calls, and while one is under way that may wait: `call` has its number then
        self.call = NOBODY
        self.fault: Exception | None = None  # the store failed: never the user's fault, whatever they catch
        self.stream_ms = -1
        self._store = store
        self._check_owner = check_owner
        self.is_by_record_key = is_by_record_key
        self.record_keys: Collection[bytes | None] = ()  # of the call's records: they belong to this task
        self._encode = quick_encode(spec.value_codec)
        self._encode_key = quick_encode(spec.key_codec) if spec.expire_ms is None else spec.encode_key
        self._decode = spec.value_codec.decode if spec.upgrade is None else spec.decode_value
        self._live: dict[bytes, Any] = {}  # handed out or set in this call
        self._set: dict[bytes, bytes | None] = {}  # set or deleted in this call; bytes where already encoded
        self._defaults: dict[bytes, tuple[K, bytes]] = {}  # mutable defaults handed out, and how they were
        self.layers = WriteLayers()
        self._known = self.layers.known
        self._owned: dict[bytes, None] = {}
        self._last_key: Any = MISSING
        self._last_bytes = b""
        self._constant = spec.constant(MISSING)
        self._forever = spec.expire_ms is None
        self._is_direct = self._forever  # what is stored is the value, and what is known of it is all there is to ask
        self._is_plain = self._is_direct and type(self) is TableView  # besides, no other kind has ways of its own
        self._version = 0
        self._iterating = 0
        if spec.expire_ms is not None:
            self.stream_ms = self._kept_stream_ms = stored_stream_time(store)
            self._sweep = Sweep(spec.expire_ms)

    @property
    def argument(self) -> Any:
        """What the function gets."""
        return self

    # a dict

    def __getitem__(self, key: K) -> V:
        k = self._last_bytes if key is self._last_key and self._is_direct and not self.closed else self._key(key)
        value = self._live.get(k, MISSING) if self._live else MISSING
        if value is MISSING:
            data = self._known.get(k, MISSING) if self._is_direct else MISSING
            if data is MISSING:
                if self._is_plain:  # as _read
                    try:
                        data = self._known[k] = self._store.get(k)
                    except Exception as error:
                        self.fault = error
                        raise
                else:
                    data = self._current(k)
            if data is not None:
                return self._hand_out(k, data)
        elif value is not DELETED:
            return cast(V, value)
        return self._default(key, k) if self._constant is MISSING else cast(V, self._constant)

    def __setitem__(self, key: K, value: V) -> None:
        k = self._last_bytes if key is self._last_key and self._is_direct and not self.closed else self._key(key)
        encoded = None
        if type(value) in IMMUTABLE:
            try:
                encoded = self.spec.encode_value(None) if value is None else self._encode(value)
            except QUICK_ERRORS:
                encoded = self.spec.encode_value(value)  # again, with the name of the table
        if self._check_owner is not None and k not in self.record_keys:
            self._own(key, k)
        if self._iterating and not self._present(k):
            self._version += 1
        self._live[k] = value
        self._set[k] = encoded
        if self._defaults:
            self._defaults.pop(k, None)

    def __delitem__(self, key: K) -> None:
        k = self._key(key)
        if not self._present(k):
            self._let_go(key)
            raise KeyError(key)
        self._own(key, k)
        self._version += 1
        self._live[k] = DELETED
        self._set[k] = None
        self._defaults.pop(k, None)

    def _handed_out(self) -> list[K]:
        return [key for key, _ in self._defaults.values()]

    def _let_go(self, key: K) -> None:
        k = self._key(key)
        found = self._defaults.get(k)
        if found is None or self.spec.encode_value(self._live[k]) != found[1]:
            return  # changed: where the key may not be written, as of a closed window, the end of the call says so
        del self._defaults[k], self._live[k]
        if k in self._set:
            self._live[k] = DELETED  # it was stored, and deleted by the call

    def __contains__(self, key: object) -> bool:
        return self._present(self._key(key))

    def __iter__(self) -> Iterator[K]:
        decode = self.spec.key_codec.decode
        for k, _ in self._present_pairs(None, None):
            yield decode(k)

    def __len__(self) -> int:
        return sum(1 for _ in self._present_pairs(None, None))

    def __bool__(self) -> bool:
        return any(True for _ in self._present_pairs(None, None))

    def get(self, key: K, default: Any = None, /) -> Any:
        k = self._key(key)
        if not self._present(k):
            return default
        value = self._live.get(k, MISSING)
        return self._hand_out(k, cast(bytes, self._current(k))) if value is MISSING else value

    def popitem(self) -> tuple[K, V]:
        """Removes the last pair in key-byte order. Raises KeyError."""
        keys = list(self)
        if not keys:
            raise KeyError(f"table {self.spec.name!r} is empty in this task")
        return keys[-1], self.pop(keys[-1])

    def range(self, start: K | None = None, stop: K | None = None) -> Iterator[tuple[K, V]]:
        first = None if start is None else self._key(start)
        last = None if stop is None else self._key(stop)
        return self._pairs(first, last)

    def prefix(self, start: Any) -> Iterator[tuple[K, V]]:
        first, end, bounded = self.spec.prefix_bounds(start)
        return self._pairs(first, end, len(first) if bounded else None)

    # one call

    def changes(self) -> dict[bytes, bytes | None]:
        """What this call writes: every difference between what it holds and what is stored."""
        if self._is_plain and len(self._set) == len(self._live) and not self._defaults:
            known = self._known
            if None not in self._set.values():  # values that cannot change in place, and no deletion
                same = [k for k, data in self._set.items() if data == (known[k] if k in known else self._stored(k))]
                if not same:
                    return self._set  # until `forget`
                changed = self._set.copy()  # in less time than as many entries one by one
                for k in same:
                    del changed[k]
                return changed
        result: dict[bytes, bytes | None] = {}
        for k, value in self._live.items():
            if self._is_direct and (data := self._set.get(k)) is not None:  # what most calls write
                stored = self._known.get(k, MISSING)
                if data != (self._stored(k) if stored is MISSING else stored):
                    result[k] = data
            elif value is DELETED:
                if self._stored(k) is not None:
                    result[k] = None
            elif k in self._defaults:
                self._default_changes(k, value, result)
            elif k in self._set:
                data = self._set[k]
                encoded = self.spec.encode_value(value) if data is None else data
                stored = encoded if self._forever else self.spec.stored_value(encoded, self.stream_ms)
                if stored != self._stored(k):
                    result[k] = stored
            else:
                encoded, current = self.spec.encode_value(value), self._current(k)
                if encoded != current and not self._same_value(encoded, current):
                    result[k] = self.spec.stored_value(encoded, self.stream_ms)
        return result

    @property
    def is_touched(self) -> bool:
        """Whether the call holds a value that it may have changed."""
        return bool(self._live)

    def apply(self, changes: dict[bytes, bytes | None], timestamp_ms: int) -> None:
        """The call has ended well: its changes count."""
        if changes:
            self.layers.put(changes, timestamp_ms)
        self.forget()

    def keep_alone(self, timestamp_ms: int) -> None:
        """The call, which has no other table, has ended well. Raises the store's error where a store failed."""
        if self.fault is not None:
            raise self.fault
        if self._live and not self.keep_one(timestamp_ms):
            self.apply(self.changes(), timestamp_ms)

    def keep_one(self, timestamp_ms: int) -> bool:
        """Whether the call has only set one key to a value that cannot change in place, as most calls do: then it counts, as
        with `changes` and `apply`."""
        if len(self._live) != 1 or not self._is_plain or self.fault is not None:
            return False
        (k,) = self._live
        data = self._set.get(k)
        if data is None:
            return False
        stored = self._known.get(k, MISSING)
        if data != (self._stored(k) if stored is MISSING else stored):
            self.layers.put_one(k, data, timestamp_ms)
        self._live.clear()
        self._set.clear()
        return True

    def forget(self) -> None:
        """The next call begins with nothing in its hands."""
        if self._live:
            self._live.clear()
            self._set.clear()
            self._defaults.clear()

    # between calls

    def collect(self, stream_ms: int) -> tuple[dict[bytes, bytes | None], int]:
        """The writes since the last take (see WriteLayers), and the time they carry. `stream_ms` is the stream time of
        the completed records: what it expires goes."""
        if self.spec.expire_ms is not None and stream_ms > self._kept_stream_ms:
            # Nothing goes that a batch, whose time moves in steps, could still see.
            swept = self._sweep.expired(self._merged, stream_ms - stream_ms % self.spec.time_step_ms)
            self.layers.remember_deleted(swept)
            self._kept_stream_ms = stream_ms
            self.layers.remember(STREAM_TIME_KEY, stored_time(stream_ms))
        return self.layers.collect()

    def mark_applied(self) -> None:
        """The store has the writes of the oldest take that was not settled yet."""
        self.layers.mark_applied()
        if len(self._owned) > _OWNED_KEYS:
            self._owned.clear()

    # inside

    def _key(self, key: Any) -> bytes:
        if self.closed and self.call != current():
            check(self.call, "table", self.spec.name)
        if key is self._last_key:  # a function mostly uses one key several times
            return self._last_bytes
        try:
            k = self._encode_key(key)
        except QUICK_ERRORS:
            k = self.spec.encode_key(key)  # again, with the name of the table
        if type(key) in IMMUTABLE:
            self._last_key, self._last_bytes = key, k
        return k

    def expect(self, key: Any, k: bytes | None) -> None:
        """The next call will mostly use this key, whose bytes are known. Of a type that cannot change in place."""
        if k is not None and (self._forever or k != STREAM_TIME_KEY):  # which is refused where it is used
            self._last_key, self._last_bytes = key, k

    def _own(self, key: K, k: bytes) -> None:
        if self._check_owner is not None and k not in self.record_keys and k not in self._owned:
            self._check_owner(key, k)
            self._owned[k] = None

    def _encoded(self, value: Any) -> bytes:
        """Raises CodecError naming the table."""
        if value is not None:
            try:
                return self._encode(value)
            except QUICK_ERRORS:
                pass  # again, with the name of the table
        return self.spec.encode_value(value)

    def _stored(self, k: bytes) -> bytes | None:
        raw = self._known.get(k, MISSING)
        return self._read(k) if raw is MISSING else cast("bytes | None", raw)

    def _read(self, k: bytes) -> bytes | None:
        """Of a key that is not known."""
        try:
            raw = self._known[k] = self._store.get(k)
        except Exception as error:
            self.fault = error
            raise
        return raw

    def _current(self, k: bytes) -> bytes | None:
        raw = self._known.get(k, MISSING)
        if raw is MISSING:
            raw = self._stored(k)
        return raw if self._forever else self.spec.live_value(raw, self.stream_ms)

    def _present(self, k: bytes) -> bool:
        value = self._live.get(k, MISSING)
        if value is MISSING:
            return self._current(k) is not None
        given = self._defaults.get(k)
        return value is not DELETED and (given is None or self.spec.encode_value(value) != given[1])

    def _default(self, key: K, k: bytes) -> V:
        if self.spec.default is None:
            raise KeyError(key)
        value = self.spec.default()
        if type(value) not in IMMUTABLE:
            self._defaults[k] = (key, self.spec.encode_value(value))
            self._live[k] = value
        return cast(V, value)

    def _hand_out(self, k: bytes, data: bytes) -> V:
        try:
            value = self._decode(data)
        except CodecError:
            value = self.spec.decode_value(data)
        if type(value) not in IMMUTABLE:
            self._live[k] = value
        return cast(V, value)

    def _default_changes(self, k: bytes, value: Any, result: dict[bytes, bytes | None]) -> None:
        key, as_given = self._defaults[k]
        encoded = self.spec.encode_value(value)
        stored = self._stored(k) if k in self._set else None  # windows go by it: what is written was read
        if encoded != as_given:
            self._own(key, k)
            result[k] = self.spec.stored_value(encoded, self.stream_ms)
        elif stored is not None:
            result[k] = None  # deleted first; the default that came after was only read

    def _same_value(self, encoded: bytes, current: bytes | None) -> bool:
        """An older version's bytes of the same value differ; having read it is no reason to write it."""
        return current is not None and encoded == self.spec.encode_value(self.spec.decode_value(current))

    def _pairs(self, start: bytes | None, stop: bytes | None, bounded: int | None = None) -> Iterator[tuple[K, V]]:
        decode = self.spec.key_codec.decode
        for k, data in self._present_pairs(start, stop):
            if bounded is not None and k[bounded : bounded + 1] not in (b",", b"]"):
                continue
            value = self._live.get(k, MISSING)
            yield decode(k), self._hand_out(k, cast(bytes, data)) if value is MISSING else value

    def _present_pairs(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys present in key-byte order, with the value's bytes where the call does not hold the value itself."""
        if self.closed and self.call != current():
            check(self.call, "table", self.spec.name)
        version = self._version
        self._iterating += 1
        try:
            for k, raw in self._merged(start, stop):
                if k in self._live:
                    data = None
                    if not self._present(k):
                        continue
                else:
                    data = self.spec.live_value(raw, self.stream_ms)
                    if data is None or (k == STREAM_TIME_KEY and self.spec.expire_ms is not None):
                        continue
                yield k, data
                if self._version != version:
                    raise RuntimeError(
                        f"table {self.spec.name!r} changed size during iteration; iterate over list(...) of it"
                    )
        finally:
            self._iterating -= 1

    def _merged(self, start: bytes | None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes | None]]:
        """Store and later writes, each key once, in order."""
        later: dict[bytes, bytes | None] = {}
        for k in chain(self.layers.keys(), self._live):
            if (start is None or k >= start) and (stop is None or k < stop):
                later[k] = self._known.get(k)
        waiting = sorted(later)
        waiting.reverse()
        try:
            for k, raw in self._store.range(start, stop):
                while waiting and waiting[-1] < k:
                    first = waiting.pop()
                    yield first, later[first]
                if waiting and waiting[-1] == k:
                    waiting.pop()
                    yield k, later[k] if k in self._known else raw
                else:
                    yield k, raw
        except Exception as error:
            self.fault = error
            raise
        while waiting:
            first = waiting.pop()
            yield first, later[first]
