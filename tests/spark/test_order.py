"""Sorted rows are in the order of a live task; what Spark is given comes back as it was."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.merge import Merger
from pipeline.records import OutputRecord, SourceRecord
from pipeline.spark import rows as rows_module
from pipeline.spark.history import FIRST_SEQ
from pipeline.spark.log_source import Slice, _batch
from pipeline.spark.rows import PLACE, Outputs, Row, Written, of_records, packed, records, table_of
from state.log.protocol import StoredRecord

TIMES = st.lists(st.integers(-3, 12), max_size=12)
HEADERS = st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2).map(tuple)


@settings(deadline=None)  # the first run imports Arrow
@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), TIMES, max_size=3))
def test_sorting_by_place_is_merging_by_heads(sources: dict[str, list[int]]) -> None:
    merger = Merger()
    rows: list[tuple[int, str, int, int]] = []
    for topic, times in sources.items():
        merger.add(topic, 0, [SourceRecord(n, at, None, None) for n, at in enumerate(times)])
        stored = [StoredRecord(n, at, None, None) for n, at in enumerate(times)]
        latest = None
        for cut in (stored[:5], stored[5:]):  # the running maximum goes on from batch to batch
            if cut:
                batch, latest = _batch(Slice(topic, 0, 0, len(times)), cut, latest)
                placed = zip(batch["order_ms"].to_pylist(), batch["offset"].to_pylist(), strict=True)
                rows += [(order, topic, 0, offset) for order, offset in placed]
    merged = [(topic, record.offset) for topic, record in merger.take(1_000)]
    assert [(topic, seq) for _, topic, _, seq in sorted(rows)] == merged
    assert PLACE == ("order_ms", "topic", "upstream", "seq")


@given(st.lists(st.tuples(st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=3), HEADERS), max_size=5))
def test_records_survive_rows(given_: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]]) -> None:
    rows = [Row(0, 1, "t", 0, n, 5, key, value, packed(headers)) for n, (key, value, headers) in enumerate(given_)]
    table = table_of(rows)
    found = [pair for batch in table.to_batches() for pair in records(of_records(batch))]
    assert found == [("t", SourceRecord(n, 5, key, value, headers)) for n, (key, value, headers) in enumerate(given_)]


def test_outputs_of_tasks_are_read_in_order() -> None:
    with TemporaryDirectory() as folder:
        paths = []
        for task, times in enumerate(([5, 3, 9], [4, 4])):
            path = Path(folder) / str(task) / "out.parquet"
            path.parent.mkdir()
            file = Written(path, "out", task)
            file.add(0, [OutputRecord(b"k%d" % task, b"%d" % at, at) for at in times])
            file.close()
            paths.append(path)
        with closing(Outputs(paths)) as outputs:
            found = [(record.key, record.timestamp_ms) for record in outputs.of(0)]
            assert outputs.partitions() == [0]
    assert found == [(b"k1", 4), (b"k1", 4), (b"k0", 5), (b"k0", 3), (b"k0", 9)]


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=12), max_size=3), st.integers(1, 5))
def test_outputs_of_each_partition_are_in_the_order_of_place(tasks: list[list[tuple[int, int]]], at_once: int) -> None:
    expected: dict[int, list[tuple[int, int, int, int]]] = {}
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "FLUSH_ROWS", at_once)
        patch.setattr(rows_module, "HELD_ROWS", at_once)
        paths = []
        for task, sent in enumerate(tasks):
            path = Path(folder) / f"{task}.parquet"
            file, running = Written(path, "out", task), dict[int, int]()
            for seq, (partition, at_ms) in enumerate(sent):
                running[partition] = max(at_ms, running.get(partition, at_ms))
                file.add(partition, [OutputRecord(b"%d" % seq, None, at_ms)])
                expected.setdefault(partition, []).append((running[partition], task, seq, at_ms))
            file.close()
            paths += [path] if sent else []
            counts = {number: sum(one == number for one, _ in sent) for number, _ in sent}
            assert file.counts == counts
        with closing(Outputs(paths)) as outputs:
            found = {number: list(outputs.of(number)) for number in outputs.partitions()}
    assert {number: [(one.key, one.timestamp_ms) for one in listed] for number, listed in found.items()} == {
        number: [(b"%d" % seq, at_ms) for _, _, seq, at_ms in sorted(listed)] for number, listed in expected.items()
    }


def test_tasks_of_two_subtopologies_may_have_one_place(tmp_path: Path) -> None:
    for task in ("0_0", "1_0"):
        file = Written(tmp_path / task, "out", 0)
        key = None if task == "0_0" else b"k"  # records cannot be compared
        file.add(0, [OutputRecord(key, task.encode(), at_ms) for at_ms in (5, 5, 6)])
        file.close()
    with closing(Outputs([tmp_path / "0_0", tmp_path / "1_0"])) as outputs:
        assert [record.value for record in outputs.of(0)] == [b"0_0", b"1_0"] * 3


def test_history_sorts_before_the_log() -> None:
    assert FIRST_SEQ + (1 << 39) < 0


def test_empty_tables_have_the_columns() -> None:
    assert table_of([]).schema.names == ["pid", *PLACE[:1], "topic", "upstream", "seq", *table_of([]).schema.names[5:]]
    assert isinstance(table_of([]), pa.Table)
