"""A whole group in one thread and in virtual time: the real coordinator core and the real member cores.

One rule: everything happens by a call, or by time that the caller lets pass; the same calls give the same cluster. What
takes time, and what goes wrong, is in what a cluster is made with: a network, a backend for each coordinator, and members.
Scenario files (scenario_cluster.py) have no delays, benchmark/rehearsal.py models them, and tests draw them, with faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from orchestrator.group.state import LONG_ASSIGNMENT
from orchestrator.group.step import Group
from orchestrator.model import Settings, Task
from orchestrator.simulator.coordinator import Backend, Coordinator, Watch
from orchestrator.simulator.ledger import LeaseRow, Ledger
from orchestrator.simulator.network import Network
from orchestrator.simulator.processes import Process
from orchestrator.simulator.scheduler import Scheduler


class Cluster:
    """Members, a ledger, a network, and coordinators one after the other."""

    def __init__(self, settings: Settings, ledger: Ledger, network: Network) -> None:
        self.settings = settings
        self.scheduler = Scheduler()
        self.ledger = ledger
        self.network = network
        self.watch = Watch()

    @property
    def now_ms(self) -> int:
        return self.scheduler.now_ms

    def after(self, delay_ms: int, call: Callable[[], None], /) -> None:
        self.scheduler.after(delay_ms, call)

    def take_lease(self, holder: str) -> LeaseRow:
        """A new term, independent of the holder of the one before."""
        lease = self.ledger.acquire(holder, self.ledger.lease)
        assert lease is not None
        return lease

    def coordinate(
        self,
        process: Process,
        tasks: Iterable[Task],
        backend: Backend,
        *,
        term: int,
        generation: int = 0,
        long_assignment: int = LONG_ASSIGNMENT,
        gathering: bool = True,
        former: str = "",
    ) -> Coordinator:
        """A coordinator that took office now: it has read the owner records, and received nothing from members."""
        group = Group(
            self.settings,
            tasks,
            self.ledger.owners.values(),
            term=term,
            now_ms=process.clock(),
            generation=generation,
            long_assignment=long_assignment,
            gathering=gathering,
            former=former,
        )
        return Coordinator(process, group, self.ledger, self.network, backend, self.watch)
