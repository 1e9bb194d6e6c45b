"""One ordered connection per peer over TCP: frames in, frames out.

One rule: a connection either delivers whole messages in order or ends; it never reorders and never skips. Frames are cut
here, out of what the socket has, and not read from a stream: a coordinator receives each heartbeat without a task being
woken for it. Before a peer is admitted it can have no more than a small frame here; a frame that has begun is counted by
the listener (`Unfinished`) until it is whole. Who may connect: handshake.py and listener.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import msgspec

from orchestrator.coordinator.messages import FRAME_BYTES_MAX, Down, decode_down, encode
from orchestrator.coordinator.tls import digest
from orchestrator.errors import OrchestratorError, ProtocolError

UNREAD_BYTES_MAX = 1 << 20  # a peer is not read from while so much waits to be received
STRANGER_BYTES_MAX = 16 << 10  # of a frame, and of what is unread, before the peer is admitted
CLOSE_S = 1.0
PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 5, "TCP_USER_TIMEOUT": 25_000}  # seconds, and ms


class ConnectionEnded(OrchestratorError):
    """The peer is gone."""


class Account(Protocol):
    """Who counts the frames that have begun and are not whole."""

    def holds(self, connection: Connection, size: int, *, same_frame: bool) -> None:
        """The connection has `size` bytes of one; 0: none. May drop a connection, this one too."""


class Connection(asyncio.Protocol):
    """Frames over one socket. `send` never waits: what is not yet taken by the peer is buffered up to a limit.

    `account`: of the listener that this is a connection of; it begins with a stranger then, until `admitted`.
    `waits`: nothing is read before `secure`.
    """

    def __init__(
        self, made: Callable[[Connection], None] | None = None, account: Account | None = None, *, waits: bool = False
    ) -> None:
        self._made = made
        self._account = account
        self._waits = waits
        self._is_stranger = account is not None
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
        if self._waits:
            self._transport.pause_reading()
        if self._made is not None:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        if self._failure is not None:
            return
        try:
            if self._buffer or self._is_stranger or int.from_bytes(data[:4], "big") != len(data) - 4:
                self._cut(data)
            else:
                self._deliver(data[4:])  # one whole frame, as nearly always
        except Exception as error:  # noqa: BLE001 - it is raised where messages are received
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        why = type(exc).__name__ if exc is not None else "closed"
        if self._failure is None:
            self._fail(ConnectionEnded(f"the connection ended ({why})"))
        if self._account is not None:
            self._account.holds(self, 0, same_frame=False)
        self._lost.set()

    def _cut(self, data: bytes) -> None:
        buffer = self._buffer
        begun, cut = bool(buffer), False
        buffer += data
        while len(buffer) >= 4:
            length, limit = int.from_bytes(buffer[:4], "big"), self.frame_bytes_max
            if length > limit:
                raise ProtocolError(f"a frame of {length} bytes is over the limit of {limit}")
            if len(buffer) < 4 + length:
                break
            body = bytes(buffer[4 : 4 + length])
            del buffer[: 4 + length]
            cut = True
            self._deliver(body)
            if self._failure is not None:
                return
        if self._account is not None and (begun or buffer):
            self._account.holds(self, len(buffer), same_frame=begun and not cut)

    def _deliver(self, body: bytes) -> None:
        if self._take is not None:
            self._take(body)
            return
        self._unread.append(body)
        self._unread_bytes += len(body)
        self._news.set()
        if self._unread_bytes > self._unread_bytes_max and not self.held_back:
            self.held_back = True
            self._transport.pause_reading()

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        self._news.set()

    # ---- called by us

    async def secure(self, context: ssl.SSLContext, within_s: float) -> None:
        """The listener's end of TLS, before anything is received. Raises ConnectionEnded, and what it was dropped for."""
        if self._failure is not None:
            raise self._failure
        bare = self._transport
        loop = asyncio.get_running_loop()
        try:
            made = await loop.start_tls(bare, self, context, server_side=True, ssl_handshake_timeout=within_s)
        except OSError as error:  # those of TLS are among them
            self.connection_lost(error)
        except BaseException:
            self.connection_lost(None)
            raise
        else:
            if made is None or bare.is_closing():  # ended within the handshake: nothing but this knows
                self.connection_lost(None)
            else:
                self._transport = made
        if self._failure is not None:
            raise self._failure

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that is taken now."""
        return STRANGER_BYTES_MAX if self._is_stranger else FRAME_BYTES_MAX

    @property
    def _unread_bytes_max(self) -> int:
        return STRANGER_BYTES_MAX if self._is_stranger else UNREAD_BYTES_MAX

    def admitted(self) -> None:
        """The peer has proven who it is: it may send what the others may."""
        self._is_stranger = False

    def binding(self) -> bytes:
        """The digest of the certificate that the peer has shown; nothing where there is no TLS."""
        tls = self._transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        return b"" if certificate is None else digest(certificate)

    @property
    def own_host(self) -> str:
        """The address of this machine that the connection uses."""
        return str(self._transport.get_extra_info("sockname")[0])

    @property
    def peer_host(self) -> str:
        """The address of the other end; "" of one that has gone already."""
        found = self._transport.get_extra_info("peername")
        return str(found[0]) if found else ""

    def notice_a_dead_host(self) -> None:
        """The connection ends, too, where the peer's machine or the network to it is gone: the kernels of both ends look now
        and then. A process that stands still is no dead host."""
        found = self._transport.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in PROBES.items():
            if hasattr(socket, name):
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def drop(self, failure: Exception) -> None:
        """End it at once; `receive` raises the reason."""
        if self._failure is None:
            self._fail(failure)
        self._buffer.clear()
        self._transport.abort()

    def send(self, message: msgspec.Struct) -> None:
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
        if not self._transport.is_closing():  # early versions of 3.11 cannot end a TLS connection that was closed twice
            self._transport.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._lost.wait()
        self._transport.abort()
