"""How long an async call may last, in a loop whose time passes only as its timers fire. Law: a call ends after its own timeout,
to the second, whatever the calls before it took; a cancellation that a call took for its own leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from orchestrator import App, ProcessorFailed, Record, Table
from pipeline.calls.timeouts import AGAIN_S
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore

SHORT, LONG = 2.0, 20.0  # with a timer of each call, and with one for all


class _TimersLoop(asyncio.SelectorEventLoop):
    """Where nothing is ready, it is the time of the next timer."""

    now = 1_000.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        assert self._ready or self._scheduled, "what is waited for never comes"  # type: ignore[attr-defined]
        if not self._ready:  # type: ignore[attr-defined]
            due = min(timer._when for timer in self._scheduled if not timer._cancelled)  # type: ignore[attr-defined]
            self.now = max(self.now, due)
        super()._run_once()  # type: ignore[misc]


def lived(work: Coroutine[Any, Any, Any]) -> None:
    loop = _TimersLoop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


def task_of(
    call: Callable[[int], Awaitable[None]], seconds: float, on_error: str = "skip"
) -> tuple[TaskProcess, Callable[[], list[int]]]:
    """A task whose processor waits for `call`, and what of its records counts."""
    app = App("x", partitions=1)
    source = app.topic("in", key=str, value=int)
    seen = app.table("seen", key=int, value=int, default=int)

    @app.processor(source, seen, timeout=seconds, on_error=on_error)
    async def ask(record: Record[str, int], seen: Table[int, int]) -> None:
        seen[record.value] = 1
        await call(record.value)

    process = TaskProcess(app, app.topology().subtopologies[0], 0, {"seen": DictStore()}, {})
    return process, lambda: sorted(int.from_bytes(key, "big") for key in process.collect().writes.get("seen", {}))


def records(count: int) -> list[tuple[str, SourceRecord]]:
    return [("in", SourceRecord(n, n, b"k", n.to_bytes(8, "big"))) for n in range(count)]


@pytest.mark.parametrize("seconds", [SHORT, LONG])
def test_each_call_has_its_own_time(seconds: float) -> None:
    took: dict[int, float] = {}

    async def call(value: int) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await (asyncio.Event().wait() if value in (2, 5) else asyncio.sleep(seconds - 0.5 if value else 0))
        finally:
            took[value] = asyncio.get_running_loop().time() - began

    async def work() -> None:
        process, counted = task_of(call, seconds)
        assert await process.run_async(records(7)) == 7
        assert counted() == [0, 1, 3, 4, 6]
        assert process.finished == 7

    lived(work())
    assert took[2] == pytest.approx(seconds)
    assert took[5] == pytest.approx(seconds)


@pytest.mark.parametrize("seconds", [SHORT, LONG])
def test_a_call_that_takes_the_end_of_its_time_for_its_own_leaves_nothing_behind(seconds: float) -> None:
    async def call(value: int) -> None:
        try:
            await asyncio.sleep(seconds * 2)
        except asyncio.CancelledError:
            if value == 1:
                raise ValueError("too slow") from None
            if value == 2:
                raise

    async def work() -> None:
        process, counted = task_of(call, seconds)
        assert await process.run_async(records(4)) == 4
        assert counted() == [0, 3], "the others failed, one of them in its own words"
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(seconds * 3)

    lived(work())


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("seconds", [SHORT, LONG])
def test_a_call_that_goes_on_after_its_time_is_cancelled_again(seconds: float, times: int) -> None:
    """It was cancelled once: a loop around what fails kept its task for ever."""

    async def call(value: int) -> None:
        for _ in range(times * (value == 1)):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        if value:
            await asyncio.Event().wait()

    async def work() -> None:
        process, counted = task_of(call, seconds)
        began, task = asyncio.get_running_loop().time(), asyncio.current_task()
        assert await process.run_async(records(3)) == 3
        assert counted() == [0]
        took = asyncio.get_running_loop().time() - began
        least = 2 * seconds + times * max(seconds, AGAIN_S)
        assert least <= took <= least + 3, "again after as long"
        assert task is not None and task.cancelling() == 0

    lived(work())


@pytest.mark.parametrize("seconds", [SHORT, LONG])
def test_what_it_cleans_up_after_its_time_is_done(seconds: float) -> None:
    cleaned: list[int] = []

    async def call(value: int) -> None:
        try:
            await asyncio.sleep(seconds * 2 * value)
        finally:
            await asyncio.sleep((AGAIN_S - 2) * value)
            cleaned.append(value)

    async def work() -> None:
        process, counted = task_of(call, seconds)
        assert await process.run_async(records(2)) == 2
        assert cleaned == [0, 1] and counted() == [0]

    lived(work())


@pytest.mark.parametrize("seconds", [SHORT, LONG])
def test_a_group_of_tasks_that_failed_within_a_call_makes_no_later_error_another(seconds: float) -> None:
    """It leaves a cancellation behind that its asyncio task is not let off: what came then was taken for one from outside, and the
    worker ended with it."""

    async def fails() -> None:
        raise ValueError

    async def call(value: int) -> None:
        if value in (0, 2):
            with contextlib.suppress(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(fails())
        if value == 1:
            waited = asyncio.get_running_loop().create_future()
            waited.cancel()
            await waited
        if value > 1:
            await asyncio.Event().wait()

    async def work() -> None:
        process, counted = task_of(call, seconds)
        assert await process.run_async(records(4)) == 4
        assert counted() == [0], "the others failed, and nothing else"
        for value, message in ((1, "CallCancelled"), (2, "TimeoutError"), (3, "TimeoutError")):
            process, _ = task_of(call, seconds, "stop")
            with pytest.raises(ProcessorFailed, match=message):
                await process.run_async([records(1)[0], records(4)[value]])

    lived(work())


@pytest.mark.parametrize("seconds", [SHORT, LONG])
def test_what_it_failed_with_is_what_the_call_made_of_it(seconds: float) -> None:
    async def call(value: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if value:
                raise ValueError("too slow") from None
            raise

    async def work() -> None:
        for value, message in enumerate(
            (f"TimeoutError: .*ask did not end within its timeout of {seconds:g} s", "too slow")
        ):
            process, counted = task_of(call, seconds, "stop")
            with pytest.raises(ProcessorFailed, match=message):
                await process.run_async(records(2)[value:])
            assert counted() == []

    lived(work())


@pytest.mark.parametrize("seconds", [SHORT, LONG])
def test_who_is_cancelled_from_outside_is_not_late(seconds: float) -> None:
    async def call(value: int) -> None:
        if value:
            await asyncio.Event().wait()

    async def work() -> None:
        process, counted = task_of(call, seconds)
        run = asyncio.ensure_future(process.run_async(records(3)))
        await asyncio.sleep(seconds / 2)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert counted() == [0]
        await asyncio.sleep(seconds)  # with nothing under way
        again = asyncio.ensure_future(process.run_async(records(3)[1:2]))
        await asyncio.sleep(seconds - 0.1)
        assert not again.done(), "its time is its own"
        await again
        assert process.collect().skipped == 1

    lived(work())


async def test_calls_of_a_run_go_on_being_watched_in_another_loop() -> None:
    async def call(value: int) -> None:
        await (asyncio.Event().wait() if value else asyncio.sleep(0))

    process, _ = task_of(call, LONG)
    await asyncio.to_thread(lived, process.run_async(records(1)))

    async def work() -> None:
        assert await process.run_async(records(2)) == 2
        assert asyncio.get_running_loop().time() == pytest.approx(1_000 + LONG)

    await asyncio.to_thread(lived, work())
