"""What `produce` reads: a JSON object a line. Whatever else comes in is named, and what came before it is written."""

from __future__ import annotations

import gzip
import io
import json
import os
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App
from pipeline.definitions.definition import Topic
from pipeline.files.json_lines import read_line as read
from pipeline.files.piped import Piped
from pipeline.files.shape import BadRow, FileRecord, Reading
from tests.cli.console import Console

app = App("lines", partitions=2)
numbers = app.topic("numbers", key=str, value=int)
anything = app.topic("anything", key=str, value=list[Any])


def read_line(topic: Topic[Any, Any], number: int, line: bytes) -> FileRecord:
    return read(Reading(topic.topic, topic.key_codec, topic.value_codec), number, line)


GOOD = {"key": "ann", "value": {"account": "ann", "amount": 1}}


def test_a_line() -> None:
    line = b'{"key": "a", "value": 5, "timestamp_ms": 7, "headers": {"h": "x"}, "partition": 1, "offset": 9}'
    assert read_line(numbers, 1, line) == FileRecord(1, b"a", b"\0" * 7 + b"\x05", 7, (("h", b"x"),), 9)
    assert read_line(numbers, 1, b'{"value": null}') == FileRecord(1, None, None, None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"not json", "malformed"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"value": 1, "headers": {"h": {"base64": "?"}}}', "headers is not an object of strings"),
        (b'{"value": 1, "headers": {"h": {"bytes": "AP8="}}}', "headers is not an object of strings"),
        (b"[1]", "not a JSON object but an array; write one object a line"),
        (b'{"key": "a",', "write each object on one line"),
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
        (b'{"value": [1e400]}', "line 17: the number 1e400 is too large"),
        (b'{"value": -1e999999}', "line 17: the number -1e999999 is too large"),
        (b'{"value": NaN}', "malformed"),
    ],
)
def test_a_bad_line_is_named(line: bytes, said: str) -> None:
    with pytest.raises(BadRow) as caught:
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
        except BadRow:
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
    assert (found.key, found.timestamp_ms) == (key.encode(), at_ms)
    assert found.value is not None and msgspec.json.decode(found.value) == again["value"]
    assert dict(found.headers) == {name: text.encode() for name, text in headers.items()}


@pytest.mark.processes
def test_a_bad_line_ends_it_and_it_goes_on_there(console: Console) -> None:
    lines = [json.dumps(GOOD)] * 2_500 + ['{"key": "ann"'] + [json.dumps(GOOD)]
    text = "\n".join(lines)
    path: Path = console.write("lines.jsonl", text)
    words = ("produce", "bank:app", "payments")
    done = console(*words, "--file", path.name)
    assert (done.code, done.out) == (1, "") and done.err.count("\n") == 1
    assert (
        done.err.startswith("error: lines.jsonl, line 2501: ") and "the 2500 records before it are written" in done.err
    )
    assert console.here("consume", "bank", "payments").out.count("\n") == 2_500
    path.write_text(text.replace('{"key": "ann"\n', json.dumps(GOOD) + "\n"))
    renamed = path.rename(path.with_name("renamed.jsonl"))
    assert console.here(*words, "--file", renamed.name, "--json").json == {"schema": 1, "records": 2}
    assert console.here(*words, "--file", renamed.name, "--json").json["records"] == 0
    renamed.write_text("\n".join(lines[:3]))
    assert console.here(*words, "--file", renamed.name).out == "3 records\n", "another file under its name"
    with renamed.open("a") as file:
        file.write("\n" + lines[0])
    assert console.here(*words, "--file", renamed.name).out == "1 record\n", "it grew"
    assert (
        console.here(*words, "--file", renamed.name).out
        == f"0 records; what {renamed.name} holds was produced before\n"
    )
    shown = console.here("consume", "bank", "payments").out
    again = console.here(*words, stdin=shown + "[1]\n" + shown)
    assert (
        again.code == 1
        and "line 2507: not a JSON object but an array; write one object a line; the 2506 records before it are written"
        in again.err
    )


@pytest.mark.processes
def test_what_is_piped_is_there_before_the_pipe_ends(console: Console) -> None:
    line = json.dumps(GOOD).encode() + b"\n"
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb", buffering=0) as pipe:
        producing = console.start("produce", "bank:app", "payments", "--json", name="produce", stdin=reader)
        os.close(reader)
        pipe.write(line + line[:9])  # and the beginning of the next
        seen = partial(console.here, "consume", "bank", "payments")
        console.until("the first record", lambda: seen().out.count("\n") == 1)
        pipe.write(line[9:] + b"no record\n")
    assert console.end(producing) == 1 and seen().out.count("\n") == 2
    assert json.loads((console.folder / "produce.out").read_text()) == {"schema": 1, "records": 2}
    assert "line 3: JSON is malformed" in console.said("produce")


def test_lines_of_a_pipe() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as file, os.fdopen(writer, "wb", buffering=0) as pipe:
        piped = Piped(cast(BufferedIOBase, file))
        lines = iter(piped)
        assert piped.is_quiet()
        pipe.write(b"a\r\nb\n")
        assert not piped.is_quiet() and next(lines) == b"a\r\n"
        assert not piped.is_quiet() and next(lines) == b"b\n"
        pipe.write(b"c")
        assert piped.is_quiet(), "a line that has only begun"
        pipe.write(b"d\n\ne")
        assert [next(lines), next(lines)] == [b"cd\n", b"\n"] and piped.is_quiet()
        pipe.close()
        assert not piped.is_quiet() and list(lines) == [b"e"] and not piped.is_quiet()


@given(st.binary(max_size=200))
def test_lines_are_those_of_a_file(data: bytes) -> None:
    assert list(Piped(io.BytesIO(data))) == list(io.BytesIO(data))


@pytest.mark.processes
def test_csv_and_parquet(console: Console) -> None:
    csv = console.write("new.csv", 'who,amount,at\nann,5,2026-01-31T12:00:00Z\n"b\no""b",7,1769860801\n')
    words = ("produce", "bank:app", "payments", "--key", "who", "--timestamp", "at:s", "--file")
    missing = console.here(*words, csv.name)
    assert (
        missing.code == 2 and "has no column 'account', which values of topic 'payments' (Payment) need" in missing.err
    )
    csv.write_text(csv.read_text().replace("who,", "account,"))
    words = (*words[:3], "--key", "account", *words[5:])
    assert console.here(*words, csv.name).out == "2 records\n"
    with csv.open("a") as file:
        file.write("cem,1.5,3\n")
    bad = console.here(*words, csv.name)
    assert bad.code == 1 and bad.err.startswith("error: new.csv, line 5: ") and "$.amount" in bad.err, bad.err
    csv.write_text(csv.read_text().replace("1.5", "2"))
    assert console.here(*words, csv.name).out == "1 record\n"
    table = pa.table(
        {"account": ["dan"] * 3, "amount": [1, 2, 3], "at": pa.array([1, 2, 3], pa.timestamp("ns", "UTC"))}
    )
    pq.write_table(table, csv.with_suffix(".parquet"), row_group_size=2)
    words = ("produce", "bank:app", "payments", "--key", "account", "--timestamp", "at", "--file")
    assert [console.here(*words, "new.parquet").out for _ in range(2)] == [
        "3 records\n",
        "0 records; what new.parquet holds was produced before\n",
    ]
    found = [json.loads(line) for line in console.here("consume", "bank", "payments").out.splitlines()]
    assert sorted((one["key"], one["value"]["amount"], one["timestamp_ms"]) for one in found) == [
        ("ann", 5, 1_769_860_800_000),
        ('b\no"b', 7, 1_769_860_801_000),
        ("cem", 2, 3_000),
        *[("dan", amount, 0) for amount in (1, 2, 3)],
    ]


@pytest.mark.processes
def test_files_without_lines_are_named_for_what_they_are(console: Console) -> None:
    for name, head, words in (
        ("x.xlsx", b"PK\x03\x04", "it is a workbook or another zip archive, of which CSV can be saved"),
        ("x", b"PAR1", "it is Parquet"),
        ("x.log", b"\x1f\x8b", "it is compressed (gzip)"),
    ):
        (console.folder / name).write_bytes(head + bytes(range(64)))
        done = console.here("produce", "bank:app", "payments", "--file", name)
        assert done.code == 2 and done.err.startswith(f"error: {name} is no text: {words}; files are read that end"), (
            done
        )


@pytest.mark.processes
def test_a_file_that_is_cut_off_is_named_and_goes_on_once_it_is_whole(console: Console) -> None:
    """It was an internal error; also where what it lacks lies before what was produced of it."""
    lines = b"".join(b'{"key": "ann", "value": {"account": "ann", "amount": %d}}\n' % n for n in range(3_000))
    whole, file = gzip.compress(lines), console.folder / "x.jsonl.gz"
    written = []
    for size, code in ((len(whole) // 2, 1), (len(whole) // 4, 2), (len(whole), 0)):
        file.write_bytes(whole[:size])
        done = console.here("produce", "bank:app", "payments", "--file", "x.jsonl.gz")
        assert done.code == code and "Traceback" not in done.err, done
        if code:
            assert done.err.startswith("error: cannot read x.jsonl.gz: Compressed file ended") and "damaged" in done.err
        written.append(len(console.here("consume", "bank", "payments").out.splitlines()))
    assert 0 < written[0] == written[1] < written[2] == 3_000


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
