"""The log of the simulation: owner records, lease, positions, changelog ends; it checks what only a log can see.

One rule: it is the judge. A commit names what it began from, so that an input applied twice, or skipped, has a witness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from orchestrator.model import Owner, TaskId


class Broken(AssertionError):
    """A safety rule does not hold."""


class Refuse(Exception):
    """The log says no: not the owner, or not the holder of the lease."""


class Commit(NamedTuple):
    """A commit as the log took it: inputs from `start` up to `stop`."""

    writer: str
    task: TaskId
    epoch: int
    start: int
    stop: int


@dataclass
class LeaseRow:
    term: int
    holder: str
    beat: int


@dataclass
class SimLog:
    """Durable facts of one application."""

    owners: dict[TaskId, Owner] = field(default_factory=dict)
    granted: dict[tuple[TaskId, int], str] = field(default_factory=dict)
    positions: dict[TaskId, int] = field(default_factory=dict)
    ends: dict[TaskId, int] = field(default_factory=dict)
    lease: LeaseRow | None = None
    operations: dict[str, tuple[str, ...]] = field(default_factory=dict)  # scale-downs that run: who leaves
    check_owner: bool = True  # mutations switch a rule off here
    check_lease: bool = True
    history: list[Commit] = field(default_factory=list)

    # ---- the coordinator's

    def acquire(self, holder: str, seen: LeaseRow | None) -> LeaseRow | None:
        now = self.lease
        if (now is None) != (seen is None) or (now and seen and (now.term, now.beat) != (seen.term, seen.beat)):
            return None
        self.lease = LeaseRow(1 if now is None else now.term + 1, holder, 0)
        return LeaseRow(self.lease.term, holder, 0)

    def renew(self, term: int) -> None:
        self._under(term)
        assert self.lease is not None
        self.lease.beat += 1

    def _under(self, term: int) -> None:
        if self.check_lease and (self.lease is None or self.lease.term != term):
            raise Refuse("lease")

    def record(self, term: int, records: tuple[Owner, ...]) -> None:
        self._under(term)
        for record in records:
            before = self.owners.get(record.task)
            if before is not None and record.epoch <= before.epoch:
                raise Broken(f"epoch of {record.task} went from {before.epoch} to {record.epoch}")
            if before is not None and record.term < before.term:
                raise Broken(f"a deposed coordinator (term {record.term}) wrote the owner of {record.task}")
            other = self.granted.get((record.task, record.epoch))
            if other is not None and other != record.writer:
                raise Broken(f"two writers for {record.task} at epoch {record.epoch}: {other}, {record.writer}")
            self.granted[record.task, record.epoch] = record.writer
            self.owners[record.task] = record

    def fence(self, term: int, writer: str) -> tuple[TaskId, ...]:
        self._under(term)
        had = tuple(sorted(t for t, o in self.owners.items() if o.writer == writer))
        for task in had:
            owner = self.owners[task]
            self.owners[task] = Owner(task, owner.epoch + 1, owner.member, "", term)
        return had

    # ---- the workers'

    def commit(self, writer: str, task: TaskId, epoch: int, start: int, stop: int) -> int:
        """Inputs from `start` up to `stop` are processed: returns the changelog's new end."""
        owner = self.owners.get(task)
        if self.check_owner and (owner is None or owner.writer != writer or owner.epoch != epoch):
            raise Refuse("owner")
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
