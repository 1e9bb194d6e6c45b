"""What encodes without a line of Python gives the bytes of the codec, and leaves the rest to it, with its words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import App, Record, Table
from orchestrator.testing import Driver
from pipeline.errors import CodecError, ProcessorFailed
from pipeline.values.codecs import QUICK_ERRORS, codec_for, quick_decode, quick_encode

TYPES = (str, int, bytes, float)
VALUES = st.one_of(
    st.text(), st.text(st.characters(codec=None)), st.integers(), st.binary(), st.floats(), st.booleans(), st.none()
)


class Text(str):
    __slots__ = ()


@given(st.sampled_from(TYPES), VALUES | st.text().map(Text))
def test_the_bytes_are_the_codecs(type_: type, value: Any) -> None:
    codec = codec_for(type_, what="value")
    try:
        expected = codec.encode(value)
    except CodecError:
        with pytest.raises(QUICK_ERRORS):
            quick_encode(codec)(value)
    else:
        assert quick_encode(codec)(value) == expected


@given(st.sampled_from(TYPES), st.binary())
def test_the_value_is_the_codecs(type_: type, data: bytes) -> None:
    codec = codec_for(type_, what="value")
    try:
        expected = codec.decode(data)
    except CodecError:
        with pytest.raises(QUICK_ERRORS):
            quick_decode(codec)(data)
    else:
        found = quick_decode(codec)(data)
        assert found == expected or (found != found and expected != expected)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (7, 1, "key of table 'totals': 7 is not a str"),
        ("\ud800", 1, "key of table 'totals': '\\ud800' is not valid Unicode"),
        ("k", "1", "value of table 'totals': '1' is not an int"),
        ("k", 1 << 63, "value of table 'totals': 9223372036854775808 does not fit"),
        ("k", None, "table 'totals': None is not one of its values"),
    ],
)
def test_the_words_are_the_tables(key: Any, value: Any, said: str, batch: bool) -> None:
    app = App("quick", partitions=1)
    events, totals = app.topic("events", key=str, value=int), app.table("totals", key=str, value=int)

    def keep(event: Any, totals: Table[Any, Any]) -> None:
        totals[key] = value

    app.processor(events, totals, batch=batch)(keep)
    with Driver(app) as d, pytest.raises(ProcessorFailed) as failed:
        d.send(events, "a", 1)
    assert said in str(failed.value)


def test_a_record_that_cannot_be_read_is_told_by_its_codec() -> None:
    app = App("unread", partitions=1)
    events, seen = app.topic("events", key=str, value=str), app.table("seen", key=str, value=int)

    def keep(event: Record[str, str], seen: Table[str, int]) -> None:
        seen[event.key] = 1

    app.processor(events, seen)(keep)
    with Driver(app) as d, pytest.raises(ProcessorFailed) as failed:
        d.send_bytes(events, b"k", b"\xff")
    assert "is not a str: invalid start byte at byte 0" in str(failed.value)
