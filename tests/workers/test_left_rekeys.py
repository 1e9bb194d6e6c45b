"""Records that wait in a re-key which a new version does not have. Law: as long as any does, each start says how many."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import App
from state.log.group_store import OwnerRecord
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, TaskCommit
from tests.workers.test_moved_pieces import by_key
from workers import moved_pieces
from workers.missing_inputs import prepare_and_say

OLD = "rolled-by-repartition"


def other_key() -> App:
    app = App("rolled", partitions=1)
    orders, sums = app.topic("orders", key=str, value=int), app.table("sums", key=str, value=int)

    @app.processor(orders.rekey("by2", key=str, by=lambda record: record.key), sums)
    def add(record: Any, sums: Any) -> None: ...

    return app


async def lines_of(log: MemoryLog, app: App) -> list[str]:
    lines = list[str]()
    await prepare_and_say(log, app, "sqlite:x", lines.append)
    return lines


async def read_up_to(log: MemoryLog, position: int) -> None:
    """By the task of the version before."""
    lease = await log.acquire("rolled", "i1", "here:1", await log.lease("rolled"))
    assert lease is not None
    await log.open_writer("rolled", "w")
    await log.record_owners(lease, [OwnerRecord("1_0", position, "m", "w", lease.term)])
    await log.commit("rolled", "w", [TaskCommit("1_0", position, {}, {Partition(OLD, 0): position})])


@pytest.mark.parametrize("new", [by_key(False), other_key()], ids=["gone", "replaced"])
async def test_records_that_nothing_will_read_are_said_until_they_are_read(
    new: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moved_pieces, "STILL_MS", 200)
    log = MemoryLog(markers=False)
    assert await lines_of(log, by_key(True)) == []
    assert await lines_of(log, new) == [], "none waits"
    await log.append({Partition(OLD, 0): [NewRecord(b"k", b"12345678", 1)] * 3})
    await read_up_to(log, 1)
    line = "2 records wait in rolled-by-repartition, a re-key that this version does not read"
    for _ in range(2):
        (found,) = await lines_of(log, new)
        assert found.startswith(line) and "run the version before until it has read them" in found
    assert await lines_of(log, by_key(True)) == [], "it reads them itself"
    await read_up_to(log, 3)
    assert await lines_of(log, new) == []
