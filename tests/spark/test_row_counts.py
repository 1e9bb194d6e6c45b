"""How far a stage is, in rows: each attempt counts, the furthest of a task is taken, and a count that cannot be written is no failure."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.spark import row_counts
from pipeline.spark.row_counts import PROCESSED, READ, RowCount, shown
from pipeline.spark.running import _line


@pytest.fixture(autouse=True)
def each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every count is written, however soon."""
    monkeypatch.setattr(row_counts, "EACH_S", 0.0)


def test_rows_are_told_of_what_runs(tmp_path: Path) -> None:
    assert shown(tmp_path) == ""
    for number in range(2):
        RowCount(tmp_path, READ, number).add(1_000)
    assert shown(tmp_path) == "2,000 rows read"
    count = RowCount(tmp_path, PROCESSED, 0)
    count.add(700)
    count.add(800)
    assert shown(tmp_path) == "1,500 rows processed"


def test_of_two_attempts_the_furthest_counts(tmp_path: Path) -> None:
    for rows in (500, 300):
        RowCount(tmp_path, PROCESSED, 3).add(rows)
    assert shown(tmp_path) == "500 rows processed"


def test_a_count_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    folder = tmp_path / "attempts"
    folder.mkdir()
    count = RowCount(folder, PROCESSED, 0)
    shutil.rmtree(folder)
    count.add(1)
    assert shown(folder) == ""


def test_it_is_written_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_counts, "EACH_S", 1.0)
    now = [10.0]
    monkeypatch.setattr(row_counts, "monotonic_s", lambda: now[0])
    count = RowCount(tmp_path, PROCESSED, 0)
    for rows, at_s in ((1, 10.0), (2, 10.9), (4, 11.0)):
        now[0] = at_s
        count.add(rows)
        assert shown(tmp_path) == f"{7 if at_s == 11.0 else 1} rows processed"
    count.add(8)
    count.write()
    assert shown(tmp_path) == "15 rows processed"


def test_the_line_has_tasks_rows_and_time() -> None:
    stage = SimpleNamespace(numCompletedTasks=2, numTasks=8)
    assert _line(stage, 10, "7 rows processed") == "2 of 8 tasks of this stage, 7 rows processed, about 30 s left"
    assert _line(stage, 10, "") == "2 of 8 tasks of this stage, about 30 s left"
