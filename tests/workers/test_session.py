"""A worker's session: who has the lease is whom it talks to, also where the one before does not hang up."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orchestrator import App, Record, Table, messages
from orchestrator.transport import Connection, listen
from state.log.memory import MemoryLog
from workers.prepare import prepare
from workers.session import Session
from workers.spec import InstanceSpec, WorkerSpec
from workers.worker import Worker

app = App("kept-waiting", partitions=1)
numbers = app.topic("numbers", key=str, value=int)
last = app.table("last", key=str, value=int)


@app.processor(numbers, last)
def keep(number: Record[str, int], last: Table[str, int]) -> None:
    last[number.key] = number.value


async def test_a_coordinator_that_hangs_is_left_for_the_one_that_has_the_lease(tmp_path: Path) -> None:
    """A stopped process keeps its connections open: who waits on one would be missed by the next coordinator, and fenced."""
    log = MemoryLog(markers=False)
    worker = Worker(
        WorkerSpec(InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path)), 1, "one"),
        log,
        await prepare(log, app),
        {},
    )
    joined: asyncio.Queue[int] = asyncio.Queue()

    async def hang(term: int, connection: Connection) -> None:
        assert isinstance(messages.decode_up(await connection.receive()), messages.Join)
        connection.send(messages.Welcome(term))
        joined.put_nowait(term)
        await asyncio.Event().wait()

    first, address = await listen("127.0.0.1", 0, lambda connection: hang(1, connection))
    second, other = await listen("127.0.0.1", 0, lambda connection: hang(2, connection))
    lease = await log.acquire(app.id, "i1", address, None)
    session = asyncio.create_task(Session(worker).run())
    try:
        async with asyncio.timeout(30):
            assert await joined.get() == 1
            assert await log.acquire(app.id, "i2", other, lease) is not None
            assert await joined.get() == 2
    finally:
        session.cancel()
        await asyncio.gather(session, return_exceptions=True)
        first.close()
        second.close()
