"""One ordered connection per peer over TCP: frames in, frames out.

One rule: a connection either delivers whole messages in order or ends; it never reorders and never skips. Listeners
bind to loopback; any other address is refused until there is a key to check. Frames are cut here, out of what the socket
has, and not read from a stream: a coordinator receives each heartbeat without a task being woken for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

from orchestrator.coordinator.messages import FRAME_BYTES_MAX, Down, Up, decode_down, encode
from orchestrator.errors import OrchestratorError, ProtocolError, WrongUse

UNREAD_BYTES_MAX = 1 << 20  # a peer is not read from while so much waits to be received
CLOSE_S = 1.0


class ConnectionEnded(OrchestratorError):
    """The peer is gone."""


class Connection(asyncio.Protocol):
    """Frames over one socket. `send` never waits: what is not yet taken by the peer is buffered up to a limit."""

    def __init__(self, made: Callable[[Connection], None] | None = None) -> None:
        self._made = made
        self._transport: asyncio.Transport
        self._buffer = bytearray()  # the beginning of a frame
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self.held_back = False
        self._take: Callable[[bytes], None] | None = None
        self._failure: Exception | None = None  # why nothing more will be delivered
        self._news = asyncio.Event()
        self._lost = asyncio.Event()

    # ---- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._made is not None:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        if self._failure is not None:
            return
        try:
            if self._buffer or int.from_bytes(data[:4], "big") != len(data) - 4:
                self._cut(data)
            else:
                self._deliver(data[4:])  # one whole frame, as nearly always
        except Exception as error:  # noqa: BLE001 - it is raised to whoever receives
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        why = type(exc).__name__ if exc is not None else "closed"
        if self._failure is None:
            self._fail(ConnectionEnded(f"the connection ended ({why})"))
        self._lost.set()

    def _cut(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4:
            length = int.from_bytes(buffer[:4], "big")
            if length > FRAME_BYTES_MAX:
                raise ProtocolError(f"a frame of {length} bytes is over the limit of {FRAME_BYTES_MAX}")
            if len(buffer) < 4 + length:
                return
            body = bytes(buffer[4 : 4 + length])
            del buffer[: 4 + length]
            self._deliver(body)

    def _deliver(self, body: bytes) -> None:
        if self._take is not None:
            self._take(body)
            return
        self._unread.append(body)
        self._unread_bytes += len(body)
        self._news.set()
        if self._unread_bytes > UNREAD_BYTES_MAX and not self.held_back:
            self.held_back = True
            self._transport.pause_reading()

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        self._news.set()

    # ---- called by us

    def send(self, message: Up | Down) -> None:
        """Queue a message; a peer that is far behind, or gone, is closed (it will see the connection end)."""
        if self._transport.is_closing():
            return
        self._transport.write(encode(message))
        if self._transport.get_write_buffer_size() > 2 * FRAME_BYTES_MAX:
            self._transport.abort()

    async def receive(self) -> bytes:
        """The next frame's body. Raises ConnectionEnded, ProtocolError."""
        while not self._unread:
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()
        body = self._unread.popleft()
        self._unread_bytes -= len(body)
        if self.held_back and not self._unread:
            self.held_back = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        return body

    async def receive_down(self) -> Down:
        return decode_down(await self.receive())

    async def receive_all(self, take: Callable[[bytes], None]) -> None:
        """Give every frame's body to `take`, as it comes. Ends by what `take` raises, ConnectionEnded, ProtocolError."""
        while self._unread:
            take(await self.receive())
        self._take = take
        while self._failure is None:
            self._news.clear()
            await self._news.wait()
        raise self._failure

    async def close(self) -> None:
        """What is still to be sent is sent, if the peer takes it within a second; else it is thrown away."""
        self._transport.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._lost.wait()
        self._transport.abort()


async def connect(address: str, *, timeout_s: float = 5) -> Connection:
    """Connect to `host:port`. Raises ConnectionEnded when nobody listens there."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):  # not wait_for, which can swallow a cancellation
            _, connection = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
    except (TimeoutError, OSError, ValueError) as error:
        raise ConnectionEnded(f"nobody answers at {address} ({error or 'timed out'})") from None
    return connection


async def listen(host: str, port: int, accept: Callable[[Connection], Awaitable[None]]) -> tuple[asyncio.Server, str]:
    """Listen; returns the server and its `host:port`. Raises WrongUse for a port in use or an open address."""
    if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
        raise WrongUse(f"listening on {host} needs a shared key, which is not supported yet; listen on 127.0.0.1")
    loop = asyncio.get_running_loop()
    serving: set[asyncio.Task[None]] = set()

    async def serve(connection: Connection) -> None:
        try:
            await accept(connection)
        finally:
            await connection.close()

    def made(connection: Connection) -> None:
        task = loop.create_task(serve(connection))
        serving.add(task)
        task.add_done_callback(serving.discard)

    try:
        server = await loop.create_server(lambda: Connection(made), host, port, backlog=512)
    except OSError as error:
        raise WrongUse(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another port, or 0 for a free one"
        ) from None
    bound = server.sockets[0].getsockname()
    return server, f"{bound[0]}:{bound[1]}"
