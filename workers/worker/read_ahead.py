"""Inputs of tasks that are about to be granted here: fetched before the grant, from what is committed now.

One rule: it is a hint. Where the task goes on is what its owner before has said or the log says, and the reader throws away what
does not reach from there; nothing is processed of a task that is not granted. Asked for by the record loop, whose reader it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from state.errors import StateError
from state.log.protocol import GroupLog, Partition, Reader
from workers.tasks.task import TaskRun
from workers.worker.giving_way import GivingWay

log = logging.getLogger("orchestrator.records")


class ReadAhead:
    """`read` has the partitions that are read for tasks that process."""

    def __init__(
        self, log_: GroupLog, application: str, reader: Reader, giving_way: GivingWay, read: Mapping[Partition, TaskRun]
    ) -> None:
        self._log = log_
        self._application = application
        self._reader = reader
        self._giving_way = giving_way
        self._read = read
        self._asking: dict[TaskRun, asyncio.Task[None]] = {}  # once for each learner
        self._fetched: dict[Partition, TaskRun] = {}

    def expect(self, run: TaskRun) -> None:
        """A learner is ready."""
        if run not in self._asking and self._giving_way.expects(run.id):
            self._asking[run] = asyncio.get_running_loop().create_task(
                self._begin(run), name=f"reads ahead for {run.id}"
            )

    async def _begin(self, run: TaskRun) -> None:
        try:
            committed = await self._log.positions(self._application, run.inputs)
        except StateError as error:  # it is asked again, by who needs the answer
            log.debug("%s: its inputs are not fetched ahead: %s", run.id, error)
            return
        if not self._giving_way.expects(run.id) or run not in self._asking:
            return
        for partition, position in committed.items():
            if partition not in self._read:
                self._fetched[partition] = run
                self._reader.ahead(partition, position)

    def granted(self, partition: Partition) -> None:
        """It is added to the reader next."""
        self._fetched.pop(partition, None)

    def forget(self, run: TaskRun) -> None:
        """It is no learner any more."""
        if (asking := self._asking.pop(run, None)) is not None:
            asking.cancel()
        for partition in [partition for partition, one in self._fetched.items() if one is run]:
            del self._fetched[partition]
            self._reader.drop(partition)

    def look(self) -> None:
        """What was expected and did not come is fetched no further."""
        for partition, run in list(self._fetched.items()):
            if not self._giving_way.expects(run.id):
                del self._fetched[partition]
                self._reader.drop(partition)
