"""Whether the next record of a task is known: its smallest head is, once no partition can hold an earlier one yet.

One rule (KIP-695): a task that keeps time, or has a topic as a table, takes a record only when each of its inputs has one
waiting, or was read to the end that the log has now; else all that lies in the slower input after a restart would come late.
Other tasks, and those with one input, never wait here. Asked by the record loop before each turn, which takes nothing behind the
last record that waits of an input.
"""

from __future__ import annotations

from pipeline.records import TICK
from state.errors import UnknownTopic
from state.log.protocol import Log, Partition
from workers.tasks.task import TaskRun


class Heads:
    """See the module text. A task whose inputs were not read to their ends waits for the next fetch."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._waiting: set[TaskRun] = set()

    def waits(self, run: TaskRun) -> bool:
        """Whether a fetch must come first."""
        return run in self._waiting

    def fetched(self) -> None:
        """What there was has been read."""
        self._waiting.clear()

    async def are_known(self, run: TaskRun) -> bool:
        """Whether the smallest of the heads is the next record."""
        process = run.process
        if process is None or not process.keeps_order:
            return True
        if len(run.inputs) == 1 and not run.merger.has_head(TICK, run.id.partition):
            return True
        empty = [partition for partition in run.inputs if not run.merger.has_head(*partition)]
        if not empty:
            return True
        try:
            ends = await self._log.ends(empty)
        except UnknownTopic:
            return True  # the reader decides it, and the worker obeys
        if run.process is process and all(_read_to(run, partition) >= ends[partition] for partition in empty):
            return True
        self._waiting.add(run)
        return False


def _read_to(run: TaskRun, partition: Partition) -> int:
    found = run.merger.read_to(*partition)
    return run.committed.get(partition, 0) if found is None else found
