"""A cancelled call of Spark is over when it returns, also without Java, and where it is cancelled again. A context that has no Spark."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.spark.running import in_thread

DEADLINE_S = 30.0


@pytest.mark.parametrize("is_gone", [True, False])
@pytest.mark.parametrize("times", [1, 2])
async def test_a_cancelled_call_returns_when_its_thread_has_ended(*, is_gone: bool, times: int) -> None:
    """It went on in folders that were being removed."""
    loop, asked = asyncio.get_running_loop(), asyncio.Queue[str]()
    gate, ended = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(DEADLINE_S)
        ended.set()

    def cancel(group: str) -> None:
        loop.call_soon_threadsafe(asked.put_nowait, group)
        if is_gone:
            raise ConnectionRefusedError("Java is gone")

    tracker = SimpleNamespace(getActiveStageIds=list, getJobIdsForGroup=lambda group: [])
    context = SimpleNamespace(appName="none", master="local", cancelJobGroup=cancel, statusTracker=lambda: tracker)
    context.setJobGroup = context.setLocalProperty = lambda *given: None
    session: Any = SimpleNamespace(sparkContext=context)

    call = asyncio.create_task(in_thread(session, work))
    try:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.sleep(0)  # it has begun
            for _ in range(times):
                call.cancel()
                for _ in range(2):
                    await next_of(asked, call)
        assert not call.done()
    finally:
        gate.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()


async def next_of(asked: asyncio.Queue[str], call: asyncio.Task[Any]) -> None:
    """Until Spark is asked once more to cancel its jobs."""
    getting = asyncio.create_task(asked.get())
    await asyncio.wait([getting, call], return_when=asyncio.FIRST_COMPLETED)
    assert not call.done(), "its thread has not ended"
    await getting
