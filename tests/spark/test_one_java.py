"""What is seen of a Java of its own: its first tasks, its zone, what it prints, how it ends. One is started for all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.spark.daemon import without_archives
from tests.spark.one_java import AT_MS

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By its part: see one_java.py."""
    folder = tmp_path_factory.mktemp("java")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.spark.one_java", str(folder)],
        cwd=ROOT,
        env={**os.environ, "TZ": "America/Lima", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.spark
def test_the_first_task_of_a_slot_finds_a_worker_that_has_imported_what_it_needs(seen: dict[str, Any]) -> None:
    """Its Python workers are there before the first task, and so they are where the session is started again."""
    for one in seen["began"]:
        assert len(one["before"]) == 2 and {row["pid"] for row in one["rows"]} <= set(one["before"])
        assert all(row["has"] for row in one["rows"])
        assert not any(row["packed"] for row in one["rows"]), "pyspark is compiled anew with each start of a worker"


@pytest.mark.spark
def test_a_backfill_of_files_needs_neither_sql_nor_pandas(seen: dict[str, Any]) -> None:
    """What they cost a job of a second: Java takes one to get SQL ready, and each worker 0.2 s to import pandas."""
    assert seen["light"] == {"records": 20, "sql": False, "imported": [""] * 20}


@pytest.mark.spark
def test_times_of_orc_without_a_zone_are_utc(seen: dict[str, Any]) -> None:
    """Spark took them for times of the zone in which each Java ran."""
    assert seen["times"] == [AT_MS]


@pytest.mark.spark
def test_a_query_that_fails_prints_no_page_of_java(seen: dict[str, Any]) -> None:
    """PySpark logs the whole of it to standard error, beside our one line."""
    problem, said = seen["query"]
    assert problem.startswith("select 'ann' as key") and "CAST_INVALID_INPUT" in problem
    assert said == ""


@pytest.mark.spark
def test_java_that_was_killed_is_named_as_that(seen: dict[str, Any]) -> None:
    """py4j and sockets say it in five ways, `Connection refused` among them."""
    assert seen["killed"].startswith("Spark's Java process has ended: it was killed, or")


def test_an_archive_is_left_out_where_the_same_modules_are_files() -> None:
    own, other = "/env/site-packages/pyspark/python/lib", "/opt/spark/python/lib"
    paths = ["", f"{own}/pyspark.zip", f"{own}/py4j-0.10-src.zip", f"{other}/pyspark.zip", "/env/site-packages"]
    assert without_archives(paths) == ["", f"{other}/pyspark.zip", "/env/site-packages"]
    assert without_archives(paths[:-1]) == paths[:-1], "pyspark would not be found at all"
