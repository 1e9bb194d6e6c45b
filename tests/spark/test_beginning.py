"""A session whose tasks come at once: its Python workers are there before the first one, and it can be started again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.spark.daemon import without_archives

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.spark
def test_the_first_task_of_a_slot_finds_a_worker_that_has_imported_what_it_needs() -> None:
    command = [sys.executable, "-m", "tests.spark.beginning"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    for seen in json.loads(ended.stdout):
        assert len(seen["before"]) == 2 and {row["pid"] for row in seen["rows"]} <= set(seen["before"])
        assert all(row["has"] for row in seen["rows"])
        assert not any(row["packed"] for row in seen["rows"]), "pyspark is compiled anew with each start of a worker"


def test_an_archive_is_left_out_where_the_same_modules_are_files() -> None:
    own, other = "/env/site-packages/pyspark/python/lib", "/opt/spark/python/lib"
    paths = ["", f"{own}/pyspark.zip", f"{own}/py4j-0.10-src.zip", f"{other}/pyspark.zip", "/env/site-packages"]
    assert without_archives(paths) == ["", f"{other}/pyspark.zip", "/env/site-packages"]
    assert without_archives(paths[:-1]) == paths[:-1], "pyspark would not be found at all"


@pytest.mark.spark
def test_a_backfill_of_files_needs_neither_sql_nor_pandas(tmp_path: Path) -> None:
    """What they cost a job of a second: Java takes one to get SQL ready, and each worker 0.2 s to import pandas."""
    command = [sys.executable, "-m", "tests.spark.light", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == {"records": 20, "sql": False, "imported": [""] * 20}
