"""A link carries bytes as TCP does, whatever is done to it: in order and unchanged, or its connections end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable

import pytest

from state.log.kafka import broker
from tests.chaos.link import CUT, DEAF, HELD, MUTE, SLOW, Link


class Echo:
    """A server that answers each line with the same line, and knows what came."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.changed = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self.came.append(line)
            self.changed.set()
            writer.write(line)
        writer.close()


class Place:
    def __init__(self, link: Link, echo: Echo, port: int) -> None:
        self.link, self.echo, self.port = link, echo, port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    echo, port = Echo(), broker.free_port()
    server = await asyncio.start_server(echo.answer, "127.0.0.1", port)
    link = Link([(port + 1, port)], random.Random(1))
    await link.open()
    yield Place(link, echo, port + 1)
    await link.close()
    server.close()


async def arrived(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.readline(), 10)


async def ended(line: Awaitable[bytes]) -> bool:
    """Whether the connection ends, in place of a line."""
    try:
        return await asyncio.wait_for(line, 10) == b""
    except ConnectionResetError:
        return True


async def test_it_carries_both_ways_and_slowly(place: Place) -> None:
    reader, writer = await place.connect()
    for fault in ("", SLOW):
        await place.link.break_it(fault)
        writer.write(b"a\n")
        assert await arrived(reader) == b"a\n"
    writer.close()


@pytest.mark.parametrize(("fault", "reaches"), [(HELD, False), (MUTE, False), (DEAF, True)])
@pytest.mark.parametrize("deliver", [True, False])
async def test_what_is_held_arrives_when_it_is_mended_or_its_connection_ends(
    place: Place, fault: str, reaches: bool, deliver: bool
) -> None:
    reader, writer = await place.connect()
    writer.write(b"before\n")
    assert await arrived(reader) == b"before\n"
    place.echo.changed.clear()
    await place.link.break_it(fault)
    writer.write(b"while\n")
    answer = asyncio.create_task(reader.readline())
    if reaches:
        await asyncio.wait_for(place.echo.changed.wait(), 10)
    fresh, other = await place.connect()  # accepted, and held as well
    other.write(b"other\n")
    done, _ = await asyncio.wait({answer}, timeout=0.2)
    assert not done and (b"while\n" in place.echo.came) is reaches
    await place.link.mend(deliver=deliver)
    if deliver:
        assert await asyncio.wait_for(answer, 10) == b"while\n"
        assert await arrived(fresh) == b"other\n"
        assert sorted(place.echo.came) == sorted({*place.echo.came}), "a line came twice"
    else:
        assert await ended(answer)
        again, third = await place.connect()
        third.write(b"again\n")
        assert await arrived(again) == b"again\n" and (reaches or b"other\n" not in place.echo.came)


async def test_a_cut_ends_connections_and_refuses_others(place: Place) -> None:
    reader, writer = await place.connect()
    writer.write(b"a\n")
    assert await arrived(reader) == b"a\n"
    await place.link.break_it(CUT)
    assert await ended(reader.readline())
    other, _ = await place.connect()
    assert await ended(other.readline())
    await place.link.mend(deliver=True)
    reader, writer = await place.connect()
    writer.write(b"b\n")
    assert await arrived(reader) == b"b\n"
