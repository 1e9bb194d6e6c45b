"""One ordered connection per peer over TCP: frames in, frames out.

One rule: a connection either delivers whole messages in order or ends; it never reorders and never skips. Listeners
bind to loopback; any other address is refused until there is a key to check.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Awaitable, Callable

from orchestrator.errors import OrchestratorError, ProtocolError, WrongUse
from orchestrator.messages import FRAME_BYTES_MAX, Down, Up, decode_down, encode


class ConnectionEnded(OrchestratorError):
    """The peer is gone."""


class Connection:
    """Frames over one stream pair. `send` never waits: what is not yet taken by the peer is buffered up to a limit."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: Up | Down) -> None:
        """Queue a message; a peer that is far behind, or gone, is closed (it will see the connection end)."""
        if self._writer.is_closing():
            return
        self._writer.write(encode(message))
        transport = self._writer.transport
        if transport.get_write_buffer_size() > 2 * FRAME_BYTES_MAX:
            transport.abort()

    async def receive(self) -> bytes:
        """The next frame's body. Raises ConnectionEnded, ProtocolError."""
        try:
            head = await self._reader.readexactly(4)
            length = int.from_bytes(head, "big")
            if length > FRAME_BYTES_MAX:
                raise ProtocolError(f"a frame of {length} bytes is over the limit of {FRAME_BYTES_MAX}")
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ConnectionEnded(f"the connection ended ({type(error).__name__})") from None

    async def receive_down(self) -> Down:
        return decode_down(await self.receive())

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()


async def connect(address: str, *, timeout_s: float = 5) -> Connection:
    """Connect to `host:port`. Raises ConnectionEnded when nobody listens there."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):  # not wait_for, which can swallow a cancellation
            reader, writer = await asyncio.open_connection(host, int(port))
    except (TimeoutError, OSError, ValueError) as error:
        raise ConnectionEnded(f"nobody answers at {address} ({error or 'timed out'})") from None
    return Connection(reader, writer)


async def listen(host: str, port: int, accept: Callable[[Connection], Awaitable[None]]) -> tuple[asyncio.Server, str]:
    """Listen; returns the server and its `host:port`. Raises WrongUse for a port in use or an open address."""
    if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
        raise WrongUse(f"listening on {host} needs a shared key, which is not supported yet; listen on 127.0.0.1")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        try:
            await accept(connection)
        finally:
            await connection.close()

    try:
        server = await asyncio.start_server(serve, host, port, backlog=512)
    except OSError as error:
        raise WrongUse(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another port, or 0 for a free one"
        ) from None
    bound = server.sockets[0].getsockname()
    return server, f"{bound[0]}:{bound[1]}"
