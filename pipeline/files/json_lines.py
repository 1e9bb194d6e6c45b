"""A line of JSON to a record.

One rule: the value's bytes are those of the line, once the topic's type has read them; a key is written anew, because
equal keys must have equal bytes. A line that is not what it should be is looked at again, slowly, to say why.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from pipeline.errors import CodecError
from pipeline.files.cells import encoded, shown, whole
from pipeline.files.exact_times import written
from pipeline.files.names_once import names_once, these_once
from pipeline.files.shape import TIME_MAX_MS, BadRow, FileRecord, NotThis, Reading
from pipeline.records import Headers
from pipeline.values.codecs import Codec, JsonCodec, codec_name
from pipeline.values.json_values import of_base64

TWO_NAMES = len(b'{"key":,"value":}' + b'"key":0,')  # a line with less beside its key and its value has no name twice
TWO_VALUES = len(b'{"value":}' + b'"value":0,')  # without a key
TIMED_MS = 10**12
TIMED = len(b',"timestamp_ms":1000000000000')  # what a time from here on takes of a line, at least
NAMES = (b'"key"', b'"value"', b'"timestamp_ms"', b'"headers"')
FIELDS = {"key", "value", "timestamp_ms", "headers"}
IGNORED = {"partition", "offset"}  # `consume` prints them; where a record goes is decided by its key
NUMBER_SHOWN = 20
NULL = b"null"
NOT_UTF8 = "not UTF-8; save the file as UTF-8"
NO_HEADERS = "headers is not an object of strings"
TOO_DEEP = "nested too deeply"
NULL_CELL = msgspec.Raw(NULL)


_Header = str | dict[str, str]


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    value: msgspec.Raw
    key: msgspec.Raw = NULL_CELL
    timestamp_ms: int | None = None
    headers: msgspec.Raw = NULL_CELL
    partition: Any = None
    offset: Any = None


_lines = msgspec.json.Decoder(_Line)
_headers = msgspec.json.Decoder(dict[str, _Header | list[_Header]] | None)
_text = msgspec.json.Decoder(str)


def read_line(reading: Reading, number: int, line: bytes) -> FileRecord:
    """Raises BadRow naming the line."""
    try:
        line.decode()
        found = _lines.decode(line)
        at_ms = found.timestamp_ms
        if at_ms is not None and not 0 <= at_ms <= TIME_MAX_MS:
            raise NotThis("timestamp_ms is not a whole number of milliseconds since 1970")
        reading.timed(at_ms)
        key, value = b"" if found.key is NULL_CELL else bytes(found.key), bytes(found.value)
        beside = len(line) - len(key) - len(value) - (TIMED if at_ms is not None and at_ms >= TIMED_MS else 0)
        if beside >= (TWO_NAMES if key else TWO_VALUES):
            these_once(line, NAMES, key, value)
        return FileRecord(
            number,
            _key(reading.key, found.key),
            json_value(reading.value, found.value),
            at_ms,
            () if found.headers is NULL_CELL else _headers_of(found.headers),
            _offset(reading, found.offset),
        )
    except RecursionError:
        raise BadRow(f"line {number}", TOO_DEEP) from None
    except (ValueError, TypeError, CodecError, msgspec.MsgspecError) as error:
        raise BadRow(f"line {number}", _why(reading, line, error)) from None


def _headers_of(raw: msgspec.Raw) -> Headers:
    headers = _headers.decode(raw)
    if not headers:
        return ()
    names_once(bytes(raw), headers)
    return json_headers(headers)


def _key(codec: Codec[Any], raw: msgspec.Raw) -> bytes | None:
    data = bytes(raw)
    if data == NULL:
        return None
    if codec_name(codec) == "str":
        return _text.decode(data).encode()
    if isinstance(codec, JsonCodec):  # by its type: a decimal is no float on the way
        return written(codec, codec.decode(data), data)
    return encoded(codec, msgspec.json.decode(data))


def json_value(codec: Codec[Any], raw: msgspec.Raw) -> bytes | None:
    """The bytes of a value, once its type has read them. Raises CodecError, NotThis, MsgspecError."""
    data = bytes(raw)
    if data == NULL:
        return None
    if codec_name(codec) == "json":
        try:
            codec.decode(data)
        except CodecError:
            if not data.startswith(b'"'):
                raise
            data = _text.decode(data).encode()  # a JSON string whose text is JSON: the value is that text
            codec.decode(data)
        return data
    return encoded(codec, msgspec.json.decode(data))


def _why(reading: Reading, line: bytes, error: Exception) -> str:
    """What is wrong with a line, in words about records and not about decoders."""
    try:
        line.decode()
        facts = msgspec.json.decode(line)
    except UnicodeDecodeError:
        return NOT_UTF8
    except RecursionError:
        return TOO_DEEP
    except msgspec.DecodeError as broken:
        return _cause(line, broken)
    if not isinstance(facts, dict):
        return no_object(facts)
    unknown = set(facts) - FIELDS - IGNORED
    if unknown:
        return f"unknown field '{min(unknown)}'; known are {', '.join(sorted(FIELDS))}"
    if "value" not in facts:
        return "no value; write null to delete a key"
    try:
        for codec, field in ((reading.key, "key"), (reading.value, "value")):
            if facts.get(field) is not None:
                encoded(codec, facts[field])
        json_time(facts.get("timestamp_ms"))
        json_headers(facts.get("headers"))
        _offset(reading, facts.get("offset"))
    except (NotThis, CodecError, msgspec.MsgspecError) as found:
        return str(found)
    return str(error)


def _offset(reading: Reading, given: Any) -> int | None:
    """A whole number, or its digits, by which history is ordered; what is produced gets another one. Raises NotThis."""
    if given is None or not reading.is_history:
        return given if type(given) is int else None
    number = whole(given)
    if number is None:
        raise NotThis(f"offset {shown(given)} is not an int")
    return number


def no_object(found: Any) -> str:
    return "not a JSON object" + (" but an array; write one object a line" if isinstance(found, list) else "")


def _cause(line: bytes, error: msgspec.DecodeError) -> str:
    """What is wrong with a line. Where it is JSON to others, it is for one of two things that the decoder does not name."""
    large: list[str] = []

    def number(text: str) -> float:
        value = float(text)
        if math.isinf(value):
            large.append(text)
        return value

    try:
        text = json.dumps(json.loads(line, parse_float=number), ensure_ascii=False)
    except (ValueError, RecursionError):
        return f"{error}; write each object on one line" if line.strip()[:1] in (b"{", b"[") else str(error)
    if large:
        return f"the number {large[0][:NUMBER_SHOWN]} is too large"
    half = next((letter for letter in text if "\ud800" <= letter <= "\udfff"), None)
    return str(error) if half is None else f"\\u{ord(half):04x} is half of a pair that makes one character"


def json_time(given: Any) -> int | None:
    """Milliseconds since 1970; None where none are given. Raises NotThis."""
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= TIME_MAX_MS:
        raise NotThis("timestamp_ms is not a whole number of milliseconds since 1970")
    return given


def json_headers(given: Any) -> Headers:
    """Headers of an object of strings, or of bytes as they are shown; a list has those of one name. Raises NotThis."""
    if given is None:
        return ()
    if not isinstance(given, dict):
        raise NotThis(NO_HEADERS)
    return tuple(
        (name, _header(one)) for name, some in given.items() for one in (some if isinstance(some, list) else [some])
    )


def _header(given: Any) -> bytes:
    found = given.encode() if isinstance(given, str) else of_base64(given)
    if found is None:
        raise NotThis(NO_HEADERS)
    return found
