"""How long calls last: time for which the process stood still does not count, neither for sync calls nor for async ones."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import App, Record
from pipeline.calls.timeouts import SLICE_S
from pipeline.errors import ProcessorFailed
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from tests.process_simulation.chance import Order
from tests.process_simulation.loop import VirtualLoop
from workers.calls.call_watch import CallWatch, Turn
from workers.worker.turns import undo

RECORDS = [("in", SourceRecord(0, 0, b"k", b"v"))]


def process_of(call: Any, timeout: float | None = None) -> TaskProcess:
    app = App("x")
    app.processor(app.topic("in", key=str, value=str), timeout=timeout)(call)
    return TaskProcess(app, app.topology().subtopologies[0], 0, {}, {})


def test_a_longer_time_between_two_looks_is_a_pause() -> None:
    def call(record: Record[str, str]) -> None:
        """Is not called."""

    now, overdue = [0.0], list[Turn]()
    watch = CallWatch(lambda: now[0], 10.0, overdue.append, look_s=2.0)
    turn = Turn("0_0", process_of(call), RECORDS)
    watch.look(turn)
    now[0] += 60.0
    assert watch.look(turn) == "the call of call with in-0@0 in task 0_0 has lasted 2 s"
    for _ in range(8):
        now[0] += 1.0
        watch.look(turn)
    assert not overdue, "the call has lasted 10 s and no more"
    now[0] += 0.1
    watch.look(turn)
    assert overdue == [turn]


def lived(call: Any, *, stands_still: bool, timeout: float = 4, records: int = 1) -> int:
    """How many records an async call with a timeout completes; the process may stand still for a minute."""
    loop = VirtualLoop(1, Order(1, 0.0))

    def pause() -> None:
        loop._now += 60.0

    if stands_still:
        loop.call_later(SLICE_S / 2, pause)
    try:
        return loop.run_until_complete(process_of(call, timeout).run_async(RECORDS * records))
    finally:
        loop.close()


def test_a_pause_of_the_process_does_not_end_an_async_call() -> None:
    async def call(record: Record[str, str]) -> None:
        for _ in range(3):
            await asyncio.sleep(1.0)

    assert lived(call, stands_still=True) == 1


@pytest.mark.parametrize("stands_still", [False, True])
@pytest.mark.parametrize("timeout", [4, 60])  # with a timer of its own, and with one for all calls
def test_an_async_call_that_hangs_is_ended(stands_still: bool, timeout: int) -> None:
    async def call(record: Record[str, str]) -> None:
        await asyncio.Event().wait()

    with pytest.raises(ProcessorFailed, match=rf"call did not end within its timeout of {timeout} s"):
        lived(call, stands_still=stands_still, timeout=timeout)


@pytest.mark.parametrize("timeout", [4, 60])
def test_a_timeout_is_of_one_call(timeout: int) -> None:
    async def call(record: Record[str, str]) -> None:
        await asyncio.sleep(timeout * 0.9)

    assert lived(call, stands_still=False, timeout=timeout, records=5) == 5


def is_cancelled(call: Any, timeout: int, at_s: float) -> None:
    """Its run is undone at this time, and ends so."""
    loop, process = VirtualLoop(1, Order(1, 0.0)), process_of(call, timeout)
    calls: asyncio.Task[Any] = loop.create_task(process.run_async(RECORDS))
    loop.call_later(at_s, undo, SimpleNamespace(process=process), calls)
    try:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(calls)
    finally:
        loop.close()


@pytest.mark.parametrize("timeout", [4, 60])
def test_a_call_that_is_cancelled_for_another_reason_is_not_too_long(timeout: int) -> None:
    async def call(record: Record[str, str]) -> None:
        await asyncio.sleep(timeout * 0.9)

    is_cancelled(call, timeout, timeout * 0.8)


@pytest.mark.parametrize("timeout", [4, 60])
def test_a_cancellation_that_a_call_passes_over_comes_back_with_its_timeout(timeout: int) -> None:
    async def call(record: Record[str, str]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    is_cancelled(call, timeout, timeout / 2)


@pytest.mark.parametrize("timeout", [4, 60])
def test_a_call_that_ends_at_its_timeout_in_its_own_way_has_ended(timeout: int) -> None:
    """What comes after it in its task is not cancelled."""
    ended: list[str] = []

    async def call(record: Record[str, str]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(record.key)
        await asyncio.sleep(0)

    assert lived(call, stands_still=False, timeout=timeout, records=3) == 3
    assert ended == ["k", "k", "k"]
