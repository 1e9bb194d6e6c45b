"""What a reader fetched ahead on a broker: handed out without another request, and thrown away where it does not reach."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from state.log.batches import decode
from state.log.kafka.fetch import FetchRequest
from state.log.kafka.log import KafkaLog
from state.log.protocol import Reader
from tests.contracts.logs import records, until
from tests.kafka.place import IN, Place

pytestmark = pytest.mark.kafka


class Fetches:
    """Of a log; once `held`, none is answered."""

    def __init__(self, log: KafkaLog) -> None:
        self.held = False
        self._connections = log._cluster.connections
        self._send = self._connections.send
        self._connections.send = self._seen  # type: ignore[method-assign]

    async def _seen(self, node: int, request: Any, *rest: Any) -> Any:
        answer = await self._send(node, request, *rest)
        if isinstance(request, FetchRequest) and self.held:
            await asyncio.Event().wait()
        return answer


async def fetched(place: Place) -> tuple[Reader, Fetches]:
    """A reader that has fetched seven records in three batches from the second on, and is given nothing more."""
    log = await place.topics()
    for batch in ("abc", "de", "fg"):
        await log.append({IN: records(*batch)})
    fetches, reader = Fetches(log), log.reader()
    reader.ahead(IN, 1)
    await until("what is fetched ahead", lambda: asyncio.sleep(0, reader.fetched_to(IN, 1) == 7))
    fetches.held = True
    return reader, fetches


async def given(reader: Reader) -> list[bytes | None]:
    found = await reader.poll(wait_ms=10_000)
    return [record.value for part in found for record in decode(part.data, part.position)]


@pytest.mark.parametrize(("position", "values"), [(1, b"bcdefg"), (4, b"efg"), (6, b"g")])
async def test_it_is_handed_out_without_a_request(place: Place, position: int, values: bytes) -> None:
    reader, _ = await fetched(place)
    polling = asyncio.create_task(given(reader))  # waits already, as a record loop does
    await asyncio.sleep(0)
    reader.add(IN, position)
    assert await polling == [b"%c" % value for value in values]


async def test_who_begins_elsewhere_is_given_nothing_of_it(place: Place) -> None:
    reader, fetches = await fetched(place)
    fetches.held = False
    assert reader.fetched_to(IN, 0) is None and reader.fetched_to(IN, 8) is None
    reader.add(IN, 0)
    assert await given(reader) == [b"%c" % value for value in b"abcdefg"]


async def test_what_fails_ahead_is_no_error_before_it_is_read(place: Place) -> None:
    """As a position that retention has passed by: whoever begins there learns of it."""
    log = await place.topics()
    await log.append({IN: records("a")})
    reader = log.reader()
    reader.ahead(IN, 5)
    assert await reader.poll(wait_ms=500) == []
    assert reader.fetched_to(IN, 5) is None
    reader.add(IN, 0)
    assert await given(reader) == [b"a"]
