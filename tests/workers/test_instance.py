"""The parent of the workers, as whoever started it sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from state.log.sqlite import open_sqlite
from tests.kills.receipts import app
from workers.fleet.hosts import ProcessHost
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
    """A worker process as its parent has it: the first one ends by itself, the others once they are asked to."""

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


async def spec_of_three(folder: Path) -> InstanceSpec:
    """An instance of three workers; its log is there."""
    log = await open_sqlite(folder / "log.db", create=True)
    await prepare(log, app)
    await log.close()
    url = f"sqlite:{folder / 'log.db'}"
    return InstanceSpec("tests.kills.receipts:app", app.id, "i1", url, str(folder / "s"), workers=3, folder=str(ROOT))


async def test_when_one_worker_was_sent_away_the_others_are_asked_to_leave(tmp_path: Path) -> None:
    """One that had not joined yet when the instance was sent away is not known to the group, and would stay for ever."""
    asked: list[tuple[int, bytes]] = []

    async def start_worker(spec: WorkerSpec) -> Child:
        return Child(spec.number, asked)

    instance = Instance(await spec_of_three(tmp_path), surroundings=replace(REAL, start_worker=start_worker))
    assert await asyncio.wait_for(instance.run(), DEADLINE_S) == 0
    assert set(asked) >= {(2, b"leave"), (3, b"leave")}


class Committing(Child):
    """One that has something left to do when it is asked to stop."""

    def __init__(
        self, number: int, asked: list[tuple[int, bytes]], done: asyncio.Event, heard: asyncio.Semaphore
    ) -> None:
        super().__init__(0, asked)
        self._leaves, self._heard = done, heard

    def send(self, request: bytes) -> None:
        self._asked.append((self._number, request))
        self._heard.release()

    def kill(self) -> None:
        self.send(b"killed")


@pytest.mark.parametrize("twice", [False, True])
async def test_what_its_fleet_passes_on_is_no_second_signal(tmp_path: Path, twice: bool) -> None:
    """A supervisor that ends a whole service sends one to each process of it, and the fleet passes its own on."""
    asked: list[tuple[int, bytes]] = []
    done, started = asyncio.Event(), asyncio.Semaphore(0)

    async def start_worker(spec: WorkerSpec) -> Child:
        started.release()
        return Committing(spec.number, asked, done, heard)

    heard = asyncio.Semaphore(0)
    leash, fleet = os.pipe()
    around = replace(REAL, start_worker=start_worker)
    running = asyncio.create_task(Instance(await spec_of_three(tmp_path), leash, around).run())
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(3):
            await started.acquire()
        await asyncio.sleep(0)  # the last one is its parent's as well
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(3):
            await heard.acquire()
        os.write(fleet, b"stop\n" * (2 if twice else 1))
        for _ in range(9 if twice else 3):  # a second one ends them, too
            await heard.acquire()
        assert ((0, b"killed") in asked) is twice
        done.set()
        assert await running == 0
    os.close(fleet)
    os.close(leash)
