"""Whether a process still listens: one connection answers for as long as it lasts, and its end is noticed at the next look."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.coordinator import listener, transport
from orchestrator.coordinator.transport import ListenerWatch


class Port:
    """A port that counts its connections."""

    def __init__(self) -> None:
        self.accepted: list[asyncio.StreamWriter] = []
        self.news: asyncio.Queue[int] = asyncio.Queue()

    async def open(self) -> str:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.append(writer)
        self.reader = reader
        self.news.put_nowait(len(self.accepted))

    async def has(self, connections: int) -> None:
        async with asyncio.timeout(10):
            assert [await self.news.get() for _ in range(connections)] == [*range(1, connections + 1)]

    async def die(self) -> None:
        self.server.close()
        for writer in self.accepted:
            writer.transport.abort()


async def until_refused(watch: ListenerWatch, address: str) -> None:
    """The end of a connection is known a moment after it."""
    while True:
        if await watch.is_refused(address):
            return
        await asyncio.sleep(0.001)


async def test_a_connection_is_held_and_its_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HOLD_S", 3_600.0)
    port, watch = Port(), ListenerWatch()
    address = await port.open()
    for _ in range(5):
        assert not await watch.is_refused(address)
    await port.has(1)
    await port.die()
    await asyncio.wait_for(until_refused(watch, address), 10)
    assert len(port.accepted) == 1
    watch.close()


async def test_another_address_is_another_connection() -> None:
    first, second, watch = Port(), Port(), ListenerWatch()
    addresses = [await first.open(), await second.open()]
    for address in addresses:
        assert not await watch.is_refused(address)
    await first.has(1)
    await second.has(1)
    watch.close()
    await first.die()
    await second.die()


async def test_the_listener_is_not_made_to_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends connections that prove nothing, and says so in its log: the watch begins another one before."""
    assert transport.HOLD_S < listener.STRANGER_SWEEPS * listener.SWEEP_S
    monkeypatch.setattr(transport, "HOLD_S", 0.0)
    port, watch = Port(), ListenerWatch()
    address = await port.open()
    for _ in range(2):
        assert not await watch.is_refused(address)
    await port.has(2)
    watch.close()
    await port.die()


async def test_it_ends_by_itself_where_nothing_looks_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next look may be far away: behind a log that does not answer, or behind a term of this instance as the coordinator."""
    monkeypatch.setattr(transport, "HOLD_S", 0.01)
    port, watch = Port(), ListenerWatch()
    assert not await watch.is_refused(await port.open())
    await port.has(1)
    async with asyncio.timeout(10):
        assert await port.reader.read() == b""
    await port.die()


async def test_a_host_elsewhere_is_not_asked() -> None:
    assert not await ListenerWatch().is_refused("192.0.2.1:9")
