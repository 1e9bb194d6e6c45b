"""One life of a group: swarm settings from the seed, a safety phase with faults, then no faults and convergence.

One rule: checkers are independent of the core. They look at the log, at what members hold, and at what was decided.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from orchestrator import member as mem
from orchestrator.group import LONG_ASSIGNMENT, Group
from orchestrator.model import Owner, Protocol, Settings, Task, TaskId
from tests.simulation.network import Network
from tests.simulation.nodes import Candidate, Process, Worker
from tests.simulation.scheduler import Scheduler
from tests.simulation.simlog import Broken, SimLog

PHASE_MS = 60_000
CALM_MS = 240_000


class World:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.random: random.Random = self.scheduler.random
        self.log = SimLog()
        self.network = Network(self)
        self.writers: dict[str, Worker] = {}
        self.disks: dict[str, dict[TaskId, int]] = {}
        self.locks: dict[tuple[str, TaskId], tuple[Worker, int]] = {}
        self.incarnations = 0
        self.rebalances = 0
        self.changes = 0
        self.log_down_until = 0
        self.cut: set[str] = set()
        self.judged_ms = 0
        self.learning: dict[tuple[TaskId, str, int], tuple[int, int]] = {}
        self.faulty = True
        self.fenced_by_test: set[str] = set()
        self.swarm()

    # ---- swarm

    def swarm(self) -> None:
        """Draw nearly everything."""
        r = self.random
        protocol = r.choice([Protocol.LEARNER] * 4 + [Protocol.COOPERATIVE, Protocol.EAGER])
        self.settings = replace(
            Settings(),
            protocol=protocol,
            ready=r.choice(["eager", "eager", "conservative"]),
            standbys=r.choice([0, 0, 1, 1, 2]),
            balancing_factor=r.choice([1, 1, 2]),
            max_learners_per_instance=r.choice([1, 2, 2, 5]),
            acceptable_recovery_lag=r.choice([0, 20, 200]),
            acceptable_recovery_time_ms=r.choice([1, 500]),
            session_timeout_ms=r.choice([3_000, 10_000]),
            disconnect_grace_ms=r.choice([200, 1_000]),
            rejoin_grace_ms=r.choice([2_000, 5_000]),
            release_timeout_ms=r.choice([3_000, 10_000]),
            learner_timeout_ms=r.choice([8_000, 20_000]),
            heartbeat_ms=r.choice([300, 1_000]),
        )
        self.long_assignment = 0 if self.seed % 3 == 0 else LONG_ASSIGNMENT
        self.delay_max = r.choice([2, 20, 200])
        self.restore_rate = r.choice([5, 50, 1_000])
        tasks = [TaskId(s, p) for s in range(r.choice([1, 2])) for p in range(r.randrange(1, 7))]
        self.tasks = [Task(t, stateful=t.subtopology == 0 or r.random() < 0.7) for t in tasks]
        for task in self.tasks:
            self.log.ends[task.id] = self.log.positions[task.id] = r.choice([0, 100, 400])
        self.processes: dict[str, Process] = {}
        self.workers: list[Worker] = []
        self.candidates: list[Candidate] = []
        for number in range(1, r.randrange(2, 6)):
            self.add_instance(f"I{number}")
        self.fault_rate = r.choice([0, 1, 3, 8])

    def add_instance(self, name: str) -> None:
        process = Process(name)
        self.processes[name] = process
        old = self.random.random() < 0.05
        zone = self.random.choice(["", "a", "b"])
        for number in range(self.random.choice([1, 1, 1, 2])):
            self.workers.append(Worker(self, process, name, number, zone, old))
        self.candidates.append(Candidate(self, process))
        self.changes += 1

    # ---- plumbing

    @property
    def now(self) -> int:
        return self.scheduler.now

    def note(self, text: str) -> None:
        self.scheduler.note(text)

    def on(self, process: Process, delay: int, call: Callable[[], None]) -> None:
        """Run on a process: not when it is dead, later when it is stalled."""

        def run() -> None:
            if not process.alive:
                return
            if process.stalled:
                process.waiting.append(run)
            else:
                call()

        self.scheduler.after(delay, run)

    def log_up(self) -> bool:
        return self.now >= self.log_down_until

    def log_commit(self, worker: Worker, task: TaskId, epoch: int, start: int, stop: int) -> int | None:
        """A commit of a worker; None where its outcome stays unknown."""
        if not self.log_up():
            return None
        end = self.log.commit(worker.hello.writer, task, epoch, start, stop)
        return None if self.faulty and self.random.random() < 0.002 else end

    def holder(self) -> Candidate | None:
        lease = self.log.lease
        if lease is None:
            return None
        for candidate in self.candidates:
            if candidate.process.name == lease.holder and candidate.group is not None and candidate.term == lease.term:
                return candidate if candidate.process.alive and not candidate.process.stalled else None
        return None

    def coordinator_changed(self, candidate: Candidate) -> None:
        self.changes += 1

    def departed(self, worker: Worker) -> None:
        self.changes += 1

    # ---- judges

    def judge_grant(self, worker: Worker, task: TaskId, epoch: int) -> None:
        """Owner record before grant; nobody else still runs it but a fenced zombie."""
        if self.log.granted.get((task, epoch)) != worker.hello.writer:
            raise Broken(f"{worker.member} runs {task} at epoch {epoch} without an owner record")
        owner = self.log.owners[task]
        if owner.epoch != epoch:
            return  # it is late: the log refuses what it writes
        for other in self.workers:
            if other is worker or not other.process.alive or other.gone:
                continue
            holding = other.machine.held.get(task)
            if holding is not None and holding.epoch and task in other.position and not self.is_fenced(other, task):
                raise Broken(f"{task} granted to {worker.member} while {other.member} runs it at {holding.epoch}")

    def is_fenced(self, worker: Worker, task: TaskId) -> bool:
        """Whether the log would refuse what this worker writes for the task, because of a fence and not of a grant."""
        return worker.hello.writer in self.fenced_by_test

    def judge_fence(self, candidate: Candidate, writer: str) -> None:
        self.fenced_by_test.add(writer)
        worker = self.writers[writer]
        group = candidate.group
        assert group is not None
        young = self.now - group.started_ms < self.settings.rejoin_grace_ms
        joined = any(m.hello.member == worker.member for m in group.roster)
        if young and not joined and group.roster.get(worker.member) is None and not self.expired(group, worker):
            raise Broken(f"{worker.member} was fenced {self.now - group.started_ms} ms into term {candidate.term}")

    def expired(self, group: object, worker: Worker) -> bool:
        """A member known to this coordinator was removed after its session timed out."""
        return worker.hello.writer in self.seen_writers(group) or self.now >= worker.world.settings.session_timeout_ms

    def seen_writers(self, group: object) -> set[str]:
        return set()

    def lock(self, worker: Worker, task: TaskId) -> bool:
        """The folder of a task in an instance's state directory: one holder, and it ends with its process."""
        key = (worker.instance, task)
        holder = self.locks.get(key)
        if (
            holder is not None
            and holder[0] is not worker
            and holder[0].process.life == holder[1]
            and not holder[0].gone
        ):
            return False
        self.locks[key] = (worker, worker.process.life)
        return True

    def unlock(self, worker: Worker, task: TaskId) -> None:
        holder = self.locks.get((worker.instance, task))
        if holder is not None and holder[0] is worker:
            del self.locks[worker.instance, task]

    def judge_hand_over(self, candidate: Candidate, records: tuple[Owner, ...]) -> None:
        """No cold hand-over while a warm copy was there and ready, and no proof-less one."""
        group = candidate.group
        assert group is not None
        if group.protocol is not Protocol.LEARNER:
            return
        stateful = {task.id for task in self.tasks if task.stateful}
        for record in records:
            target = group.roster.get(record.member)
            if record.task not in stateful or target is None:
                continue
            before = group.owners.get(record.task)
            if before is not None and before.member == record.member:
                continue  # it comes back to where its disk is
            has = record.task in target.status.copies or any(
                record.task in m.status.disk or record.task in m.status.copies
                for m in group.roster
                if m.hello.instance == target.hello.instance
            )
            same = (
                before is not None
                and (m := group.roster.get(before.member)) is not None
                and (m.hello.instance == target.hello.instance)
            )
            if has or same:
                continue
            ready = [
                m.name
                for m in group.roster
                if m.session is not None
                and not m.fenced
                and not m.is_leaving
                and not m.shut_down
                and (copy := m.status.copies.get(record.task)) is not None
                and copy.ready
            ]
            if ready:
                raise Broken(f"{record.task} went cold to {record.member} while {ready[0]} was ready")

    def judge_waiting(self, group: Group) -> None:
        """Nobody is waited for longer than the settings say (with some slack for delays)."""
        settings, slack = self.settings, 3_000
        if self.now - self.judged_ms > 1_000:
            self.learning.clear()  # the coordinator stood still, or is another one: it counts from here
        self.judged_ms = self.now
        if not self.log_up() or group.fencing or self.now - group.started_ms < settings.rejoin_grace_ms + slack:
            return
        for task, move in group.moves.items():
            source = group.roster.get(move.source)
            waits = move.asked and source is not None and not source.fenced
            if waits and self.now - move.since_ms > settings.release_timeout_ms + slack:
                raise Broken(f"the release of {task} by {move.source} is waited for too long")
        for member in group.roster:
            if member.silent_for(self.now) > settings.session_timeout_ms + slack:
                raise Broken(f"{member.name} is silent for too long")
        learning: dict[tuple[TaskId, str, int], tuple[int, int]] = {}
        for task, name in group.learners.items():
            holder = group.roster.get(name)
            if holder is None or holder.session is None:
                continue
            copy = holder.status.copies.get(task)
            at = -1 if copy is None else copy.position
            before, since = self.learning.get((task, name, holder.session), (-2, self.now))
            if at != before or (copy is not None and copy.ready):
                since = self.now
            learning[task, name, holder.session] = (at, since)
            if self.now - since > settings.learner_timeout_ms + slack:
                raise Broken(f"{name} learns {task} without progress for too long")
        self.learning = learning

    # ---- faults

    def plan_faults(self) -> None:
        for _ in range(self.fault_rate * 4):
            self.scheduler.after(self.random.randrange(1_000, PHASE_MS), self.fault)

    def fault(self) -> None:
        """One fault, drawn."""
        if not self.faulty:
            return
        kind = self.random.choice(
            ["crash"] * 3
            + ["stall"] * 3
            + ["break"] * 3
            + ["deaf", "cut", "log", "wipe", "stuck", "hung", "join", "leave", "undo", "coordinator", "old disk"]
            + ["blind"] * 2
        )
        process = self.random.choice(list(self.processes.values()))
        worker = self.random.choice(self.workers)
        self.note(f"fault: {kind} {process.name if kind in ('crash', 'stall', 'coordinator') else worker.member}")
        getattr(self, "fault_" + kind.replace(" ", "_"))(process, worker)

    def fault_crash(self, process: Process, worker: Worker) -> None:
        self.kill(process)
        self.scheduler.after(self.random.choice([200, 2_000, 15_000]), lambda: self.restart(process))

    def kill(self, process: Process) -> None:
        if not process.alive:
            return
        process.alive, process.stalled = False, False
        process.waiting.clear()
        process.life += 1
        self.changes += 1
        for worker in self.workers:
            if worker.process is process:
                for task, at in worker.store.items():
                    # What was not flushed is gone: the store falls back, and says so.
                    worker.disk[task] = at - self.random.randrange(0, min(at, 30) + 1)
                self.network.end(worker)
        for candidate in self.candidates:
            if candidate.process is process:
                candidate.group = None
                self.network.coordinator_gone(candidate)

    def restart(self, process: Process) -> None:
        if process.alive:
            return
        process.alive = True
        process.life += 1
        self.changes += 1
        for worker in self.workers:
            if worker.process is process and not worker.gone:
                worker.start()
        for candidate in self.candidates:
            if candidate.process is process:
                candidate.start()

    def fault_stall(self, process: Process, worker: Worker) -> None:
        if not process.alive or process.stalled:
            return
        process.stalled = True
        self.changes += 1

        self.scheduler.after(self.random.choice([300, 2_500, 7_000, 20_000]), lambda: self.resume(process))

    def resume(self, process: Process) -> None:
        """It goes on with what it believed; everything that waited for it comes now."""
        process.stalled = False
        waiting, process.waiting = process.waiting, []
        for call in waiting:
            self.scheduler.after(0, call)

    def fault_break(self, process: Process, worker: Worker) -> None:
        self.network.end(worker)

    def fault_deaf(self, process: Process, worker: Worker) -> None:
        """One direction of a connection goes deaf; a keepalive ends it later."""
        session = worker.session
        link = self.network.links.get(session) if session is not None else None
        if link is None or session is None:
            return
        if self.random.random() < 0.5:
            link.deaf_up = True
        else:
            link.deaf_down = True
        number = session
        self.scheduler.after(self.random.choice([500, 6_000]), lambda: self.network.break_link(number))

    def fault_cut(self, process: Process, worker: Worker) -> None:
        self.cut.add(worker.member)
        self.network.end(worker)
        self.scheduler.after(self.random.choice([1_500, 12_000]), lambda: self.cut.discard(worker.member))

    def fault_log(self, process: Process, worker: Worker) -> None:
        self.log_down_until = max(self.log_down_until, self.now + self.random.choice([100, 1_000, 6_000]))

    def fault_wipe(self, process: Process, worker: Worker) -> None:
        if not worker.process.alive:
            worker.disk.clear()

    def fault_old_disk(self, process: Process, worker: Worker) -> None:
        if not worker.process.alive:
            worker.disk.update({task: at // 2 for task, at in worker.disk.items()})

    def fault_stuck(self, process: Process, worker: Worker) -> None:
        """A copy that does not come forward, for a while."""
        tasks = {task.id for task in self.tasks}
        worker.stuck |= tasks
        self.scheduler.after(30_000, lambda: worker.stuck.clear())

    def fault_hung(self, process: Process, worker: Worker) -> None:
        """Heartbeats go on, releases do not end."""
        worker.hung = True
        self.scheduler.after(25_000, lambda: setattr(worker, "hung", False))

    def fault_join(self, process: Process, worker: Worker) -> None:
        if len(self.processes) < 7:
            self.add_instance(f"I{len(self.processes) + 1}")

    def fault_leave(self, process: Process, worker: Worker) -> None:
        from orchestrator import events as ev

        holder = self.holder()
        present = {w.instance for w in self.workers if not w.gone}
        if holder is None or self.log.operation is not None or len(present) < 2:
            return
        leaving = tuple(sorted(self.random.sample(sorted(present), self.random.randrange(1, len(present)))))
        self.log.operation = ("op", leaving)
        self.changes += 1
        holder.hear(ev.Leaving("op", leaving))

    def fault_undo(self, process: Process, worker: Worker) -> None:
        from orchestrator import events as ev

        holder = self.holder()
        if holder is not None and self.log.operation is not None:
            self.changes += 1
            holder.hear(ev.UndoLeaving())

    def fault_blind(self, process: Process, worker: Worker) -> None:
        """The coordinator cannot reach the log and does not know that it is deposed meanwhile."""
        holder = self.holder()
        if holder is not None:
            holder.blind_until = self.now + self.random.choice([1_000, 4_000, 9_000])

    def fault_coordinator(self, process: Process, worker: Worker) -> None:
        holder = self.holder()
        if holder is not None:
            self.fault_crash(holder.process, worker)

    # ---- a life

    def live(self) -> None:
        """Safety phase, then calm and convergence. Raises Broken."""
        self.plan_faults()
        self.scheduler.run_until(PHASE_MS)
        self.calm()
        if not self.scheduler.run_until(self.now + CALM_MS, self.converged):
            raise Broken("no convergence: " + "; ".join(self.unsettled()))
        settled, commits = self.rebalances, self.log.commits
        self.scheduler.run_until(self.now + 20_000)
        if self.rebalances != settled:
            raise Broken(f"{self.rebalances - settled} rebalances while nothing changed")
        if any(not w.gone for w in self.workers) and self.log.commits == commits:
            raise Broken("nothing is processed any more")
        if self.unsettled():
            raise Broken("it converged and fell apart: " + "; ".join(self.unsettled()))
        bound = (self.changes + 4) * (4 + 2 * len(self.tasks))
        if self.rebalances > bound:
            raise Broken(f"{self.rebalances} rebalances for {self.changes} changes")

    def calm(self) -> None:
        self.faulty = False
        self.note("faults stop")
        self.cut.clear()
        self.log_down_until = 0
        for candidate in self.candidates:
            candidate.blind_until = 0
        for session in [s for s, link in self.network.links.items() if link.deaf_up or link.deaf_down]:
            self.network.break_link(session)
        for worker in self.workers:
            worker.hung = False
            worker.stuck.clear()
        for process in list(self.processes.values()):
            if not process.alive:
                self.restart(process)
            self.resume(process)

    def converged(self) -> bool:
        return self.now >= PHASE_MS + 3_000 and not self.unsettled()

    def unsettled(self) -> list[str]:
        """What is not yet as it should be."""
        found: list[str] = []
        here = [w for w in self.workers if not w.gone and w.process.alive]
        holder = self.holder()
        if holder is None or holder.group is None:
            return ["no coordinator"]
        group = holder.group
        if not here:
            return []
        joined = {m.hello.writer for m in group.roster if m.session is not None}
        found += [f"{w.member} is not in the group" for w in here if w.hello.writer not in joined]
        if self.log.operation is not None:
            found.append(f"{self.log.operation[1]} still leave")
        loads = {w.instance: 0 for w in here}
        for task in self.tasks:
            runs = [w for w in here if task.id in w.position]
            owner = self.log.owners.get(task.id)
            runs = [w for w in runs if owner is not None and owner.writer == w.hello.writer]
            if len(runs) != 1:
                found.append(f"{task.id} runs on {[w.member for w in runs]}")
            else:
                loads[runs[0].instance] += 1
        if group.learners or group.moves:
            found.append(f"learners {group.learners} moves {list(group.moves)}")
        found += self._unbalanced(loads)
        found += self._standbys(here)
        return found

    def _unbalanced(self, loads: dict[str, int]) -> list[str]:
        capacity = {name: sum(1 for w in self.workers if w.instance == name and not w.gone) for name in loads}
        factor = self.settings.balancing_factor
        return [
            f"{a} has {loads[a]} tasks, {b} has {loads[b]}"
            for a in loads
            for b in loads
            if loads[a] * capacity[b] > (loads[b] + factor) * capacity[a]
        ]

    def _standbys(self, here: list[Worker]) -> list[str]:
        instances = {w.instance for w in here}
        wanted = min(self.settings.standbys, len(instances) - 1)
        found = []
        for task in self.tasks:
            holders = [w.member for w in here if (h := w.machine.held.get(task.id)) and h.state is mem.Held.COPYING]
            expected = wanted if task.stateful else 0
            if len(holders) != expected:
                found.append(f"{task.id} has {len(holders)} standbys of {expected}")
        return found
