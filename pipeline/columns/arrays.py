"""Bytes of keys and values to Arrow arrays and back. One rule: the bytes are those that the codec writes, value by value.

str, bytes, int and float go in one piece, without an object for a value; every other codec is asked for each value.
Raises CodecError where a value cannot be read, written, or be one of an Arrow column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import msgspec.inspect as kinds
import numpy as np
import pyarrow as pa

from pipeline.columns.arrow_types import codec_type
from pipeline.columns.declared import without_none
from pipeline.columns.objects import AS_THEY_ARE, KEPT, Take, dicts_in, plain, taker
from pipeline.errors import CodecError
from pipeline.values.codecs import BytesCodec, Codec, FloatCodec, IntCodec, JsonCodec, StrCodec

_WIDTH = 8
_EIGHT: dict[type, tuple[Any, Any]] = {IntCodec: (">i8", "<i8"), FloatCodec: (">f8", "<f8")}


def decode(codec: Codec[Any], data: pa.Array, take: Take | None = None) -> pa.Array:
    """The values of an array of bytes; null stays null. `take`: `taker(codec)`, where that is known. Raises CodecError."""
    if type(codec) is BytesCodec:
        return data
    if type(codec) is StrCodec:
        return as_str(data)
    if type(codec) in _EIGHT:
        return _eight(codec, data)
    return array_of(decoded_objects(codec, data), codec_type(codec), take or taker(codec))


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


def array_of(values: Sequence[Any], type_: Any, take: Take = plain) -> pa.Array:
    """Objects, which `take` makes what Arrow takes, as an array of a type; None: of the type that they have. Raises CodecError."""
    try:
        return pa.array([one if type(one) in AS_THEY_ARE else take(one) for one in values], type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        what = "an Arrow column" if type_ is None else f"a column of {type_}"
        raise CodecError(f"cannot be {what}: {error}") from None


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
    if not _fits(given, wanted) and not _fits(_decimals_as_text(given, _kind(codec)), wanted):
        units = (
            ', by way of its unit: pa.timestamp("ms", "UTC") for timestamp_ms'
            if _is_time_of_numbers(given, wanted)
            else ""
        )
        raise CodecError(
            f"{what}: an array of {given} is none of {wanted}; cast it (pyarrow.compute.cast) to {wanted}{units}"
        )
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
    """Whether an array is of a type's kind, in all of its parts: Arrow would also make times of numbers, and numbers of text."""
    kind = pa.types
    if kind.is_null(given) or given == wanted:
        return True
    if kind.is_dictionary(given):
        return _fits(given.value_type, wanted)
    if kind.is_struct(wanted):
        types = {field.name: field.type for field in wanted}
        return bool(kind.is_struct(given)) and all(_fits(one.type, types.get(one.name, one.type)) for one in given)
    if kind.is_map(wanted):
        is_same = kind.is_map(given)
        return bool(is_same and _fits(given.key_type, wanted.key_type) and _fits(given.item_type, wanted.item_type))
    if kind.is_list(wanted):
        return _is_list(given) and _fits(given.value_type, wanted.value_type)
    return any(is_wanted(wanted) and any(is_given(given) for is_given in found) for is_wanted, found in _FITTING)


_FITTING: Sequence[tuple[Callable[[Any], bool], Sequence[Callable[[Any], bool]]]] = (
    (pa.types.is_int64, (pa.types.is_integer,)),
    (pa.types.is_float64, (pa.types.is_floating, pa.types.is_integer)),
    (pa.types.is_string, (pa.types.is_large_string, pa.types.is_string_view)),
    (pa.types.is_binary, (pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)),
    (pa.types.is_timestamp, (pa.types.is_timestamp, pa.types.is_date)),
    (pa.types.is_date, (pa.types.is_date,)),
    (pa.types.is_time, (pa.types.is_time,)),
    (pa.types.is_duration, (pa.types.is_duration,)),
)


def _kind(codec: Codec[Any]) -> kinds.Type:
    return kinds.type_info(codec.type) if isinstance(codec, JsonCodec) else kinds.AnyType()


def _decimals_as_text(given: Any, kind: kinds.Type) -> Any:
    """The type with text where it has decimals and a Decimal is declared: a column of those has their text, which says the same."""
    kind = without_none(kind)
    if isinstance(kind, kinds.DecimalType):
        return pa.string() if pa.types.is_decimal(given) else given
    if pa.types.is_struct(given) and hasattr(kind, "fields"):
        declared = {field.encode_name: field.type for field in kind.fields}
        return pa.struct(
            [(one.name, _decimals_as_text(one.type, declared.get(one.name, kinds.AnyType()))) for one in given]
        )
    if _is_list(given) and hasattr(kind, "item_type"):
        return pa.list_(_decimals_as_text(given.value_type, kind.item_type))
    if pa.types.is_map(given) and isinstance(kind, kinds.DictType):
        return pa.map_(given.key_type, _decimals_as_text(given.item_type, kind.value_type))
    return given


def _is_time_of_numbers(given: Any, wanted: Any) -> bool:
    return bool(pa.types.is_timestamp(wanted) and pa.types.is_integer(given))


def _is_list(given: Any) -> bool:
    kind = pa.types
    return bool(kind.is_list(given) or kind.is_large_list(given) or kind.is_fixed_size_list(given))


def _lacks(given: Any, wanted: Any) -> bool:
    """Whether a struct, or one inside, has not all of its fields."""
    if pa.types.is_struct(wanted) and pa.types.is_struct(given):
        types = {field.name: field.type for field in given}
        return any(one.name not in types or _lacks(types[one.name], one.type) for one in wanted)
    if pa.types.is_list(wanted) and _is_list(given):
        return _lacks(given.value_type, wanted.value_type)
    return False


def _more(given: Any, wanted: Any) -> str | None:
    """The first field that a struct, or one inside, has and its type has not: Arrow would leave it out."""
    kind = pa.types
    if kind.is_struct(wanted) and kind.is_struct(given):
        types = {field.name: field.type for field in wanted}
        found = (one.name if one.name not in types else _more(one.type, types[one.name]) for one in given)
        return next((name for name in found if name is not None), None)
    if kind.is_list(wanted) and _is_list(given):
        return _more(given.value_type, wanted.value_type)
    return _more(given.item_type, wanted.item_type) if kind.is_map(wanted) and kind.is_map(given) else None


def _maker(codec: Codec[Any], given: Any) -> Callable[[Any], Any]:
    """What makes a value for the codec out of what Arrow gives."""
    dicts = dicts_in(given) or _same
    if not isinstance(codec, JsonCodec):
        return dicts
    type_ = codec.type
    return lambda value: msgspec.convert(dicts(value), type_, builtin_types=KEPT)


def _same(value: Any) -> Any:
    return value


def one_array(given: Any, what: str) -> pa.Array:
    """An array in one piece, whose nulls are its own: a dictionary may have one that counts as none. Raises CodecError where
    it is none."""
    if isinstance(given, pa.ChunkedArray):
        given = given.chunk(0) if given.num_chunks == 1 else given.combine_chunks()
    if isinstance(given, pa.DictionaryArray):
        return given.dictionary_decode()
    if isinstance(given, pa.Array):
        return given
    kind = type(given).__name__
    raise CodecError(f"{what}: takes a pyarrow Array or ChunkedArray, not {kind}; make one with pa.array()")
