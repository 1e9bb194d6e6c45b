"""Records are built behind the first requests of their transaction, and neither outlives the other."""

from __future__ import annotations

import asyncio

import pytest

from state.errors import RecordTooLarge
from state.log.kafka.unbuilt import Built, Unbuilt
from state.log.protocol import Partition

P0 = Partition("payments", 0)
BUILT: Built = {P0: []}


async def test_it_is_built_while_the_answers_are_awaited() -> None:
    order: list[str] = []
    answered = asyncio.Event()

    async def ask(number: int) -> None:
        order.append(f"asked {number}")
        await answered.wait()

    async def begin() -> None:
        await asyncio.gather(ask(1), ask(2))
        order.append("begun")

    def make() -> Built:
        order.append("built")
        answered.set()  # a build that waited for the answers would never come to this
        return BUILT

    assert await asyncio.wait_for(Unbuilt([P0], make).beside(begin()), 10) is BUILT
    assert order == ["asked 1", "asked 2", "built", "begun"]


async def test_what_does_not_fit_is_given_back_once_the_beginning_is_over() -> None:
    """So that it can be ended: a request that comes behind the end would open it again."""
    begun = False
    error = RecordTooLarge("too large", P0, 0)

    async def begin() -> None:
        nonlocal begun
        for _ in range(10):
            await asyncio.sleep(0)
        begun = True

    def make() -> Built:
        raise error

    assert await Unbuilt([P0], make).beside(begin()) is error
    assert begun


async def test_a_beginning_that_fails_is_raised_whatever_is_built() -> None:
    async def begin() -> None:
        raise OSError("away")

    def fails() -> Built:
        raise RecordTooLarge("too large", P0, 0)

    for make in (lambda: BUILT, fails):
        with pytest.raises(OSError, match="away"):
            await Unbuilt([P0], make).beside(begin())


async def test_one_that_is_cancelled_leaves_nothing_under_way() -> None:
    is_over = False
    asked = asyncio.Event()

    async def begin() -> None:
        nonlocal is_over
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_over = True

    writing = asyncio.create_task(Unbuilt([P0], lambda: BUILT).beside(begin()))
    await asked.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert is_over
