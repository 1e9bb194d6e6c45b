"""An error that waits for its client may last for ever: the command warns of it once, and the job goes on when the client is back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator.clocks import monotonic_s
from pipeline.spark.waits import Waits, waits_of
from tests.spark import patient
from tests.spark.test_backfill import ROOT, Place, write
from workers.commands.consume import read_all


def test_what_waits_is_there_until_it_is_over(tmp_path: Path) -> None:
    one, other = Waits(tmp_path, 0), Waits(tmp_path, 1)
    assert waits_of(tmp_path) == set()
    for text in ("a waits", "a waits", "a waits for another"):
        one.begin(text)
    other.begin("b waits")
    assert waits_of(tmp_path) == {"a waits for another", "b waits"}
    one.over()
    one.over()
    assert waits_of(tmp_path) == {"b waits"}
    Waits(tmp_path / "gone", 0).begin("nobody reads it")
    assert waits_of(tmp_path / "gone") == set()


@pytest.mark.spark
async def test_a_backfill_says_what_it_waits_for(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    place, client = Place(tmp_path, spark), tmp_path / "client"
    log = await place.log()
    await write(log, patient.app, [(patient.orders, key, str(client), 1) for key in "abc"])
    running = asyncio.create_task(place.backfill("tests.spark.patient:app"))
    said, deadline = "", monotonic_s() + 120
    while "waits at" not in said:
        assert monotonic_s() < deadline and not running.done()
        await asyncio.sleep(0.1)  # until the deadline: nothing tells that the line is there
        said += capsys.readouterr().err
    assert "warning: order waits at orders-" in said and "ConnectionRefusedError: nobody is there; it is tried" in said
    client.touch()
    await running
    found = {entry.key: entry.value for _, entry in await read_all(log, patient.done.changelog)}
    assert found == {key: (1).to_bytes(8, "big") for key in (b"a", b"b", b"c")}
    assert capsys.readouterr().err.count("waits at") + said.count("waits at") <= 2, "once for each task"
    await log.close()
