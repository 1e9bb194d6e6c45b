"""History on Spark up to a place drawn at random, live instances from there on: with windows open, sessions growing, timers
pending and records of a join unmatched at the seam, the whole answer is the Driver's. `make test-long` draws twenty."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.spark.backfill import backfill
from tests.cli.console import Console
from tests.time import watch
from tests.time.test_live import FAST, driver_answer, history, live_answer, produce

pytestmark = [pytest.mark.processes, pytest.mark.spark]
RECORDS = 500
ROOT = Path(__file__).resolve().parent.parent.parent


def seam(folder: Path, seed: int, session: Any) -> None:
    records = history(RECORDS, seed)
    cut = random.Random(seed).randrange(50, RECORDS - 50)
    expected = driver_answer(records)
    console = Console(folder / "place", app="watch")
    try:
        shutil.copy(Path(watch.__file__), console.folder / "watch.py")
        produce(console, records[:cut])
        log = f"sqlite:{console.folder}/.orchestrator/watch.db"
        snapshots = console.folder / "snapshots"
        facts = asyncio.run(backfill("tests.time.watch:app", log, snapshots, session=session, say=print))
        assert facts["records_in"] == cut
        begun = live_answer(console)
        assert all(values == expected[key][: len(values)] for key, values in begun.items()), (seed, cut)
        assert sum(map(len, begun.values())) < sum(map(len, expected.values())), "something is open at the seam"
        produce(console, records[cut:])
        console.run("--workers", "2", "--snapshots", str(snapshots), *FAST)
        wanted = sum(map(len, expected.values()))
        console.until("the end", lambda: sum(map(len, live_answer(console).values())) >= wanted)
        assert live_answer(console) == expected, (seed, cut)
    finally:
        console.close()


def test_a_seam(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    seam(tmp_path, 1, spark)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 21))
def test_seams(seed: int, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    seam(tmp_path, seed, spark)
