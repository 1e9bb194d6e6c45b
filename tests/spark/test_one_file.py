"""Folders whose names would be patterns for Spark are read all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.spark.differences import DIFFERENCE, computed_tables, kept, sent
from pipeline.spark.rows import write_pairs
from pipeline.spark.shown_differences import Subject, rows_of
from tests.spark.test_under_way import sent_file

pytestmark = pytest.mark.spark


def test_what_spark_has_written_is_found_in_any_folder(tmp_path: Path, spark: Any) -> None:
    """It failed at its end, once all was computed, where the folder of the snapshots or TMPDIR had a bracket in its name."""
    folder = tmp_path / "audits [2026] {a,b}*?"
    for name in ("0_0/outputs", "0_0/state"):
        (folder / name).mkdir(parents=True)
    one = sent_file(folder / "0_0" / "outputs" / "t.parquet", [(0, b"a", 5)])
    assert [row["sender"] for row in sent(spark, [str(one)]).collect()] == ["0_0"]
    table = folder / "0_0" / "state" / "sums.parquet"
    write_pairs(table, iter([(b"k", b"v")]))
    assert [row["subject"] for row in computed_tables(spark, [str(table)]).collect()] == ["sums"]
    rows = spark.createDataFrame([("t", "lost", 0, 0, b"k", b"v", None, 5, None, 1)], DIFFERENCE)
    path, kinds = kept(rows, folder, "topics")
    assert kinds == {"t": {"lost": 1}}
    assert [row["kind"] for row in rows_of(spark, Subject(False, "t"), path).collect()] == ["lost"]
