"""What `produce` reads: a JSON object a line. Whatever else comes in, the line is named and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App
from tests.cli.console import Console
from workers.commands.produce import BadLine, read_line

app = App("lines", partitions=2)
numbers = app.topic("numbers", key=str, value=int)
anything = app.topic("anything", key=str, value=list[Any])
GOOD = {"key": "ann", "value": {"account": "ann", "amount": 1}}


def test_a_line() -> None:
    line = b'{"key": "a", "value": 5, "timestamp_ms": 7, "headers": {"h": "x"}, "partition": 1, "offset": 9}'
    assert read_line(numbers, 1, line) == (b"a", b"\0" * 7 + b"\x05", 7, (("h", b"x"),))
    assert read_line(numbers, 1, b'{"value": null}') == (None, None, None, ())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"not json", "malformed"),
        (b"[1]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"{}", "no value"),
        (b'{"key": "a", "vlaue": 1}', "unknown field 'vlaue'"),
        (b'{"key": "\xff", "value": 1}', "UTF-8"),
        (b'{"key": "a", "value": "one"}', "is not an int"),
        (b'{"key": "a", "value": true}', "is not an int"),
        (b'{"key": "a", "value": 1.5}', "is not an int"),
        (b'{"key": "a", "value": 99999999999999999999999999}', "fit into 8 bytes"),
        (b'{"key": 1, "value": 1}', "is not a string"),
        (b'{"value": 1, "timestamp_ms": -1}', "timestamp_ms"),
        (b'{"value": 1, "timestamp_ms": 9223372036854775808}', "timestamp_ms"),
        (b'{"value": 1, "timestamp_ms": "now"}', "timestamp_ms"),
        (b'{"value": 1, "headers": [["a", "b"]]}', "headers"),
        (b'{"value": 1, "headers": {"a": 1}}', "headers"),
        (b'{"value": ' + b"[" * 100_000, "nested too deeply"),
        (rb'{"value": "\ud800"}', r"line 17: \ud800 is half of a pair"),
        (rb'{"value": "\udc00x"}', r"line 17: \udc00 is half of a pair"),
        (rb'{"value": [{"\ud83dx": 1}]}', r"line 17: \ud83d is half of a pair"),
        (b'{"value": [1e400]}', "line 17: the number 1e400 is too large; "),
        (b'{"value": -1e999999}', "line 17: the number -1e999999 is too large; "),
        (b'{"value": NaN}', "malformed"),
    ],
)
def test_a_bad_line_is_named(line: bytes, said: str) -> None:
    with pytest.raises(BadLine) as caught:
        read_line(numbers, 17, line)
    assert str(caught.value).startswith("line 17: ") and said in str(caught.value), caught.value
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=100, deadline=None)
@given(line=st.one_of(st.binary(max_size=60), JSON.map(lambda value: json.dumps(value).encode())))
def test_any_bytes_are_a_record_or_a_bad_line(line: bytes) -> None:
    for topic in (numbers, anything):
        try:
            read_line(topic, 1, line)
        except BadLine:
            continue


@settings(max_examples=40, deadline=None)
@given(
    value=st.lists(JSON),
    key=st.text(),
    at_ms=st.integers(0, (1 << 63) - 1),
    headers=st.dictionaries(st.text(), st.text()),
)
def test_a_record_that_is_one_is_read_as_it_is(value: Any, key: str, at_ms: int, headers: dict[str, str]) -> None:
    facts = {"key": key, "value": value, "timestamp_ms": at_ms, "headers": headers}
    try:
        line = json.dumps(facts, ensure_ascii=False, allow_nan=False).encode()
        again = msgspec.json.decode(line)
    except (ValueError, UnicodeEncodeError, msgspec.MsgspecError):
        return  # no JSON can say it
    found = read_line(anything, 1, line)
    assert (found[0], found[2]) == (key.encode(), at_ms)
    assert found[1] is not None and msgspec.json.decode(found[1]) == again["value"]
    assert dict(found[3]) == {name: text.encode() for name, text in headers.items()}


@pytest.mark.processes
@pytest.mark.parametrize("from_file", [False, True])
def test_nothing_is_written_of_an_input_with_a_bad_line(console: Console, from_file: bool) -> None:
    lines = [json.dumps(GOOD)] * 2_500 + ['{"key": "ann"'] + [json.dumps(GOOD)]
    text = "\n".join(lines)
    path: Path = console.write("lines.jsonl", text)
    words = ("produce", "bank:app", "payments")
    done = console(*words, "--file", path.name) if from_file else console(*words, stdin=text)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: line 2501: ") and done.err.count("\n") == 1
    assert console.here("consume", "bank", "payments").out == ""
    path.write_text(text.replace('{"key": "ann"\n', ""))
    assert console.here(*words, "--file", path.name, "--json").json == {"schema": 1, "records": 2_501}
    assert console.here(*words, "--file", path.name, "--json").json["records"] == 0
    shown = console.here("consume", "bank", "payments").out
    again = console.here(*words, stdin=shown)
    assert again.out == "2501 records\n", "what consume prints, produce reads"


@pytest.mark.processes
def test_empty_input_and_unknown_topics(console: Console) -> None:
    assert console.here("produce", "bank:app", "payments", stdin="\n\n").out == "0 records\n"
    wrong = console.here("produce", "bank:app", "payment")
    assert wrong.code == 2 and "it has alerts, payments" in wrong.err
    for words, said in (
        (["--file", "missing"], "cannot read missing"),
        (["--rate", "-1"], "--rate"),
        (["--rate", "nan"], "--rate"),
    ):
        done = console.here("produce", "bank:app", "payments", *words)
        assert done.code == 2 and said in done.err and done.err.count("\n") == 1
