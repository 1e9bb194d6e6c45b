"""The connection of one machine to the brokers: TCP proxies that an event can cut, hold, slow down, or close by half.

One rule: bytes arrive in order and unchanged, or their connection ends: that is what TCP promises. A held direction keeps
its bytes, and gives them on when the link is whole again, so that a request may arrive after its sender was fenced.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

CHUNK = 65_536
CUT, HELD, MUTE, DEAF, SLOW = "cut", "held", "mute", "deaf", "slow"
FAULTS = (CUT, HELD, MUTE, DEAF, SLOW)
_TO, _FROM = "to the broker", "from the broker"
HELD_BY = {HELD: (_TO, _FROM), MUTE: (_TO,), DEAF: (_FROM,)}


@dataclass(eq=False)
class _Wire:
    """One connection that was accepted, and its other half."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    served: asyncio.Task[None] | None
    carrying: list[asyncio.Task[None]] = field(default_factory=list)

    def abort(self) -> None:
        for writer in (self.near, self.far):
            writer.transport.abort()


class Link:
    """All connections of one machine. `ports` are pairs: where the proxy listens, and the broker's own port behind it."""

    def __init__(self, ports: Collection[tuple[int, int]], choice: random.Random) -> None:
        self._ports = list(ports)
        self._choice = choice
        self._servers: list[asyncio.Server] = []
        self._wires: set[_Wire] = set()
        self._fault = ""
        self._changed = asyncio.Condition()

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{near}" for near, _ in self._ports]

    async def open(self) -> None:
        for near, far in self._ports:
            self._servers.append(await asyncio.start_server(self._accepting(far), "127.0.0.1", near))

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        self._end_wires()
        wires = list(self._wires)
        for task in [task for wire in wires for task in wire.carrying]:
            task.cancel()
        await asyncio.gather(*(wire.served for wire in wires if wire.served is not None), return_exceptions=True)

    async def break_it(self, fault: str) -> None:
        await self._set(fault)
        if fault == CUT:
            self._end_wires()

    async def mend(self, *, deliver: bool) -> None:
        """The link is whole again; what was held arrives now, or its connections end."""
        if not deliver:
            self._end_wires()
        await self._set("")

    async def _set(self, fault: str) -> None:
        async with self._changed:
            self._fault = fault
            self._changed.notify_all()

    def _end_wires(self) -> None:
        for wire in self._wires:
            wire.abort()

    def _accepting(self, port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._fault == CUT:
                writer.transport.abort()
                return
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                writer.transport.abort()
                return
            wire = _Wire(writer, far_writer, asyncio.current_task())
            self._wires.add(wire)
            wire.carrying = [
                asyncio.create_task(self._carry(_TO, reader, far_writer)),
                asyncio.create_task(self._carry(_FROM, far_reader, writer)),
            ]
            await asyncio.wait(wire.carrying, return_when=asyncio.FIRST_COMPLETED)
            wire.abort()
            for task in wire.carrying:
                task.cancel()
            await asyncio.gather(*wire.carrying, return_exceptions=True)
            self._wires.discard(wire)

        return accept

    async def _carry(self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one of both ends: its error is the other one's end."""
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if self._fault == SLOW:
                    await asyncio.sleep(self._choice.uniform(0.02, 0.2))
                async with self._changed:
                    await self._changed.wait_for(lambda: way not in HELD_BY.get(self._fault, ()))
                writer.write(data)
                await writer.drain()
