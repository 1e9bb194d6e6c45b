"""What `backfill --dry-run` says of an app that a backfill would not take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.files.shape import Shape
from pipeline.spark.planning import plan_text, planned
from tests.spark import tallies
from tests.spark.test_audit import TALLIES
from tests.spark.test_backfill import ROOT, Place, write
from workers.commands.cluster import LOCAL

pytestmark = pytest.mark.spark


async def test_a_dry_run_says_that_the_backfill_would_be_refused(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    place = Place(tmp_path, spark)
    log = await place.log()
    await write(log, tallies.app, [(tallies.marks, "k", 1, 1)])
    assert "refused" not in plan_text(await planned(TALLIES, place.url, {}, Shape(), LOCAL))
    await place.backfill(TALLIES)
    plan = await planned(TALLIES, place.url, {}, Shape(), LOCAL)
    assert "\na backfill would be refused: 'tallies' has processed records already" in plan_text(plan)
    await log.close()
