"""A worker's session: who has the lease is whom it talks to, also where the one before does not hang up."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from orchestrator import App, Record, Table
from orchestrator.clocks import lasting_s
from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import ConnectionEnded
from orchestrator.coordinator.listener import Listener, Peer
from state.log.memory import MemoryLog
from tests.contracts.logs import until
from workers.connection.credentials import instance_credentials
from workers.prepare import prepare
from workers.spec import InstanceSpec, WorkerSpec
from workers.surroundings import Surroundings
from workers.worker import session as session_module
from workers.worker.session import Session
from workers.worker.worker import Worker

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

    async def hang(term: int, peer: Peer) -> None:
        assert isinstance(messages.decode_up(await peer.connection.receive()), messages.Join)
        peer.connection.send(messages.Welcome(term))
        joined.put_nowait(term)
        await asyncio.Event().wait()

    credentials = instance_credentials(worker.spec.instance)
    first, second = [Listener(credentials, lambda peer, term=term: hang(term, peer)) for term in (1, 2)]  # type: ignore[misc]
    address, other = await first.open(), await second.open()
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
        await first.close()
        await second.close()


async def test_a_transactional_id_that_was_fenced_before_it_joined_is_left_for_another(tmp_path: Path) -> None:
    """It was silent for so long that it was fenced: whoever joins has opened what it will commit with."""
    log = MemoryLog(markers=False)
    spec = WorkerSpec(InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path)), 1, "one")
    session = Session(Worker(spec, log, await prepare(log, app), {}))
    joined: asyncio.Queue[str] = asyncio.Queue()

    async def welcome(peer: Peer) -> None:
        join = messages.decode_up(await peer.connection.receive())
        assert isinstance(join, messages.Join)
        joined.put_nowait(join.hello.writer)
        await asyncio.Event().wait()

    server = Listener(instance_credentials(spec.instance), welcome)
    address = await server.open()
    lease = await log.acquire(app.id, "i1", address, None)
    assert lease is not None
    fenced = session.join_request.writer
    await log.fence(lease, [fenced])
    running = asyncio.create_task(session.run())
    try:
        async with asyncio.timeout(30):
            mine = await joined.get()
        assert mine != fenced
        assert await log.commit(app.id, mine, []) == {}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.close()


async def test_a_worker_joins_with_its_instances_zone_and_capacity(tmp_path: Path) -> None:
    log = MemoryLog(markers=False)
    instance = InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path), zone="east", capacity=3)
    worker = Worker(WorkerSpec(instance, 1, "one"), log, await prepare(log, app), {})
    hello = Session(worker).join_request
    assert (hello.zone, hello.capacity) == ("east", 3)


async def test_a_transactional_id_that_changes_while_the_log_is_waited_for_is_opened_before_it_joins(
    tmp_path: Path,
) -> None:
    """The log was locked while the id was opened, and the worker was fenced meanwhile: each commit of an id that joined
    without having been opened would be refused, and its tasks would be given up and granted for ever."""

    class LockedLog(MemoryLog):
        locked, waiting = asyncio.Event(), asyncio.Event()

        async def open_writer(self, application: str, transactional_id: str) -> None:
            self.waiting.set()
            await self.locked.wait()
            await super().open_writer(application, transactional_id)

    log = LockedLog(markers=False)
    spec = WorkerSpec(InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path)), 1, "one")
    session = Session(Worker(spec, log, await prepare(log, app), {}))
    joined: asyncio.Queue[str] = asyncio.Queue()

    async def welcome(peer: Peer) -> None:
        join = messages.decode_up(await peer.connection.receive())
        assert isinstance(join, messages.Join)
        joined.put_nowait(join.hello.writer)
        await asyncio.Event().wait()

    server = Listener(instance_credentials(spec.instance), welcome)
    address = await server.open()
    assert await log.acquire(app.id, "i1", address, None) is not None
    running = asyncio.create_task(session.run())
    try:
        async with asyncio.timeout(30):
            await log.waiting.wait()
            session.rejoin()
            log.locked.set()
            mine = await joined.get()
        assert mine == session.join_request.writer
        assert await log.commit(app.id, mine, []) == {}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.close()


async def test_a_worker_that_does_not_reach_the_coordinator_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a gate, or with a certificate that the coordinator does not take: it looked well, and joined nothing."""
    monkeypatch.setattr(session_module, "ALONE_S", 0.0)
    caplog.set_level(logging.DEBUG, "orchestrator.session")
    log = MemoryLog(markers=False)
    spec = WorkerSpec(InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path)), 1, "one")
    worker = Worker(spec, log, await prepare(log, app), {})
    peers: asyncio.Queue[Peer] = asyncio.Queue()

    async def take(peer: Peer) -> None:
        peers.put_nowait(peer)
        await peer.connection.receive()
        await peer.connection.receive()

    def said(level: int) -> int:
        return sum(
            record.levelno == level and "no instance answers" in record.getMessage() for record in caplog.records
        )

    listener = Listener(instance_credentials(spec.instance), take)
    address = await listener.open()
    await listener.close()
    lease = await log.acquire(app.id, "i1", address, None)
    running = asyncio.create_task(Session(worker).run())
    try:
        async with asyncio.timeout(30):
            await until("two tries", lambda: asyncio.sleep(0, said(logging.DEBUG) >= 2))
            assert said(logging.WARNING) == 1
            again = Listener(instance_credentials(spec.instance), take)
            lease = await log.acquire(app.id, "i1", await again.open(), lease)
            peer = await peers.get()
            await again.close()
            peer.connection.drop(ConnectionEnded("it ends"))
            await until("another line", lambda: asyncio.sleep(0, said(logging.WARNING) == 2))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_worker_that_was_fenced_and_does_not_come_back_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears of the fence from the log, where it still holds the connection over which nothing came: that is no session either."""
    monkeypatch.setattr(session_module, "ALONE_S", 0.0)
    log = MemoryLog(markers=False)
    spec = WorkerSpec(InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path)), 1, "one")
    worker = Worker(spec, log, await prepare(log, app), {})
    peers: asyncio.Queue[Peer] = asyncio.Queue()

    async def take(peer: Peer) -> None:
        await peer.connection.receive()
        peers.put_nowait(peer)
        await peer.connection.receive()

    listener = Listener(instance_credentials(spec.instance), take)
    await log.acquire(app.id, "i1", await listener.open(), None)
    session = Session(worker)
    running = asyncio.create_task(session.run())
    try:
        async with asyncio.timeout(30):
            await peers.get()
            session.rejoin()
            await listener.close()
            await until("a line", lambda: asyncio.sleep(0, "no session with the coordinator" in caplog.text), 5)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_worker_that_is_refused_asks_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its certificate is none that the coordinator takes: ten handshakes a second of each such worker kept others away."""
    monkeypatch.setattr(session_module, "RETRY_S", 0.01)
    log = MemoryLog(markers=False)
    spec = WorkerSpec(InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path)), 1, "one")
    worker = Worker(spec, log, await prepare(log, app), {})
    tries: asyncio.Queue[float] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.put_nowait(loop.time())
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    instance_credentials(spec.instance)
    await log.acquire(app.id, "i1", f"{host}:{port}", None)
    running = asyncio.create_task(Session(worker).run())
    try:
        async with asyncio.timeout(30):
            seen = [await tries.get() for _ in range(7)]
        assert seen[-1] - seen[0] >= 0.6, "0.01 s after the first, and twice as long after each other one"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        server.close()


async def test_contact_grows_old_while_the_machine_is_suspended(tmp_path: Path) -> None:
    """The clock of all else stands still then; the coordinator's does not, and it gives the tasks to others."""
    now = 0.0
    log = MemoryLog(markers=False)
    spec = WorkerSpec(InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path)), 1, "one")
    worker = Worker(spec, log, await prepare(log, app), {}, Surroundings(contact_clock=lambda: now))
    session = Session(worker)
    for _ in range(2):
        now, contact = 0.0, session._contact
        contact.opened()
        contact.promised(4_000)
        contact.sent()
        contact.acknowledged(1)
        assert contact.may_begin() and contact.may_write()
        now = 3_600.0
        assert not contact.may_begin() and not contact.may_write()
        session.rejoin()


def test_the_clock_of_contact_is_the_systems_that_lasts() -> None:
    assert Surroundings().contact_clock is lasting_s
    before = time.monotonic()
    first, second = lasting_s(), lasting_s()
    assert second >= first >= before, "what was suspended is counted as well"
