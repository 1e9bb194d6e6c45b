"""The log of the simulation: the shipped ledger, positions and changelog ends; it checks what only a log can see.

One rule: it is the judge. A commit names what it began from, so that an input applied twice, or skipped, has a witness.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.model import Owner, TaskId
from orchestrator.simulator.ledger import Ledger


class Broken(AssertionError):
    """A safety rule does not hold."""


class Commit(NamedTuple):
    """A commit as the log took it: inputs from `start` up to `stop`."""

    writer: str
    task: TaskId
    epoch: int
    start: int
    stop: int


class SimLog(Ledger):
    """Durable facts of one application, judged as they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.granted: dict[tuple[TaskId, int], str] = {}
        self.positions: dict[TaskId, int] = {}
        self.ends: dict[TaskId, int] = {}
        self.history: list[Commit] = []

    def put(self, record: Owner) -> None:
        before = self.owners.get(record.task)
        if before is not None and record.epoch <= before.epoch:
            raise Broken(f"epoch of {record.task} went from {before.epoch} to {record.epoch}")
        if before is not None and record.term < before.term:
            raise Broken(f"a deposed coordinator (term {record.term}) wrote the owner of {record.task}")
        other = self.granted.get((record.task, record.epoch))
        if other is not None and other != record.writer:
            raise Broken(f"two writers for {record.task} at epoch {record.epoch}: {other}, {record.writer}")
        self.granted[record.task, record.epoch] = record.writer
        super().put(record)

    def commit(self, writer: str, task: TaskId, epoch: int, start: int, stop: int) -> int:
        """Inputs from `start` up to `stop` are processed: returns the changelog's new end."""
        self.check_owner(writer, task, epoch)
        at = self.positions.get(task, 0)
        if start != at:
            kind = "applied twice" if start < at else "skipped"
            raise Broken(
                f"inputs {min(start, at)}..{max(start, at)} of {task} were {kind} by {writer} at epoch {epoch}"
            )
        self.positions[task] = stop
        self.ends[task] = self.ends.get(task, 0) + (stop - start)
        self.history.append(Commit(writer, task, epoch, start, stop))
        return self.ends[task]
