"""The connection between an instance in a Spark task and its driver: orders reach it wherever it runs, and it ends where there
is no driver any more. Without Spark; over real sockets."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.coordinator.connection import ConnectionEnded
from orchestrator.coordinator.handshake import Credentials, NotTrusted
from orchestrator.coordinator.secret import KEY_BYTES, Right, Secret
from orchestrator.coordinator.transport import connect
from pipeline.spark.hosted_task import STDERR_BYTES, _stderr_to, _tail
from pipeline.spark.leash import DriverAway, Hosted, Leash, hosted
from pipeline.spark.leash_server import LeashServer, Remote
from workers.spec import BOUNCE, LEAVE, STOP

SECRET = Secret(Right.JOIN, bytes(KEY_BYTES))
CREDENTIALS = Credentials("bank", SECRET)
DEADLINE_S = 20.0
ALONE_S = 0.6


@asynccontextmanager
async def driver() -> AsyncIterator[tuple[LeashServer, str]]:
    server = LeashServer(CREDENTIALS)
    try:
        yield server, await server.open("127.0.0.1", 0)
    finally:
        await server.close()


def leash(address: str, attempt: int = 0, group: str = "g", credentials: Credentials = CREDENTIALS) -> Leash:
    return Leash(address, credentials, hosted(group, attempt, 0, 0), alone_s=ALONE_S)


async def entered(one: Leash) -> Leash:
    return await asyncio.to_thread(one.__enter__)


async def left(one: Leash) -> None:
    await asyncio.to_thread(one.__exit__, None, None, None)


async def read(one: Leash, size: int = 100) -> bytes:
    """What is in the pipe; nothing at its end."""
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.to_thread(os.read, one.descriptor, size)


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.01)


async def test_orders_come_through_the_pipe() -> None:
    async with driver() as (server, address):
        remote = server.expect("g", "i1")
        one = await entered(leash(address))
        await until(lambda: remote.is_there)
        assert one.own_host == "127.0.0.1"
        assert remote.hosted is not None and remote.hosted.process.pid == os.getpid()
        remote.order("stop")
        assert await read(one) == STOP
        remote.order("bounce")
        remote.order("stop")  # weaker, too late
        assert await read(one) == BOUNCE
        await left(one)
        await until(lambda: not remote.is_there)
        again = await entered(leash(address, attempt=1))
        assert await read(again) == BOUNCE
        await left(again)


async def test_an_order_waits_for_the_process_and_for_the_one_after_it() -> None:
    async with driver() as (server, address):
        remote = server.expect("g", "i1")
        remote.order("stop")
        first = await entered(leash(address))
        assert await read(first) == STOP
        await left(first)
        again = await entered(leash(address, attempt=1))
        assert await read(again) == STOP
        await left(again)


async def test_an_order_is_obeyed_once_however_often_the_connection_is_made() -> None:
    async with driver() as (server, address):
        remote = server.expect("g", "i1")
        one = await entered(leash(address))
        remote.order("stop")
        await until(lambda: remote.is_there)
        assert await read(one) == STOP
        cut = connection_of(remote)
        cut.drop(ConnectionEnded("the network went away"))
        await until(lambda: remote.is_there and connection_of(remote) is not cut)
        remote.order("bounce")
        assert await read(one) == BOUNCE  # and no second line, which would end the workers at once
        await left(one)


def connection_of(remote: Remote) -> Any:
    return remote._connection


async def test_a_process_leaves_and_its_successor_does_not() -> None:
    async with driver() as (server, address):
        remote = server.expect("g", "i1")
        first = await entered(leash(address))
        await until(lambda: remote.is_there)
        remote.leave()
        assert await read(first) == LEAVE
        await left(first)
        again = await entered(elsewhere(address, attempt=1))
        await until(lambda: remote.is_there)
        remote.order("stop")
        assert await read(again) == STOP
        await left(again)


async def test_without_a_driver_the_pipe_ends() -> None:
    async with driver() as (server, address):
        remote = server.expect("g", "i1")
        one = await entered(leash(address))
        await until(lambda: remote.is_there)
    assert await read(one) == b""
    await left(one)


async def test_a_driver_that_is_not_there_is_named() -> None:
    async with driver() as (_, address):
        pass
    with pytest.raises(DriverAway, match=f"cannot reach its driver at {address}.*--listen"):
        await entered(leash(address))


async def test_another_secret_is_refused_at_once() -> None:
    async with driver() as (server, address):
        remote = server.expect("g", "i1")
        other = Credentials("bank", Secret(Right.JOIN, b"x" * KEY_BYTES))
        with pytest.raises(NotTrusted, match="--secret-file"):
            await entered(leash(address, credentials=other))
        assert not remote.is_there


async def test_a_lesser_right_hosts_nothing() -> None:
    async with driver() as (server, address):
        remote = server.expect("g", "i1")
        lesser = Credentials("bank", SECRET.lowered(Right.SCALE))
        connection = await connect(address, lesser)
        connection.send(hosted("g", 0, 0, 0))
        with pytest.raises(Exception, match="ended"):
            await connection.receive()
        assert not remote.is_there
        await connection.close()


async def test_of_two_attempts_the_later_lives(caplog: pytest.LogCaptureFixture) -> None:
    """Spark starts a task again whose executor it has lost, and which may still run. It is named: the fleet sees no end of it."""
    async with driver() as (server, address):
        remote = server.expect("g", "i1")
        old = await entered(leash(address))
        await until(lambda: remote.is_there)
        new = await entered(elsewhere(address, attempt=1))
        assert await read(old) == BOUNCE  # it is to end in order
        [line] = [record.getMessage() for record in caplog.records if record.name == "orchestrator.hosting"]
        assert line.startswith(f"i1: its process {os.getpid()} on ") and line.endswith(
            "Spark has started it again on b"
        )
        await left(old)
        late = await entered(leash(address))  # the network to an executor came back
        assert await read(late) == BOUNCE
        await left(late)
        assert remote.hosted is not None and remote.hosted.attempt == 1 and remote.is_there
        remote.order("stop")
        assert await read(new) == STOP
        await left(new)


def elsewhere(address: str, attempt: int) -> Leash:
    """As from a process of another machine with the number of this one."""
    mine = hosted("g", attempt, 0, 0)
    process = type(mine.process)(mine.process.pid, mine.process.started, "another kernel")
    return Leash(address, CREDENTIALS, Hosted("g", attempt, "b", 0, 0, process), alone_s=ALONE_S)


CHILD = """
import sys
from tests.spark.test_leash import CREDENTIALS, leash
with leash(sys.argv[1], group=sys.argv[2]):
    print("here", flush=True)
    sys.stdin.read()
"""


def child(address: str, group: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", CHILD, address, group]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def ended(process: subprocess.Popen[bytes]) -> int:
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.to_thread(process.wait)


async def test_a_kill_and_a_process_whose_job_is_over() -> None:
    async with driver() as (server, address):
        remote = server.expect("g", "i1")
        one = child(address, "g")
        await until(lambda: remote.is_there)
        remote.order("kill")
        assert await ended(one) == -9
        server.forget("g")
        late = child(address, "g")
        assert await ended(late) == -9


async def test_a_signal_goes_to_a_process_of_this_kernel_and_to_no_stranger_with_its_number() -> None:
    async with driver() as (server, address):
        remote = server.expect("g", "i1")
        one = child(address, "g")
        await until(lambda: remote.is_there)
        found = remote.hosted
        assert found is not None and found.process.pid == one.pid
        for process in (
            type(found.process)(one.pid, "1", found.process.kernel),
            type(found.process)(one.pid, found.process.started, "another"),
            type(found.process)(one.pid, found.process.started, ""),
        ):
            remote.hosted = Hosted("g", 0, found.host, 0, 0, process)
            remote.kill_here()
        with pytest.raises(subprocess.TimeoutExpired):
            await asyncio.to_thread(one.wait, 0.3)
        remote.hosted = found
        remote.kill_here()
        assert await ended(one) == -9


def test_a_later_attempt_adds_to_what_an_earlier_one_wrote(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    for text in (b"why the first one crashed\n", b"the second\n"):
        with _stderr_to(path) as begun:
            os.write(2, text)
        assert _tail(path, begun) == text.decode()
    assert path.read_bytes() == b"why the first one crashed\nthe second\n"


def test_of_what_many_attempts_wrote_the_end_alone_is_read(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_bytes(b"x" * (8 << 20) + b"the end")
    tracemalloc.start()
    try:
        shown = _tail(path, 5)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert len(shown) == STDERR_BYTES and shown.endswith("the end")
    assert _tail(path, (8 << 20) + 4) == "end"
