"""Records in files: what stands in a file is what the app gets, wherever the file is cut, or it is refused by its line."""

from __future__ import annotations

import csv
import gzip
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from struct import pack
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import DefinitionError
from pipeline.files import parts as reader
from pipeline.files.cells import time_of_cell
from pipeline.files.shape import BadFile, BadRow, FileRecord, NotThis, Reading, Shape, shape_of
from pipeline.values.codecs import codec_for


class Flight(msgspec.Struct):
    tail: str
    delay: int | None
    miles: float = 0.0
    cancelled: bool = False
    note: str | None = None


def reading(value: Any, key: Any = str) -> Reading:
    return Reading("flights", codec_for(key, what="key", key=True), codec_for(value, what="value"))


def read(path: Path, as_: Reading, shape: Shape = Shape()) -> list[FileRecord]:  # noqa: B008 - it is frozen
    return [one for part in reader.parts(str(path)) for one in reader.read(part, as_, shape)]


# ---------------------------------------------------------------- JSON lines


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    values=st.lists(st.text(max_size=12) | st.none(), max_size=30),
    size=st.integers(1, 60),
    last=st.sampled_from(["", "\n"]),
)
def test_parts_give_the_lines_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[str | None], size: int, last: str
) -> None:
    path = tmp_path / "x.jsonl"
    lines = [json.dumps({"key": f"k{n}", "value": value}) if value != "" else "  " for n, value in enumerate(values)]
    path.write_text("\n".join(lines) + last)
    monkeypatch.setattr(reader, "PART_BYTES", size)
    found = [(one.key, one.value) for one in read(path, reading(str))]
    assert found == [
        (f"k{n}".encode(), None if value is None else value.encode()) for n, value in enumerate(values) if value != ""
    ]


def test_a_bad_line_of_a_later_part_has_its_number_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join([json.dumps({"value": 1})] * 6 + ['{"value": true}']))
    monkeypatch.setattr(reader, "PART_BYTES", 30)
    with pytest.raises(BadRow, match=r"x.jsonl, line 7: .*True is not an int"):
        read(path, reading(int))


def test_json_values_keep_their_bytes_and_keys_are_made_equal(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    value = '{"tail":  "n1", "delay": null, "more": [1.0, 1e2, {"b": 1, "a": 2}]}'
    path.write_bytes(gzip.compress(f'{{"key": ["a",  1], "value": {value}}}\n'.encode()))
    assert read(path, reading(Flight, tuple[str, int])) == [FileRecord(1, b'["a",1]', value.encode(), None)]


def test_flat_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"tail": "n1", "delay": 5, "at": 7, "other": 1}\n{"tail": "n2", "at": 8}\n')
    found = read(path, reading(Flight), shape_of("tail", None, "at:s"))
    assert [(one.key, msgspec.json.decode(one.value or b"", type=Flight), one.timestamp_ms) for one in found] == [
        (b"n1", Flight("n1", 5), 7_000),
        (b"n2", Flight("n2", None), 8_000),
    ]
    path.write_text('{"tail": "n1", "delay": "5", "at": 7}\n')
    with pytest.raises(BadRow, match=r"line 1: .*\$.delay"):
        read(path, reading(Flight), shape_of("tail", None, "at:s"))


# ---------------------------------------------------------------- CSV

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(st.tuples(TEXT, TEXT, st.integers(0, 1 << 40)), max_size=12), end=st.sampled_from(["\n", "\r\n"]))
def test_csv_as_it_is_written(tmp_path: Path, rows: list[tuple[str, str, int]], end: str) -> None:
    text = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if end == "\n" else csv.QUOTE_MINIMAL  # Python leaves a bare return unquoted before 3.13
    writer = csv.writer(text, lineterminator=end, quoting=quoting)
    writer.writerows([("key", "value", "timestamp_ms"), *rows])
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xef\xbb\xbf" + text.getvalue().encode())
    assert [(one.key, one.value, one.timestamp_ms) for one in read(path, reading(str))] == [
        (key.encode(), value.encode(), at) for key, value, at in rows
    ]


@pytest.mark.parametrize(
    ("type_", "written", "key"),
    [
        (Decimal, "12345678901234567.89", b'"12345678901234567.89"'),
        (str | int, '"123"', b'"123"'),
        (date, '"2026-01-31"', b'"2026-01-31"'),
        (tuple[int, str], '[1, "a"]', b'[1,"a"]'),
        (tuple[int, str], '"[1, \\"a\\"]"', b'[1,"a"]'),
    ],
)
def test_keys_of_flat_json_lines_are_read_by_their_type(tmp_path: Path, type_: Any, written: str, key: bytes) -> None:
    """A decimal went through a float, and a text of digits became a number."""
    (tmp_path / "a.jsonl").write_text(f'{{"who": {written}, "n": 1}}\n')
    found = read(tmp_path / "a.jsonl", reading(dict, key=type_), shape_of("who", None, None))
    assert [one.key for one in found] == [key]


@pytest.mark.parametrize("between", [";", "\t"])
def test_csv_of_spreadsheets_that_write_no_commas(tmp_path: Path, between: str) -> None:
    path = tmp_path / "x.csv"
    rows = [["tail", "delay", "note"], ["n1", "5", "a, b"], ["n2", "", f"c{between}d"]]
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=between).writerows(rows)
    found = read(path, reading(Flight), shape_of("tail", None, None, None, None))
    assert [(one.key, json.loads(one.value or b"")["note"]) for one in found] == [
        (b"n1", "a, b"),
        (b"n2", f"c{between}d"),
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"tail, delay\n", r"has no column 'delay', .*; it has ' delay', tail"),
        (b"tail\x1b[31m,x\n", r"has no column 'tail' .* it has 'tail\\x1b\[31m', x; name columns"),
        (b"".join(b"c%02d," % n for n in range(40)) + b"c\n", "c28 and 11 more"),
        ("tail,delay\nn1,5\n".encode("utf-16"), "not UTF-8; save the file as UTF-8"),
        (b"tail,delay\rn1,5\r", r"line 1: a line ends with CR alone.*; save it with line ends of"),
    ],
    ids=["spaces", "control characters", "many", "UTF-16", "CR"],
)
def test_headers_that_do_not_do(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(data)
    with pytest.raises(BadFile, match=words):
        reader.check(str(path), reading(Flight), shape_of("tail", None, None, None, None))


def test_flat_csv_by_the_type(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("tail,delay,miles,cancelled,other,note,at\nn1,-3,1.5,true,x,,2026-01-31 12:00\nn2,,,,x,hi,\n")
    found = read(path, reading(Flight), shape_of("tail", None, "at"))
    assert [msgspec.json.decode(one.value or b"", type=Flight) for one in found] == [
        Flight("n1", -3, 1.5, True, None),
        Flight("n2", None, 0.0, False, "hi"),
    ]
    assert [one.timestamp_ms for one in found] == [1_769_860_800_000, None]


@pytest.mark.parametrize(
    ("text", "value", "words"),
    [
        ("key,value,timestamp_ms\na,1\n", int, r"line 2: 2 cells, and 3 names"),
        ('key,value,timestamp_ms\na,"1"x,3\n', str, r"line 2: no CSV as RFC 4180"),
        ('key,value,timestamp_ms\na,1,3\n"b\nc",1.0,3\n', int, r"line 3: '1.0' is not an int"),
        ("key,value,timestamp_ms\na,1,3.5\n", int, r"line 2: '3.5' is no time"),
        ("key,value,timestamp_ms\na,1,-3\n", int, r"line 2: -3 is no time"),
        ("key,value,timestamp_ms\na,1,yesterday\n", int, r"line 2: 'yesterday' is no time"),
        ("key,value,timestamp_ms\na,nan,3\n", float, r"line 2: 'nan' is not a number"),
    ],
)
def test_csv_that_is_refused(tmp_path: Path, text: str, value: Any, words: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(BadRow, match=words):
        read(path, reading(value))


@pytest.mark.parametrize(
    ("text", "shape", "words"),
    [
        ("", shape_of(None, None, None), "is empty"),
        ("a,b\n", shape_of(None, None, None), r"has no column 'key' .*it has a, b; name columns with --key"),
        ("key,value,value\n", shape_of(None, None, None), "has two columns 'value'"),
        ("tail,at\n", shape_of("tail", None, "time"), "has no column 'time'"),
        (
            "tail,at\n",
            shape_of("tail", None, "at"),
            r"has no column 'delay', which values of topic 'flights' \(Flight\) need",
        ),
    ],
)
def test_columns_that_do_not_do(tmp_path: Path, text: str, shape: Shape, words: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    for refused in (reader.check, lambda name, *more: read(Path(name), *more)):
        with pytest.raises(BadFile, match=words):
            refused(str(path), reading(Flight), shape)


# ---------------------------------------------------------------- Parquet


def test_parquet_by_types(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    at = pa.array([1_769_860_800_123_456_789, None], pa.timestamp("ns", "America/New_York"))
    pq.write_table(
        pa.table({"tail": ["n1", "n2"], "delay": [5, None], "miles": [1.5, 2.0], "at": at}), path, row_group_size=1
    )
    found = read(path, reading(Flight), shape_of("tail", None, "at"))
    assert [(one.key, msgspec.json.decode(one.value or b"", type=Flight), one.timestamp_ms) for one in found] == [
        (b"n1", Flight("n1", 5, 1.5), 1_769_860_800_123),
        (b"n2", Flight("n2", None, 2.0), None),
    ]
    assert [one.line for one in found] == [1, 2]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1.5]), r"row 1: 1.5 is no time"),
        (pa.array([True]), r"row 1: True is no time"),
        (pa.array([-1]), r"row 1: -1 is no time"),
        (pa.array([-1], pa.timestamp("ms")), r"row 1: .* is before 1970"),
    ],
)
def test_times_that_are_none(tmp_path: Path, column: pa.Array, words: str) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"key": ["a"], "value": [1], "timestamp_ms": column}), path)
    with pytest.raises(BadRow, match=words):
        read(path, reading(int))


@pytest.mark.parametrize(
    ("column", "value", "data"),
    [
        (pa.array([5]), int, pack(">q", 5)),
        (pa.array([5]), float, pack(">d", 5.0)),
        (pa.array(["5"]), int, pack(">q", 5)),
        (pa.array([pack(">q", 5)]), int, pack(">q", 5)),
        (pa.array(["[1]"]), list[int], b"[1]"),
        (pa.array([[1, 2]]), list[int], b"[1,2]"),
        (pa.array([{"tail": "n", "delay": None}]), Flight, b'{"tail":"n","delay":null}'),
        (pa.array([True]), bool, b"true"),
    ],
)
def test_cells_of_parquet(tmp_path: Path, column: pa.Array, value: Any, data: bytes) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"key": ["a"], "value": column, "timestamp_ms": [1]}), path)
    assert [one.value for one in read(path, reading(value))] == [data]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (pa.array([True]), int),
        (pa.array([1.5]), int),
        (pa.array([5]), str),
        (pa.array([b"12"]), int),
        (pa.array([b"{"]), Flight),
    ],
)
def test_cells_that_are_refused(tmp_path: Path, column: pa.Array, value: Any) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"key": ["a"], "value": column, "timestamp_ms": [1]}), path)
    with pytest.raises(BadRow, match=r"x.parquet, row 1: "):
        read(path, reading(value))


# ---------------------------------------------------------------- names, times, options


def test_names_of_files(tmp_path: Path) -> None:
    for name in ("_a.csv", ".b.csv", "c [1].csv", "d{2}.csv.gz"):
        (tmp_path / name).write_text("")
    named = [str(tmp_path / name) for name in ("_a.csv", ".b.csv", "c [1].csv", "d{2}.csv.gz")]
    assert reader.files(named) == named
    assert reader.files([str(tmp_path / "*.csv")]) == [named[0], named[2]]
    with pytest.raises(BadFile, match="no file is called"):
        reader.files([str(tmp_path / "*.parquet")])
    with pytest.raises(BadFile, match="files are read that end with"):
        reader.files([__file__])


def test_a_folder_is_all_files_below_it(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    for name in ("b.csv", "_a.csv", "more/.c.csv", "_SUCCESS", ".b.csv.crc", "more/_metadata"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    every = [str(folder / name) for name in ("_a.csv", "b.csv", "more/.c.csv")]
    assert (
        reader.files([str(folder)]) == reader.files([f"{folder}/"]) == reader.files([str(tmp_path / "hist*")]) == every
    )
    assert reader.files([str(folder / "*.csv"), str(folder / "m*")]) == every
    assert reader.files([str(folder / "**" / "b*")]) == [every[1]]
    (folder / "more/notes.txt").write_text("")
    with pytest.raises(BadFile, match=r"notes.txt: files are read that end with"):
        reader.files([str(folder)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadFile, match=r"no file is called .*empty"):
        reader.files([str(tmp_path / "empty")])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("_delta_log/0.json", r"is a table of Delta, .* read it with --from"),
        (".hoodie/x", "is a table of Hudi"),
        ("metadata/v1.metadata.json", "is a table of Iceberg"),
        ("day=2024-01-01/a.parquet", r"has a column in the names of its folders \(day=2024-01-01\); .* TOPIC=parquet:"),
    ],
)
def test_a_folder_that_is_more_than_its_files_is_refused(tmp_path: Path, name: str, words: str) -> None:
    """Files that a table has given up would be history; a column of a folder's name would be missing in every row."""
    (tmp_path / name).parent.mkdir()
    for made in (name, "a.parquet"):
        (tmp_path / made).write_text("")
    with pytest.raises(BadFile, match=words):
        reader.files([str(tmp_path)])


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"value": 1}\n' * 100)[:-20])
    with pytest.raises(BadFile, match=r"cannot read .*x.jsonl.gz"):
        read(path, reading(int))
    broken = tmp_path / "x.parquet"
    broken.write_bytes(b"PAR1")
    with pytest.raises(BadFile, match=r"x.parquet is no Parquet file"):
        reader.parts(str(broken))


def test_times() -> None:
    assert time_of_cell(date(1970, 1, 2), "ms") == 86_400_000
    assert time_of_cell(datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=UTC), "ms") == 1_000
    assert [time_of_cell(2_500_000, unit) for unit in ("s", "ms", "us", "ns")] == [2_500_000_000, 2_500_000, 2_500, 2]
    with pytest.raises(NotThis):
        time_of_cell(1 << 62, "s")


def test_options_of_a_shape() -> None:
    assert shape_of("a", None, "b:us") == Shape("a", "", "b", "us")
    assert shape_of(None, None, "b:c") == Shape("", "", "b:c", "ms")
    with pytest.raises(DefinitionError, match="--key '': write the name of a column"):
        shape_of("", None, None)
    with pytest.raises(DefinitionError, match="--timestamp ':s': write the name of a column"):
        shape_of(None, None, ":s")  # records would have had the time of now
