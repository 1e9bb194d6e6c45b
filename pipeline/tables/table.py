"""What a user function sees of a table. One rule: it behaves as a dict, in a test as in production.

`Table` is the declared type, `StoreView` what a table reads from, `TableSpec` what the definition says of it. The one
implementation is in `table_view`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    Sequence,
    ValuesView,
)
from copy import deepcopy
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Protocol, TypeVar, cast, runtime_checkable

from pipeline.errors import CodecError, PipelineError
from pipeline.tables import expiry
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.values.codecs import BytesCodec, Codec, FloatCodec, IntCodec, JsonCodec, StrCodec

K = TypeVar("K")
V = TypeVar("V")

_MISSING: Final[Any] = object()
# Values that cannot change in place; everything else is encoded again at the end of the call.
IMMUTABLE = frozenset({int, float, str, bytes, bool, type(None), datetime, date, time, timedelta, Decimal})

NUMBER_BYTES = 8  # of an int or a float
TIME_STEPS = 1_000  # in which the time of an expiring table passes its `expire`


class StoreView(Protocol):
    """What processing needs of a store: raw bytes, in key-byte order; `stop` is exclusive."""

    def get(self, key: bytes) -> bytes | None: ...

    def range(self, start: bytes | None, stop: bytes | None) -> Iterable[tuple[bytes, bytes]]: ...


@runtime_checkable
class ReadsMany(Protocol):
    """A store that is asked for many keys at once in less time than one by one."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, in order. Raises the store's error."""


class Table(MutableMapping[K, V]):
    """A dict of this task's keys, kept. Iteration, `len`, `range` and `prefix` are in the order of the key's bytes.

    `table[key]` gives the default for an absent key, if the table has one, without storing it; `get`, `in`, `pop` and
    `setdefault` never use it. Values changed in place are kept.
    """

    @abstractmethod
    def range(self, start: K | None = None, stop: K | None = None) -> Iterator[tuple[K, V]]:
        """Pairs with start <= key < stop by key bytes; None is open."""

    @abstractmethod
    def prefix(self, start: Any) -> Iterator[tuple[K, V]]:
        """Pairs whose str or bytes key begins with `start`, or whose tuple key begins with the parts of `start`."""

    def __reversed__(self) -> Iterator[K]:
        return reversed(list(self))

    def __repr__(self) -> str:
        return repr(self.copy())

    def pop(self, key: K, default: Any = _MISSING, /) -> Any:
        """Removes a key and returns its value, or the default. Raises KeyError."""
        if key not in self:
            self._let_go(key)
            if default is _MISSING:
                raise KeyError(key)
            return default
        value = self[key]
        del self[key]
        return value

    def setdefault(self, key: K, default: Any = None, /) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        for key in list(self):
            del self[key]
        for key in self._handed_out():
            self._let_go(key)

    def _handed_out(self) -> Sequence[K]:
        """The keys of defaults that the call has in its hands."""
        return ()

    def _let_go(self, key: K) -> None:
        """A default that was handed out for a key is no part of the table any more, as with a dict: what becomes of it counts
        nowhere."""

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def keys(self) -> KeysView[K]:
        return _Keys(self)

    def copy(self) -> dict[K, V]:
        """What this task holds, as a plain dict."""
        return dict(self.range())

    def __copy__(self) -> dict[K, V]:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[K, V]:
        return deepcopy(self.copy(), memo)  # never of the store

    def __or__(self, other: Mapping[K, V]) -> dict[K, V]:
        return {**self.copy(), **other}

    def __ror__(self, other: Mapping[K, V]) -> dict[K, V]:
        return {**other, **self.copy()}

    def __ior__(self, other: Mapping[K, V] | Iterable[tuple[K, V]]) -> Table[K, V]:
        self.update(other)
        return self


class _Keys(KeysView[K]):
    def __reversed__(self) -> Iterator[K]:
        return reversed(list(self))


class _Items(ItemsView[K, V]):
    """Pairs of a table in one pass over the store, not one look-up a key."""

    def __init__(self, table: Table[K, V]) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._table.range()

    def __contains__(self, item: object) -> bool:
        if not (isinstance(item, tuple) and len(item) == 2):
            return False
        key, value = cast("tuple[K, V]", item)
        return key in self._table and self._table[key] == value

    def __reversed__(self) -> Iterator[tuple[K, V]]:
        return reversed(list(self))


class _Values(ValuesView[V]):
    def __init__(self, table: Table[Any, V]) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._table.range())

    def __reversed__(self) -> Iterator[V]:
        return reversed(list(self))


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What a definition says about the bytes of a table."""

    name: str
    key_codec: Codec[Any]
    value_codec: Codec[Any]
    default: Callable[[], Any] | None = None
    expire_ms: int | None = None
    upgrade: Callable[[Any], Any] | None = None
    none_is_value: bool = False

    def constant(self, otherwise: Any) -> Any:
        """The default where it is one value for every key, as of `int`; a function of the user's may give another each time."""
        return self.default() if self.default in IMMUTABLE and self.default is not None else otherwise

    @property
    def time_step_ms(self) -> int:
        """How far the time of an expiring table moves at once for what takes batches: what expires within a step expires
        at its end, wherever a batch was cut."""
        return 1 if self.expire_ms is None else max(1, self.expire_ms // TIME_STEPS)

    def encode_key(self, key: Any) -> bytes:
        """Bytes of a key. Raises CodecError naming the table."""
        try:
            data = self.key_codec.encode(key)
        except CodecError as error:
            raise CodecError(f"key of table {self.name!r}: {error}") from None
        if data == STREAM_TIME_KEY and self.expire_ms is not None:
            raise CodecError(f"table {self.name!r}: the key {key!r} is reserved")
        return data

    def encode_value(self, value: Any) -> bytes:
        """Bytes of a value, without the time an expiring table puts before it. Raises CodecError naming the table."""
        if value is None and not self.none_is_value:
            raise CodecError(f"table {self.name!r}: None is not one of its values; use del, or declare the type | None")
        try:
            return self.value_codec.encode(value)
        except CodecError as error:
            raise CodecError(f"value of table {self.name!r}: {error}") from None

    def decode_value(self, data: bytes) -> Any:
        """The value; what the type cannot read goes through `upgrade` first. Raises CodecError naming the table."""
        try:
            if self.upgrade is None or not self._was_text(data):
                return self.value_codec.decode(data)
        except CodecError as error:
            if self.upgrade is None:
                raise CodecError(
                    f"table {self.name!r}: {error}; change the type back or give app.table(..., upgrade=function)"
                ) from None
        assert self.upgrade is not None
        value = self.upgrade(_plain(data))
        try:  # a Struct takes anything for its fields: what is none of its values would be stored, and sent on
            return self.value_codec.decode(self.value_codec.encode(value))
        except CodecError as error:
            raise CodecError(
                f"table {self.name!r}: upgrade= gave {value!r}, which is no value of it: {error}"
            ) from None

    def _was_text(self, data: bytes) -> bool:
        """Whether eight bytes that are a number are the JSON or the text of an earlier version: any eight bytes are a number, and
        those of numbers that apps have are no text (an int would be above 2e18)."""
        if len(data) != NUMBER_BYTES or not isinstance(self.value_codec, IntCodec | FloatCodec):
            return False
        if _plain(data) is not data:
            return True
        try:
            return isinstance(self.value_codec, IntCodec) and data.decode().isprintable()
        except UnicodeDecodeError:
            return False

    def live_value(self, raw: bytes | None, stream_ms: int) -> bytes | None:
        """The value's bytes out of stored bytes, or None where there is none or it has expired."""
        if raw is None or self.expire_ms is None:
            return raw
        return expiry.live_value(raw, self.expire_ms, stream_ms)

    def stored_value(self, data: bytes, stream_ms: int) -> bytes:
        """What is stored for the value's bytes: an expiring table puts the time of the write before them."""
        return data if self.expire_ms is None else expiry.stored(data, stream_ms)

    def prefix_bounds(self, start: Any) -> tuple[bytes, bytes | None, bool]:
        """First bytes, end (exclusive), and whether a `,` or `]` must follow (`[1` does not begin `[12]`).
        Raises PipelineError."""
        codec = self.key_codec
        if isinstance(codec, StrCodec | BytesCodec):
            first = self.encode_key(start)
            return first, after_prefix(first), False
        if not isinstance(codec, JsonCodec) or not codec.has_parts:
            raise PipelineError(f"table {self.name!r}: prefix() is for keys of str, bytes and tuple")
        parts = start if isinstance(start, tuple | list) else (start,)
        first = codec.encode_parts(parts)[:-1]
        return first, after_prefix(first), bool(parts)


def after_prefix(prefix: bytes) -> bytes | None:
    """The first bytes after everything that begins with `prefix`; None where there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def stored_stream_time(store: StoreView) -> int:
    """The stream time an expiring table has kept; -1 before any record."""
    return expiry.stream_time(store.get(STREAM_TIME_KEY))


def stored_pairs(spec: TableSpec, store: StoreView) -> Iterator[tuple[Any, Any]]:
    """Decoded pairs of a settled table in key-byte order, without what has expired: for the Driver and tools."""
    stream_ms = stored_stream_time(store) if spec.expire_ms is not None else -1
    for key, raw in store.range(None, None):
        if spec.expire_ms is not None and key == STREAM_TIME_KEY:
            continue
        data = spec.live_value(raw, stream_ms)
        if data is not None:
            yield spec.key_codec.decode(key), spec.decode_value(data)


def _plain(data: bytes) -> Any:
    """Old bytes for `upgrade`: plain data where they are JSON, else the bytes themselves."""
    try:
        return _PLAIN_JSON.decode(data)
    except CodecError:
        return data


_PLAIN_JSON = JsonCodec(Any)
