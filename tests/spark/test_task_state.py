"""The tables of a task in Spark are sorted dicts, in memory or on disk, and take no more memory than they may."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.spark import rows
from pipeline.spark.rows import read_pairs, write_pairs
from pipeline.spark.task_state import ENTRY_BYTES, TaskState

WRITES = st.lists(
    st.tuples(st.sampled_from("ab"), st.binary(max_size=2), st.none() | st.binary(max_size=9)), max_size=20
)
BOUND = st.none() | st.binary(max_size=2)


@settings(deadline=None, max_examples=60)
@given(WRITES, BOUND, BOUND, st.sampled_from([0, 300, 1_000, 1 << 30]))
def test_they_are_sorted_dicts(
    writes: list[tuple[str, bytes, bytes | None]], start: bytes | None, stop: bytes | None, limit: int
) -> None:
    with TemporaryDirectory() as local, patch.dict("os.environ", SPARK_LOCAL_DIRS=f"{local},/nowhere"):
        state, expected = TaskState("ab", limit), {"a": dict[bytes, bytes](), "b": dict[bytes, bytes]()}
        for table, key, value in writes:
            state.write({table: {key: value}})
            if value is None:
                expected[table].pop(key, None)
            else:
                expected[table][key] = value
            store, known = state.stores[table], expected[table]
            wanted = [k for k in sorted(known) if (start is None or k >= start) and (stop is None or k < stop)]
            assert list(store.range(start, stop)) == [(k, known[k]) for k in wanted]
            assert store.get(key) == known.get(key)
            assert sum(one.memory_bytes for one in state.stores.values()) <= limit
        for table, known in expected.items():
            assert list(state.stores[table].pairs()) == sorted(known.items())
        if limit == 0 and any(expected.values()):
            assert list(Path(local).glob("*/*/CURRENT"))
        state.close()
        assert not list(Path(local).iterdir())


def test_what_was_on_disk_leaves_the_same_file(tmp_path: Path) -> None:
    entries = {b"%05d" % (7 * n % 30_000): b"v%d" % n for n in range(30_000)}  # more than one group of rows
    for limit in (0, 1 << 30):
        state = TaskState(["t"], limit)
        state.write({"t": entries})
        assert state.spilled() == (limit == 0)
        assert write_pairs(tmp_path / str(limit), state.stores["t"].pairs()) == len(entries)
        state.close()
    in_memory, on_disk = (tmp_path / str(limit) for limit in (1 << 30, 0))
    assert on_disk.read_bytes() == in_memory.read_bytes()
    assert list(read_pairs(on_disk)) == sorted(entries.items())


def test_what_fits_stays_in_memory() -> None:
    state = TaskState(["small", "large"], 4 * ENTRY_BYTES)
    state.write({"small": {b"k": b"v"}, "large": {b"%d" % n: b"v" for n in range(9)}})
    assert state.stores["large"].memory_bytes == 0 < state.stores["small"].memory_bytes
    assert state.spilled() == 1
    state.write({"small": {b"k": None}})
    assert state.stores["small"].memory_bytes == 0 and state.spilled() == 1
    state.close()


def test_large_values_are_written_a_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 of 110 KB are more than an array of Arrow takes."""
    monkeypatch.setattr(rows, "FLUSH_BYTES", 2_500)
    pairs = [(b"%d" % number, bytes(1_000)) for number in range(10)]
    assert write_pairs(tmp_path / "t", iter(pairs)) == 10
    with pq.ParquetFile(tmp_path / "t") as file:
        assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [3, 3, 3, 1]
    assert list(read_pairs(tmp_path / "t")) == pairs
