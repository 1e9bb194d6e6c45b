"""Where a task goes on in its inputs: what retention took before it was read is reported, and is not waited for."""

from __future__ import annotations

import logging

import pytest

from orchestrator import App
from orchestrator.model import TaskId
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, TaskCommit
from tests.workers.test_restores_at_once import app_of
from workers.prepare import prepare
from workers.tasks.inputs import start_positions

NUMBERS = Partition("numbers", 0)


@pytest.mark.parametrize(("start", "skipped"), [(2, False), (3, False), (7, True)])
async def test_records_that_were_deleted_before_they_were_read(
    start: int, skipped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The position is committed again, or tools would show a lag that no record is left for."""
    log, app = MemoryLog(markers=False), app_of(1)
    prepared = await prepare(log, app)
    for n in range(10):
        await log.append({NUMBERS: [NewRecord(b"k", b"1", n)]})
    log.put_positions(app.id, [TaskCommit("0_0", 1, {}, {NUMBERS: 3})])
    await log.trim({NUMBERS: start})
    with caplog.at_level(logging.WARNING):
        found = await start_positions(log, app.id, prepared, TaskId(0, 0), [NUMBERS])
    assert found == ({NUMBERS: max(3, start)}, skipped)
    reported = "numbers-0 was read up to 3, and begins at 7 now" in caplog.text
    assert reported == skipped, caplog.text


async def test_one_that_reads_from_the_end_goes_on_there_where_its_position_is_gone() -> None:
    log, app = MemoryLog(markers=False), App("x", partitions=1)
    app.processor(app.topic("numbers", key=str, value=bytes, start="end"))(lambda record: None)
    prepared = await prepare(log, app)
    for n in range(10):
        await log.append({NUMBERS: [NewRecord(b"k", b"1", n)]})
    log.put_positions(app.id, [TaskCommit("0_0", 1, {}, {NUMBERS: 3})])
    await log.trim({NUMBERS: 7})
    assert await start_positions(log, app.id, prepared, TaskId(0, 0), [NUMBERS]) == ({NUMBERS: 10}, True)
