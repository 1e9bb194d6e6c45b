"""Frames over a socket: whole, in order, however they arrive; and a peer that is far ahead is not read from."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import STRANGER_BYTES_MAX, UNREAD_BYTES_MAX, Connection, ConnectionEnded
from orchestrator.coordinator.listener import Listener, Peer
from orchestrator.coordinator.requests import ExplainRequest
from orchestrator.coordinator.transport import connect
from orchestrator.errors import ProtocolError
from tests.group.coordinators import CREDENTIALS


@given(st.lists(st.binary(max_size=9), max_size=6), st.lists(st.integers(1, 9), min_size=1))
def test_frames_are_whole_however_they_arrive(bodies: list[bytes], sizes: list[int]) -> None:
    sent = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)

    async def run() -> list[bytes]:
        connection = Connection()
        at, turn = 0, 0
        while at < len(sent):
            size = sizes[turn % len(sizes)]
            connection.data_received(sent[at : at + size])
            at, turn = at + size, turn + 1
        connection.connection_lost(None)
        heard: list[bytes] = []
        with pytest.raises(ConnectionEnded):
            while True:
                heard.append(await connection.receive())
        again = Connection()
        again.data_received(sent)
        again.connection_lost(None)
        all_at_once: list[bytes] = []
        with pytest.raises(ConnectionEnded):
            await again.receive_all(all_at_once.append)
        assert all_at_once == heard
        return heard

    assert asyncio.run(run()) == bodies


async def test_a_frame_over_the_limit_ends_the_connection() -> None:
    connection = Connection()
    connection.data_received(b"\0\0\0\1a")
    connection.data_received((messages.FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
    assert await connection.receive() == b"a", "what came whole before it counts"
    connection.connection_lost(None)
    with pytest.raises(ProtocolError, match="over the limit"):
        await connection.receive()


async def test_half_a_frame_is_none() -> None:
    connection = Connection()
    connection.data_received(b"\0\0\0\2a")
    connection.connection_lost(ConnectionResetError())
    with pytest.raises(ConnectionEnded, match="ConnectionResetError"):
        await connection.receive()


async def test_what_the_taker_raises_ends_it_and_nothing_more_is_taken() -> None:
    connection = Connection()
    taken: list[bytes] = []

    def take(body: bytes) -> None:
        taken.append(body)
        raise ProtocolError("nonsense")

    waiting = asyncio.create_task(connection.receive_all(take))
    await asyncio.sleep(0)
    connection.data_received(b"\0\0\0\1a\0\0\0\1b")
    connection.data_received(b"\0\0\0\1c")
    with pytest.raises(ProtocolError, match="nonsense"):
        await waiting
    assert taken == [b"a"]


async def test_a_peer_that_nobody_listens_to_is_held_back_and_loses_nothing() -> None:
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    done = asyncio.Event()

    async def accept(peer: Peer) -> None:
        accepted.put_nowait(peer.connection)
        await done.wait()

    server = Listener(CREDENTIALS, accept)
    address = await server.open()
    async with asyncio.timeout(30):
        link = await connect(address, CREDENTIALS)
        there = await accepted.get()
        count = 3 * UNREAD_BYTES_MAX // 50_000
        for number in range(count):
            link.send(messages.ask(number, ExplainRequest("x" * 50_000)))
        while not there.held_back:  # noqa: ASYNC110 - it is the loop that has to go on
            await asyncio.sleep(0)
        heard = [messages.decode_up(await there.receive()) for _ in range(count)]
        assert [ask.id for ask in heard if isinstance(ask, messages.Ask)] == list(range(count))
        done.set()
        with pytest.raises(ConnectionEnded):
            await link.receive()
        await link.close()
    await server.close()


async def test_the_first_message_may_be_larger_than_what_a_stranger_may_send() -> None:
    """A worker of many tasks joins with its whole status, right after its proof."""
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def accept(peer: Peer) -> None:
        received.put_nowait(await peer.connection.receive())

    server = Listener(CREDENTIALS, accept)
    async with asyncio.timeout(30):
        link = await connect(await server.open(), CREDENTIALS)
        link.send(messages.Answer(1, "x" * 40 * STRANGER_BYTES_MAX))
        assert len(await received.get()) > 40 * STRANGER_BYTES_MAX
        await link.close()
    await server.close()


async def test_a_peer_that_never_reads_does_not_outlive_the_close() -> None:
    """What it would have been told is not kept for it: after the close the rest of it is thrown away."""
    told = 32 * UNREAD_BYTES_MAX  # far more than the kernel holds
    closed = asyncio.Event()

    async def accept(peer: Peer) -> None:
        for number in range(32):
            peer.connection.send(messages.Answer(number, "x" * UNREAD_BYTES_MAX))
        await peer.connection.close()
        closed.set()

    server = Listener(CREDENTIALS, accept)
    address = await server.open()
    async with asyncio.timeout(30):
        deaf = await connect(address, CREDENTIALS)
        deaf._transport.pause_reading()
        await closed.wait()
        deaf._transport.resume_reading()
        received = 0
        with pytest.raises(ConnectionEnded):
            while True:
                received += len(await deaf.receive())
    assert received < told
    await server.close()


async def test_an_address_that_is_silent_is_named_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionEnded, match=f"no instance answers at {address} .timed out."):
            await connect(address, CREDENTIALS, timeout_s=0.05)
    with pytest.raises(ConnectionEnded, match=f"no instance answers at {address} .connection refused.$"):
        await connect(address, CREDENTIALS)
