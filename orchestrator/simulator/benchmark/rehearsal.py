"""One workload under one protocol, in virtual time: the real coordinator core, the real member cores, and a model of
what takes time: messages, commits, the log, and above all restoring.

One rule: deterministic; everything happens in the order of its time, equal times in the order they were planned.
It is a model of a quiet network; faults are the simulation's business.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from orchestrator.errors import OrchestratorError, WrongUse
from orchestrator.group import events as ev
from orchestrator.group import invariants
from orchestrator.group.convergence import is_stable
from orchestrator.group.scale_plan import Amount, choose_leaving, leaver_costs, parse_amount, target_size
from orchestrator.group.step import Group
from orchestrator.member import events as mem
from orchestrator.model import Owner, Settings, Task, TaskId
from orchestrator.names import natural
from orchestrator.simulator.benchmark.changelog import Changelog
from orchestrator.simulator.benchmark.history import History, Measures, double_work_ms, silences
from orchestrator.simulator.benchmark.hosts import Host, Worker
from orchestrator.simulator.benchmark.workload import INSTANCES_MAX, JOIN_PERCENT_MAX, Change, Workload
from orchestrator.task_assignor.assign import assign_tasks

TICK_MS = 250
REST_MS_MAX = 4 * 3_600_000  # longer than any restore of a sane workload
EVENTS_MAX = 5_000_000  # of one rehearsal: some 20 s on the machine that runs it


class Rehearsal:
    """A group that is rehearsed. `run()` does it all; the parts may be driven one by one."""

    def __init__(self, workload: Workload, settings: Settings, *, snapshots: bool = False) -> None:
        self.workload = workload
        self.settings = settings
        self.snapshots = snapshots
        self.now_ms = 0
        self.history = History()
        speeds = workload.speeds
        self.changelogs: Mapping[TaskId, Changelog] = {
            t.id: Changelog(-(-t.state_bytes // speeds.record_bytes), t.rate) for t in workload.tasks
        }
        self.tasks = tuple(Task(t.id, t.state_bytes > 0, 1, t.state_bytes) for t in workload.tasks)
        self.log: dict[TaskId, Owner] = {}
        self.group = Group(settings, self.tasks)
        self.coordinated = True
        self.hosts: dict[str, Host] = {}
        self.begin_ms = 0
        self.begin_generation = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = 0
        self._sessions: dict[int, Worker] = {}
        self._unsettled: list[int] = []
        self._operations = 0
        self._happened = 0
        self.operation: ev.Leaving | None = None  # as it stands in the log
        self.waiting_operations = 0  # scale-downs that wait for a coordinator

    # ---- time

    def after(self, delay_ms: int, call: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._planned, call))

    def run_until(self, end_ms: int) -> None:
        while self._heap and self._heap[0][0] <= end_ms:
            self.now_ms, _, call = heapq.heappop(self._heap)
            call()
            self._happened += 1
            if self._happened > EVENTS_MAX:
                raise OrchestratorError(
                    f"more than {EVENTS_MAX:,} events in {self.now_ms / 1000:,.0f} s with {len(self.hosts)} "
                    "instances; rehearse fewer instances, or changes that follow sooner"
                )
        self.now_ms = max(self.now_ms, end_ms)

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
        settled = self.coordinated and not self.waiting_operations and self.operation is None
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
        """Other settings from now on, for everybody."""
        self.settings = settings
        for worker in [w for host in self.hosts.values() for w in host.workers]:
            worker.machine.settings = settings
        self.group.reconsider(settings)

    def _leave(self, amount: Amount) -> None:
        """A scale-down. It waits until there is a coordinator that has received a report of everybody."""
        present = {m.join_request.instance for m in self.group.members if m.session is not None}
        if not self.coordinated or not self.present() <= present:
            self.after(TICK_MS, lambda: self._leave(amount))
            return
        self.waiting_operations -= 1
        size = target_size(len(self.present()), to=None, by=amount)
        present = {m.join_request.instance for m in self.group.members if not m.is_leaving and not m.fenced}
        leaving = choose_leaving(leaver_costs(self.group, present), len(present) - size)
        if leaving:
            self._operations += 1
            before = self.operation.instances if self.operation is not None else ()
            self.operation = ev.Leaving(f"scale-down {self._operations}", (*before, *leaving))
            self.send_to_group(self.operation)

    def fail_over(self) -> None:
        """The coordinator dies; another one takes the lease, reads the owner records, and hears everybody."""
        self.coordinated = False
        term, kept = self.group.term + 1, self.group.generation

        def elected() -> None:
            self.group = Group(
                self.settings,
                self.tasks,
                self.log.values(),
                term=term,
                now_ms=self.now_ms,
                generation=kept,
                gathering=True,
            )
            self.after(self.settings.gathering_ms, partial(self._gathered, self.group))
            self.coordinated = True
            if self.operation is not None:
                self._step(self.group, replace(self.operation, resumed=True))
            for worker in [w for host in self.hosts.values() for w in host.workers if w.alive]:
                worker.connect()

        self.after(self.workload.speeds.lease_ms, elected)

    def _gathered(self, group: Group) -> None:
        if group is self.group:
            self.send_to_group(ev.Gathered(), delay_ms=0)

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
        group = self.group
        delay = self.workload.speeds.message_ms if delay_ms is None else delay_ms
        self.after(delay, lambda: self._step(group, event))

    def _step(self, group: Group, event: ev.Event) -> None:
        if group is not self.group or not self.coordinated:
            return
        for effect in group.step(event, self.now_ms):
            self._perform(group, effect)
        if self.settings.check_invariants:
            invariants.check(group)

    def _perform(self, group: Group, effect: ev.Effect) -> None:
        speeds = self.workload.speeds
        match effect:
            case ev.Send(session, assignment):
                self.after(speeds.message_ms, lambda: self._deliver(session, mem.Assigned(assignment)))
            case ev.CloseSession(session, fenced):
                if fenced:
                    self.after(speeds.message_ms, lambda: self._deliver(session, mem.WriterLost()))
            case ev.RecordOwners(records):
                self._count_moves(records)
                self.log.update({record.task: record for record in records})
                self.after(speeds.log_ms, lambda: self._step(group, ev.OwnersRecorded(records)))
            case ev.Fence(transactional_id):
                had = tuple(sorted(t for t, o in self.log.items() if o.writer == transactional_id))
                for task in had:
                    self.log[task] = Owner(task, self.log[task].epoch + 1, self.log[task].member, "", group.term)
                self.after(speeds.log_ms, lambda: self._step(group, ev.Fenced(transactional_id, had)))
            case ev.ComputeTarget(number, view):
                self.after(0, lambda: self._step(group, ev.TargetComputed(number, assign_tasks(view))))
            case ev.OperationEnded(operation):
                if self.operation is not None and self.operation.operation == operation:
                    self.operation = None
            case ev.HandedOver() | ev.Announced():
                pass

    def _deliver(self, session: int, event: mem.MemberEvent) -> None:
        worker = self._sessions.get(session)
        if worker is not None and worker.session == session and worker.alive:
            worker.receive(event)

    def new_session(self, worker: Worker) -> int:
        number = len(self._sessions) + 1
        self._sessions[number] = worker
        return number

    # ---- what is measured on the way

    def _count_moves(self, records: tuple[Owner, ...]) -> None:
        for record in records:
            before = self.log.get(record.task)
            if before is None or before.member == record.member:
                continue
            self.history.moves += 1
            target = next(h for h in self.hosts.values() for w in h.workers if w.member == record.member)
            if any(worker.member == before.member for worker in target.workers):
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
