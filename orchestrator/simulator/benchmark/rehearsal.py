"""One workload under one protocol, in virtual time: the real coordinator core, the real member cores, and a model of
what takes time: messages, commits, the log, and above all restoring.

One rule: deterministic; everything happens in the order of its time, equal times in the order they were planned.
It is a model of a quiet network; faults are the simulation's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestrator.errors import OrchestratorError, WrongUse
from orchestrator.group import events as ev
from orchestrator.group import invariants
from orchestrator.group.convergence import is_stable
from orchestrator.group.scale_plan import Amount, choose_leaving, leaver_costs, parse_amount, target_size
from orchestrator.group.step import Group
from orchestrator.model import Owner, Settings, Task, TaskId
from orchestrator.names import natural
from orchestrator.simulator.benchmark.changelog import Changelog
from orchestrator.simulator.benchmark.history import History, Measures, double_work_ms, silences
from orchestrator.simulator.benchmark.hosts import Host
from orchestrator.simulator.benchmark.workload import INSTANCES_MAX, JOIN_PERCENT_MAX, Change, Workload
from orchestrator.simulator.cluster import Cluster
from orchestrator.simulator.coordinator import Backend, Coordinator, Watch
from orchestrator.simulator.ledger import Ledger
from orchestrator.simulator.network import Network
from orchestrator.simulator.nodes import Node
from orchestrator.simulator.processes import Process
from orchestrator.simulator.scheduler import TooManyEvents

TICK_MS = 250
REST_MS_MAX = 4 * 3_600_000  # longer than any restore of a sane workload
EVENTS_MAX = 5_000_000  # of one rehearsal: some 20 s on the machine that runs it


class Counting(Watch):
    """Counts moves, and checks the invariants where the settings ask for it."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal

    def effect(self, coordinator: Coordinator, effect: ev.Effect) -> None:
        if isinstance(effect, ev.RecordOwners):
            self.rehearsal.count_moves(effect.records)

    def after(self, coordinator: Coordinator) -> None:
        if self.rehearsal.settings.check_invariants:
            invariants.check(coordinator.group)


class Rehearsal(Cluster):
    """A group that is rehearsed. `run()` does it all; the parts may be driven one by one."""

    def __init__(self, workload: Workload, settings: Settings, *, snapshots: bool = False) -> None:
        speeds = workload.speeds
        super().__init__(settings, Ledger(), Network(speeds.message_ms))
        self.watch = Counting(self)
        self.workload = workload
        self.snapshots = snapshots
        self.history = History()
        self.changelogs: Mapping[TaskId, Changelog] = {
            t.id: Changelog(-(-t.state_bytes // speeds.record_bytes), t.rate) for t in workload.tasks
        }
        self.tasks = tuple(Task(t.id, t.state_bytes > 0, 1, t.state_bytes) for t in workload.tasks)
        self._host = Process(self.scheduler, "coordinator")
        self.coordinator = self._elected(0, gathering=False)
        self.hosts: dict[str, Host] = {}
        self.begin_ms = 0
        self.begin_generation = 0
        self._unsettled: list[int] = []
        self._operations = 0
        self.scheduler.allow(EVENTS_MAX)
        self.waiting_operations = 0  # scale-downs that wait for a coordinator

    @property
    def group(self) -> Group:
        return self.coordinator.group

    @property
    def operation(self) -> ev.Leaving | None:
        """The scale-down that runs: a further one takes the former in."""
        return next(iter(self.ledger.operations.values()), None)

    # ---- time

    def run_until(self, end_ms: int) -> None:
        """Raises OrchestratorError for a scenario that would take too long."""
        try:
            self.scheduler.run_until(end_ms)
        except TooManyEvents:
            raise OrchestratorError(
                f"more than {EVENTS_MAX:,} events in {self.now_ms / 1000:,.0f} s with {len(self.hosts)} "
                "instances; rehearse fewer instances, or changes that follow sooner"
            ) from None

    def rest(self) -> None:
        """Go on until the group is at rest. Raises OrchestratorError where it does not come to rest."""
        self.run_until(self.now_ms + TICK_MS)  # a change has to be received first
        self._go_on_until(self.is_at_rest)

    def _go_on_until(self, reached: Callable[[], bool]) -> None:
        limit = self.now_ms + REST_MS_MAX
        while not reached():
            if self.now_ms >= limit or not self.present():
                raise OrchestratorError(self._why_not())
            self.run_until(self.now_ms + TICK_MS)

    def _why_not(self) -> str:
        if not self.present():
            return "no instance is left after the last change; let one 'return' or 'join'"
        what = f"the group is not at rest after {REST_MS_MAX // 3_600_000} h without a change; "
        if self.operation is not None and self.present() <= set(self.operation.instances):
            return f"{what}nobody stays to whom {', '.join(sorted(self.present(), key=natural))} could hand over"
        return (
            f"{what}its writes may outrun its restores, or messages, commits and the log take longer than its "
            "timeouts: look at 'rate=' and 'speeds'"
        )

    def is_at_rest(self) -> bool:
        """The coordinator sees nothing to do, and every task does run (it may not have missed the dead yet)."""
        running = sum(len(worker.running) for host in self.hosts.values() for worker in host.workers)
        settled = self.coordinator.in_office and not self.waiting_operations and self.operation is None
        return settled and running == len(self.tasks) and is_stable(self.group)

    # ---- the whole

    def run(self) -> Measures:
        """A stable start, the changes, and rest."""
        self.start()
        for change in self.workload.changes:
            self._until_change(self.begin_ms + change.at_ms)
            self.change(change)
        self.rest()
        self._settled()
        return self.measures()

    def start(self) -> None:
        """All instances join an empty group, and restore what they are given."""
        for number in range(1, self.workload.instances + 1):
            self._add(f"I{number}").start()
        self._tick()
        if self.snapshots:
            self._take_snapshots()
        self.rest()
        self._go_on_until(self._are_copies_warm)  # standbys, too, have to be there before anything changes
        self.begin_ms = self.now_ms
        self.begin_generation = self.group.generation
        self.history.restored_bytes = self.history.moves = self.history.cold = self.history.cold_announced = 0

    def measures(self) -> Measures:
        """What happened since the stable start."""
        self.history.close(self.now_ms)
        spans = self.history.spans
        silent = silences(spans, self.changelogs, self.begin_ms, self.now_ms)
        rates = {load.id: load.rate for load in self.workload.tasks}
        return Measures(
            silent_ms=sum(silent.values()),
            worst_task_ms=max(silent.values(), default=0),
            delayed_records=sum(rates[task] * ms // 1000 for task, ms in silent.items()),
            rebalances=self.group.generation - self.begin_generation,
            moves=self.history.moves,
            restored_bytes=self.history.restored_bytes,
            balanced_ms=tuple(self.history.balanced_ms),
            double_work_ms=double_work_ms(spans, self.begin_ms),
            cold=self.history.cold,
            cold_announced=self.history.cold_announced,
        )

    def _until_change(self, at_ms: int) -> None:
        while self.now_ms < at_ms:
            self.run_until(min(at_ms, self.now_ms + TICK_MS))
            if self._unsettled and self.is_at_rest():
                self._settled()

    def _settled(self) -> None:
        self.history.balanced_ms += [self.now_ms - since for since in self._unsettled]
        self._unsettled.clear()

    # ---- changes

    def change(self, change: Change) -> None:
        """Make one change now. Raises WrongUse where it names what is not there."""
        self._unsettled.append(self.now_ms)
        match change.verb:
            case "join":
                amount = parse_amount(change.what[0], "join", percent_max=JOIN_PERCENT_MAX)
                size = target_size(len(self.present()), to=None, by=amount, grow=True)
                if size > INSTANCES_MAX:
                    raise WrongUse(f"workload: '{change}' makes {size} instances; at most {INSTANCES_MAX}")
                for _ in range(size - len(self.present())):
                    self._add(f"I{len(self.hosts) + 1}").start()
            case "leave":
                self.waiting_operations += 1
                self._leave(parse_amount(change.what[0], "leave"))
            case "crash":
                for name in change.what:
                    self._named(name, alive=True).crash()
            case "failover":
                self.fail_over()
            case _:
                for name in change.what:
                    self._named(name, alive=False).start()

    def present(self) -> set[str]:
        return {name for name, host in self.hosts.items() if host.alive and any(w.alive for w in host.workers)}

    def configure(self, settings: Settings) -> None:
        """Other settings from now on, for the whole group."""
        self.settings = settings
        for worker in [w for host in self.hosts.values() for w in host.workers]:
            worker.machine.settings = settings
        self.group.reconsider(settings)

    def _leave(self, amount: Amount) -> None:
        """A scale-down. It waits until there is a coordinator that has received a report of every member."""
        present = {m.join_request.instance for m in self.group.members if m.session is not None}
        if not self.coordinator.in_office or not self.present() <= present:
            self.after(TICK_MS, lambda: self._leave(amount))
            return
        self.waiting_operations -= 1
        size = target_size(len(self.present()), to=None, by=amount)
        present = {m.join_request.instance for m in self.group.members if not m.is_leaving and not m.fenced}
        leaving = choose_leaving(leaver_costs(self.group, present), len(present) - size)
        if leaving:
            self._operations += 1
            before = self.operation.instances if self.operation is not None else ()
            operation = ev.Leaving(f"scale-down {self._operations}", (*before, *leaving))
            self.ledger.operations = {operation.operation: operation}
            self.send_to_group(operation)

    def fail_over(self) -> None:
        """The coordinator dies; another one takes the lease, reads the owner records, and receives every member's report."""
        self.coordinator.in_office = False
        kept = self.group.generation

        def elected() -> None:
            self.coordinator.in_office = False
            coordinator = self.coordinator = self._elected(kept)
            self.after(self.settings.gathering_ms, lambda: self._gathered(coordinator))
            coordinator.resume_operations()
            for worker in [w for host in self.hosts.values() for w in host.workers if w.alive]:
                self.connect(worker)

        self.after(self.workload.speeds.lease_ms, elected)

    def _elected(self, generation: int, *, gathering: bool = True) -> Coordinator:
        """The next coordinator, before the first member connects."""
        term = self.take_lease(self._host.name).term
        backend = Backend(self.workload.speeds.log_ms)
        return self.coordinate(self._host, self.tasks, backend, term=term, generation=generation, gathering=gathering)

    def _gathered(self, coordinator: Coordinator) -> None:
        if coordinator is self.coordinator:
            self.send_to_group(ev.Gathered(), delay_ms=0)

    def connect(self, node: Node, /) -> None:
        self.network.connect(node, self.coordinator)

    def _add(self, name: str) -> Host:
        host = self.hosts[name] = Host(self, name, self.workload.workers)
        return host

    def _named(self, name: str, *, alive: bool) -> Host:
        host = self.hosts.get(name)
        if host is None or host.alive is not alive or (alive and name not in self.present()):
            there = sorted(n for n in self.hosts if (n in self.present()) is alive)
            raise WrongUse(
                f"workload: no instance {name} {'runs' if alive else 'has crashed'} then; "
                f"there are {', '.join(there) or 'none'}"
            )
        return host

    # ---- the coordinator's shell

    def _tick(self) -> None:
        self.send_to_group(ev.Tick(), delay_ms=0)
        self.after(TICK_MS, self._tick)

    def send_to_group(self, event: ev.Event, delay_ms: int | None = None) -> None:
        """The coordinator receives it, after the time of a message."""
        coordinator = self.coordinator
        delay = self.workload.speeds.message_ms if delay_ms is None else delay_ms
        self.after(delay, lambda: coordinator.receive(event))

    # ---- what is measured on the way

    def count_moves(self, records: tuple[Owner, ...]) -> None:
        for record in records:
            before = self.ledger.owners.get(record.task)
            if before is None or before.member == record.member:
                continue
            self.history.moves += 1
            target = next(h for h in self.hosts.values() for w in h.workers if w.name == record.member)
            if any(worker.name == before.member for worker in target.workers):
                continue  # workers of an instance share its disk
            if self.is_stateful(record.task) and not self._is_warm(record.task, target):
                others = (h for h in self.hosts.values() if h.alive and h is not target)
                cold = any(self._is_warm(record.task, other) for other in others)
                held = (w.machine.held.get(record.task) for w in target.workers)
                self.history.cold += cold
                self.history.cold_announced += cold and any(h is not None and h.ready for h in held)

    def _is_warm(self, task: TaskId, host: Host) -> bool:
        """Whether the instance could run the task now: it does, or its copy is close enough to the end (but for what
        was written since its last heartbeat)."""
        at = host.positions.get(task)
        if any(task in worker.running for worker in host.workers):
            return True
        if at is None or task in host.downloads:
            return False
        written = self.changelogs[task].rate * self.settings.heartbeat_ms // 1000 + 1
        return self.end(task) - at <= self.settings.acceptable_recovery_lag + written

    def _are_copies_warm(self) -> bool:
        return all(self._is_warm(t, h) for h in self.hosts.values() for w in h.workers for t in w.copies())

    def is_stateful(self, task: TaskId) -> bool:
        return self.changelogs[task].live > 0

    def end(self, task: TaskId) -> int:
        return self.changelogs[task].end(self.now_ms)

    def _take_snapshots(self) -> None:
        for changelog in self.changelogs.values():
            changelog.take_snapshot(self.now_ms)
        self.after(self.workload.speeds.snapshot_every_ms, self._take_snapshots)
