"""Processes of the simulation: worker members and coordinators, each with the real pure core inside.

One rule: a node touches the others only through the network and the log; a stalled node does nothing until it resumes,
and then goes on with what it believed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from orchestrator.coordinator.election import Election, Seen
from orchestrator.group import events as ev
from orchestrator.group import invariants
from orchestrator.group.step import Group
from orchestrator.group.topology_versions import ranges
from orchestrator.member import events as mem
from orchestrator.member.machine import Held, Holding, MemberMachine
from orchestrator.model import JoinRequest, Protocol, Role, TaskId
from orchestrator.task_assignor.assign import assign_tasks
from orchestrator.task_assignor.view import View
from tests.simulation.simlog import Broken, LeaseRow, Refuse

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass
class Process:
    """What crashes, stalls and restarts together: a worker, and a candidate for coordinator beside it."""

    name: str
    alive: bool = True
    stalled: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)
    life: int = 0
    version: str = "old"
    ahead_ms: int = 0  # of its monotonic clock, against the world's time
    stands_at: int | None = None
    stood_since: int = 0

    def clock(self, now: int) -> int:
        """Its monotonic clock."""
        return now + self.ahead_ms if self.stands_at is None else self.stands_at

    def goes_on(self, now: int) -> None:
        """Its clock, which stood still, goes on from where it stood."""
        if self.stands_at is not None:
            self.ahead_ms = self.stands_at - now
            self.stands_at = None


class Worker:
    """One member: MemberMachine, stores, inputs. `disk` survives a crash unless it is wiped."""

    def __init__(self, world: World, process: Process, instance: str, number: int, zone: str, old: bool) -> None:
        self.world = world
        self.process = process
        self.instance = instance
        self.member = f"{instance}.{number}"
        self.zone = zone
        self.random = random.Random(f"{world.plan.seed} {self.member}")
        self.protocols = (Protocol.EAGER, Protocol.COOPERATIVE) if old else tuple(Protocol)
        self.disk = world.disks.setdefault(instance, {})
        self.hung = False
        self.stuck: set[TaskId] = set()
        self.gone = False
        self.start()

    def start(self) -> None:
        """A new life: nothing in memory, a new incarnation."""
        world = self.world
        self.machine = MemberMachine(world.settings)
        self.store: dict[TaskId, int] = {}
        self.position: dict[TaskId, int] = {}
        self.releasing: set[TaskId] = set()
        self.session: int | None = None
        self.highest = 0
        self.renew_identity()
        self.machine.step(mem.DiskSeen(dict(self.disk)), self.clock())
        life = self.process.life
        self.later(self.random.randrange(50), self.connect, life)
        self.later(self.random.randrange(200), self.beat, life)
        self.later(self.random.randrange(100), self.work, life)

    def clock(self) -> int:
        return self.process.clock(self.world.now)

    @property
    def version(self) -> str:
        """Of the app, as this incarnation was started with it."""
        return self.world.version_of[self.join_request.writer]

    def renew_identity(self) -> None:
        self.world.incarnations += 1
        writer = f"{self.member}#{self.world.incarnations}"
        tasks = ranges(self.world.tasks_of(self.process.version))
        self.join_request = JoinRequest(
            self.member, self.instance, writer, writer, 1, self.zone, protocols=self.protocols, tasks=tasks
        )
        self.world.by_transactional_id[writer] = self
        self.world.version_of[writer] = self.process.version

    def later(self, delay: int, call: Callable[[int], None], life: int) -> None:
        self.world.on(self.process, delay, lambda: call(life) if life == self.process.life and not self.gone else None)

    # ---- loops

    def connect(self, life: int) -> None:
        if self.session is None:
            self.world.network.join(self)
        self.later(100, self.connect, life)

    def beat(self, life: int) -> None:
        tasks = ranges(self.world.tasks_of(self.version))
        if tasks != self.join_request.tasks:  # a topic grew
            self.join_request = replace(self.join_request, tasks=tasks)
            if self.session is not None:
                self.world.network.up(self, ev.Joined(self.session, self.join_request, self.machine.status()))
        sizes = self.world.plan.sizes
        facts = {t: (0, int(sizes[t] * self.random.uniform(0.92, 1.08)), 0, 0) for t in sorted(self.position)}
        for task in sorted(self.position):
            self.tell(mem.Progress(task, self.store[task], self.store[task]))
        self.tell(mem.Measured(facts))
        self.report()
        self.later(self.world.settings.heartbeat_ms, self.beat, life)

    def report(self) -> None:
        if self.session is not None:
            self.world.network.up(self, ev.Heartbeat(self.session, self.machine.status()))

    def work(self, life: int) -> None:
        """A turn: process and commit what runs, restore what copies."""
        for task, holding in list(self.machine.held.items()):
            if holding.state is Held.RUNNING or (holding.state is Held.RELEASING and task in self.releasing):
                self.process_some(task, holding)
            elif holding.state in (Held.COPYING, Held.STARTING):
                self.restore_some(task, holding)
        self.later(self.random.randrange(20, 120), self.work, life)

    def process_some(self, task: TaskId, holding: Holding) -> None:
        if task not in self.position:
            return
        if task in self.releasing and self.hung:
            return  # a processor that never returns
        owner = self.world.log.owners.get(task)
        if owner is not None and owner.writer == self.join_request.writer and owner.epoch == holding.epoch:
            whole = self.world.log.ends.get(task, 0)
            if self.store.get(task, 0) != whole:
                raise Broken(f"{self.member} processes {task} on state up to {self.store.get(task, 0)} of {whole}")
        start = self.position[task]
        stop = start + self.random.randrange(1, 5)
        try:
            end = self.world.log_commit(self, task, holding.epoch, start, stop)
        except Refuse:
            self.tell(mem.Dropped(frozenset({task})))
            return
        if end is None:
            self.tell(mem.Dropped(frozenset({task})))  # outcome unknown: restored from the log
            return
        self.position[task] = stop
        self.store[task] = end
        if task in self.releasing:
            self.releasing.discard(task)
            del self.position[task]
            self.tell(mem.ReleaseDone(task, self.world.now, end, self.world.now))

    def restore_some(self, task: TaskId, holding: Holding) -> None:
        if not self.world.lock(self, task):
            return  # a sibling or a twin has the folder still
        end = self.world.log.ends.get(task, 0)
        at = self.store.setdefault(task, self.disk.get(task, 0))
        if task not in self.stuck:
            at = min(end, at + self.world.plan.restore_rate)
        self.store[task] = at
        if holding.state is Held.STARTING:
            if at >= end and task not in self.releasing:
                self.position[task] = self.world.log.positions.get(task, 0)
                self.tell(mem.Started(task, self.world.now))
            elif task in self.releasing:
                self.releasing.discard(task)
                self.tell(mem.ReleaseDone(task, 0, at, self.world.now))
        else:
            self.tell(mem.Progress(task, at, end))

    # ---- the machine

    def tell(self, event: mem.MemberEvent) -> None:
        judges = self.world.judges
        if isinstance(event, mem.Assigned):
            judges.shutdown(self, event)
        judges.gave_up(self, event)
        effects = self.machine.step(event, self.clock())
        if isinstance(event, mem.Assigned):
            self.highest = max(self.highest, event.assignment.term)
            if self.machine.assignment is event.assignment and event.assignment.term < self.highest:
                raise Broken(f"{self.member} obeys term {event.assignment.term}, having seen {self.highest}")
        for effect in effects:
            self.act(effect)

    def act(self, effect: mem.MemberEffect) -> None:
        match effect:
            case mem.Open(task, role, epoch):
                self.opened(task, role, epoch)
            case mem.ChangeRole(task, role, epoch):
                self.opened(task, role, epoch)
            case mem.Release(task, _):
                self.releasing.add(task)
                if task not in self.position and self.machine.held[task].state is Held.RELEASING:
                    self.releasing.discard(task)
                    self.tell(mem.ReleaseDone(task, 0, self.store.get(task, 0), self.world.now))
            case mem.Close(task) | mem.Drop(task):
                self.position.pop(task, None)
                self.releasing.discard(task)
                if task in self.store:
                    self.disk[task] = self.store.pop(task)
                self.world.unlock(self, task)
                self.tell(mem.DiskSeen(dict(self.disk)))
            case mem.Report():
                self.report()
            case mem.Rejoin():
                self.session = None
                self.renew_identity()
            case mem.Exit():
                self.gone = True
                self.world.network.end(self)
                self.world.departed(self)

    def opened(self, task: TaskId, role: Role, epoch: int) -> None:
        self.position.pop(task, None)
        if role is Role.ACTIVE:
            self.world.judges.grant(self, task, epoch)


class Candidate:
    """A coordinator to be: election, then Group under its term."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.random = random.Random(f"{world.plan.seed} candidate {process.name}")
        self.start()

    def clock(self) -> int:
        return self.process.clock(self.world.now)

    def start(self) -> None:
        self.election = Election(1_500)
        self.blind_until = 0
        self.group: Group | None = None
        self.term = 0
        self.writes: list[
            tuple[
                Callable[[], tuple[TaskId, ...] | None],
                Callable[[tuple[TaskId, ...] | None], ev.Event],
            ]
        ] = []
        life = self.process.life
        self.later(self.random.randrange(300), self.look, life)

    def later(self, delay: int, call: Callable[[int], None], life: int) -> None:
        self.world.on(self.process, delay, lambda: call(life) if life == self.process.life else None)

    def look(self, life: int) -> None:
        world, lease = self.world, self.world.log.lease
        self.later(300, self.look, life)
        if self.group is not None or not self.sees_log():
            return
        seen = None if lease is None else Seen(lease.term, lease.beat)
        gone = lease is not None and not world.listens(lease.term)
        if not self.election.look(seen, self.clock()) and not gone:
            return
        copy = None if lease is None else LeaseRow(lease.term, lease.holder, lease.beat)
        taken = world.log.acquire(self.process.name, copy)
        if taken is None:
            return
        self.term = taken.term
        self.writes = []
        self.group = Group(
            world.settings,
            world.tasks_of(self.process.version),
            world.log.owners.values(),
            term=taken.term,
            now_ms=self.clock(),
            long_assignment=world.plan.long_assignment,
            gathering=True,
            former=lease.holder if lease is not None and gone else "",
        )
        term = taken.term
        wait = world.settings.gathering_ms
        self.later(wait, lambda _: self.hear(ev.Gathered()) if self.term == term else None, life)
        world.note(f"{self.process.name} coordinates, term {taken.term}")
        for name, instances in [*world.log.operations.items()]:
            self.hear(ev.Leaving(name, instances, resumed=True))
        world.coordinator_changed(self)
        self.tick(life)

    def tick(self, life: int) -> None:
        if self.group is None:
            return
        try:
            if self.sees_log():
                self.world.log.renew(self.term)
        except Refuse:
            self.depose()
            return
        self.hear(ev.Tick())
        if self.group is not None:
            self.world.judges.waiting(self)
        self.later(200, self.tick, life)

    def sees_log(self) -> bool:
        return self.world.log_up() and self.world.now >= self.blind_until

    def depose(self) -> None:
        self.world.note(f"{self.process.name} is deposed, term {self.term}")
        self.group = None
        self.world.network.coordinator_gone(self)

    def hear(self, event: ev.Event) -> None:
        group = self.group
        if group is None:
            return
        generation, before = group.generation, {m.name: m.presence for m in group.members}
        self.world.judges.before(group)
        effects = group.step(event, self.clock())
        if group.generation != generation:
            # A new coordinator may learn of a later generation from a member: that is one step of its own.
            self.world.rebalances += min(2, group.generation - generation)
            self.world.note(f"generation {group.generation} after {type(event).__name__}")
        try:
            invariants.check(group)
        except Exception as error:
            raise Broken(str(error)) from error
        self.world.judges.sent(group)
        self.world.judges.lives(before, group)
        self.world.judges.phase(group)
        for effect in effects:
            self.act(effect)
        self.world.judges.agreed(group)

    def act(self, effect: ev.Effect) -> None:
        world = self.world
        match effect:
            case ev.Send(session, assignment):
                world.judges.asked(self, session, assignment)
                world.network.down(self, session, mem.Assigned(assignment))
            case ev.CloseSession(session, fenced):
                world.network.close(self, session, fenced)
            case ev.RecordOwners(records):
                world.judges.hand_over(self, records)
                self.write(lambda: world.log.record(self.term, records), lambda _: ev.OwnersRecorded(records))
            case ev.Fence(writer):
                world.judges.fence(self, writer)
                self.write(lambda: world.log.fence(self.term, writer), lambda had: ev.Fenced(writer, had or ()))
            case ev.ComputeTarget(number, view):
                self.compute(number, view)
            case ev.OperationEnded(name, outcome):
                world.judges.operation_ended(name, outcome)
                world.log.operations.pop(name, None)
            case ev.Announced(text):
                world.note(text)
            case ev.HandedOver():
                pass

    def compute(self, number: int, view: View) -> None:
        """A placement that is made by the assignor process: its answer comes when the group may have gone on."""
        group = self.group

        def done() -> None:
            if self.group is group:
                self.hear(ev.TargetComputed(number, assign_tasks(view)))

        self.world.on(self.process, self.random.randrange(1, 600), done)

    def write(
        self,
        operation: Callable[[], tuple[TaskId, ...] | None],
        answer: Callable[[tuple[TaskId, ...] | None], ev.Event],
    ) -> None:
        """A write of the ledger: takes a while, one after the other, and fails once the lease is lost."""
        self.writes.append((operation, answer))
        if len(self.writes) == 1:
            self.next_write(self.term)

    def next_write(self, term: int) -> None:
        self.world.on(self.process, self.random.randrange(1, 20), lambda: self.attempt(term))

    def attempt(self, term: int) -> None:
        if self.group is None or self.term != term or not self.writes:
            return
        if not self.sees_log():
            self.next_write(term)
            return
        operation, answer = self.writes[0]
        try:
            result = operation()
        except Refuse:
            self.depose()
            return

        def done() -> None:
            if self.term == term and self.group is not None and self.writes:
                del self.writes[0]
                if self.writes:
                    self.next_write(term)
                self.hear(answer(result))

        self.world.on(self.process, self.random.randrange(1, 10), done)
