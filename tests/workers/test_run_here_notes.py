"""Whether `app.run()` may take its name, where the log has a note of a process on another machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import App, Record
from orchestrator.clocks import wall_ms
from orchestrator.errors import RefusedBySafety
from state.log.protocol import GroupLog
from workers.fleet import run_here
from workers.fleet.presence import NAMED
from workers.log.logs import open_log
from workers.spec import InstanceSpec

NOTE = {"pid": 1, "started": "1", "host": "a-container-that-is-gone", "state_dir": "/state", "instances": ["i1"]}


def bank() -> App:
    app = App("bank")

    @app.processor(app.topic("payments", key=str, value=int))
    def look(payment: Record[str, int]) -> None:
        pass

    return app


async def note(log: GroupLog, found: dict[str, Any] | None = None) -> bytes | None:
    if found is not None:
        await log.put_metadata("bank", NAMED, "i1", json.dumps(found).encode())
    return await log.metadata("bank", NAMED, "i1")


async def test_a_note_that_a_killed_process_left_on_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new container the machine has another name, and `app.run()` that was killed in the one before was refused for ever: the
    one that runs was to be stopped first."""
    url = f"sqlite:{tmp_path}/bank.db"
    first, second = (
        InstanceSpec(app="bank", application="bank", instance="i1", log=url, state_dir=str(state), folder=str(tmp_path))
        for state in (tmp_path / "first", tmp_path / "second")  # a process keeps the lock of one to its end
    )
    log = await open_log(url, create=True)

    async def runs(*_: object) -> int:
        assert json.loads(await note(log) or b"")["host"] != NOTE["host"]
        return 0

    monkeypatch.setattr(run_here, "_run_here", runs)
    await note(log, {**NOTE, "at_ms": wall_ms()})
    with pytest.raises(RefusedBySafety, match="runs already on a-container-that-is-gone"):  # it may have begun just now
        await run_here._run(bank(), first)
    await note(log, {**NOTE, "at_ms": wall_ms() - 60_000})
    assert await run_here._run(bank(), second) == 0
    assert await note(log) is None
    await log.close()
