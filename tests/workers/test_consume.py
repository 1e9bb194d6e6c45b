"""What `consume` does where retention removes what it is about to read."""

from __future__ import annotations

import pytest

from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, TopicSpec
from workers.commands.consume import _polled

HERE, THERE = Partition("t", 0), Partition("t", 1)


@pytest.mark.parametrize(("kept_from", "left"), [(4, {HERE: 6, THERE: 6}), (6, {THERE: 6})])
async def test_what_is_removed_meanwhile_is_passed_over(
    kept_from: int, left: dict[Partition, int], capsys: pytest.CaptureFixture[str]
) -> None:
    log = MemoryLog()
    await log.create_topic(TopicSpec("t", 2))
    for number in range(6):
        await log.append({place: [NewRecord(b"k", b"%d" % number, 1)] for place in (HERE, THERE)})
    reader, ends = log.reader(), {HERE: 6, THERE: 6}
    reader.add(HERE, 0)
    reader.add(THERE, 6)
    await log.trim({HERE: kept_from})
    assert await _polled(reader, ends, 0) == []
    assert (ends, capsys.readouterr().err) == (
        left,
        f"warning: t-0 begins at {kept_from} by now: what lay before was removed\n",
    )
    read = [part.position for part in await _polled(reader, ends, 0) if part.partition == HERE]
    assert read == ([kept_from] if HERE in left else [])
    await reader.close()
