"""Processes of the simulation, and what the shipped cluster leaves open: members that process, restore and commit, and
candidates that elect a coordinator.

One rule: a node touches the others only through the network and the log; a stalled node does nothing until it resumes,
and then goes on with what it believed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestrator.coordinator.election import Election, Seen
from orchestrator.group import events as ev
from orchestrator.group.topology_versions import ranges
from orchestrator.member import events as mem
from orchestrator.member.machine import Held, Holding, MemberMachine
from orchestrator.model import Ending, JoinRequest, Protocol, Role, TaskId
from orchestrator.simulator.coordinator import Backend, Coordinator, Had
from orchestrator.simulator.ledger import Refused
from orchestrator.simulator.nodes import Node
from orchestrator.simulator.processes import Process
from tests.simulation.simlog import Broken

if TYPE_CHECKING:
    from tests.simulation.world import World


class InstanceProcess(Process):
    """An instance's process, workers and candidate together, with a clock that may jump and stand still."""

    version = "old"
    ahead_ms = 0  # of its monotonic clock, against the world's time
    stands_at: int | None = None

    def clock(self) -> int:
        return super().clock() + self.ahead_ms if self.stands_at is None else self.stands_at

    def goes_on(self) -> None:
        """Its clock, which stood still, goes on from where it stood."""
        if self.stands_at is not None:
            self.ahead_ms = self.stands_at - super().clock()
            self.stands_at = None


class Worker(Node):
    """One member with stores and inputs. `disk` survives a crash unless it is wiped."""

    process: InstanceProcess

    def __init__(
        self, world: World, process: InstanceProcess, instance: str, number: int, zone: str, old: bool
    ) -> None:
        super().__init__(f"{instance}.{number}", process, world.network, world.settings)
        self.world = world
        self.instance = instance
        self.zone = zone
        self.random = world.random_of[self.name] = random.Random(f"{world.plan.seed} {self.name}")
        self.protocols = (Protocol.EAGER, Protocol.COOPERATIVE) if old else tuple(Protocol)
        self.disk = world.disks.setdefault(instance, {})
        self.hung = False
        self.stuck: set[TaskId] = set()
        self.start()

    def start(self) -> None:
        """A new life: nothing in memory, a new incarnation."""
        self.machine = MemberMachine(self.world.settings)
        self.store: dict[TaskId, int] = {}
        self.position: dict[TaskId, int] = {}
        self.releasing: set[TaskId] = set()
        self.endings: dict[TaskId, Ending | None] = {}
        self.session = None
        self.highest = 0
        self.renew_identity()
        self.machine.step(mem.DiskSeen(dict(self.disk)), self.clock())
        life = self.process.life
        self.later(self.random.randrange(50), self.connect, life)
        self.later(self.random.randrange(200), self.beat, life)
        self.later(self.random.randrange(100), self.work, life)

    @property
    def version(self) -> str:
        """Of the app, as this incarnation was started with it."""
        return self.world.version_of[self.join_request.writer]

    def renew_identity(self) -> None:
        self.world.incarnations += 1
        writer = f"{self.name}#{self.world.incarnations}"
        tasks = ranges(self.world.tasks_of(self.process.version))
        self.join_request = JoinRequest(
            self.name, self.instance, writer, writer, 1, self.zone, protocols=self.protocols, tasks=tasks
        )
        self.world.by_transactional_id[writer] = self
        self.world.version_of[writer] = self.process.version

    def later(self, delay: int, call: Callable[[int], None], life: int) -> None:
        self.process.after(delay, lambda: call(life) if life == self.process.life and not self.gone else None)

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
            self.receive(mem.Progress(task, self.store[task], self.store[task]))
        self.receive(mem.Measured(facts))
        self.report()
        self.later(self.world.settings.heartbeat_ms, self.beat, life)

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
                raise Broken(f"{self.name} processes {task} on state up to {self.store.get(task, 0)} of {whole}")
        start = self.position[task]
        stop = start + self.random.randrange(1, 5)
        try:
            end = self.world.log_commit(self, task, holding.epoch, start, stop)
        except Refused:
            self.receive(mem.Dropped(frozenset({task})))
            return
        if end is None:
            self.receive(mem.Dropped(frozenset({task})))  # outcome unknown: restored from the log
            return
        self.position[task] = stop
        self.store[task] = end
        if task in self.releasing:
            self.releasing.discard(task)
            del self.position[task]
            ending = Ending((("inputs", task.partition, stop),), (("changelog", task.partition, end),))
            self.receive(mem.ReleaseDone(task, self.world.now_ms, end, self.world.now_ms, ending))

    def restore_some(self, task: TaskId, holding: Holding) -> None:
        if not self.world.lock(self, task):
            return  # a sibling or a twin has the folder still
        end, start = self.world.log.ends.get(task, 0), self.world.log.positions.get(task, 0)
        if holding.state is Held.STARTING and (ending := self.endings.get(task)) is not None:
            ((_, _, start),), ((_, _, end),) = ending.inputs, ending.changelogs
        at = self.store.setdefault(task, self.disk.get(task, 0))
        if task not in self.stuck:
            at = min(end, at + self.world.plan.restore_rate)
        self.store[task] = at
        if holding.state is Held.STARTING:
            if at >= end and task not in self.releasing:
                self.position[task] = start
                self.receive(mem.Started(task, self.world.now_ms))
            elif task in self.releasing:
                self.releasing.discard(task)
                self.receive(mem.ReleaseDone(task, 0, at, self.world.now_ms))
        else:
            self.receive(mem.Progress(task, at, end))

    # ---- the machine

    def receive(self, event: mem.MemberEvent) -> None:
        judges = self.world.judges
        if isinstance(event, mem.Assigned):
            judges.shutdown(self, event)
            self.highest = max(self.highest, event.assignment.term)
        judges.gave_up(self, event)
        super().receive(event)
        if isinstance(event, mem.Assigned):
            term, obeyed = event.assignment.term, self.machine.assignment is event.assignment
            if obeyed and term < self.highest:
                raise Broken(f"{self.name} obeys term {term}, having seen {self.highest}")

    def opened(self, task: TaskId, role: Role, epoch: int, ending: Ending | None) -> None:
        self.position.pop(task, None)
        self.endings[task] = ending
        if role is Role.ACTIVE:
            self.world.judges.grant(self, task, epoch)

    def release(self, task: TaskId, epoch: int) -> None:
        self.releasing.add(task)
        if task not in self.position and self.machine.held[task].state is Held.RELEASING:
            self.releasing.discard(task)
            self.receive(mem.ReleaseDone(task, 0, self.store.get(task, 0), self.world.now_ms))

    def closed(self, task: TaskId, *, dropped: bool) -> None:
        self.position.pop(task, None)
        self.releasing.discard(task)
        if task in self.store:
            self.disk[task] = self.store.pop(task)
        self.world.unlock(self, task)

    def on_disk(self) -> dict[TaskId, int]:
        return dict(self.disk)

    def rejoin(self) -> None:
        self.session = None  # and connects with its next look
        self.renew_identity()

    def left(self) -> None:
        self.world.changes += 1


class SlowBackend(Backend):
    """Writes of the ledger take a while, one after the other; none is done while the log cannot be reached. A placement
    is made by the assignor process: its answer comes when the group may have gone on."""

    def __init__(self, chance: random.Random, sees_log: Callable[[], bool]) -> None:
        super().__init__()
        self.random = chance
        self.sees_log = sees_log
        self.writes: list[tuple[Callable[[], Had], Callable[[Had], ev.Event]]] = []

    def write(self, coordinator: Coordinator, operation: Callable[[], Had], answer: Callable[[Had], ev.Event]) -> None:
        self.writes.append((operation, answer))
        if len(self.writes) == 1:
            self.next_write(coordinator)

    def next_write(self, coordinator: Coordinator) -> None:
        coordinator.process.after(self.random.randrange(1, 20), lambda: self.attempt(coordinator))

    def attempt(self, coordinator: Coordinator) -> None:
        if not coordinator.in_office:
            return
        if not self.sees_log():
            self.next_write(coordinator)
            return
        operation, answer = self.writes[0]
        try:
            result = operation()
        except Refused:
            coordinator.step_down()
            return

        def done() -> None:
            if coordinator.in_office:
                del self.writes[0]
                if self.writes:
                    self.next_write(coordinator)
                coordinator.receive(answer(result))

        coordinator.process.after(self.random.randrange(1, 10), done)

    def assignment_ms(self) -> int:
        return self.random.randrange(1, 600)


class Candidate:
    """A coordinator to be: election, then the shipped coordinator under its term."""

    def __init__(self, world: World, process: InstanceProcess) -> None:
        self.world = world
        self.process = process
        self.random = random.Random(f"{world.plan.seed} candidate {process.name}")
        self.start()

    def start(self) -> None:
        self.election = Election(1_500)
        self.blind_until = 0
        self.coordinator: Coordinator | None = None
        self.later(self.random.randrange(300), self.look, self.process.life)

    def later(self, delay: int, call: Callable[[int], None], life: int) -> None:
        self.process.after(delay, lambda: call(life) if life == self.process.life else None)

    def look(self, life: int) -> None:
        world, lease = self.world, self.world.log.lease
        self.later(300, self.look, life)
        if self.coordinator is not None or not self.sees_log():
            return
        seen = None if lease is None else Seen(lease.term, lease.beat)
        gone = lease is not None and not world.listens(lease.term)
        if not self.election.look(seen, self.process.clock()) and not gone:
            return
        taken = world.log.acquire(self.process.name, lease)
        if taken is None:
            return
        coordinator = self.coordinator = world.coordinate(
            self.process,
            world.tasks_of(self.process.version),
            SlowBackend(self.random, self.sees_log),
            term=taken.term,
            long_assignment=world.plan.long_assignment,
            former=lease.holder if lease is not None and gone else "",
        )
        self.later(world.settings.gathering_ms, lambda _: coordinator.receive(ev.Gathered()), life)
        world.note(f"{self.process.name} coordinates, term {taken.term}")
        coordinator.resume_operations()
        world.changes += 1
        self.tick(life)

    def tick(self, life: int) -> None:
        coordinator = self.coordinator
        if coordinator is None:
            return
        try:
            if self.sees_log():
                self.world.log.renew(coordinator.term)
        except Refused:
            coordinator.step_down()
            return
        coordinator.receive(ev.Tick())
        if coordinator.in_office:
            self.world.judges.waiting(coordinator)
        self.later(200, self.tick, life)

    def sees_log(self) -> bool:
        return self.world.log_up() and self.world.now_ms >= self.blind_until
