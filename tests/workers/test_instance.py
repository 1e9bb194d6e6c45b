"""The parent of the workers, as whoever started it sees it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from state.log.sqlite import open_sqlite
from tests.kills.receipts import app
from workers.fleet.fleet import ProcessHost
from workers.journal import read_journals
from workers.prepare import prepare
from workers.spec import InstanceSpec

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_S = 60.0


@pytest.mark.processes
async def test_it_can_be_told_to_stop_as_soon_as_its_process_is_known(tmp_path: Path) -> None:
    """Its journal tells the process; a signal that came before it is heard would be a crash, and start it again."""
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await prepare(log, app)
    await log.close()
    state = tmp_path / "state"
    url = f"sqlite:{tmp_path / 'log.db'}"
    spec = InstanceSpec("tests.kills.receipts:app", app.id, "", url, str(state), folder=str(ROOT))

    def told(instance: str) -> list[str]:
        return [row["what"] for row in read_journals(state / app.id) if row["instance"] == instance]

    for number in range(1, 6):
        instance = f"i{number}"
        handle = await ProcessHost().start(msgspec.structs.replace(spec, instance=instance))
        deadline = time.monotonic() + DEADLINE_S
        while not told(instance):
            assert time.monotonic() < deadline, f"{instance} does not begin"
            await asyncio.sleep(0.001)
        handle.stop()
        assert await asyncio.wait_for(handle.wait(), DEADLINE_S) == 0
        assert told(instance) == ["instance", "instance ended"]
