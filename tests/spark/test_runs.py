"""Rows come out of runs in the one order of their task, whatever was read when, and in bounded memory; columns of Parquet give
what rows one by one give."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.files import parts
from pipeline.files.shape import BadRow, Reading, Shape, shape_of
from pipeline.spark import merging, parquet_rows
from pipeline.spark.cells import Cells, InputEnded
from pipeline.spark.history import FIRST_SEQ
from pipeline.spark.merging import Merging
from pipeline.spark.numbered import Numbered
from pipeline.spark.reading import BATCH_BYTES, LOG_ROWS, even
from pipeline.spark.runs import RUN, Cell, End, Moved, Origin, Place, Run, pack, source_number, unpack
from pipeline.values.codecs import codec_for

TASKS = 3
Row = tuple[int, int, int, int]  # order, source, part, place in what was read
NO_LIMIT = 1 << 40


def rows_of(times: Sequence[int], first: int = 0) -> pa.RecordBatch:
    """Rows whose key says which they are."""
    count = len(times)
    keys = [b"%d" % (first + at) for at in range(count)]
    none = pa.nulls(count, pa.binary())
    columns = [times, [None] * count, times]
    return pa.RecordBatch.from_arrays(
        [*(pa.array(one, pa.int64()) for one in columns), pa.array(keys), none, none], schema=RUN
    )


def moved(cells: Sequence[Cell]) -> list[Moved]:
    """As one group, with its end before them: Spark brings what several machines have read in any order."""
    return [(End(0, len(cells)), b""), *cells]


def runs_of(packed: Sequence[Cell]) -> list[Run]:
    return list(unpack(sorted(packed, key=lambda one: one[0])))


def merged(packed: Sequence[Cell], limit_bytes: int) -> dict[int, list[tuple[int, bytes]]]:
    """(source, key) of the rows of each task in the order in which they come out, however Spark brings its cells."""
    found: dict[int, list[tuple[int, bytes]]] = {}
    for pid in sorted({place.pid for place, _ in packed}):
        with closing(Cells(limit_bytes, 1)) as cells, closing(Merging(limit_bytes)) as merge:
            some = cells.in_order(moved([cell for cell in reversed(packed) if cell[0].pid == pid]))
            for piece in merge.pieces(unpack(some)):
                found.setdefault(pid, []).extend(
                    zip(piece.sources.tolist(), piece.rows.column("key").to_pylist(), strict=True)
                )
    return found


READ = st.lists(  # (phase, topic, times) of what is read, batch by batch
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.lists(st.integers(0, 8), min_size=1, max_size=12)), max_size=12
)


@settings(deadline=None)
@given(READ, st.sampled_from([1, 2_000, NO_LIMIT]), st.sampled_from([1, 4, 100]))
def test_rows_come_in_the_order_of_their_task(read: list[Any], limit_bytes: int, at_once: int) -> None:
    expected: dict[int, list[Any]] = {}
    packed: list[Cell] = []
    first = 0
    for part, (phase, topic, times) in enumerate(read):
        pids = np.array([(first + at) % TASKS if at % 4 else 0 for at in range(len(times))])
        source = source_number(topic)
        packed += pack(rows_of(times, first), pids, Origin(phase, source, part))
        for at, (pid, order) in enumerate(zip(pids.tolist(), times, strict=True)):
            expected.setdefault(pid, []).append((phase, order, source, part, at, b"%d" % (first + at)))
        first += len(times)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "OUT_ROWS", at_once)
        patch.setattr(merging, "DISK_ROWS", at_once)
        assert merged(packed, limit_bytes) == {
            pid: [(source, key) for _, _, source, _, _, key in sorted(rows)] for pid, rows in expected.items()
        }


def test_what_lies_anywhere_goes_to_disk_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(merging, "DISK_ROWS", 64)
    order = np.random.default_rng(1).permutation(20_000).tolist()
    packed = [
        cell
        for at in range(0, 20_000, 500)
        for cell in pack(rows_of(order[at : at + 500], at), np.zeros(500, np.int64), Origin(0, 0, at // 500))
    ]
    merge = Merging(60_000)
    runs = runs_of(packed)
    times: list[int] = []
    most = on_disk = 0
    for piece in merge.pieces(runs):
        most = max(most, piece.rows.num_rows)
        on_disk = max(on_disk, len(list(tmp_path.rglob("*.arrow"))))
        times += piece.rows.column("timestamp_ms").to_pylist()
    assert times == list(range(20_000))
    assert on_disk > 5  # it was more than memory may hold
    assert most <= 64 * (on_disk + 1)  # and came back a little at a time
    merge.close()
    assert not list(tmp_path.iterdir())


def test_large_rows_come_back_from_disk_a_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(merging, "DISK_BYTES", 40_000)
    order = np.random.default_rng(1).permutation(2_000)
    large = pa.array([bytes(10_000)] * 10)
    packed = [
        cell
        for at in range(0, 2_000, 10)
        for cell in pack(
            rows_of(order[at : at + 10].tolist(), at).set_column(4, RUN.field(4), large),
            np.zeros(10, np.int64),
            Origin(0, 0, at // 10),
        )
    ]
    with closing(Merging(1_000_000)) as merge:
        pieces = [(piece.rows.num_rows, piece.rows.nbytes) for piece in merge.pieces(runs_of(packed))]
    assert sum(rows for rows, _ in pieces) == 2_000
    assert max(size for _, size in pieces) < 2_000_000  # 20 runs on disk; 20 MB would be all of it


def test_cells_beyond_the_limit_lie_on_disk_and_in_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    given = [(Place(0, 0, -number, 0, number), bytes([number]) * 1_000) for number in range(100)]

    def held() -> int:
        """Bytes of the files without a name that this process has on that disk."""
        there = [path for path in list(Path("/proc/self/fd").iterdir()) if path.exists()]
        return sum(path.stat().st_size for path in there if path.readlink().is_relative_to(tmp_path))

    with closing(Cells(10_000, 1)) as cells:
        found = cells.in_order(moved(given))
        assert next(found) == given[-1]
        assert held() == 90_000 and not list(tmp_path.iterdir())
        assert list(found) == given[-2::-1]
    assert held() == 0


@pytest.mark.parametrize("missing", [0, 1, -1])
def test_an_input_that_ends_early_is_not_taken_for_all(missing: int) -> None:
    """Neither an end nor a cell is missing in what a task computes from, whatever Spark says."""
    given: list[Moved] = [*moved([(Place(0, 0, 1, 0, 1), b"a"), (Place(0, 0, 2, 0, 2), b"b")]), *moved([])]
    del given[missing]
    with closing(Cells(10_000, 2)) as cells, pytest.raises(InputEnded, match="Spark ended the input of a task"):
        next(cells.in_order(given))


def test_what_is_in_the_order_of_time_is_not_held() -> None:
    packed = [
        cell
        for at in range(0, 90_000, 9_000)
        for cell in pack(rows_of(list(range(at, at + 9_000)), at), np.zeros(9_000, np.int64), Origin(0, 0, at))
    ]
    runs = iter(runs_of(packed))
    pieces = Merging(NO_LIMIT).pieces(runs)
    next(pieces)
    assert len(list(runs)) == 8  # of ten: what came out needed the second one, and no more


def test_a_late_row_does_not_keep_its_run() -> None:
    """A clock that was far ahead once in every run: what waits for the end are these rows alone."""
    packed = [
        cell
        for at in range(0, 900_000, 9_000)
        for cell in pack(rows_of([*range(at, at + 8_999), 1 << 40], at), np.zeros(9_000, np.int64), Origin(0, 0, at))
    ]
    runs = iter(runs_of(packed))
    merge, most = Merging(NO_LIMIT), 0
    count = 0
    for piece in merge.pieces(runs):
        count += piece.rows.num_rows
        most = max(most, sum(run.rows.get_total_buffer_size() for run in merge._held))
    assert count == 900_000
    assert most < 3 * len(packed[0][1])


def test_history_counts_up_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "OUT_ROWS", 2)
    packed = [
        *pack(rows_of([5, 1]), np.zeros(2, np.int64), Origin(0, source_number(0), 0)),
        *pack(rows_of([3], 2), np.zeros(1, np.int64), Origin(0, source_number(1), 1)),
    ]
    runs = runs_of(packed)
    found = list(Numbered(["a", "b"]).rows(Merging(NO_LIMIT).pieces(runs)))
    assert [rows.topics for rows in found] == [["a", "b"], ["a"]]
    numbers = [rows.batch.column("seq").to_pylist() for rows in found]
    assert numbers == [[FIRST_SEQ + 1, FIRST_SEQ + 1], [FIRST_SEQ + 2]]


# ---- columns of Parquet


class Order(msgspec.Struct):
    amount: int


KEYS = [str, bytes, int, tuple[str, int]]
VALUES = [str, bytes, int, float, Order, str | None]


def cells_of(type_: Any) -> st.SearchStrategy[tuple[pa.DataType, list[Any]]]:
    """Columns that are, or nearly are, of a type."""
    texts = st.lists(
        st.none() | st.sampled_from(["a", "", "é", '{"amount": 1}', '{"amount":"x"}', '["s", 1]', '"t"', "7"]),
        max_size=6,
    )
    raw = texts.map(lambda found: [None if one is None else one.encode() for one in found])
    odd = st.just([b"\xff", b"a"])
    numbers = st.lists(st.none() | st.integers(-5, 1 << 40), max_size=6)
    kinds = [
        (pa.string(), texts),
        (pa.binary(), raw),
        (pa.binary(), odd),
        (pa.string(), odd),  # Parquet takes anything for text
        (pa.int64(), numbers),
        (pa.large_string(), texts),
    ]
    return st.sampled_from(kinds).flatmap(lambda kind: kind[1].map(lambda found: (kind[0], found)))


def column(cells: list[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_string(type_) and any(isinstance(cell, bytes) for cell in cells):
        return pa.array(cells, pa.binary()).view(type_)
    return pa.array(cells, type_)


TIMES = st.sampled_from(
    [pa.int64(), pa.timestamp("ms", "UTC"), pa.timestamp("us"), pa.timestamp("ns"), pa.int32(), pa.string()]
)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(KEYS), st.sampled_from(VALUES), st.data())
def test_columns_are_what_rows_are(
    tmp_path_factory: pytest.TempPathFactory, key: Any, value: Any, data: st.DataObject
) -> None:
    key_type, keys = data.draw(cells_of(key))
    value_type, values = data.draw(cells_of(value))
    time_type = data.draw(TIMES)
    count = min(len(keys), len(values))
    times: list[Any] = data.draw(st.lists(st.none() | st.integers(-1, 1 << 30), min_size=count, max_size=count))
    if pa.types.is_string(time_type):
        times = [None if one is None else str(one) for one in times]
    path = str(tmp_path_factory.mktemp("parquet") / "a.parquet")
    arrays = [column(keys[:count], key_type), column(values[:count], value_type), pa.array(times, time_type)]
    shape = data.draw(st.sampled_from([Shape(), shape_of("key", "value", "timestamp_ms:s")]))
    pq.write_table(pa.table(arrays, ["key", "value", "timestamp_ms"]), path, row_group_size=1 << 20)
    reading = Reading("t", codec_for(key, what="key", key=True), codec_for(value, what="value"), 4)
    part = parts.Part(path, "parquet", 0, 1)
    if not count:
        return
    try:
        expected = [(one.key, one.value, one.timestamp_ms, one.line) for one in parts.read(part, reading, shape)]
    except BadRow as error:
        with pytest.raises(BadRow) as raised:
            for _, found in parquet_rows.read(part, reading, shape, None):
                assert not isinstance(found, parquet_rows.Cells)
                list(found)
        assert str(raised.value) == str(error)
        return
    got = []
    for before, found in parquet_rows.read(part, reading, shape, None):
        if isinstance(found, parquet_rows.Cells):
            lines = range(before + 1, before + 1 + len(found.times))
            got += list(zip(found.keys.to_pylist(), found.values.to_pylist(), found.times.tolist(), lines, strict=True))
        else:
            got += [(one.key, one.value, one.timestamp_ms, one.line) for one in found]
    assert got == expected


@pytest.mark.parametrize("type_", [str, bytes])
def test_text_that_is_none_is_what_rows_are(tmp_path: Path, type_: Any) -> None:
    path = str(tmp_path / "a.parquet")
    columns = [column([b"a", b"b"], pa.binary()), column([b"c", b"\xff"], pa.string()), pa.array([5, 6])]
    pq.write_table(pa.table(columns, ["key", "value", "timestamp_ms"]), path)
    reading = Reading("t", codec_for(bytes, what="key", key=True), codec_for(type_, what="value"), 4)
    part = parts.Part(path, "parquet", 0, 1)
    ((_, found),) = parquet_rows.read(part, reading, Shape(), None)
    assert not isinstance(found, parquet_rows.Cells)
    if type_ is bytes:
        assert [one.value for one in found] == [b"c", b"\xff"]
        return
    with pytest.raises(BadRow, match=r"row 2: .* is not a str"):
        list(found)
    with pytest.raises(BadRow, match=r"row 2: .* is not a str"):
        list(parts.read(part, reading, Shape()))


def test_a_time_that_python_has_not_is_refused_as_in_rows(tmp_path: Path) -> None:
    """`produce` refused what a backfill took."""
    path = str(tmp_path / "a.parquet")
    for unit, last in (("ms", 253_402_300_799_999), ("us", 253_402_300_799_999_999)):
        reading = Reading("t", codec_for(str, what="key", key=True), codec_for(str, what="value"), 4)
        for at, is_taken in ((last, True), (last + 1, False)):
            times = pa.array([at], pa.timestamp(unit))
            pq.write_table(pa.table([pa.array(["a"]), pa.array(["v"]), times], ["key", "value", "timestamp_ms"]), path)
            ((_, found),) = parquet_rows.read(parts.Part(path, "parquet", 0, 1), reading, Shape(), None)
            assert isinstance(found, parquet_rows.Cells) == is_taken
            if isinstance(found, parquet_rows.Cells):
                assert found.times.tolist() == [253_402_300_799_999]
            else:
                with pytest.raises(BadRow, match="row 1: column 'timestamp_ms': date value out of range"):
                    list(found)


def test_bytes_that_are_no_json_are_named_by_their_row(tmp_path: Path) -> None:
    """They ended the job, without a file or a row, and were not set aside."""
    path = str(tmp_path / "a.parquet")
    values = pa.array([b'{"amount":1,"x":"c"}', b'{"amount":1,"x":"\xff"}'], pa.binary())
    pq.write_table(pa.table([pa.array(["a", "b"]), values, pa.array([5, 6])], ["key", "value", "timestamp_ms"]), path)
    reading = Reading("t", codec_for(str, what="key", key=True), codec_for(dict, what="value"), 4)
    ((_, found),) = parquet_rows.read(parts.Part(path, "parquet", 0, 1), reading, Shape(), None)
    assert not isinstance(found, parquet_rows.Cells)
    with pytest.raises(BadRow, match=r"a.parquet, row 2: .* cannot be read as"):
        list(found)


@pytest.mark.parametrize(
    ("key", "value", "types", "cells"),
    [
        (str, bytes, (pa.string(), pa.binary()), (["a", "b"], [b"\xff", None])),
        (str, Order, (pa.binary(), pa.string()), ([b"a", None], ['{"amount":1}', '{"amount": 2}'])),
        (str, Order, (pa.large_string(), pa.large_string()), (["a", None], ['{"amount":1}', None])),
        (bytes, bytes, (pa.large_binary(), pa.large_binary()), ([b"a", None], [b"\xff", None])),
        (int, int, (pa.int64(), pa.int32()), ([-1, 1 << 40], [3, -4])),
    ],
)
def test_plain_columns_make_no_object_for_a_row(tmp_path: Path, key: Any, value: Any, types: Any, cells: Any) -> None:
    path = str(tmp_path / "a.parquet")
    columns = [pa.array(one, type_) for one, type_ in zip(cells, types, strict=True)]
    pq.write_table(pa.table([*columns, pa.array([5, 6])], ["key", "value", "timestamp_ms"]), path)
    reading = Reading("t", codec_for(key, what="key", key=True), codec_for(value, what="value"), 4)
    ((_, found),) = parquet_rows.read(parts.Part(path, "parquet", 0, 1), reading, Shape(), None)
    assert isinstance(found, parquet_rows.Cells)


@pytest.mark.parametrize("cuts", [(), (1, 2, 3), (7_000, 7_001, 30_000), tuple(range(500, 40_000, 500))])
@pytest.mark.parametrize("width", [10, 4_000])
def test_what_is_read_of_the_log_again_is_the_same(cuts: tuple[int, ...], width: int) -> None:
    """A broker gives the records of a slice in other portions than before: the runs are the same, byte for byte. Spark ends a job
    whose stage gives something else when it is run again for a machine that was lost."""
    count, noise = 40_000, b"x" * width
    values = pa.array([noise[: width * (at % 7) // 6] for at in range(count)], pa.binary())
    none = pa.nulls(count, pa.binary())
    rows = pa.RecordBatch.from_arrays([values, values, none], ["key", "value", "headers"])
    bounds = [0, *cuts, count]
    portions = [rows.slice(a, b - a) for a, b in pairwise(bounds)]
    found = list(even(portions))
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([rows]))
    sizes = [batch.num_rows for batch in found]
    assert sizes == [batch.num_rows for batch in even([rows])] and max(sizes) <= LOG_ROWS
    assert all(batch.nbytes < BATCH_BYTES + (1 << 20) for batch in found)
    assert width == 10 or max(sizes) < LOG_ROWS, "by bytes"


def test_runs_are_packed_small() -> None:
    """Spark moves and sorts what is in the cell: rows that look alike take a fraction of their bytes there."""
    count = 5_000
    values = pa.array([b'{"account": "ann", "amount": 7}'] * count)
    rows = rows_of(range(count)).set_column(4, RUN.field(4), values)
    packed = pack(rows, np.zeros(count, np.int64), Origin(0, 0, 0))
    assert sum(len(cell) for _, cell in packed) < rows.nbytes / 2
    (run,) = unpack(packed)
    assert run.rows.equals(rows)
