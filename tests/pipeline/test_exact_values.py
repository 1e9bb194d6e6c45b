"""No value of a file is another one in the app: digits, times and maps come as they stand there, or their row is refused."""

from __future__ import annotations

import dataclasses
import gzip
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.files import parts as reader
from pipeline.files.shape import BadFile, BadRow, FileRecord, Shape, shape_of
from tests.pipeline.test_files import read, reading

FLAT = shape_of("k", None, "t")
FLAT_HEADERS = shape_of("k", None, "t", "hs")
LATE = datetime(9999, 12, 31, 12)


class Price(msgspec.Struct):
    x: Decimal


class Rates(msgspec.Struct):
    x: dict[str, list[float]] | list[float] | float | None


@dataclasses.dataclass
class Mean:
    x: float | None


class Time(msgspec.Struct):
    x: datetime


class Times(msgspec.Struct):
    x: list[datetime]


class Lasting(msgspec.Struct):
    x: timedelta


def json_lines(path: Path, text: str, value: Any, shape: Shape = FLAT, key: Any = str) -> list[FileRecord]:
    file = path / "x.jsonl"
    file.write_bytes(text.encode())
    return read(file, reading(value, key), shape)


def parquet(path: Path, column: pa.Array, value: Any, shape: Shape = FLAT, **more: Any) -> list[FileRecord]:
    rows = len(column)
    file = path / "x.parquet"
    times = column if shape.timestamp == "x" else pa.array([1] * rows)
    table = pa.table(
        {"k": ["a"] * rows, "t": times, "x": times if shape.timestamp == "x" else column, "v": ["v"] * rows}
    )
    pq.write_table(table, file, **more)
    return read(file, reading(value), shape)


def csv(path: Path, text: str, value: Any, shape: Shape = FLAT, key: Any = str) -> list[FileRecord]:
    file = path / "x.csv"
    file.write_text(text)
    return read(file, reading(value, key), shape)


@pytest.mark.parametrize("zone", ["Europe/Amsterdam", "America/New_York", "Africa/Monrovia", "+00:20", "UTC"])
def test_a_time_of_a_zone_is_the_same_time_however_old_it_is(tmp_path: Path, zone: str) -> None:
    """Before 1972 some cities had offsets with seconds, which JSON has not."""
    given = [
        datetime(1880, 1, 1, tzinfo=UTC),
        datetime(1936, 6, 1, 12, tzinfo=UTC),
        datetime(2026, 6, 1, 12, tzinfo=UTC),
    ]
    for column, type_ in (
        (pa.array(given, pa.timestamp("us", zone)), Time),
        (pa.array([[one] for one in given], pa.list_(pa.timestamp("ms", zone))), Times),
    ):
        found = [msgspec.json.decode(one.value or b"")["x"] for one in parquet(tmp_path, column, type_)]
        texts = [one if isinstance(one, str) else one[0] for one in found]
        assert [datetime.fromisoformat(text) for text in texts] == given
        assert zone == "UTC" or not texts[-1].endswith("Z") or zone == "Africa/Monrovia", "others stand as in the file"


# ---------------------------------------------------------------- digits


@pytest.mark.parametrize(
    ("digits", "value", "data"),
    [
        ("12345678901234567.890", Price, b'{"x":"12345678901234567.890"}'),
        ("0.1234567890123456789", dict, b'{"x":0.1234567890123456789}'),
        ("1.50", dict[str, Any], b'{"x":1.50}'),
        ("1.50", dict[str, float], b'{"x":1.5}'),
        ("1.50", dict[str, Decimal], b'{"x":"1.50"}'),
    ],
)
def test_digits_of_flat_json_are_read_by_the_type(tmp_path: Path, digits: str, value: Any, data: bytes) -> None:
    [found] = json_lines(tmp_path, f'{{"k": "a", "t": 5, "x": {digits}}}', value)
    assert found == FileRecord(1, b"a", data, 5)


def test_a_column_of_values_keeps_its_bytes_and_keys_their_digits(tmp_path: Path) -> None:
    shape = shape_of("k", "v", "t")
    [found] = json_lines(tmp_path, '{"k": "a", "t": 5, "v": {"x":  1.50}}', Price, shape)
    assert found.value == b'{"x":  1.50}'
    [found] = json_lines(tmp_path, '{"k": "a", "t": 5, "v": "{\\"x\\": 1.50}"}', Price, shape)
    assert found.value == b'{"x": 1.50}'
    [found] = json_lines(tmp_path, '{"key": 12345678901234567.89, "value": "v"}', str, Shape(), Decimal)
    assert found.key == b'"12345678901234567.89"'
    with pytest.raises(BadRow, match="line 2: not UTF-8"):
        (tmp_path / "x.jsonl").write_bytes(b'{"k": "a", "x": 1}\n{"k": "a", "x": "\xff"}')
        read(tmp_path / "x.jsonl", reading(dict), shape_of("k", None, None))


@pytest.mark.parametrize("digits", ["1" * 5_000, "1" * 401])
def test_more_digits_than_a_number_has_are_refused(tmp_path: Path, digits: str) -> None:
    for value in (int, float):
        with pytest.raises(BadRow, match="line 2: "):
            csv(tmp_path, f"k,t,v\na,1,{digits}\n", value, shape_of("k", "v", "t"))
    with pytest.raises(BadRow, match=r"line 2: .* is no time"):
        csv(tmp_path, f"k,t,v\na,{digits},b\n", str, shape_of("k", "v", "t"))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (pa.array([1.0, math.nan]), Rates),
        (pa.array([None, -math.inf]), Rates),
        (pa.array([[], [1.0, math.nan]]), Rates),
        (pa.array([[], [("a", [math.nan])]], pa.map_(pa.string(), pa.list_(pa.float64()))), Rates),
        (pa.array([1.0, math.nan]), Mean),
        (pa.array([1.0, math.nan]), dict),
    ],
)
def test_what_json_has_no_number_for_is_no_null(tmp_path: Path, column: pa.Array, value: Any) -> None:
    with pytest.raises(BadRow, match=r"x.parquet, row 2: .*(nan|-inf) is a number that JSON has none of"):
        parquet(tmp_path, column, value)
    with pytest.raises(BadRow, match=r"row 2: .*nan is a number that JSON has none of"):
        parquet(tmp_path, pa.array([[], [math.nan]]), list[float | None], shape_of("k", "x", "t"))
    with pytest.raises(BadRow, match=r"line 2: .*inf is a number that JSON has none of"):
        csv(tmp_path, "k,t,x\na,1,inf\n", Mean)


def test_a_fraction_is_no_partition(tmp_path: Path) -> None:
    found = parquet(tmp_path, pa.array([Decimal("0.5")]), str, shape_of("k", "v", "t", None, None))
    assert found[0].partition is None
    with pytest.raises(BadRow, match=r"row 1: x Decimal\('0.5'\) is not an int"):
        parquet(tmp_path, pa.array([Decimal("0.5")]), str, shape_of("k", "v", "t", None, "x"))
    with pytest.raises(BadRow, match="row 1: x '1_0' is not an int"):
        parquet(tmp_path, pa.array(["1_0"]), str, shape_of("k", "v", "t", None, "x"))


# ---------------------------------------------------------------- times and maps


def test_a_year_is_the_same_from_int96(tmp_path: Path) -> None:
    """As nanoseconds of 64 bits it is 1816, and 2600 is 2015."""
    for at in (LATE, datetime(2600, 1, 1)):
        old = {"use_deprecated_int96_timestamps": True}
        [found] = parquet(tmp_path, pa.array([at]), Time, **old)
        assert msgspec.json.decode(found.value or b"", type=Time).x == at
        [found] = parquet(tmp_path, pa.array([at]), str, shape_of("k", "v", "x"), **old)
        assert found.timestamp_ms == (at - datetime(1970, 1, 1)) // timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("kind", "cell", "whole"),
    [
        (pa.list_(pa.timestamp("ns")), [1_000], b'{"x":["1970-01-01T00:00:00.000001"]}'),
        (pa.list_(pa.timestamp("ns"), 1), [1_000], b'{"x":["1970-01-01T00:00:00.000001"]}'),
        (pa.duration("ns"), 1_000, b'{"x":"PT0.000001S"}'),
    ],
)
def test_nanoseconds_inside_are_whole_microseconds(tmp_path: Path, kind: Any, cell: Any, whole: bytes) -> None:
    value, finer = (Times, [1_001]) if isinstance(cell, list) else (Lasting, 1_001)
    assert [one.value for one in parquet(tmp_path, pa.array([cell], kind), value)] == [whole]
    with pytest.raises(BadFile, match="column 'x': finer than a microsecond"):
        parquet(tmp_path, pa.array([finer], kind), value)


def test_clocks_maps_and_structs_of_nanoseconds(tmp_path: Path) -> None:
    kinds = [
        pa.time64("ns"),
        pa.map_(pa.string(), pa.timestamp("ns")),
        pa.struct([("b", pa.large_list(pa.timestamp("ns")))]),
    ]
    cells: list[tuple[Any, bytes]] = [
        (1_000, b'"00:00:00.000001"'),
        ([("b", 0)], b'{"b":"1970-01-01T00:00:00"}'),
        ({"b": [0]}, b'{"b":["1970-01-01T00:00:00"]}'),
    ]
    for kind, (cell, data) in zip(kinds, cells, strict=True):
        [found] = parquet(tmp_path, pa.array([cell], kind), dict[str, Any], shape_of("v", None, "t"))
        assert found.value == b'{"k":"a","x":' + data + b"}"
    with pytest.raises(BadFile, match="column 'x': finer than a microsecond"):
        parquet(tmp_path, pa.array([1], kinds[0]), dict)


def test_a_row_with_a_time_that_python_has_not_is_refused_alone(tmp_path: Path) -> None:
    column = pa.array([0, 569_000_000_000_000, None], pa.timestamp("ms"))
    with pytest.raises(BadRow, match=r"row 2: column 'x': .* out of range"):
        parquet(tmp_path, column, Time)
    bad: list[Any] = []
    shape, file = shape_of("k", None, "t"), str(tmp_path / "x.parquet")
    found = reader.read(
        reader.parts(file)[0], reading(dict), shape, lambda error, row: bad.append((error.where, row["x"]))
    )
    assert [one.line for one in found] == [1, 3]
    assert bad == [("row 2", "20000-11-22 03:33:20.000")]


def test_a_map_is_an_object(tmp_path: Path) -> None:
    kind = pa.map_(pa.string(), pa.int64())
    [found] = parquet(tmp_path, pa.array([[("a", 1)]], kind), dict[str, Any])
    assert found.value == b'{"v":"v","x":{"a":1}}'
    [found] = parquet(tmp_path, pa.array([[("a", 1)]], kind), dict[str, int], shape_of("k", "x", "t"))
    assert found.value == b'{"a":1}'
    with pytest.raises(BadRow, match=r"row 2: column 'x': .*duplicate key"):
        parquet(tmp_path, pa.array([[], [("a", 1), ("a", 2)]], kind), dict[str, int], shape_of("k", "x", "t"))


# ---------------------------------------------------------------- how others begin their files


def test_json_lines_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'\xef\xbb\xbf{"key": "a", "value": 1}\n{"key": "b", "value": 2}\n')
    assert [one.key for one in read(tmp_path / "x.jsonl", reading(int))] == [b"a", b"b"]


@pytest.mark.parametrize("between", [";", "\t"])
def test_a_comma_in_a_quoted_name_is_not_between_cells(tmp_path: Path, between: str) -> None:
    text = between.join(["k", "t", '"x, y"']) + "\n" + between.join(["a", "1", "b"]) + "\n"
    assert csv(tmp_path, text, dict) == [FileRecord(2, b"a", b'{"x, y":"b"}', 1)]


def test_a_compressed_file_without_its_end_is_named_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"key,value\n")[:6])
    with pytest.raises(BadFile, match=r"cannot read .*x.csv.gz"):
        reader.check(str(path), reading(int), Shape())


# ---------------------------------------------------------------- times that are text


FINE = "2026-01-31T12:00:00.1234567Z"
OF_TEXT = shape_of("k", "x", "t")


class Noted(msgspec.Struct):
    x: datetime
    note: str = ""


@pytest.mark.parametrize("number", ["20260131", "1700000000", "1.5", "-1", "+1e3"])
def test_a_number_is_no_time_of_a_field(tmp_path: Path, number: str) -> None:
    """20260131 became 1970-08-23: it was taken for seconds."""
    for value, shape in ((Time, FLAT), (Lasting, FLAT), (datetime, OF_TEXT), (timedelta, OF_TEXT)):
        with pytest.raises(BadRow, match=r"x.csv, line 2: "):
            csv(tmp_path, f"k,t,x\na,1,{number}\n", value, shape)
    with pytest.raises(BadRow, match=r"line 2: 20260131 is a number without a unit"):
        csv(tmp_path, "k,t,x\n20260131,1,a\n", str, OF_TEXT, key=datetime)
    assert csv(tmp_path, "k,t,x\na,1,2026-01-31T12:00:00Z\n", Time)[0].value == b'{"x":"2026-01-31T12:00:00Z"}'
    assert csv(tmp_path, "k,t,x\na,1,PT1.5S\n", Lasting)[0].value == b'{"x":"PT1.5S"}'
    assert csv(tmp_path, "k,t,x\na,1,17\n", dict[str, datetime | int])[0].value == b'{"x":17}'


def test_text_of_a_time_is_not_rounded(tmp_path: Path) -> None:
    finer = "finer than a microsecond"
    for text in (FINE, FINE.replace("T", " "), "2026-01-31T12:00:00.123456789"):
        for value, shape in ((Time, FLAT), (datetime, OF_TEXT)):
            with pytest.raises(BadRow, match=f"line 2: .*{finer}"):
                csv(tmp_path, f"k,t,x\na,1,{text}\n", value, shape)
        with pytest.raises(BadRow, match=f"line 1: .*{finer}"):
            json_lines(tmp_path, f'{{"k": "a", "t": 1, "x": "{text}"}}', Time)
        with pytest.raises(BadRow, match=f"line 1: .*{finer}"):
            json_lines(tmp_path, f'{{"k": "{text}", "t": 1, "x": 1}}', int, OF_TEXT, datetime)
        with pytest.raises(BadRow, match=f"line 1: .*{finer}"):
            json_lines(tmp_path, f'{{"key": "{text}", "value": 1}}', int, Shape(), datetime)
        with pytest.raises(BadRow, match=f"row 1: .*{finer}"):
            parquet(tmp_path, pa.array([text]), Time)
    with pytest.raises(BadRow, match=f"line 1: .*{finer}"):
        json_lines(tmp_path, f'{{"k": "a", "t": 1, "x": ["{FINE}"]}}', Times)
    with pytest.raises(BadRow, match=f"line 2: .*{finer}"):
        csv(tmp_path, "k,t,x\na,1,PT0.1234567S\n", Lasting)
    with pytest.raises(BadRow, match=f"line 1: .*{finer}"):
        json_lines(tmp_path, f'{{"k": "a", "t": 1, "x": "{FINE}", "note": "{FINE}"}}', Noted)


def test_text_that_looks_like_a_time_stays_as_it_is(tmp_path: Path) -> None:
    [found] = json_lines(
        tmp_path, f'{{"k": "a", "t": 1, "x": "2026-01-31T12:00:00.123456000Z", "note": "{FINE}"}}', Noted
    )
    assert found.value == f'{{"x":"2026-01-31T12:00:00.123456Z","note":"{FINE}"}}'.encode()
    [found] = json_lines(tmp_path, f'{{"k": "a", "t": 1, "x": "{FINE}"}}', dict)
    assert found.value == f'{{"x":"{FINE}"}}'.encode()
    [found] = json_lines(tmp_path, f'{{"key": "a", "value": {{"x": "{FINE}"}}}}', Time, Shape())
    assert found.value == f'{{"x": "{FINE}"}}'.encode()


class Stamp(msgspec.Struct, frozen=True):
    at: datetime


class Stamped(msgspec.Struct):
    x: Stamp
    note: str = ""


def test_a_time_that_the_type_has_no_field_for_is_not_looked_at(tmp_path: Path) -> None:
    """A row was refused for what is left out of it."""
    inside = f'{{"at": "2026-01-31T12:00:00Z", "created": "{FINE}"}}'
    [found] = json_lines(tmp_path, f'{{"k": "a", "t": 1, "x": {inside}, "note": "{FINE}"}}', Stamped)
    assert found.value == f'{{"x":{{"at":"2026-01-31T12:00:00Z"}},"note":"{FINE}"}}'.encode()
    [found] = json_lines(tmp_path, f'{{"key": {inside}, "value": 1}}', int, Shape(), Stamp)
    assert found.key == b'{"at":"2026-01-31T12:00:00Z"}'
    [found] = csv(tmp_path, "k,t,x\n" + '"' + inside.replace('"', '""') + '",1,1\n', int, OF_TEXT, Stamp)
    assert found.key == b'{"at":"2026-01-31T12:00:00Z"}'
    for text in (FINE, "2026-01-31T12:00:00.4999999Z", "2026-01-31T12:00:00.9999999Z"):
        rounded = f'{{"at": "{text}", "created": "{text}"}}'
        with pytest.raises(BadRow, match=r"line 1: .*finer than a microsecond"):
            json_lines(tmp_path, f'{{"k": "a", "t": 1, "x": {rounded}, "note": "{text}"}}', Stamped)


def test_a_time_just_before_1970_is_refused(tmp_path: Path) -> None:
    for cell in (-1, -999, -1_000, -1_001):
        with pytest.raises(BadRow, match=r"row 1: .* is before 1970"):
            parquet(tmp_path, pa.array([cell], pa.timestamp("ns")), str, shape_of("k", "v", "x"))
    found = parquet(tmp_path, pa.array([0, 999, 1_999_999], pa.timestamp("ns")), str, shape_of("k", "v", "x"))
    assert [one.timestamp_ms for one in found] == [0, 0, 1]


def test_a_column_that_no_record_has_may_hold_anything(tmp_path: Path) -> None:
    column = pa.array([1_001], pa.timestamp("ns"))
    [found] = parquet(tmp_path, column, str, shape_of("k", "v", "t"))
    assert found == FileRecord(1, b"a", b"v", 1)


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (pa.array([1_001, 1_001], pa.timestamp("ns")), "1970-01-01 00:00:00.000001001"),
        (pa.array([1_001, 1_001], pa.duration("ns")), timedelta(microseconds=1)),
        (pa.array([[1_001], [1_001]], pa.list_(pa.timestamp("ns"))), [datetime(1970, 1, 1, 0, 0, 0, 1)]),
        (pa.array([1 << 60, 1 << 60], pa.timestamp("us")), None),
    ],
)
def test_it_may_also_where_rows_are_set_aside(tmp_path: Path, column: pa.Array, shown: Any) -> None:
    """With --bad-records such a column ended the command, or all of its rows were set aside."""
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"k": ["a", "b"], "t": [1, -1], "v": ["v", "w"], "x": column}), file)
    aside: list[tuple[str, Any]] = []
    found = [
        one
        for part in reader.parts(str(file))
        for one in reader.read(
            part, reading(str), shape_of("k", "v", "t"), lambda error, row: aside.append((error.where, row))
        )
    ]
    assert found == [FileRecord(1, b"a", b"v", 1)]
    [(where, row)] = aside
    assert where == "row 2" and row["k"] == "b" and (shown is None or row["x"] == shown)


# ---------------------------------------------------------------- text that is none


@pytest.mark.parametrize("kind", ["text", "struct", "list"])
def test_a_column_of_text_that_is_not_utf8_is_no_base64(tmp_path: Path, kind: str) -> None:
    """Parquet says text and checks none: a field of any type had the base64 of its bytes, and one inside of a struct ended the file."""
    text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff"], pa.binary()).buffers())
    ends = pa.array([0, 1, 2], pa.int32())
    made = {
        "text": lambda: text,
        "struct": lambda: pa.StructArray.from_arrays([text], ["a"]),
        "list": lambda: pa.ListArray.from_arrays(ends, text),
    }
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"k": ["a", "b"], "t": [1, 2], "x": made[kind]()}), file)
    with pytest.raises(BadRow, match=r"row 2: column 'x': .*(is not UTF-8|utf-8)"):
        read(file, reading(dict), FLAT)
    aside: list[str] = []
    [part] = reader.parts(str(file))
    found = list(reader.read(part, reading(dict), FLAT, lambda error, row: aside.append(error.where)))
    assert [one.key for one in found] == [b"a"] and aside == ["row 2"]


# ---------------------------------------------------------------- names that stand there twice


@pytest.mark.parametrize(
    "line",
    [
        '{"k": "a", "t": 1, "x": 1, "x": 2}',
        '{"k":"a","k":"b","t":1,"x":2}',
        '{"k":"a","t":1,"x":2,"t":1}',
        '{ "k" : "a",\t"t":1, "x":2,"x" :2 }',
        '{"k":"a","t":1,"\\u0078":2,"x":1}',
        '{"k":"a","t":1,"x":2,"":1,"":1}',
    ],
)
def test_a_name_twice_in_a_line_of_flat_json_is_refused(tmp_path: Path, line: str) -> None:
    """The last one stood for both, without a word."""
    for value, shape in ((dict, FLAT), (int, OF_TEXT), (Rates, FLAT)):
        with pytest.raises(BadRow, match=r"line 2: '.*' stands in the line twice"):
            json_lines(tmp_path, '{"k":"z","t":1,"x":1}\n' + line, value, shape)


def test_a_name_twice_in_a_record_is_refused(tmp_path: Path) -> None:
    for line in (
        '{"key": "a", "value": 1, "value": 2}',
        '{"key": "a", "value": 2, "key": "b"}',
        '{"key": "a", "value": 2, "timestamp_ms": 1, "timestamp_ms": 2}',
        '{"key": "a", "value": {"key": "b"}, "key": "b"}',
        '{"key": "a", "value": 2, "\\u006bey": "b"}',
        '{"key": "a", "value": 2, "headers": {"h": "1", "h": "2"}}',
        '{"key": "a", "value": 2, "headers": {"h": "1", "\\u0068": "2"}}',
    ):
        with pytest.raises(BadRow, match=r"line 1: '.*' stands in the line twice"):
            json_lines(tmp_path, line, Any, Shape())


@pytest.mark.parametrize(
    "headers", ['{"h": "1", "h": "2"}', '"{\\"h\\": \\"1\\", \\"h\\": \\"2\\"}"'], ids=["object", "text"]
)
def test_a_header_twice_in_a_column_is_refused(tmp_path: Path, headers: str) -> None:
    """A record may have two headers of one name (`{"h": ["1", "2"]}`); of two names the first value was lost."""
    with pytest.raises(BadRow, match="line 1: 'h' stands in the line twice"):
        json_lines(tmp_path, f'{{"k": "a", "t": 1, "x": 2, "hs": {headers}}}', dict, FLAT_HEADERS)
    line = '{"k": "a", "t": 1, "x": 2, "hs": {"h": ["1", "1"], "g": "h", "i": "\\"h\\""}}'
    [found] = json_lines(tmp_path, line, dict, FLAT_HEADERS)
    assert found.headers == (("h", b"1"), ("h", b"1"), ("g", b"h"), ("i", b'"h"'))


def test_names_inside_of_values_are_no_second_ones(tmp_path: Path) -> None:
    value = '{"key": {"value": "\\"key\\"", "value ": 1}, "headers": "value"}'
    [found] = json_lines(tmp_path, f'{{"key": "key", "value": {value}, "headers": {{"key": "value"}}}}', dict, Shape())
    assert (found.key, found.value, found.headers) == (b"key", value.encode(), (("key", b"value"),))
    [found] = json_lines(tmp_path, f'{{"k": "k", "t": 1,  "x": {value}, "é\\u00e9": "k"}}', dict)
    assert found.value == b'{"x":' + value.encode() + ',"éé":"k"}'.encode()


# ---------------------------------------------------------------- offsets


@pytest.mark.parametrize(
    ("given", "offset"),
    [("7", 7), ('"7"', 7), ("null", None), ("7.0", "7.0"), ('"x"', "'x'"), ("true", "True"), ("1" * 20, "1" * 20)],
)
def test_an_offset_of_json_lines_orders_history_or_is_refused(tmp_path: Path, given: str, offset: Any) -> None:
    """Its digits as text, as some write 64 bits, were passed over: history came in the order of its times, and not as in CSV."""
    history = reading(int)._replace(is_history=True)
    file = tmp_path / "x.jsonl"
    file.write_text(f'{{"key": "a", "value": 1, "timestamp_ms": 5, "offset": {given}}}')
    if isinstance(offset, str):
        with pytest.raises(BadRow, match=f"line 1: offset {offset} is not an int"):
            read(file, history)
    else:
        assert [one.offset for one in read(file, history)] == [offset]
    assert read(file, reading(int))[0].value == (1).to_bytes(8, "big"), "what is produced gets another one"
