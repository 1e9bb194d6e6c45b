"""What connections leave behind them: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from state.log.kafka.access import Access
from state.log.kafka.codes import Unreachable
from state.log.kafka.connections import Connections
from state.log.kafka.lookout import Lookout

DEADLINE_S = 5.0


async def test_a_reader_that_ends_leaves_no_lock() -> None:
    """Two for each reader that there ever was."""
    connections = Connections([("127.0.0.1", 1)], Access())
    for number in range(3):
        with pytest.raises(Unreachable, match="no broker 1 is known"):
            await connections._to(1, f"fetch-{number}")
        connections.close_purpose(f"fetch-{number}")
    assert not connections._opening
    await connections.close()


async def test_a_lookout_that_is_closed_looks_no_more() -> None:
    async def known(slow: Collection[int]) -> None:
        return None

    lookout = Lookout(known)
    before = asyncio.all_tasks()
    lookout.end(lookout.begin(1))
    lookout.close()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*asyncio.all_tasks() - before, return_exceptions=True)
    lookout.end(lookout.begin(1))
    assert asyncio.all_tasks() == before
