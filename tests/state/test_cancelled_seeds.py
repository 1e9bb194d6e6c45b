"""A seed that is cancelled is over when its call returns: nothing of it is written, or all, and its parts are read no more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from state.log.called_off import to_its_end
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.log.sqlite import SqliteLog, open_sqlite

IN, OUT = Partition("in", 0), Partition("out", 0)
WAIT_S = 30


class Parts:
    """Three parts, one record each; it stands still behind the first, or behind the last."""

    def __init__(self, *, at_end: bool) -> None:
        self._stops_at = 3 if at_end else 1
        self.reached, self.goes_on = threading.Event(), threading.Event()
        self.read = 0
        self.ended = False

    def __call__(self) -> Iterator[Mapping[Partition, Sequence[NewRecord]]]:
        try:
            for _ in range(3):
                self.read += 1
                yield {OUT: [NewRecord(b"k", b"v", 0)]}
                if self.read == self._stops_at:
                    self.reached.set()
                    assert self.goes_on.wait(WAIT_S)
        finally:
            self.ended = True


async def made(folder: Path) -> SqliteLog:
    log = await open_sqlite(folder / "log.db", create=True)
    for topic in ("in", "out"):
        await log.create_topic(TopicSpec(topic, 1))
    return log


@pytest.mark.parametrize("at_end", [False, True])
async def test_a_seed_that_is_cancelled_is_undone(tmp_path: Path, at_end: bool) -> None:
    log, parts = await made(tmp_path), Parts(at_end=at_end)
    lease = await log.acquire("app", "one", "a:1", None)
    assert lease is not None
    seeding = asyncio.create_task(log.seed_positions(lease, {IN: 5}, {}, parts=parts))
    await asyncio.to_thread(parts.reached.wait, WAIT_S)
    seeding.cancel()
    await asyncio.sleep(0)
    assert not seeding.done(), "it is not over while its parts are read"
    parts.goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await seeding
    assert parts.ended and parts.read == (3 if at_end else 2)
    assert (await log.positions("app", [IN]), (await log.ends([OUT]))[OUT]) == ({}, 0)
    assert await log.seed_positions(lease, {IN: 5}, {}, parts=lambda: [{OUT: [NewRecord(b"k", b"v", 0)]}])
    await log.close()


@pytest.mark.parametrize("times", [1, 2])
async def test_what_has_written_all_returns(times: int) -> None:
    """Cancelled twice, it was over while its work went on."""
    reached, goes_on = asyncio.Event(), asyncio.Event()
    called_off: list[bool] = []

    async def work() -> str:
        reached.set()
        await goes_on.wait()
        return "written"

    task = asyncio.create_task(to_its_end(work(), lambda: called_off.append(True)))
    await reached.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not task.done()
    goes_on.set()
    assert (await task, called_off, task.cancelling()) == ("written", [True], 0)
