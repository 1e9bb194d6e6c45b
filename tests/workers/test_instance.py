"""The parent of the workers, as whoever started it sees it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from state.log.sqlite import open_sqlite
from tests.kills.receipts import app
from workers.fleet.fleet import ProcessHost
from workers.instance.instance import Instance
from workers.journal import read_journals
from workers.prepare import prepare
from workers.spec import REPORTED, InstanceSpec, WorkerSpec
from workers.surroundings import REAL

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


class Child:
    """A worker process as its parent has it: the first one was sent away, the others go once they are asked to."""

    def __init__(self, number: int, asked: list[tuple[int, bytes]]) -> None:
        self.returncode: int | None = None
        self._number, self._asked = number, asked
        self._leaves = asyncio.Event()
        if number == 1:
            self._leaves.set()

    def send(self, request: bytes) -> None:
        self._asked.append((self._number, request))
        self._leaves.set()

    def kill(self) -> None:
        self._leaves.set()

    def is_stopped(self) -> bool:
        return False

    async def wait(self) -> int:
        await self._leaves.wait()
        self.returncode = REPORTED
        return self.returncode


async def test_when_one_worker_was_sent_away_the_others_are_asked_to_leave(tmp_path: Path) -> None:
    """One that had not joined yet when the instance was sent away is not known to the group, and would stay for ever."""
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await prepare(log, app)
    await log.close()
    asked: list[tuple[int, bytes]] = []

    async def start_worker(spec: WorkerSpec) -> Child:
        return Child(spec.number, asked)

    url = f"sqlite:{tmp_path / 'log.db'}"
    spec = InstanceSpec("tests.kills.receipts:app", app.id, "i1", url, str(tmp_path / "s"), workers=3, folder=str(ROOT))
    instance = Instance(spec, surroundings=replace(REAL, start_worker=start_worker))
    assert await asyncio.wait_for(instance.run(), DEADLINE_S) == 0
    assert set(asked) >= {(2, b"leave"), (3, b"leave")}
