"""What tasks have yet to process of what was in their inputs when a question about their tables was asked.

One rule: a question that follows a record is answered with it, or with the count of records that still wait, so the ends are those of
all that is written: a producer is answered before its records can be read. Records produced after the question are not waited for.
Used by `query` and `table`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Self

from orchestrator.clocks import monotonic_s
from orchestrator.names import counted
from state.log.protocol import GroupLog, Log, Partition
from workers.commands.query_place import POLL_S
from workers.prepare import beginnings

FRESH_S = 2.0  # how long a question waits for that
PATIENT_S = 10.0  # where the answer would be that there is nothing: the app may just be starting


def waits(records: int) -> str:
    return f"{counted(records, 'record')} {'waits' if records == 1 else 'wait'}"


class Unread:
    """See the module text. `ends`: of the inputs, when the question was asked; `starts`: where a task begins that has no
    position."""

    def __init__(
        self, log: Log, application: str, starts: Mapping[Partition, int], ends: Mapping[Partition, int]
    ) -> None:
        self._log = log
        self._application = application
        self._starts = starts
        self._ends = ends
        self._began = monotonic_s()

    @classmethod
    async def now(cls, log: GroupLog, described: dict[str, Any], number: int, partitions: Iterable[int]) -> Self:
        """Of the inputs of a subtopology, in these partitions."""
        sub = next(sub for sub in described["subtopologies"] if sub["number"] == number)
        inputs = [Partition(topic, partition) for topic in sub["sources"] for partition in partitions]
        begun = await beginnings(log, described["id"], (await log.topics(sub["sources"])).values())
        starts = {one: max(start, begun.get(one, 0)) for one, start in (await log.starts(inputs)).items()}
        return cls(log, described["id"], starts, await log.written(inputs))

    async def records(self, within_s: float) -> int:
        """How many there are once none is left, or `within_s` seconds after the question."""
        while True:
            positions = await self._log.positions(self._application, list(self._ends))
            left = sum(max(0, end - positions.get(p, self._starts[p])) for p, end in self._ends.items())
            if not left or monotonic_s() - self._began >= within_s:
                return left
            await asyncio.sleep(POLL_S)
