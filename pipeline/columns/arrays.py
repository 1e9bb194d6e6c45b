"""Bytes of keys and values to Arrow arrays and back. One rule: the bytes are those that the codec writes, value by value.

str, bytes, int and float go in one piece, without an object for a value; every other codec is asked for each value.
Raises CodecError where a value cannot be read, written, or be one of an Arrow column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from pipeline.columns.arrow_types import codec_type
from pipeline.errors import CodecError
from pipeline.values.codecs import BytesCodec, Codec, FloatCodec, IntCodec, JsonCodec, StrCodec

_KEPT = (bytes, datetime, date, time, timedelta)  # what Arrow takes as it is
_AS_THEY_ARE = frozenset({*_KEPT, int, float, bool, str, type(None)})
_WIDTH = 8
_EIGHT: dict[type, tuple[Any, Any]] = {IntCodec: (">i8", "<i8"), FloatCodec: (">f8", "<f8")}


def decode(codec: Codec[Any], data: pa.Array) -> pa.Array:
    """The values of an array of bytes; null stays null. Raises CodecError."""
    if type(codec) is BytesCodec:
        return data
    if type(codec) is StrCodec:
        return as_str(data)
    if type(codec) in _EIGHT:
        return _eight(codec, data)
    return array_of(decoded_objects(codec, data), codec_type(codec))


def decoded_objects(codec: Codec[Any], data: pa.Array) -> list[Any]:
    """The values as the codec reads them, one by one. Raises what the codec raises."""
    read = codec.decode
    return [None if one is None else read(one) for one in data.to_pylist()]


def as_str(data: pa.Array) -> pa.Array:
    """Raises CodecError where bytes are no UTF-8."""
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CodecError(f"not a str: {error}") from None


def _eight(codec: Codec[Any], data: pa.Array) -> pa.Array:
    stored, native = _EIGHT[type(codec)]
    nulls = data.is_null() if data.null_count else None
    if nulls is not None:
        data = data.fill_null(bytes(_WIDTH))
    offsets = np.frombuffer(data.buffers()[1], np.int32, len(data) + 1, data.offset * 4)
    if (np.diff(offsets) != _WIDTH).any():
        wrong = next(one for one in data.to_pylist() if len(one) != _WIDTH)
        codec.decode(wrong)  # raises
    found = np.frombuffer(data.buffers()[2], stored, len(data), int(offsets[0])) if len(data) else np.empty(0, stored)
    return pa.array(found.astype(native), mask=None if nulls is None else nulls.to_numpy(zero_copy_only=False))


def array_of(values: Sequence[Any], type_: Any) -> pa.Array:
    """Objects as an array of a type; None: of the type that they have. Raises CodecError."""
    try:
        return pa.array([one if type(one) in _AS_THEY_ARE else _plain(one) for one in values], type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        what = "an Arrow column" if type_ is None else f"a column of {type_}"
        raise CodecError(f"cannot be {what}: {error}") from None


def _plain(value: Any) -> Any:
    """Structs and the like as dicts, whose maps Arrow takes as pairs."""
    return msgspec.to_builtins(value, builtin_types=_KEPT)


def encode(codec: Codec[Any], array: pa.Array, what: str) -> list[bytes]:
    """The bytes of each value of an array without nulls. `what` names the column in a message. Raises CodecError."""
    fitting = fitted(codec, array, what)
    if type(codec) in _EIGHT:
        stored, _ = _EIGHT[type(codec)]
        found = fitting.to_numpy(zero_copy_only=False)
        if type(codec) is FloatCodec:
            found = found + 0.0  # -0.0 is 0.0
        return found.astype(stored).view(f"V{_WIDTH}").tolist()  # type: ignore[no-any-return]
    if type(codec) in (BytesCodec, StrCodec):
        return bytes_of(fitting)
    write, made = codec.encode, _maker(codec, array.type)
    try:
        return [write(made(one)) for one in fitting.to_pylist()]
    except (CodecError, msgspec.MsgspecError) as error:
        raise CodecError(f"{what}: {error}") from None


def bytes_of(array: pa.Array) -> list[bytes]:
    """The bytes of an array of str or bytes without nulls."""
    return array.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def fitted(codec: Codec[Any], array: pa.Array, what: str) -> pa.Array:
    """The array in the type of the codec's column, where it loses nothing by that. Raises CodecError."""
    wanted, given = codec_type(codec), array.type
    if wanted is None or given == wanted:
        return array
    if not _fits(given, wanted):
        raise CodecError(f"{what}: an array of {given} is none of {wanted}; cast it (pyarrow.compute.cast) to {wanted}")
    if (more := _more(given, wanted)) is not None:
        raise CodecError(
            f"{what}: its structs have a field {more!r}, which their type has not, so it would be lost; leave it out, or give the type such a field"
        )
    if _lacks(given, wanted):
        return array  # what the class has for a field that is not given is not null
    try:
        return array.cast(wanted)
    except pa.ArrowException as error:
        raise CodecError(f"{what}: an array of {given} cannot be one of {wanted}: {error}") from None


def _fits(given: Any, wanted: Any) -> bool:
    kind = pa.types
    if kind.is_null(given):
        return True
    if kind.is_dictionary(given):
        return _fits(given.value_type, wanted) or given.value_type == wanted
    if kind.is_int64(wanted):
        return bool(kind.is_integer(given))
    if kind.is_float64(wanted):
        return bool(kind.is_floating(given) or kind.is_integer(given))
    if kind.is_string(wanted):
        return bool(kind.is_large_string(given) or kind.is_string(given))
    if kind.is_binary(wanted):
        return bool(kind.is_large_binary(given) or kind.is_fixed_size_binary(given) or kind.is_binary(given))
    return not kind.is_primitive(wanted) or kind.is_temporal(wanted)


def _lacks(given: Any, wanted: Any) -> bool:
    """Whether a struct, or one inside, has not all of its fields."""
    if pa.types.is_struct(wanted) and pa.types.is_struct(given):
        types = {field.name: field.type for field in given}
        return any(one.name not in types or _lacks(types[one.name], one.type) for one in wanted)
    if pa.types.is_list(wanted) and (pa.types.is_list(given) or pa.types.is_large_list(given)):
        return _lacks(given.value_type, wanted.value_type)
    return False


def _more(given: Any, wanted: Any) -> str | None:
    """The first field that a struct, or one inside, has and its type has not: Arrow would leave it out."""
    kind = pa.types
    if kind.is_struct(wanted) and kind.is_struct(given):
        types = {field.name: field.type for field in wanted}
        found = (one.name if one.name not in types else _more(one.type, types[one.name]) for one in given)
        return next((name for name in found if name is not None), None)
    if kind.is_list(wanted) and (kind.is_list(given) or kind.is_large_list(given) or kind.is_fixed_size_list(given)):
        return _more(given.value_type, wanted.value_type)
    return _more(given.item_type, wanted.item_type) if kind.is_map(wanted) and kind.is_map(given) else None


def _maker(codec: Codec[Any], given: Any) -> Callable[[Any], Any]:
    """What makes a value for the codec out of what Arrow gives."""
    if not isinstance(codec, JsonCodec):
        return lambda value: value
    type_ = codec.type
    if pa.types.is_map(given):
        return lambda value: msgspec.convert(dict(value), type_)
    return lambda value: msgspec.convert(value, type_, builtin_types=_KEPT)


def one_array(given: Any, what: str) -> pa.Array:
    """An array in one piece. Raises CodecError where it is none."""
    if isinstance(given, pa.ChunkedArray):
        return given.chunk(0) if given.num_chunks == 1 else given.combine_chunks()
    if isinstance(given, pa.Array):
        return given
    kind = type(given).__name__
    raise CodecError(f"{what}: takes a pyarrow Array or ChunkedArray, not {kind}; make one with pa.array()")
