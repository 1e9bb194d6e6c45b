"""Bytes of keys and values. One rule: equal keys give equal bytes, and what was encoded can be decoded again.

bytes, str, int and float are written as Java's serializers write them (UTF-8, 8 bytes big endian); everything else
that msgspec can decode is JSON; anything else again is a `Codec` of the user's. `describe()` names (`bytes`, `str`,
`int`, `float`, `json`, `custom`) let tools without the app's code encode a key and show a value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Annotated, Any, Protocol, TypeVar, cast, get_args, get_origin, is_typeddict, runtime_checkable

import msgspec

from pipeline.errors import CodecError, DefinitionError
from pipeline.values.key_forms import KeyForms
from pipeline.values.no_numbers import NULL, has_numbers, no_number

T = TypeVar("T")
_LONG = struct.Struct(">q")
_DOUBLE = struct.Struct(">d")


@runtime_checkable
class Codec(Protocol[T]):
    """What a user brings for Avro, Protobuf or a schema registry: two pure functions."""

    def encode(self, value: T) -> bytes:
        """Ours raises CodecError for a value of another type."""
        ...

    def decode(self, data: bytes) -> T:
        """Ours raises CodecError for bytes that another type wrote."""
        ...


class BytesCodec:
    """bytes as they are."""

    def encode(self, value: bytes) -> bytes:
        if type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise CodecError(f"{_shown(value)} is not bytes")

    def decode(self, data: bytes) -> bytes:
        return data


class StrCodec:
    """UTF-8, as Java's StringSerializer."""

    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise CodecError(f"{_shown(value)} is not a str")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise CodecError(f"{_shown(value)} is not valid Unicode: {error.reason}") from None

    def decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise CodecError(f"{_shown(data)} is not a str: {error.reason} at byte {error.start}") from None


class IntCodec:
    """8 bytes, big endian, signed, as Java's LongSerializer."""

    def encode(self, value: int) -> bytes:
        try:
            return _LONG.pack(value)
        except struct.error:
            if isinstance(value, int):
                raise CodecError(f"{value} does not fit into the 8 bytes of an int (Java's long)") from None
            raise CodecError(f"{_shown(value)} is not an int") from None

    def decode(self, data: bytes) -> int:
        try:
            return cast(int, _LONG.unpack(data)[0])
        except struct.error:
            raise CodecError(f"{_shown(data)} is not an int: {len(data)} bytes, 8 are expected") from None


_QUICK_ENCODE: Mapping[type, Callable[[Any], bytes]] = {StrCodec: str.encode, IntCodec: _LONG.pack}
_QUICK_DECODE: Mapping[type, Callable[[bytes], Any]] = {StrCodec: bytes.decode}
QUICK_ERRORS = (CodecError, TypeError, UnicodeError, struct.error)


def quick_encode(codec: Codec[T]) -> Callable[[T], bytes]:
    """`codec.encode`, without a line of Python where there is such: the same bytes, and one of QUICK_ERRORS for what it does not
    take; who meets one asks the codec, which says why."""
    return _QUICK_ENCODE.get(type(codec), codec.encode)


def quick_decode(codec: Codec[T]) -> Callable[[bytes], T]:
    """`codec.decode` likewise."""
    return _QUICK_DECODE.get(type(codec), codec.decode)


def as_it_came(codec: Codec[Any]) -> bool:
    """Whether what `codec` decodes are the bytes themselves."""
    return type(codec) is BytesCodec


PACKED_INT = _LONG.pack  # the bytes of an int that fits
SAME_BYTES = (BytesCodec, StrCodec, IntCodec)  # what one of these has decoded it encodes to the same bytes


class FloatCodec:
    """8 bytes, big endian, as Java's DoubleSerializer. -0.0 becomes 0.0: they are one key of a dict."""

    def encode(self, value: float) -> bytes:
        if not isinstance(value, float | int):
            raise CodecError(f"{_shown(value)} is not a float")
        try:
            return _DOUBLE.pack(value + 0.0)
        except (struct.error, OverflowError):
            raise CodecError(f"{_shown(value)} does not fit into the 8 bytes of a float") from None

    def decode(self, data: bytes) -> float:
        try:
            return cast(float, _DOUBLE.unpack(data)[0])
        except struct.error:
            raise CodecError(f"{_shown(data)} is not a float: {len(data)} bytes, 8 are expected") from None


class JsonCodec:
    """Whatever msgspec decodes, as JSON. Sets are sorted, so that one value gives one text on every machine.

    A value must be of the declared type: checked by class where the type is a class, else by decoding it again
    (a value that cannot be read back must not reach the log). Fields inside a class are left to the type checker.
    """

    def __init__(self, type_: Any, *, key: bool = False) -> None:
        self.type = type_
        try:
            self.schema: dict[str, Any] = msgspec.json.schema(type_)
            self._decoder = msgspec.json.Decoder(type_)
        except KeyError as error:  # msgspec distinguishes types by their names
            raise DefinitionError(f"two types inside {type_name(type_)} are called {error}; rename one") from None
        except NameError as error:
            raise DefinitionError(
                f"{type_name(type_)}: {error}; a type that it names as text must be there, in its module, by now"
            ) from None
        except (TypeError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise DefinitionError(
                f"{type_name(type_)} cannot be decoded from JSON ({reason}); use a msgspec.Struct or dataclass, "
                "or give a Codec with encode and decode"
            ) from None
        # Dicts as values keep their order (they are the user's); sets have none to keep.
        order = "deterministic" if key or _has_set(self.schema) else None
        self._encoder = msgspec.json.Encoder(order=cast(Any, order))
        self._has_numbers = has_numbers(self.schema)
        forms = KeyForms(type_) if key else None
        self._forms = forms if forms is not None and forms.are_several else None
        self._class = type_ if isinstance(type_, type) and get_origin(type_) is None and not _plain(type_) else None

    def encode(self, value: Any) -> bytes:
        expected = self._class
        if expected is not None and not isinstance(value, expected):
            raise CodecError(f"{_shown(value)} is not a {type_name(self.type)}")
        try:
            data = self._encoder.encode(value)
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise CodecError(f"{_shown(value)} cannot be written as JSON: {error}") from None
        if self._has_numbers and NULL in data and (found := no_number(value)) is not None:
            raise CodecError(
                f"{_shown(value)} cannot be written as JSON: {found} is a number that JSON has none of; use None, or a text"
            )
        if expected is None or self._forms is not None:
            try:
                read = self._decoder.decode(data)
            except msgspec.MsgspecError as error:
                raise CodecError(f"{_shown(value)} is not a {type_name(self.type)}: {error}") from None
            if self._forms is not None:  # 1 for a float is 1.0: what a key is once it has been read
                return self._forms.encode(read)
        return data

    def encode_parts(self, parts: Any) -> bytes:
        """Some parts of a tuple key, unchecked: what whole keys that begin with them begin with. Raises CodecError."""
        try:
            data = self._encoder.encode(list(parts))
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise CodecError(f"{_shown(parts)} cannot be part of a key: {error}") from None
        if self._forms is None:
            return data
        types = get_args(self.type) if get_origin(self.type) is tuple else ()
        if Ellipsis in types:
            types = (types[0],) * len(parts)
        if len(parts) > len(types):
            return self._forms.encode(list(parts))
        with suppress(msgspec.MsgspecError):  # of another type: no key begins so
            return self._forms.encode(msgspec.json.decode(data, type=tuple[types[: len(parts)]]))  # type: ignore[misc]
        return data

    @property
    def has_parts(self) -> bool:
        """Whether its values can be arrays, as those of a tuple are."""
        return _can_be_array(self.schema, self.schema.get("$defs", {}))

    def decode(self, data: bytes) -> Any:
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # the latter for text that is not UTF-8
            text = _shortened(data.decode(errors="replace"))
            raise CodecError(f"{text} cannot be read as {type_name(self.type)}: {error}") from None


class OwnCodec:
    """A codec of the user's. What it gives must be bytes: anything else would be found where it is written, and who wrote it
    could no longer be said. Equal where the user's are the same."""

    decode: Callable[[bytes], Any]

    def __init__(self, of: Codec[Any]) -> None:
        self.of = of
        self.decode = of.decode

    def encode(self, value: Any) -> bytes:
        data: object = self.of.encode(value)
        if type(data) is bytes:
            return data
        if isinstance(data, bytes | bytearray | memoryview):
            return bytes(data)
        raise CodecError(f"encode() of {own_name(self)} gave {_shown(data)} for {_shown(value)}; it must give bytes")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnCodec) and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)


def own_name(codec: Codec[Any]) -> str:
    """The class of a codec as its author knows it."""
    return type(codec.of if isinstance(codec, OwnCodec) else codec).__name__


def codec_for(spec: Any, *, what: str, key: bool = False) -> Codec[Any]:
    """The codec of a declared type, or the user's own. Raises DefinitionError naming `what`."""
    if not isinstance(spec, type) and isinstance(spec, Codec):
        return spec if isinstance(spec, OURS) else OwnCodec(spec)
    try:
        spec = _named(spec)
        if key and _is_dict(spec):
            raise DefinitionError("a dict cannot be a key (its order is no part of it); use a frozen Struct or a tuple")
        native = _NATIVE.get(spec) if isinstance(spec, type) else None
        if native is not None:
            return native[1]
        if not _is_type(spec):
            raise DefinitionError(f"{spec!r} is neither a type nor a Codec with encode and decode")
        if isinstance(spec, type) and isinstance(spec, Codec) and not issubclass(spec, msgspec.Struct):
            raise DefinitionError(f"{spec.__name__} is a class; give an instance of the codec: {spec.__name__}()")
        return JsonCodec(spec, key=key)
    except DefinitionError as error:
        raise DefinitionError(f"{what}: {error}") from None


OURS = (BytesCodec, StrCodec, IntCodec, FloatCodec, JsonCodec, OwnCodec)


def codec_name(codec: Codec[Any]) -> str:
    """The name under which tools without code know a codec."""
    for name, native in _NATIVE.values():
        if codec is native:
            return name
    return "json" if isinstance(codec, JsonCodec) else "custom"


def encode_natural(value: Any) -> bytes:
    """The bytes of a part of a key: a topic keyed by that part's type would have the same. Raises CodecError."""
    for type_, (_, codec) in _NATIVE.items():
        if isinstance(value, type_) and not isinstance(value, bool):
            return codec.encode(value)
    try:
        return _ANY_FORMS.encode(value)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise CodecError(f"{_shown(value)} cannot be part of a key: {error}") from None


def type_name(type_: Any) -> str:
    """How a type is named in a message."""
    return (
        type_.__name__ if isinstance(type_, type) and get_origin(type_) is None else str(type_).replace("typing.", "")
    )


def hashable_values(type_: Any, inside: tuple[Any, ...] = ()) -> bool:
    """Whether values of the type can be keys of a dict; unknown types are trusted. `inside`: the classes around it."""
    origin = get_origin(type_) or type_
    if not isinstance(origin, type):
        return True
    if issubclass(origin, msgspec.Struct):
        config = origin.__struct_config__
        if not config.eq or not config.frozen:
            return not config.eq
        if origin.__hash__ is not msgspec.Struct.__hash__ or origin in inside:
            return True
        return all(hashable_values(one.type, (*inside, origin)) for one in msgspec.structs.fields(type_))
    return origin.__hash__ is not None and all(hashable_values(part, inside) for part in get_args(type_))


def _is_type(spec: Any) -> bool:
    return isinstance(spec, type) or spec is Any or spec is None or get_origin(spec) is not None or _union(spec)


def _union(spec: Any) -> bool:
    return hasattr(spec, "__args__")


def _named(spec: Any) -> Any:
    """The type that NewType("Account", str), `type Account = str` or Annotated[str, "of a customer"] names. Raises DefinitionError."""
    while True:
        if (name := _other_name(spec)) is not None:
            spec = getattr(spec, name)
        elif get_origin(spec) is Annotated and not any(map(_limits, spec.__metadata__)):
            spec = spec.__origin__
        else:
            break
    of = _named(spec.__origin__) if get_origin(spec) is Annotated else None
    if isinstance(of, type) and of in _NATIVE:
        raise DefinitionError(
            f"the limits of {type_name(spec)} are checked inside a Struct or a tuple alone; declare {of.__name__}"
        )
    return spec


def _limits(meta: Any) -> bool:
    """Whether what a type is annotated with limits its values, as msgspec.Meta(ge=0) does."""
    words = ("title", "description", "examples", "extra_json_schema", "extra")
    return isinstance(meta, msgspec.Meta) and any(
        value is not None for name, value in meta.__rich_repr__() if name not in words
    )


def _other_name(spec: Any) -> str | None:
    """Where another name of a type has that type: one of NewType, and of `type Account = str` (Python 3.12)."""
    if type(spec).__name__ == "TypeAliasType":
        return "__value__"
    return "__supertype__" if hasattr(spec, "__supertype__") else None


def _is_dict(spec: Any) -> bool:
    """A dict anywhere in a key: the type itself, or inside a tuple or union."""
    origin = get_origin(spec) or spec
    if is_typeddict(spec) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return True
    return any(_is_dict(part) for part in get_args(spec))


def _plain(type_: type) -> bool:
    """Types whose instances do not show what is inside (list, dict, Any's object): checked by decoding."""
    return type_ in {Any, list, dict, tuple, set, frozenset, object, type(None)} or is_typeddict(type_)


def _has_set(schema: Any) -> bool:
    if isinstance(schema, dict):
        return bool(schema.get("uniqueItems")) or any(_has_set(part) for part in schema.values())
    return isinstance(schema, list) and any(_has_set(part) for part in schema)


def _can_be_array(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> bool:
    if "$ref" in schema:
        return _can_be_array(parts[schema["$ref"].rpartition("/")[2]], parts)
    if "anyOf" in schema:
        return any(_can_be_array(one, parts) for one in schema["anyOf"])
    return schema.get("type", "array") == "array" and "enum" not in schema and "const" not in schema


def _shown(value: Any) -> str:
    return _shortened(repr(value))


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


_NATIVE: dict[Any, tuple[str, Codec[Any]]] = {
    bytes: ("bytes", BytesCodec()),
    str: ("str", StrCodec()),
    int: ("int", IntCodec()),
    float: ("float", FloatCodec()),
}
_ANY_FORMS = KeyForms(frozenset[Decimal])  # a part of a key was read by its type, whose numbers are not known here
