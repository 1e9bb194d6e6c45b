"""Keys and values between JSON and bytes. One rule: only the codec's name is needed, and of typed keys
the schema.

Works from the description kept in the log, so tools need no code of the app. Bytes that are no text, and those of `custom`
codecs, are shown as {"base64": "..."}, and read as that.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from pipeline.errors import CodecError
from pipeline.values.codecs import FloatCodec
from pipeline.values.key_schemas import key_bytes


def to_bytes(codec: str, value: Any) -> bytes:
    """A JSON value as the codec of that name writes it. Raises CodecError."""
    if codec in ("str", "bytes") and isinstance(value, str):
        return _utf_8(value)
    if codec in ("bytes", "custom") and (found := of_base64(value)) is not None:
        return found
    if codec == "int" and isinstance(value, int) and not isinstance(value, bool):
        try:
            return struct.pack(">q", value)
        except struct.error:
            raise CodecError(f"{value} does not fit into 8 bytes") from None
    if codec == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return FloatCodec().encode(value)
    if codec == "json":
        try:
            return msgspec.json.encode(value, order="deterministic")
        except UnicodeEncodeError:
            raise CodecError(f"{value!r} has text that is no UTF-8") from None
    if codec == "custom":
        raise CodecError('its type has a codec of the app\'s own; write its bytes as they are shown: {"base64": ...}')
    raise CodecError(f"{value!r} is not {_article(codec)}")


def from_text(codec: str, text: str, schema: Mapping[str, Any] | None = None) -> bytes:
    """A key as typed on the console; `schema`: of its type, where the description has one. Raises CodecError."""
    if codec == "bytes" and text.startswith("{"):
        with suppress(msgspec.MsgspecError, UnicodeEncodeError):
            if (found := of_base64(msgspec.json.decode(text))) is not None:
                return found
    data = _utf_8(text)
    if codec in ("str", "bytes"):
        return data
    if codec == "json" and schema is not None:
        return key_bytes(schema, text)
    try:
        value = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        raise CodecError(f"'{text}' is not {_article(codec)}; write it as JSON") from None
    return to_bytes(codec, value)


def _utf_8(text: str) -> bytes:
    """Raises CodecError: a terminal, or a file's name, gives bytes that are no UTF-8 as half of a pair of code units."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CodecError(f'{text!r} is no text in UTF-8; bytes are written as {{"base64": ...}}') from None


def of_base64(value: Any) -> bytes | None:
    """The bytes that are shown as this; None where none are."""
    if not isinstance(value, dict) or value.keys() != {"base64"} or not isinstance(value["base64"], str):
        return None
    try:
        return base64.b64decode(value["base64"], validate=True)
    except ValueError:
        return None


def shown(codec: str, data: bytes | None) -> Any:
    """Bytes as a JSON value."""
    if data is None:
        return None
    try:
        if codec == "str":
            return data.decode()
        if codec == "int":
            return struct.unpack(">q", data)[0]
        if codec == "float":
            return struct.unpack(">d", data)[0]
        if codec == "json":
            return msgspec.json.decode(data)
        return data.decode() if codec == "bytes" else {"base64": base64.b64encode(data).decode()}
    except (UnicodeDecodeError, struct.error, msgspec.MsgspecError):
        return {"base64": base64.b64encode(data).decode()}


def _article(codec: str) -> str:
    return {"str": "a string", "int": "an int", "float": "a number", "bytes": "a string"}.get(codec, codec)
