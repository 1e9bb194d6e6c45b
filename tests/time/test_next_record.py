"""A task that keeps time takes the next record of all its inputs, also where one of them is slower to be fetched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import App
from orchestrator.member.events import Assigned
from orchestrator.model import Assignment, TaskId
from state.log.batches import decode
from state.log.group_store import OwnerRecord
from state.log.memory import MemoryLog
from state.log.protocol import Fetched, NewRecord, Partition, Reader
from workers.prepare import prepare
from workers.spec import InstanceSpec, WorkerSpec
from workers.worker.worker import Worker

DEADLINE_S = 20.0
SLOW_POLLS = 5


class SlowReader:
    """A reader that begins with topic `right` some polls after it was asked to."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._held: dict[Partition, int] = {}
        self._polls = 0

    def add(self, partition: Partition, position: int) -> None:
        if partition.topic == "right" and self._polls < SLOW_POLLS:
            self._held[partition] = position
        else:
            self._reader.add(partition, position)

    def drop(self, partition: Partition) -> None:
        self._held.pop(partition, None)
        self._reader.drop(partition)

    async def poll(self, *, max_bytes_per_partition: int = 1 << 20, wait_ms: int = 0) -> list[Fetched]:
        self._polls += 1
        if self._polls > SLOW_POLLS:
            while self._held:
                self._reader.add(*self._held.popitem())
        return await self._reader.poll(max_bytes_per_partition=max_bytes_per_partition, wait_ms=wait_ms)

    async def close(self) -> None:
        await self._reader.close()


class SlowLog(MemoryLog):
    """The memory log, with such a reader."""

    def reader(self) -> Any:
        return SlowReader(super().reader())


class NarrowReader:
    """A reader whose fetches bring one batch of topic `left` at a time, as those of large records do."""

    def __init__(self, narrow: Reader, rest: Reader) -> None:
        self._narrow, self._rest = narrow, rest

    def _of(self, partition: Partition) -> Reader:
        return self._narrow if partition.topic == "left" else self._rest

    def add(self, partition: Partition, position: int) -> None:
        self._of(partition).add(partition, position)

    def drop(self, partition: Partition) -> None:
        self._of(partition).drop(partition)

    async def poll(self, *, max_bytes_per_partition: int = 1 << 20, wait_ms: int = 0) -> list[Fetched]:
        found = await self._narrow.poll(max_bytes_per_partition=1)
        wait_ms = 0 if found else wait_ms
        return found + await self._rest.poll(max_bytes_per_partition=max_bytes_per_partition, wait_ms=wait_ms)

    async def close(self) -> None:
        await self._narrow.close()
        await self._rest.close()


class NarrowLog(MemoryLog):
    """The memory log, with such a reader."""

    def reader(self) -> Any:
        return NarrowReader(super().reader(), super().reader())


def app_of(kind: str) -> App:
    app = App("x")
    left, right = app.topic("left", key=str, value=int), app.topic("right", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    kept: Any = app.table("kept", key=str, value=int) if kind == "table" else app.timers("kept", key=str)
    if kind == "table of topic":
        kept = app.table_of(right, alias="kept")

    def each(record: Any, kept: Any, out: Any) -> None:
        out.send(record.key, record.timestamp_ms)

    app.processor([left, right], kept, out)(each)
    return app


async def times(tmp_path: Path, app: App, log: MemoryLog | None = None) -> list[int]:
    """In which order the records' times were taken."""
    log, task = log or SlowLog(), TaskId(0, 0)
    prepared = await prepare(log, app)
    for topic, first in (("left", 0), ("right", 1)):
        rows = [NewRecord(b"k", at.to_bytes(8, "big"), at) for at in range(first, 40, 2)]
        for row in rows:  # each is a fetch, where it must be small
            await log.append({Partition(topic, 0): [row]})
    instance = InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path), commit_ms=10)
    worker = Worker(WorkerSpec(instance, 1, "one"), log, prepared, {})
    lease = await log.acquire(app.id, "i1", "", None)
    assert lease is not None
    writer = worker.session.join_request.writer
    await log.open_writer(app.id, writer)
    await log.record_owners(lease, [OwnerRecord(str(task), 1, "i1", writer, 1)])
    worker.event(Assigned(Assignment(1, 1, active={task: 1})))
    life = asyncio.create_task(worker.run())

    def sent() -> list[int]:
        part = log.fetch(Partition("out", 0), 0, 1 << 20)
        return [] if part is None else [record.timestamp_ms for record in decode(part.data, 0)]

    async def all_sent() -> bool:
        return len(sent()) >= 40  # an end counts the markers of transactions, too

    try:
        await _until(all_sent)
    finally:
        worker.stop()
        await asyncio.wait([life])
    return sent()


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["timers", "table of topic"])
async def test_what_is_fetched_later_is_not_late(tmp_path: Path, kind: str) -> None:
    assert await times(tmp_path, app_of(kind)) == list(range(40))


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["timers", "table of topic"])
async def test_what_is_fetched_a_little_at_a_time_is_not_late(tmp_path: Path, kind: str) -> None:
    """A turn takes many records, and one input may have no more that wait, while there are more in the log."""
    assert await times(tmp_path, app_of(kind), NarrowLog()) == list(range(40))


@pytest.mark.asyncio
async def test_a_task_that_keeps_no_time_does_not_wait(tmp_path: Path) -> None:
    found = await times(tmp_path, app_of("table"))
    assert sorted(found) == list(range(40)) != found
