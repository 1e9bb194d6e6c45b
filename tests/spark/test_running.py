"""What is reported of a job while it runs: the stage that has tasks, and not one whose rows are there already."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.spark.running import stage_of

pytestmark = pytest.mark.spark
GROUP, TASKS, DEADLINE_S = "reported", 3, 60.0


def test_the_stage_that_runs_is_reported_beside_one_that_was_left_out(spark: Any, tmp_path: Path) -> None:
    """The second job of a shuffle lists the first stage as well: it never runs, so its slots seemed to be missing for ever."""
    context, gate, wait_s = spark.sparkContext, tmp_path / "gate", DEADLINE_S

    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """On an executor: until the test has seen what it wants."""
        until = time.monotonic() + wait_s
        while not gate.exists() and time.monotonic() < until:
            time.sleep(0.02)
        yield from batches

    def job() -> None:
        context.setJobGroup(GROUP, GROUP, False)
        rows = spark.range(0, 8, 1, 2).repartition(TASKS, "id")
        assert rows.mapInArrow(waits, "id bigint").count() == 8

    running = threading.Thread(target=job, daemon=True)
    running.start()
    try:
        deadline, seen = time.monotonic() + DEADLINE_S, None
        while seen is None or seen.numTasks != TASKS:
            assert running.is_alive() and time.monotonic() < deadline, (
                f"the stage that runs is not reported, but {seen}"
            )
            seen = stage_of(context, GROUP) or seen
        assert seen.numCompletedTasks == 0
    finally:
        gate.touch()
        running.join(DEADLINE_S)
    assert not running.is_alive() and stage_of(context, GROUP) is None
