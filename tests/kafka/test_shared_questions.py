"""What a task asks of a group's offsets as it begins is one request; what is asked later is asked anew."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from state.log.kafka.log import KafkaLog
from tests.contracts.logs import records
from tests.kafka.place import APP, IN, Place, count, owner

pytestmark = pytest.mark.kafka


class Seen:
    """The requests to coordinators that a log sends, in order; each is sent as ever."""

    def __init__(self, log: KafkaLog) -> None:
        self.names: list[str] = []
        self.fetching = asyncio.Event()
        self.may_go = asyncio.Event()  # what is sent waits for it
        self.may_go.set()
        self._connections = log._cluster.connections
        self._send = self._connections.coordinated
        self._connections.coordinated = self._noted  # type: ignore[method-assign]

    async def _noted(self, kind: Any, name: Any, request: Any, *rest: Any) -> Any:
        self.names.append(type(request).__name__)
        if self.names[-1].startswith("OffsetFetch"):
            self.fetching.set()
        await self.may_go.wait()
        return await self._send(kind, name, request, *rest)

    @property
    def fetches(self) -> int:
        return sum(name.startswith("OffsetFetch") for name in self.names)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    made = Place()
    yield made
    await made.close()


async def committed(log: KafkaLog, value: int) -> None:
    await log.commit(APP, "w", [count(value)])


async def begun(place: Place) -> KafkaLog:
    log = await place.topics()
    lease = await log.acquire(APP, "c", "a:1", None)
    assert lease is not None
    await log.record_owners(lease, [owner(1, lease)])
    await log.open_writer(APP, "w")
    await log.append({IN: records("1", "2", "3", "4", "5")})
    await committed(log, 1)
    assert await log.positions(APP, [IN]) == {IN: 1}  # settled: what is asked now is asked once
    return log


async def test_what_is_asked_at_one_moment_is_one_request(place: Place) -> None:
    log = await begun(place)
    seen = Seen(log)
    found, lost, strange, times = await asyncio.gather(
        log.positions(APP, [IN]), log.lost(APP, [IN]), log.set_elsewhere(APP, [IN]), log.committed_ms(APP, [IN])
    )
    assert (found, lost, strange) == ({IN: 1}, {}, {}) and times.keys() <= {IN}
    assert seen.fetches == 1, seen.names


async def test_what_is_asked_later_is_not_the_answer_of_before(place: Place) -> None:
    log, other = await begun(place), await place.open()
    seen = Seen(other)
    for value in range(2, 6):
        seen.fetching.clear()
        asked = asyncio.create_task(other.positions(APP, [IN]))
        await seen.fetching.wait()
        await committed(log, value)
        assert await other.positions(APP, [IN]) == {IN: value}, "asked while the one before was under way"
        assert (await asked)[IN] in (value - 1, value)


async def test_who_gives_up_takes_no_answer_from_another(place: Place) -> None:
    log = await begun(place)
    seen = Seen(log)
    first, second = (asyncio.create_task(log.positions(APP, [IN])) for _ in range(2))
    await seen.fetching.wait()
    first.cancel()
    assert await second == {IN: 1}
    assert seen.fetches == 1 and first.cancelled()


async def test_what_fails_when_nobody_waits_for_it_any_more_is_no_error_of_the_program(place: Place) -> None:
    log = await begun(place)
    seen, reported = Seen(log), list[dict[str, Any]]()
    seen.may_go.clear()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    asked = asyncio.create_task(log.positions(APP, [IN]))
    await seen.fetching.wait()
    asked.cancel()  # as a worker ends: its task first, then the log
    await log.close()
    before = asyncio.all_tasks() - {asyncio.current_task()}
    seen.may_go.set()
    await asyncio.wait(before)
    del before
    gc.collect()
    assert asked.cancelled() and reported == []


async def test_other_partitions_and_other_groups_are_asked_for_apart(place: Place) -> None:
    log = await begun(place)
    found = await asyncio.gather(
        log.positions(APP, [IN]), log.positions("another", [IN]), log.positions(APP, []), log.lost("another", [IN])
    )
    assert found == [{IN: 1}, {}, {}, {}]
