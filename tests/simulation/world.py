"""One life of a group: a plan from a seed, a safety phase with faults, then no faults and convergence.

One rule: everything that happens is in the plan or follows from it; each node draws from a stream of its own, so that
leaving a fault out changes little else. Faults are in faults.py, judges in judges.py.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from orchestrator.member.machine import Held
from orchestrator.model import Task, TaskId
from orchestrator.simulator.cluster import Cluster
from orchestrator.simulator.coordinator import Coordinator
from tests.simulation.faults import happen
from tests.simulation.judges import Judges
from tests.simulation.network import FaultyNetwork
from tests.simulation.nodes import Candidate, InstanceProcess, Worker
from tests.simulation.plan import PHASE_MS, InstancePlan, Plan, draw
from tests.simulation.simlog import Broken, SimLog

CALM_MS = 600_000  # the slowest restores with a budget of one learner take more than four minutes to empty an instance


class World(Cluster):
    """The shipped cluster with drawn delays and faults, and everything else of one life."""

    network: FaultyNetwork

    def __init__(self, plan: Plan | int) -> None:
        self.plan = draw(plan) if isinstance(plan, int) else plan
        self.log = SimLog()
        super().__init__(self.plan.settings, self.log, FaultyNetwork(self))
        self.watch = self.judges = Judges(self)
        self.trace: list[str] = []
        self.random_of: dict[str, Random] = {}  # by member: leaving one out changes little else
        self.waiting = sorted(self.plan.coming)
        self.tasks = tuple(task for task in self.plan.tasks if task.id not in self.plan.coming)
        self.by_transactional_id: dict[str, Worker] = {}
        self.version_of: dict[str, str] = {}
        self.disks: dict[str, dict[TaskId, int]] = {}
        self.locks: dict[tuple[str, TaskId], tuple[Worker, int]] = {}
        self.incarnations = 0
        self.rebalances = 0
        self.changes = 0
        self.log_down_until = 0
        self.cut: set[str] = set()
        self.faulty = True
        self.processes: dict[str, InstanceProcess] = {}
        self.workers: list[Worker] = []
        self.candidates: list[Candidate] = []
        for task in self.plan.tasks:
            self.log.ends[task.id] = self.log.positions[task.id] = self.plan.history[task.id]
        for instance in self.plan.instances:
            self.add_instance(instance)

    def add_instance(self, plan: InstancePlan) -> None:
        process = InstanceProcess(self.scheduler, plan.name)
        process.version = plan.version
        self.processes[plan.name] = process
        for number in range(plan.workers):
            self.workers.append(Worker(self, process, plan.name, number, plan.zone, plan.old_protocols))
        self.candidates.append(Candidate(self, process))
        self.changes += 1

    # ---- plumbing

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now_ms:>8} {text}")

    def log_up(self) -> bool:
        return self.now_ms >= self.log_down_until

    def log_commit(self, worker: Worker, task: TaskId, epoch: int, start: int, stop: int) -> int | None:
        """A commit of a worker; None where its outcome stays unknown."""
        if not self.log_up():
            return None
        end = self.log.commit(worker.join_request.writer, task, epoch, start, stop)
        return None if self.faulty and worker.random.random() < 0.002 else end

    def coordinators(self) -> list[Coordinator]:
        """All who take themselves for the coordinator."""
        return [c.coordinator for c in self.candidates if c.coordinator is not None]

    def listens(self, term: int) -> bool:
        """Whether the coordinator of a term still has its port open: as long as its process is there, even a stopped one."""
        return any(c.process.alive and c.term == term for c in self.coordinators())

    def holder(self) -> Coordinator | None:
        lease = self.log.lease
        for coordinator in self.coordinators():
            if lease is not None and (coordinator.process.name, coordinator.term) == (lease.holder, lease.term):
                return coordinator if coordinator.process.alive and not coordinator.process.stalled else None
        return None

    def candidate(self, coordinator: Coordinator) -> Candidate:
        return next(c for c in self.candidates if c.coordinator is coordinator)

    def deposed(self, coordinator: Coordinator) -> None:
        self.note(f"{coordinator.process.name} is deposed, term {coordinator.term}")
        self.candidate(coordinator).coordinator = None
        self.network.coordinator_gone(coordinator)

    def lock(self, worker: Worker, task: TaskId) -> bool:
        """The folder of a task in an instance's state directory: one holder, and it ends with its process."""
        key = (worker.instance, task)
        holder = self.locks.get(key)
        other = holder is not None and holder[0] is not worker and not holder[0].gone
        if other and holder is not None and holder[0].process.life == holder[1]:
            return False
        self.locks[key] = (worker, worker.process.life)
        return True

    def unlock(self, worker: Worker, task: TaskId) -> None:
        holder = self.locks.get((worker.instance, task))
        if holder is not None and holder[0] is worker:
            del self.locks[worker.instance, task]

    # ---- what processes go through

    def kill(self, process: InstanceProcess) -> None:
        if not process.alive:
            return
        process.kill()
        self.changes += 1
        for worker in self.workers:
            if worker.process is process:
                for task, at in worker.store.items():
                    # What was not flushed is gone: the store falls back, and says so.
                    worker.disk[task] = at - worker.random.randrange(0, min(at, 30) + 1)
                self.network.end(worker)
        for candidate in self.candidates:
            if candidate.process is process and candidate.coordinator is not None:
                candidate.coordinator.in_office = False
                self.network.coordinator_gone(candidate.coordinator)
                candidate.coordinator = None

    def restart(self, process: InstanceProcess) -> None:
        if process.alive:
            return
        process.start()
        self.changes += 1
        for worker in self.workers:
            if worker.process is process and not worker.gone:
                worker.start()
        for candidate in self.candidates:
            if candidate.process is process:
                candidate.start()

    def resume(self, process: InstanceProcess) -> None:
        """It goes on with what it believed; everything that waited for it comes now."""
        process.stalled = False
        self.after(0, process.catch_up)

    # ---- a life

    def live(self) -> None:
        """Safety phase, then calm and convergence. Raises Broken."""
        for fault in self.plan.faults:
            self.after(fault.at_ms, lambda fault=fault: happen(self, fault))  # type: ignore[misc]
        self.scheduler.run_until(PHASE_MS)
        self.calm()
        if not self.scheduler.run_until(self.now_ms + CALM_MS, self.converged):
            raise Broken("no convergence: " + "; ".join(self.unsettled()))
        settled, commits = self.rebalances, len(self.log.history)
        self.scheduler.run_until(self.now_ms + 20_000)
        if self.rebalances != settled:
            raise Broken(f"{self.rebalances - settled} rebalances while nothing changed")
        if any(not w.gone for w in self.workers) and len(self.log.history) == commits:
            raise Broken("nothing is processed any more")
        if self.unsettled():
            raise Broken("it converged and fell apart: " + "; ".join(self.unsettled()))
        bound = (self.changes + 4) * (4 + 2 * len(self.tasks))
        if self.rebalances > bound:
            raise Broken(f"{self.rebalances} rebalances for {self.changes} changes")
        self.judges.history()

    def calm(self) -> None:
        self.faulty = False
        self.note("faults stop")
        self.cut.clear()
        self.log_down_until = 0
        for candidate in self.candidates:
            candidate.blind_until = 0
        self.network.break_deaf()
        for worker in self.workers:
            worker.hung = False
            worker.stuck.clear()
        for process in list(self.processes.values()):
            process.goes_on()
            if not process.alive:
                self.restart(process)
            self.resume(process)

    # ---- convergence

    def converged(self) -> bool:
        return self.now_ms >= PHASE_MS + 3_000 and not self.unsettled()

    def unsettled(self) -> list[str]:
        """What is not yet as it should be."""
        found: list[str] = []
        here = [w for w in self.workers if not w.gone and w.process.alive]
        holder = self.holder()
        if holder is None:
            return ["no coordinator"]
        group = holder.group
        if not here:
            return []
        joined = {m.join_request.writer for m in group.members if m.session is not None}
        found += [f"{w.name} is not in the group" for w in here if w.join_request.writer not in joined]
        found += [f"{operation.instances} still leave" for operation in self.log.operations.values()]
        placed: dict[TaskId, Worker] = {}
        there = frozenset[TaskId]().union(*(self.knows(w) for w in here))
        for task in self.tasks:
            owner = self.log.owners.get(task.id)
            runs = [
                w for w in here if task.id in w.position and owner is not None and owner.writer == w.join_request.writer
            ]
            if len(runs) != (1 if task.id in there else 0):
                found.append(f"{task.id} runs on {[w.name for w in runs]}")
            elif runs:
                placed[task.id] = runs[0]
                if self.settings.weights != "given" and task.id not in runs[0].machine.facts:
                    found.append(f"{task.id} is not measured yet")
                elif task.id in group.tasks and group.weight(task.id) != self._weight(task.id, runs[0]):
                    found.append(f"the weight of {task.id} is not told yet")
            hosts = [w.instance for w in here if task.id in w.machine.held]
            if len(hosts) != len(set(hosts)):
                found.append(f"{task.id} is held twice on one of {hosts}")
        if group.pending_tasks:
            found.append(f"{list(group.pending_tasks)} wait for those who have not told")
        if group.computing is not None:
            found.append("a plan is on its way")  # between the workers of an instance, perhaps
        if group.learners or group.moves:
            found.append(f"learners {group.learners} moves {list(group.moves)}")
        if group.computing is not None:
            found.append("a target is being computed")
        found += self._unbalanced(here, placed)
        found += self._standbys(here, there)
        if group.spreading:
            found.append(f"standbys of {sorted(group.spreading)} restore in another place")
        return found or self._together(here)

    def knows(self, worker: Worker) -> frozenset[TaskId]:
        return self.plan.versions[worker.version] - frozenset(self.waiting)

    def tasks_of(self, version: str) -> list[Task]:
        return [task for task in self.plan.tasks_of(version) if task.id not in self.waiting]

    def grow(self, count: int) -> None:
        """The next tasks are there."""
        self.waiting = self.waiting[count:]
        self.tasks = tuple(task for task in self.plan.tasks if task.id not in self.waiting)
        self.changes += 1

    def _weight(self, task: TaskId, worker: Worker) -> int:
        if self.settings.weights == "given":
            return next(t.weight for t in self.tasks if t.id == task)
        return worker.machine.weights.get(task, 1)

    def _unbalanced(self, here: list[Worker], placed: dict[TaskId, Worker]) -> list[str]:
        """No single task could still be moved with a gain."""
        capacity: dict[str, int] = {}
        known: dict[str, frozenset[TaskId]] = {}
        for worker in here:
            capacity[worker.instance] = capacity.get(worker.instance, 0) + 1
            known[worker.instance] = known.get(worker.instance, frozenset()) | self.knows(worker)
        weights = {task: self._weight(task, worker) for task, worker in placed.items()}
        loads = dict.fromkeys(capacity, 0)
        for task, worker in placed.items():
            loads[worker.instance] += weights[task]
        found: list[str] = []
        for task, worker in placed.items():
            a, least = worker.instance, self.settings.balancing_factor * weights[task]
            found += [
                f"{a} has {loads[a]}, {b} has {loads[b]}: {task} should move"
                for b in loads
                if b != a and task in known[b] and loads[a] * capacity[b] > (loads[b] + least) * capacity[a]
            ]
        return found

    def _together(self, here: list[Worker]) -> list[str]:
        """No standby could still be moved with a gain, where zones do not forbid it, and all are of one version."""
        if len({self.knows(w) for w in here}) > 1 or (self.settings.standbys > 1 and any(w.zone for w in here)):
            return []
        zone = {w.instance: w.zone for w in here}

        def alone(task: TaskId, a: str, b: str) -> bool:
            return zone[b] == "" or all(zone[h] != zone[b] for h in held if h != a and task in held[h])

        held: dict[str, set[TaskId]] = {w.instance: set() for w in here}
        capacity = Counter(w.instance for w in here)
        for worker in here:
            held[worker.instance].update(worker.machine.held)
        copies = {instance: len(tasks) for instance, tasks in held.items()}
        standbys = {(t, w.instance) for w in here for t, h in w.machine.held.items() if h.state is Held.COPYING}
        least = max(1, self.settings.balancing_factor)
        return [
            f"{a} has {copies[a]} copies, {b} has {copies[b]}: the standby of {task} should move"
            for task, a in sorted(standbys)
            for b in held
            if task not in held[b] and alone(task, a, b) and copies[a] * capacity[b] > (copies[b] + least) * capacity[a]
        ]

    def _standbys(self, here: list[Worker], there: frozenset[TaskId]) -> list[str]:
        found = []
        for task in self.tasks:
            holders = [w.name for w in here if (h := w.machine.held.get(task.id)) and h.state is Held.COPYING]
            able = {w.instance for w in here if task.id in self.knows(w)}
            wanted = self.settings.standbys if task.stateful and task.id in there else 0
            expected = max(0, min(wanted, len(able) - 1))
            if len(holders) != expected:
                found.append(f"{task.id} has {len(holders)} standbys of {expected}")
        return found
