"""The cluster of scenario files: no delays, one coordinator, and the commands of a file as calls.

One rule: every call delivers until the group is quiet, and only `tick` lets time pass.
Used by scenario.py, which reads the commands and prints what came of them.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from orchestrator.group import events as ev
from orchestrator.group.assignor_view import build_view
from orchestrator.group.step import Group
from orchestrator.group.topology_versions import ranges
from orchestrator.member import events as mem
from orchestrator.member.machine import Held, Holding
from orchestrator.model import PROTOCOL_ORDER, JoinRequest, Owner, Protocol, Role, Settings, Task, TaskId, TaskRange
from orchestrator.names import natural
from orchestrator.simulator.cluster import Cluster
from orchestrator.simulator.coordinator import Backend, Coordinator, Watch
from orchestrator.simulator.ledger import Ledger
from orchestrator.simulator.network import Link, Network
from orchestrator.simulator.nodes import Node
from orchestrator.simulator.processes import Process
from orchestrator.simulator.scenario_members import STATE_SIZE, Member
from orchestrator.simulator.scheduler import TooManyEvents
from orchestrator.task_assignor.builder import AssignmentBuilder
from orchestrator.task_assignor.standbys import assign_standbys

MESSAGES_MAX = 1_000_000  # until a group is quiet


class OverheardNetwork(Network):
    """No delays. Members still speak to a coordinator that was deposed and has not noticed, and it to them."""

    def __init__(self) -> None:
        super().__init__()
        self.overheard: dict[str, Link] = {}  # by member

    def overhear(self, nodes: list[Member]) -> None:
        """Their present sessions go on beside those that they will have."""
        self.overheard = {node.name: self.links[node.session] for node in nodes if node.session is not None}
        for link in self.overheard.values():
            link.overheard = True

    def up(self, node: Node, event: ev.Event) -> None:
        super().up(node, event)
        link = self.overheard.get(node.name)
        if link is not None and isinstance(event, ev.Heartbeat):
            self.carry(link, replace(event, session=link.session))

    def close(self, session: int, fenced: bool) -> None:
        super().close(session, fenced)
        link = self.links.get(session)
        if link is not None and link.overheard:  # what is closed carries nothing more
            link.overheard = False
            if self.overheard.get(link.node.name) is link:
                del self.overheard[link.node.name]


class Announcements(Watch):
    """The events of a command, each once."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def announce(self, text: str) -> None:
        if text not in self.texts:
            self.texts.append(text)

    def effect(self, coordinator: Coordinator, effect: ev.Effect) -> None:
        if isinstance(effect, ev.Announced):
            self.announce(effect.text)


class Refusal(Watch):
    """Of a deposed coordinator nothing is announced but that the ledger refused it."""

    def __init__(self, announcements: Announcements) -> None:
        self.announcements = announcements

    def lost_lease(self, coordinator: Coordinator) -> None:
        self.announcements.announce("the deposed coordinator is refused")


class ScenarioCluster(Cluster):
    """Members, and one coordinator, hosted by the first member by name."""

    member = Member
    network: OverheardNetwork

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, Ledger(), OverheardNetwork())
        self.watch = self.announcements = Announcements()
        self.tasks: dict[TaskId, Task] = {}
        self.nodes: dict[str, Member] = {}
        self.version: tuple[TaskRange, ...] | None = None  # what the app has, once a topic grew
        self.measures: dict[TaskId, int] = {}  # bytes of state, or records a second, as the setting `weights` says
        self._begun = 0
        self._leaving: set[str] = set()  # instances whose process received a request to leave
        self._host = Process(self.scheduler, "coordinator")
        self.coordinator = self._coordinate(0)

    @property
    def group(self) -> Group:
        return self.coordinator.group

    # ---- building

    def declare(self, tasks: list[Task], placed: dict[str, list[TaskId]]) -> None:
        """A stable start: the tasks, and who runs which."""
        self.tasks = {task.id: task for task in tasks}
        for name in placed:
            self.new_node(name, name, 1, "")
        term = self.group.term
        for name, ids in placed.items():
            node = self.nodes[name]
            for task in ids:
                self.ledger.put(Owner(task, 1, name, node.join_request.writer, term))
                node.machine.held[task] = Holding(Held.RUNNING, Role.ACTIVE, 1, STATE_SIZE, STATE_SIZE)
        self.coordinator = self._coordinate(0)
        self.group.hold(bool(placed))
        for node in self.nodes.values():
            self.connect(node)
        self._gathered()
        self.settle()
        if placed:
            self._stand_by()
            self.group.accept_as_is()
        if placed and len(self.ledger.owners) < len(tasks):
            self.group.reconsider()  # what the file places nowhere is no stable start: it is placed with the next step
        self.announcements.texts.clear()

    def _stand_by(self) -> None:
        """The standbys of a stable start are there already, and caught up."""
        builder = AssignmentBuilder(build_view(self.group))
        for step in (builder.assign_actives(), assign_standbys(builder)):
            for _ in step:
                pass
        for task, names in builder.standbys.items():
            for name in names:
                holding = Holding(Held.COPYING, Role.STANDBY, 0, STATE_SIZE, STATE_SIZE)
                self.nodes[name].machine.held[task] = holding
        self.group.accept_standbys({task: tuple(sorted(names)) for task, names in builder.standbys.items()})
        for node in self.nodes.values():
            node.report()
        self.settle()

    def _coordinate(self, generation: int) -> Coordinator:
        """The next coordinator, before the first member connects."""
        term = self.take_lease(self._host.name).term
        return self.coordinate(self._host, self.tasks.values(), Backend(), term=term, generation=generation)

    def new_node(
        self,
        name: str,
        instance: str,
        capacity: int,
        zone: str,
        tasks: tuple[TaskRange, ...] | None = None,
        protocols: tuple[Protocol, ...] = PROTOCOL_ORDER,
    ) -> Member:
        incarnation = f"{name}#1"
        tasks = self.version if tasks is None else tasks
        join_request = JoinRequest(
            name, instance, incarnation, incarnation, capacity, zone, protocols=protocols, tasks=tasks
        )
        process = Process(self.scheduler, name)
        node = self.member(join_request, process, self.network, self.settings, self._rejoined)
        self.nodes[name] = node
        return node

    def _rejoined(self, node: Member) -> None:
        self.announcements.announce(f"{node.name} rejoined")
        self.connect(node)

    def connect(self, node: Member) -> None:
        """Open a session with the coordinator."""
        instance = node.join_request.instance
        if self._workers_of(instance) == [node] and not node.machine.leaving:
            self._leaving.discard(instance)  # another process, which has received no such request
        if instance in self._leaving and not node.machine.leaving:
            node.machine.step(mem.LeaveWanted(), self.now_ms)
        self.network.connect(node, self.coordinator)

    # ---- delivery

    def settle(self) -> None:
        """Deliver messages until the group is quiet. Raises RuntimeError."""
        self.scheduler.allow(MESSAGES_MAX)
        try:
            self.scheduler.run_until(self.now_ms)
        except TooManyEvents as error:
            raise RuntimeError("the group does not come to rest") from error

    def to_group(self, event: ev.Event) -> None:
        """The coordinator receives it at once."""
        self.coordinator.receive(event)

    def _soon(self, event: ev.Event) -> None:
        """The coordinator receives it behind what is on its way."""
        coordinator = self.coordinator
        self.after(0, lambda: coordinator.receive(event))

    # ---- commands

    def leader(self) -> str | None:
        """The member that hosts the coordinator: the first by name of those alive."""
        alive = [n.name for n in self.nodes.values() if n.alive]
        return min(alive, key=natural) if alive else None

    def join(self, node: Member) -> None:
        self.connect(node)
        self.settle()

    def ready(self, node: Member, task: TaskId) -> None:
        """The restore of one copy finishes, and the coordinator receives the report."""
        node.receive(mem.Progress(task, STATE_SIZE, STATE_SIZE))
        node.report()

    def restoring(self, node: Member) -> list[TaskId]:
        """Copies of `node` that still restore."""
        held = node.machine.held.items()
        return sorted(t for t, h in held if h.state is Held.COPYING and h.position < h.end)

    def leaving(self, node: Member) -> None:
        """An instance leaves as a whole: its parent process tells all its workers, also those it starts later."""
        self._leaving.add(node.join_request.instance)
        for worker in self._workers_of(node.join_request.instance):
            self._send(worker, mem.LeaveWanted())
        self.settle()

    def _send(self, node: Member, event: mem.MemberEvent) -> None:
        """At once, or when it goes on."""
        if node.stalled:
            node.process.waiting.append(lambda: node.receive(event))
        else:
            node.receive(event)

    def _workers_of(self, instance: str) -> list[Member]:
        return [n for n in self.nodes.values() if n.alive and n.join_request.instance == instance]

    def mark_leaving(self, instances: list[str], timeout_ms: int | None = None, force: bool = False) -> None:
        deadline_ms = None if timeout_ms is None else self.now_ms + timeout_ms
        self._begun += 1
        operation = ev.Leaving(f"scale-down {self._begun}", tuple(instances), deadline_ms, force)
        self.ledger.operations[operation.operation] = operation
        self.to_group(operation)
        self.settle()

    def undo_leaving(self) -> None:
        self.to_group(ev.UndoLeaving())
        self.settle()

    def crash(self, node: Member) -> None:
        """The process is gone, and the coordinator knows; its disk stays."""
        was_leader, session = self.leader() == node.name, node.session
        node.crash()
        if was_leader:
            self.restart_coordinator(settle=False)
        elif session is not None:
            self.to_group(ev.SessionEnded(session))
        self.settle()
        self.to_group(ev.Expired(node.name))
        self.settle()

    def stall(self, node: Member) -> None:
        node.process.stalled = True

    def resume(self, node: Member) -> None:
        """Whatever was sent to it meanwhile arrives now."""
        node.process.stalled = False
        node.process.catch_up()
        if node.missed and node.alive:
            self._join_again(node)
        if node.alive and node.session is None:
            self.connect(node)  # its coordinator is another one by now
        elif node.alive:
            node.report()
        self.settle()

    def grow(self, tasks: list[Task]) -> None:
        """A topic grew: every version of the app that reads it has these tasks from now on, and who can hear says so,
        one after the other."""
        before = ranges(self.tasks.values())
        self.tasks.update({task.id: task for task in tasks})
        self.version = ranges(self.tasks.values())
        for node in self.nodes.values():
            if node.join_request.tasks is None:
                node.join_request = replace(node.join_request, tasks=before)
            node.missed += tasks
            if node.alive and not node.stalled:
                self._join_again(node)
                self.settle()

    def _join_again(self, node: Member) -> None:
        """The same incarnation, over the connection that it has, with the tasks that there are now."""
        node.learn()
        if node.session is not None:
            self.network.up(node, ev.Joined(node.session, node.join_request, node.machine.status()))

    def rejoin(
        self, node: Member, tasks: tuple[TaskRange, ...] | None = None, protocols: tuple[Protocol, ...] | None = None
    ) -> None:
        """A process that was gone starts again, with its disk, as a new incarnation; `tasks`: as another version;
        `protocols`: those it supports from now on."""
        node.start_again(self.settings)
        if tasks is not None:
            node.join_request = replace(node.join_request, tasks=tasks)
        if protocols is not None:
            node.join_request = replace(node.join_request, protocols=protocols)
        node.rejoin()
        self.settle()

    def restart_coordinator(self, settle: bool = True) -> None:
        """A new coordinator reads the owner records and receives a report of every member that can send one."""
        self.coordinator.in_office = False
        self._replace_coordinator()
        if settle:
            self.settle()

    def _replace_coordinator(self) -> None:
        self.coordinator = self._coordinate(self.group.generation)
        self.coordinator.resume_operations()
        for node in self.nodes.values():
            if node.alive and not node.stalled:
                self.connect(node)
            elif node.alive:
                node.process.waiting.append(partial(node.lose_session, node.session))
        self._gathered()

    def _gathered(self) -> None:
        """Every member that can come back has: no time passes for that here."""
        self._soon(ev.Gathered())

    def depose_coordinator(self) -> None:
        """Another one takes the lease, and the old one does not know: it still receives reports of the members, and answers them."""
        self.coordinator.watch = Refusal(self.announcements)
        self.network.overhear([node for node in self.nodes.values() if node.alive])
        self._replace_coordinator()
        self.settle()

    def tick(self, ms: int) -> None:
        """Time passes in steps of a heartbeat."""
        end = self.now_ms + ms
        while self.now_ms < end:
            self.scheduler.run_until(min(end, self.now_ms + min(1_000, self.settings.heartbeat_ms)))
            for node in self.nodes.values():
                if node.alive and not node.stalled:
                    node.receive(mem.Measured(node.facts(self.measures, self.settings.weights, self.now_ms)))
                    node.report()
            self.nudge()

    def weigh(self, task: TaskId, weight: int) -> None:
        """An operator gives the task another weight."""
        self.tasks[task] = replace(self.tasks[task], weight=weight)
        self.group.reconsider(declared=self.tasks)
        self.nudge()

    def nudge(self) -> None:
        """Let the coordinator think again, without time passing."""
        self._soon(ev.Tick())
        self.settle()
