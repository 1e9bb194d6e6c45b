"""What is reported of a job while it runs: the stage that has tasks, and not one whose rows are there already."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.spark import running
from pipeline.spark.running import stage_of

pytestmark = pytest.mark.spark
GROUP, TASKS, DEADLINE_S = "reported", 3, 60.0


def waiting(gate: Path) -> Any:
    """A function of rows on executors: until the test has seen what it wants."""
    wait_s = DEADLINE_S

    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        until = time.monotonic() + wait_s
        while not gate.exists() and time.monotonic() < until:
            time.sleep(0.02)
        yield from batches

    return waits


async def test_elsewhere_than_on_a_terminal_a_line_says_now_and_then_how_far_it_is(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "LOOK_S", 0.05)
    monkeypatch.setattr(running, "LINE_EVERY_S", 0.1)
    gate, deadline = tmp_path / "gate", time.monotonic() + DEADLINE_S
    job = asyncio.create_task(
        running.in_thread(
            spark, spark.range(0, 8, 1, 2).mapInArrow(waiting(gate), "id bigint").count, rows=lambda: "8 rows"
        )
    )
    said = ""
    while said.count("\n") < 2:
        assert not job.done() and time.monotonic() < deadline, said
        await asyncio.sleep(0.02)
        said += capsys.readouterr().err
    gate.touch()
    assert await job == 8
    assert set(said.splitlines()) == {"0 of 2 tasks of this stage, 8 rows"}


def test_the_stage_that_runs_is_reported_beside_one_that_was_left_out(spark: Any, tmp_path: Path) -> None:
    """The second job of a shuffle lists the first stage as well: it never runs, so its slots seemed to be missing for ever."""
    context, gate = spark.sparkContext, tmp_path / "gate"

    def job() -> None:
        context.setJobGroup(GROUP, GROUP, False)
        rows = spark.range(0, 8, 1, 2).repartition(TASKS, "id")
        assert rows.mapInArrow(waiting(gate), "id bigint").count() == 8

    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    try:
        deadline, seen = time.monotonic() + DEADLINE_S, None
        while seen is None or seen.numTasks != TASKS:
            assert thread.is_alive() and time.monotonic() < deadline, f"the stage that runs is not reported, but {seen}"
            seen = stage_of(context, GROUP) or seen
        assert seen.numCompletedTasks == 0
    finally:
        gate.touch()
        thread.join(DEADLINE_S)
    assert not thread.is_alive() and stage_of(context, GROUP) is None
