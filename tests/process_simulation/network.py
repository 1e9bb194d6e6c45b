"""Connections in memory: links with delays, cuts into pieces, resets, and halves that close before the other.

One rule: each direction of a link delivers what was written, in order, or ends; nothing is skipped, as over TCP.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.process_simulation.process import Process, current

if TYPE_CHECKING:
    from tests.process_simulation.loop import VirtualLoop

END = b""  # the writer closed its half
BUFFER_BYTES = 256 << 10


class Network:
    """Every link of a life. `delays` are (seconds, at most) for a piece."""

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.delay_max = 0.002
        self.links: list[tuple[Transport, Transport]] = []
        self._servers: dict[int, Server] = {}
        self._port = 20_000

    def listen(self, factory: Callable[[], asyncio.Protocol]) -> Server:
        self._port += 1
        server = Server(self, self._port, factory, current())
        self._servers[self._port] = server
        server.process.at_end.append(server.close)
        return server

    def closed(self, port: int) -> None:
        self._servers.pop(port, None)

    def delay(self) -> float:
        return self.chance.random() * self.delay_max

    async def connect(self, factory: Callable[[], asyncio.Protocol], port: int) -> tuple[Transport, asyncio.Protocol]:
        await asyncio.sleep(self.delay())
        server = self._servers.get(port)
        if server is None:
            raise ConnectionRefusedError(111, "Connection refused")
        process = current()
        mine, theirs = Transport(self, process), Transport(self, server.process)
        mine.peer, theirs.peer = theirs, mine
        self.links = [link for link in self.links if not (link[0].lost and link[1].lost)]
        self.links.append((mine, theirs))
        protocol = factory()
        mine.begin(protocol)
        self.loop.call_later(self.delay(), theirs.begin, server.factory(), context=server.process.context)
        return mine, protocol

    def open_links(self) -> list[tuple[Transport, Transport]]:
        return [link for link in self.links if not (link[0].lost or link[1].lost)]


class Server:
    """A listening port; what `asyncio.Server` is used for."""

    def __init__(self, network: Network, port: int, factory: Callable[[], asyncio.Protocol], process: Process) -> None:
        self.network = network
        self.port = port
        self.factory = factory
        self.process = process
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def close(self) -> None:
        self.network.closed(self.port)


class Transport(asyncio.Transport):
    """One end of a link, with what is on its way to it."""

    peer: Transport

    def __init__(self, network: Network, process: Process) -> None:
        super().__init__()
        self.network = network
        self.process = process
        self.protocol: asyncio.Protocol | None = None
        self.lost = False
        self.silent_until = 0.0  # nothing arrives here before (a stalled path)
        self._closing = False
        self._coming: deque[bytes] = deque()
        self._bytes = 0
        self._last = 0.0
        self._paused = False
        self._due = 0  # deliveries that are due and wait for reading to go on
        process.at_end.append(self._process_ended)

    def begin(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol
        protocol.connection_made(self)
        for _ in range(self._due):
            self._deliver()
        self._due = 0

    # ---- arriving here

    def arrive(self, data: bytes) -> None:
        """Called by the other end: `data` gets here after a while, behind what is on its way already."""
        loop = self.network.loop
        self._coming.append(data)
        self._bytes += len(data)
        self._last = max(self._last, self.silent_until, loop._now + self.network.delay())
        loop.call_at(self._last, self._deliver, context=self.process.context)

    def _deliver(self) -> None:
        if self.protocol is None or self._paused:
            self._due += 1
            return
        if not self._coming or self.lost:
            return
        data = self._coming.popleft()
        self._bytes -= len(data)
        if data == END:
            if not self.protocol.eof_received():
                self.close()
        elif not self._closing:
            self.protocol.data_received(data)

    def lose(self, error: Exception | None) -> None:
        """The connection is over for this end; the protocol hears of it once."""
        if self.lost:
            return
        self.lost = self._closing = True
        self._coming.clear()
        loop = self.network.loop
        loop.call_later(self.network.delay(), self._tell_lost, error, context=self.process.context)

    def _tell_lost(self, error: Exception | None) -> None:
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    def _process_ended(self) -> None:
        """The kernel closes what the process had open."""
        if not self.lost:
            self.lost = self._closing = True
            self._coming.clear()
            self.peer.arrive(END)

    # ---- what the protocol calls

    def write(self, data: Any) -> None:
        if self._closing or self.peer.lost:
            return
        data = bytes(data)
        chance = self.network.chance
        if len(data) > 1 and chance.random() < 0.05:
            cut = chance.randrange(1, len(data))
            self.peer.arrive(data[:cut])
            data = data[cut:]
        self.peer.arrive(data)

    def get_write_buffer_size(self) -> int:
        return max(0, self.peer._bytes - BUFFER_BYTES)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """What was written is delivered, then the other end sees the end."""
        if self._closing:
            return
        if not self.peer.lost:
            self.peer.arrive(END)
        self.lose(None)

    def abort(self) -> None:
        if self.lost:
            return
        if not self.peer.lost:
            self.peer.lose(ConnectionResetError("reset by the other end"))
        self.lose(None)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        due, self._due = self._due, 0
        for _ in range(due):
            self.network.loop.call_soon(self._deliver, context=self.process.context)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    # ---- faults

    def reset(self) -> None:
        """The path breaks: both ends see an error, and what was on its way is gone."""
        for end in (self, self.peer):
            end.lose(ConnectionResetError("the path broke"))

    def half_close(self) -> None:
        """This end sees the connection end; the other one sees nothing of it for a long time."""
        self.lose(ConnectionResetError("the path broke on this side"))
        self.network.loop.call_later_always(5.0, self.peer.lose, ConnectionResetError("the path broke at last"))
