"""What a question about a table waits for: records that its task has yet to process, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import App
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition
from workers.commands.query_fresh import Unread
from workers.fleet.client import description
from workers.prepare import begin_at, prepare

INPUT = Partition("payments", 0)


def app_of(start: Any) -> App:
    app = App("bank", partitions=1)
    payments = app.topic("payments", key=str, value=int, start=start)
    app.processor(payments, app.table("balances", key=str, value=int))(lambda payment, balances: None)
    return app


@pytest.mark.parametrize(("start", "before"), [("end", 0), ("beginning", 3)])
async def test_what_lies_before_the_beginning_of_an_app_does_not_wait(start: str, before: int) -> None:
    log, records = MemoryLog(markers=False), [NewRecord(b"ann", b"1", 0)] * 3
    prepared = await prepare(log, app_of(start))
    await log.append({INPUT: records})
    if start == "end":
        assert await begin_at(log, prepared, INPUT, 3) == 3  # as a task that begins does

    async def waiting() -> int:
        return await (await Unread.now(log, await description(log, "bank"), 0, [0])).records(0)

    assert await waiting() == before
    await log.append({INPUT: records})
    assert await waiting() == before + 3
