"""Records that retention removes while Spark is at work: what was to be computed of them is refused, and is no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import RefusedBySafety
from pipeline.spark.engine import Engine
from pipeline.spark.inputs import Computed, Inputs
from pipeline.spark.moment import first_begins, sources
from pipeline.spark.stage_rows import StageRows
from pipeline.spark.verifying import Wanted, audit
from state.log.protocol import NewRecord, Partition
from state.log.sqlite import open_sqlite
from tests.spark import tallies
from tests.spark.test_backfill import ROOT, Place
from workers.prepare import prepare

APP = "tests.spark.tallies:app"
ONE = Partition("marks", 1)


async def fill(log: Any) -> None:
    """Two batches a partition: retention removes whole ones."""
    for at in (0, 10):
        await log.append(
            {Partition("marks", n): [NewRecord(b"k%d" % i, bytes(8), at + i) for i in range(10)] for n in (0, 1)}
        )


@pytest.mark.parametrize("how", ["_slices", "_log_rows"])
async def test_what_is_removed_before_it_is_read_is_refused(tmp_path: Path, how: str) -> None:
    """It was left out without a word, and its positions were committed."""
    log = await open_sqlite(tmp_path / "log.db", create=True)
    prepared = await prepare(log, tallies.app)
    await fill(log)
    await log.trim({ONE: 10})
    until = await log.ends(sources(prepared))
    begins = await first_begins(log, prepared, until)
    assert begins[ONE] == 10, "what was gone before is no matter"
    inputs = Inputs(APP, prepared, f"sqlite:{tmp_path / 'log.db'}", log.log_id, until, {}, begins=begins)
    none: Any = SimpleNamespace(createDataFrame=lambda rows, schema: None)
    rows = StageRows(none, inputs, Computed(tmp_path), none, prepared.topology.subtopologies[0])
    found = await asyncio.to_thread(rows._slices, "marks")
    assert [(one.number, one.start, one.end) for one in found] == [(0, 0, 20), (1, 10, 20)]
    await log.trim({ONE: 20})
    await log.append({ONE: [NewRecord(b"later", bytes(8), 99)]})
    read: Callable[[Any], Any] = getattr(rows, how)
    with pytest.raises(RefusedBySafety, match=r"retention removed marks-1 from 10 to 19 while Spark.*longer retention"):
        await asyncio.to_thread(read, "marks" if how == "_slices" else ["marks"])
    await log.close()


@pytest.mark.spark
async def test_an_audit_states_what_was_removed_since_it_began(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compared without these records, and named right tables wrong."""
    monkeypatch.chdir(ROOT)
    place = Place(tmp_path, spark)
    log = await place.log()
    prepared = await prepare(log, tallies.app)
    await fill(log)
    await place.backfill(APP)
    run = Engine.run

    def late(engine: Engine, say: Any) -> Computed:
        asyncio.run(trimmed())
        return run(engine, say)

    async def trimmed() -> None:
        other = await open_sqlite(Path(place.url.removeprefix("sqlite:")), create=False)
        await other.trim({ONE: 10})
        await other.close()

    monkeypatch.setattr(Engine, "run", late)
    facts = await audit(APP, place.url, Wanted(), say=place.said.append, session=spark)
    wrong = [(check["check"], check["found"]) for check in facts["checks"] if not check["ok"]]
    assert wrong == [("inputs are whole in the log", 10)]
    assert any("compared: retention removed marks-1 from 0 to 9" in line for line in place.said)
    assert (await log.starts(sources(prepared)))[ONE] == 10
    await log.close()
