"""The one implementation of ColumnTable: arrays over the table of a task that every other processor uses, too.

One rule: what is stored is what `Table` would store, key by key: the same bytes, in the same changelog, refused for the
same reasons. Keys become bytes once a call: the array that was given to `get` is mostly given to `put` again. Many of them are
looked up, written and committed in the order of their bytes, which spares the store its own sorting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.columns import arrays
from pipeline.columns.arrow_types import codec_type
from pipeline.columns.murmur import partitions_of
from pipeline.columns.objects import taker
from pipeline.columns.orders import order_of
from pipeline.columns.public import ColumnTable
from pipeline.errors import CodecError
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.tables.many_keys import ManyKeys
from pipeline.tables.view import TableView
from pipeline.values.codecs import BytesCodec, IntCodec, StrCodec


class ColumnView(ColumnTable[Any, Any]):
    """Of one task. `owner`: where its keys are placed by their bytes, the number of partitions and the task's own."""

    def __init__(self, view: TableView[Any, Any], owner: tuple[int, int] | None) -> None:
        self._many = ManyKeys(view)
        self._spec = view.spec
        self._owner = owner if view.is_by_record_key else None
        self._name = f"table {view.spec.name!r}"
        self._type = codec_type(view.spec.value_codec)
        self._take = taker(view.spec.value_codec)
        self._is_int = type(view.spec.value_codec) is IntCodec and view.spec.upgrade is None
        self._last: Any = None  # the array of keys that came last, and its bytes
        self._last_array: Any = None  # the same as an array of binary, where the codec is str's or bytes'
        self._last_bytes: list[bytes] = []
        self._order: Any = None  # both of them are in this order of the array that came; None: as it came
        self._last_is_own = False

    def get(self, keys: Any) -> Any:
        data = self._keys(keys, "get")
        found = self._many.read(data, in_order=self._order is not None)
        default, read = self._spec.default, self._spec.decode_value
        by_arrays, none = self._is_int and default in (None, int), found.count(None)
        if by_arrays and none == len(found):  # as of keys that come once
            return pa.nulls(none, pa.int64()) if default is None else pa.array(np.zeros(none, np.int64))
        if self._order is not None and not by_arrays:
            # A default of the user's is asked for in the order of the keys that came.
            found = [found[place] for place in self._places().tolist()]
        absent = [place for place, one in enumerate(found) if one is None] if none else []
        if not self._is_int:
            return self._named(
                [(None if default is None else default()) if one is None else read(one) for one in found]
            )
        values = self._ints(found, absent)
        return values.take(pa.array(self._places())) if self._order is not None and by_arrays else values

    def put(self, keys: Any, values: Any) -> None:
        """See `ColumnTable.put`. Raises CodecError, WrongTask."""
        data = self._keys(keys, "put")
        self._check_own(data)
        listed = arrays.one_array(values, f"{self._name}: values of put()")
        if len(listed) != len(data):
            raise CodecError(f"{self._name}: put() was given {len(data)} keys and {len(listed)} values")
        self._many.write(data, self._in_order(listed))

    def delete(self, keys: Any) -> None:
        """See `ColumnTable.delete`. Raises CodecError, WrongTask."""
        data = self._keys(keys, "delete")
        self._check_own(data)
        self._many.delete(data)

    # ---- keys

    def _keys(self, keys: Any, verb: str) -> list[bytes]:
        """The bytes of the keys, in `_order`. Raises CodecError, PipelineError."""
        self._many.open()
        if keys is self._last and keys is not None:
            return self._last_bytes
        what = f"{self._name}: keys of {verb}()"
        array = arrays.one_array(keys, what)
        if array.null_count:
            raise CodecError(f"{what}: {array.null_count} of them are null, and null is no key")
        self._last, self._last_is_own, self._last_array, self._order = None, False, None, None
        if type(self._spec.key_codec) in (BytesCodec, StrCodec):
            array = arrays.fitted(self._spec.key_codec, array, what).cast(pa.binary())
            if (order := order_of(array)) is not None:
                array, self._order = array.take(pa.array(order)), order
            self._last_array = array
            self._last_bytes = arrays.bytes_of(array)
        else:
            self._last_bytes = arrays.encode(self._spec.key_codec, array, what)
        if self._spec.expire_ms is not None and STREAM_TIME_KEY in self._last_bytes:
            raise CodecError(f"{what}: one of them is reserved")
        self._last = keys
        return self._last_bytes

    def _check_own(self, keys: Sequence[bytes]) -> None:
        """Raises WrongTask where a key belongs to another task."""
        check = self._many.check_owner
        if check is None or self._last_is_own or not keys:
            return
        decode = self._spec.key_codec.decode
        if self._owner is None:
            for k in keys:
                check(decode(k), k)
        else:
            count, own = self._owner
            hashed = self._last_array if self._last_array is not None else pa.array(keys, pa.binary())
            wrong = np.flatnonzero(partitions_of(hashed, count) != own)
            if len(wrong):
                k = keys[int(wrong[0])]
                check(decode(k), k)
        self._last_is_own = True

    # ---- values

    def _places(self) -> Any:
        """Where each key of the array that came stands in `_order`."""
        places = np.empty(len(self._order), np.int64)
        places[self._order] = np.arange(len(self._order))
        return places

    def _in_order(self, values: pa.Array) -> list[bytes]:
        """The bytes of values that belong to the keys that came, in `_order`. Raises CodecError."""
        if self._order is None:
            return self._encoded(values)
        if pa.types.is_primitive(values.type):
            return self._encoded(values.take(pa.array(self._order)))
        encoded = self._encoded(values)
        return [encoded[place] for place in self._order.tolist()]

    def _ints(self, found: list[bytes | None], absent: list[int]) -> pa.Array:
        default = self._spec.default
        if absent:
            filled: list[Any] = list(found)
            constant = bytes(8) if default is None else self._spec.encode_value(default()) if default is int else None
            for place in absent:
                filled[place] = constant or self._spec.encode_value(default())  # type: ignore[misc]
            found = filled
        data = b"".join(found)  # type: ignore[arg-type]
        if len(data) != 8 * len(found) or (set(map(len, found)) - {8}):  # type: ignore[arg-type]
            for one in found:
                self._spec.decode_value(one)  # type: ignore[arg-type]  # raises
        values = np.frombuffer(data, ">i8").astype("<i8")
        if not absent or default is not None:
            return pa.array(values)
        mask = np.zeros(len(found), bool)
        mask[absent] = True
        return pa.array(values, mask=mask)

    def _named(self, values: list[Any]) -> pa.Array:
        try:
            return arrays.array_of(values, self._type, self._take)
        except CodecError as error:
            raise CodecError(f"{self._name}: its values {error}") from None

    def _encoded(self, values: pa.Array) -> list[bytes]:
        what = f"{self._name}: values of put()"
        if not values.null_count:
            return arrays.encode(self._spec.value_codec, values, what)
        if not self._spec.none_is_value:
            raise CodecError(
                f"{what}: {values.null_count} of them are null, and None is not one of its values; use delete(), or declare "
                "the type | None"
            )
        there = arrays.encode(self._spec.value_codec, values.drop_null(), what)
        rest, none = iter(there), self._spec.encode_value(None)
        return [next(rest) if is_there else none for is_there in values.is_valid().to_pylist()]
