"""What a policy of "skip" leaves out has lines: the first at once, many in one line a minute."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Record
from pipeline.calls.effects import LeftOut
from tests.workers.test_record_loop import committed, running, until
from workers.worker import left_out
from workers.worker.left_out import SHOWN, LeftOutLines


def picky(record: Record[str, int], sums: Any, out: Any) -> None:
    if record.value % 4 >= 2:
        raise ValueError(f"{record.value} will not do")
    out.send(record.key, record.value)


async def picky_later(record: Record[str, int], sums: Any, out: Any) -> None:
    await asyncio.sleep(0)
    picky(record, sums, out)


@pytest.mark.parametrize(("calls", "more"), [(picky, {}), (picky_later, {}), (picky_later, {"concurrency": 4})])
async def test_a_worker_tells_what_it_leaves_out(
    tmp_path: Path, calls: Any, more: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    def lines_of_it() -> list[str]:
        return [line for line in caplog.messages if "out (on_error" in line]

    async with running(tmp_path, calls, records=40, keys=8, on_error="skip", **more) as (_, log, _):

        async def through() -> bool:
            return sum((await committed(log)).values()) >= 40

        await until("the end", through)
        await until("a line of each task", lambda: len(lines_of_it()) >= 2)
        lines = lines_of_it()
    assert sorted(line[:3] for line in lines) == ["0_0", "0_1"], caplog.messages
    for task, line in zip("01", sorted(lines), strict=True):
        assert f"{calls.__name__} failed at in-{task}@" in line and f"in task 0_{task}: ValueError: " in line
        assert line.endswith(" will not do")


async def test_the_first_has_a_line_at_once_and_those_after_it_together(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(left_out, "EVERY_S", 0.2)
    lines = LeftOutLines()
    lines.committed("0_1", [LeftOut("in", True), LeftOut("in", False)])  # a dead letter, and what an operator left out
    assert caplog.messages == []
    lines.committed("0_1", [LeftOut("in", False, "add failed at in-1@7 in task 0_1: ValueError: one")])
    assert caplog.messages == [
        '0_1 left a record of in out (on_error="skip"): add failed at in-1@7 in task 0_1: ValueError: one'
    ]
    for number in range(3):
        lines.committed("0_1", [LeftOut("in", False, f"number {number}")])
    lines.committed("0_2", [LeftOut("in", False, "x" * (SHOWN + 5))])  # another task has its own line
    assert caplog.messages[1:] == [f'0_2 left a record of in out (on_error="skip"): {"x" * SHOWN} ... (5 more)']
    await until("a line of what followed", lambda: len(caplog.messages) >= 3)
    assert caplog.messages[2] == '0_1 left 3 records of in out (on_error="skip"), the last: number 2'
    lines.end()
    assert len(caplog.messages) == 3, "each has its line"


async def test_what_was_counted_since_the_last_line_is_told_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with running(tmp_path, picky, records=40, keys=8, on_error="skip") as (_, log, _):

        async def through() -> bool:
            return sum((await committed(log)).values()) >= 80

        await until("the end", through)
    lines = [line for line in caplog.messages if "out (on_error" in line]
    counts = [int(found[1]) if (found := re.search(r"left (\d+) records", line)) else 1 for line in lines]
    assert sum(counts) == 40 and len(counts) == 4, lines  # of each task the first, and at its worker's end the others
