"""The records of one run that wait for the calls of their batch steps, and where these calls are made.

One rule: where a batch is cut changes nothing. A batch ends before a record that others read, or a table takes, which may write
what the batch reads, or read what it writes: so a call sees the tables as they were with its records, whatever came in the same
run. Which topics end whose batch is decided once, when the task is made. Used by TaskProcess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pipeline.calls.answering import Answering
from pipeline.calls.batches import Batches
from pipeline.calls.steps import Arrived, Step
from pipeline.calls.task_sources import Source
from pipeline.time.topic_view import TopicTableView


class WaitingBatches:
    """Of one task."""

    def __init__(
        self, steps: Iterable[Step], sources: Mapping[str, Source], batches: Batches, answering: Answering
    ) -> None:
        self._batches = batches
        self._answering = answering
        self._waiting: dict[Step, list[Arrived]] = {step: [] for step in steps if step.processor.batch}
        self.ended_by = _ended_by(list(self._waiting), sources)  # by topic
        # Calls that overlap begin without asking: nothing that they end waits for them.
        at_once = [topic for topic, source in sources.items() if any(s.processor.concurrency > 1 for s in source.steps)]
        self.ended_soon = [step for step in self._waiting if any(step in self.ended_by.get(t, ()) for t in at_once)]

    def begin(self) -> None:
        """A run begins."""
        for arrived in self._waiting.values():
            arrived.clear()

    def add(self, step: Step, arrived: Arrived) -> None:
        """A record of a batch."""
        self._waiting[step].append(arrived)

    async def end_before(self, topic: str) -> None:
        """A record of the topic is next. Raises CallAgain, ProcessorFailed."""
        await self._end(self.ended_by.get(topic, ()))

    async def end_soon(self) -> None:
        """A record has come, and calls that overlap may follow. Raises CallAgain, ProcessorFailed."""
        await self._end(self.ended_soon)

    async def end_all(self) -> None:
        """No record follows. Raises CallAgain, ProcessorFailed."""
        await self._end(self._waiting)

    async def _end(self, steps: Iterable[Step]) -> None:
        answering = self._answering
        for step in steps:
            arrived = self._waiting[step]
            if arrived:
                self._waiting[step] = []  # where its call fails it is not made again in this run
                answering.under_way, answering.batch = step.name, arrived
                answering.noted(step)
                await self._batches.run(step, arrived)
                answering.batch = ()


def _ended_by(batch_steps: Sequence[Step], sources: Mapping[str, Source]) -> dict[str, list[Step]]:
    """The batch steps that have a table which a record of the topic writes, or with which it calls another step."""
    found: dict[str, list[Step]] = {}
    for topic, source in sources.items():
        for step in batch_steps:
            others = [other for other in (*source.steps, *source.batch_steps) if other is not step]
            written = [*source.tables, *(table for other in others for table in other.tables if _is_written(table))]
            if any(table is own for table in written for own in step.tables):
                found.setdefault(topic, []).append(step)
    return found


def _is_written(table: object) -> bool:
    """Whether calls may write it; not so tables of topics and global ones."""
    return not isinstance(table, TopicTableView)
