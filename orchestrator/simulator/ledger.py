"""The ledger of a simulated cluster: the lease, owner records, and scale-downs that run, in memory.

One rule: what a coordinator writes is refused once another holds the lease, and a commit is refused to every writer but the
owner. Coordinators write it (coordinator.py); it is what orchestrator/coordinator/ledger.py asks of a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.errors import OrchestratorError
from orchestrator.group.events import Leaving
from orchestrator.group.scale_down import ScaleDowns
from orchestrator.model import Owner, TaskId


class Refused(OrchestratorError):
    """The ledger says no: not the holder of the lease, or not the owner."""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """Who coordinates; `beat` grows with every renewal."""

    term: int
    holder: str
    beat: int = 0


class Ledger:
    """Durable facts of one application."""

    def __init__(self) -> None:
        self.lease: LeaseRow | None = None
        self.owners: dict[TaskId, Owner] = {}
        self.operations: dict[str, Leaving] = {}

    # ---- the coordinator's

    def acquire(self, holder: str, seen: LeaseRow | None) -> LeaseRow | None:
        """The lease at the next term, if it still is `seen`; None where another candidate was faster."""
        if self.lease != seen:
            return None
        self.lease = LeaseRow(1 if seen is None else seen.term + 1, holder)
        return self.lease

    def renew(self, term: int) -> None:
        """Raises Refused."""
        self.check_lease(term)
        if self.lease is not None:
            self.lease = replace(self.lease, beat=self.lease.beat + 1)

    def check_lease(self, term: int) -> None:
        """Raises Refused where another term holds the lease."""
        if self.lease is None or self.lease.term != term:
            raise Refused(f"term {term} is over: another coordinator holds the lease")

    def record(self, term: int, records: Iterable[Owner]) -> None:
        """Raises Refused."""
        self.check_lease(term)
        for record in records:
            self.put(record)

    def put(self, record: Owner) -> None:
        """One owner record."""
        self.owners[record.task] = record

    def fence(self, term: int, writer: str) -> tuple[TaskId, ...]:
        """From now on `writer` is refused; returns the tasks that it had. Raises Refused."""
        self.check_lease(term)
        had = tuple(sorted(task for task, owner in self.owners.items() if owner.writer == writer))
        for task in had:
            self.owners[task] = self.owners[task].without_writer(term)
        return had

    def end_operation(self, term: int, operation: str) -> None:
        """A scale-down is over. Raises Refused."""
        self.check_lease(term)
        self.operations.pop(operation, None)

    # ---- the workers'

    def check_owner(self, writer: str, task: TaskId, epoch: int) -> None:
        """Raises Refused where a commit of this writer at this epoch is not the owner's."""
        owner = self.owners.get(task)
        if owner is None or owner.writer != writer or owner.epoch != epoch:
            raise Refused(f"{writer} does not own {task} at epoch {epoch}")


class KeptLedger:
    """The ledger as a coordinator's shell asks for it (orchestrator/coordinator/ledger.py): writes cost nothing, so that the
    shell alone is seen and measured."""

    term = 1

    def __init__(self, owners: Iterable[Owner], members: Iterable[str] = ()) -> None:
        self.kept = Ledger()
        self.members = frozenset(members)  # of the last generation
        self.kept.acquire("here", None)
        self.kept.record(self.term, owners)

    async def renew(self) -> None:
        self.kept.renew(self.term)

    async def owners(self) -> Sequence[Owner]:
        return list(self.kept.owners.values())

    async def record_owners(self, records: Sequence[Owner]) -> None:
        self.kept.record(self.term, records)

    async def fence(self, writer: str) -> tuple[TaskId, ...]:
        return self.kept.fence(self.term, writer)

    async def generation(self) -> tuple[int, frozenset[str]]:
        return 0, self.members

    async def put_generation(self, generation: int, members: frozenset[str]) -> None: ...

    async def scale_downs(self) -> ScaleDowns:
        return ScaleDowns()

    async def put_operations(self, facts: Sequence[Mapping[str, object]]) -> None: ...

    async def put_leavers(self, leavers: Mapping[str, str]) -> None: ...

    async def settings(self) -> Mapping[str, str]:
        return {}

    async def put_settings(self, settings: Mapping[str, str]) -> None: ...
