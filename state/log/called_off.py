"""Calls that are cancelled while they write: what is under way in another thread goes on, whoever waits for it.

One rule: a cancelled call is over when it returns: nothing of it is written, or all of it is, and what it reads is read no more. One
that has written all returns as if it had not been cancelled: its caller knows, and goes on. Used by `sqlite` and by backfills.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from state.log.protocol import NewRecord, Partition, Parts

T = TypeVar("T")


class _CalledOff(Exception):
    """Raised where the parts of a write are read, so that it is undone."""


async def unless_cancelled(write: Callable[[Parts], Coroutine[Any, Any, T]], parts: Parts) -> T:
    """Returns what `write`, one transaction of these parts, returns. Cancelled, it is undone where it has not read them all. Raises
    what it raises."""
    called_off = False

    def given() -> Iterator[Mapping[Partition, Sequence[NewRecord]]]:
        for part in parts():
            if called_off:
                break
            yield part
        if called_off:
            raise _CalledOff

    def call_off() -> None:
        nonlocal called_off
        called_off = True

    return await to_its_end(write(given), call_off)


async def to_its_end(work: Coroutine[Any, Any, T], call_off: Callable[[], None] = lambda: None) -> T:
    """Returns the result of a coroutine that is not cancelled with its caller; `call_off` is called then. Raises CancelledError where it
    fails after that, else what it raises."""
    running = asyncio.create_task(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        call_off()
        times = 1
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:  # once more: it is not over for that
                times += 1
        if running.cancelled() or running.exception() is not None:
            raise
        caller = asyncio.current_task()
        assert caller is not None
        for _ in range(times):
            caller.uncancel()
        return running.result()
