"""A candidate that has an address for others tries it first, with what its own listener was opened with."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orchestrator import App, Record
from orchestrator.coordinator.services import Services
from state.log.memory import MemoryLog
from tests.contracts.logs import until
from workers.connection.credentials import instance_credentials, secret_path
from workers.instance.candidate import REPORTS_S, Candidate, Reports
from workers.prepare import prepare
from workers.spec import InstanceSpec

app = App("advertised", partitions=1)
numbers = app.topic("numbers", key=str, value=int)


@app.processor(numbers)
def drop(number: Record[str, int]) -> None:
    return None


async def test_an_instance_whose_secret_is_gone_from_disk_may_coordinate(tmp_path: Path) -> None:
    """State that is deleted under a running group takes the secret of a Kafka log with it. The candidate made another one for its
    try, which its own listener refused: nobody coordinated the group any more."""
    log = MemoryLog(markers=False)
    spec = InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path), advertise="127.0.0.1")
    services = Services(instance_credentials(spec))
    await services.open()
    secret = secret_path(app.id, spec.log, spec.state_dir)
    secret.unlink()
    running = asyncio.create_task(Candidate(log, await prepare(log, app), spec, services).run())
    try:

        async def is_taken() -> bool:
            return await log.lease(app.id) is not None

        await until("the lease is taken", is_taken, within_s=10)
        assert not secret.exists()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await services.close()


async def test_a_coordinator_that_only_its_own_machine_reaches_is_left_in_peace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Instances on two machines, neither with --listen: each was refused at the other's 127.0.0.1, took it for gone, and the lease from
    it, one term a second, for ever."""
    log = MemoryLog(markers=False)
    spec = InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path))
    services = Services(instance_credentials(spec))
    await services.open()
    nothing = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    host, port = nothing.sockets[0].getsockname()
    nothing.close()
    await nothing.wait_closed()
    await log.acquire(app.id, "other", f"{host}:{port}", None)
    running = asyncio.create_task(Candidate(log, await prepare(log, app), spec, services).run())
    try:

        async def is_taken() -> bool:
            return (lease := await log.lease(app.id)) is not None and lease.holder == "i1"

        await until("the lease is taken", is_taken, within_s=10)
        again = await log.acquire(app.id, "other", f"{host}:{port}", await log.lease(app.id))
        assert again is not None

        async def is_said() -> bool:
            assert not await is_taken()
            return "it listens for its own machine alone" in caplog.text

        await until("a line", is_said, within_s=10)
        assert await log.lease(app.id) == again
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await services.close()


def test_a_reason_with_an_id_of_its_own_each_time_fills_no_log() -> None:
    """Each try to coordinate has a transactional id of its own: where the right to it was taken away, there were three lines a second."""
    reports = Reports()
    shown = [reports.is_due(f"ring.coordinator.{n}: not allowed", 50.0 + n / 3) for n in range(90)]
    assert shown.count(True) == 30 / REPORTS_S and shown[0]
    assert reports.is_due("the broker is away", 90.0)
    assert not reports.is_due("the broker is away", 1_000.0)
    assert reports.is_due("not allowed", 1_000.0)
