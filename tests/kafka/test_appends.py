"""Records of producers on a broker that aborts their transactions, as it does with those that are too old."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka.protocol.produce import ProduceRequest_v7

from state.errors import LogUnusable, MetadataChanged
from state.log.group_store import AppMetadata
from state.log.kafka.log import KafkaLog
from state.log.protocol import Partition, TopicSpec
from tests.contracts.logs import records, values
from tests.kafka.place import APP, Place
from workers.log.produced import PROGRESS

pytestmark = [pytest.mark.kafka]
ONE, OTHER = Partition("wide", 0), Partition("wide", 1)


async def wide(place: Place) -> KafkaLog:
    log = await place.open()
    await log.create_topic(TopicSpec("wide", 2))
    return log


async def abort(log: KafkaLog, place: Place) -> None:
    """What a broker does with a transaction that is too old: the epoch of its id goes on, and requests with the old one are refused."""
    ids = [one._id for one in (log._appender._transactional, *log._appender._keyed.values()) if one is not None]
    other = await place.open()
    for one in ids:
        assert one is not None
        await other._cluster.producer(one.removeprefix(place.prefix), 10.0).initialise()


async def test_an_append_that_was_aborted_is_made_again(place: Place) -> None:
    log = await wide(place)
    await log.append({ONE: records("a"), OTHER: records("b")})
    await abort(log, place)
    await log.append({ONE: records("c"), OTHER: records("d")})
    assert await values(log, ONE) == ["a", "c"]
    assert await values(log, OTHER) == ["b", "d"]


async def test_progress_that_was_aborted_is_made_again_and_a_twin_is_seen(place: Place) -> None:
    log = await wide(place)
    first, second = (AppMetadata(APP, PROGRESS, "file", value) for value in (b"1", b"2"))
    await log.append({ONE: records("a"), OTHER: records("b")}, metadata=first, seen=None)
    await abort(log, place)
    await log.append({ONE: records("c"), OTHER: records("d")}, metadata=second, seen=b"1")
    twin = await place.open()
    with pytest.raises(MetadataChanged):
        await twin.append({ONE: records("c")}, metadata=second, seen=b"1")
    assert await values(log, ONE) == ["a", "c"]
    assert await values(log, OTHER) == ["b", "d"]


Answer = Callable[[], Awaitable[Any]]


async def appended_once(
    place: Place, patch: pytest.MonkeyPatch, writing: Callable[[Answer], Awaitable[Any]]
) -> KafkaLog:
    """A log with an "a" in ONE. `writing` answers what is written from now on, and may ask the broker."""
    log = await wide(place)
    await log.append({ONE: records("a")})
    send = log._cluster.connections.send

    async def sent(node: int, request: Any, *given: Any) -> Any:
        def ask() -> Awaitable[Any]:
            return send(node, request, *given)

        return await (writing(ask) if isinstance(request, ProduceRequest_v7) else ask())

    patch.setattr(log._cluster.connections, "send", sent)
    return log


async def test_an_append_that_was_given_up_does_not_stand_for_the_next_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer never came: the next one would have its numbers, and be taken for it by the broker."""

    async def silent(ask: Answer) -> None:
        await ask()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        log = await appended_once(place, patch, silent)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await log.append({ONE: records("b")})
    await log.append({ONE: records("c")})
    assert await values(log, ONE) == ["a", "b", "c"]


async def test_one_that_waits_behind_an_append_that_fails_is_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        async def refusing(ask: Answer) -> None:
            patch.undo()
            await asyncio.sleep(0.05)
            raise LogUnusable("no")

        log = await appended_once(place, patch, refusing)
        appended = (log.append({ONE: records(text)}) for text in "bc")
        first, second = await asyncio.gather(*appended, return_exceptions=True)
    assert isinstance(first, LogUnusable)
    assert second == {ONE: 2}
    assert await values(log, ONE) == ["a", "c"]
