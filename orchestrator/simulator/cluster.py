"""A whole group in one thread: the real coordinator core and the real member cores, messages delivered in order.

One rule: nothing happens but by a command or by time that a command lets pass; the same commands give the same cluster.
Used by scenario files and `orchestrator simulate`; the fault-injecting simulation has its own scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from orchestrator.group import events as ev
from orchestrator.group.assignor_view import build_view
from orchestrator.group.step import Group
from orchestrator.group.topology_versions import ranges
from orchestrator.member import events as mem
from orchestrator.member.machine import Held, Holding, MemberMachine
from orchestrator.model import PROTOCOL_ORDER, JoinRequest, Owner, Protocol, Role, Settings, Task, TaskId, TaskRange
from orchestrator.names import natural
from orchestrator.simulator.nodes import FormerCoordinator as FormerCoordinator
from orchestrator.simulator.nodes import Node as Node
from orchestrator.task_assignor.assign import assign_tasks
from orchestrator.task_assignor.builder import AssignmentBuilder
from orchestrator.task_assignor.standbys import assign_standbys

STATE_SIZE = 1_000_000  # positions in a task's changelog: far above any acceptable lag, so that learners must restore


class Cluster:
    """Members, a log of owner records, and one coordinator, hosted by the first member by name."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now_ms = 0
        self.term = 1
        self.tasks: dict[TaskId, Task] = {}
        self.log: dict[TaskId, Owner] = {}
        self.nodes: dict[str, Node] = {}
        self.group = Group(settings)
        self.operations: dict[str, ev.Leaving] = {}  # the scale-downs that run, as the log has them
        self.former: FormerCoordinator | None = None
        self.version: tuple[TaskRange, ...] | None = None  # what the app has, once a topic grew
        self.events: list[str] = []
        self.measures: dict[TaskId, int] = {}  # bytes of state, or records a second, as the setting `weights` says
        self._sessions = self._begun = 0
        self._leaving: set[str] = set()  # instances whose process was told to leave
        self._queue: deque[Callable[[], None]] = deque()

    # ---- building

    def declare(self, tasks: list[Task], placed: dict[str, list[TaskId]]) -> None:
        """A stable start: the tasks, and who runs which."""
        self.tasks = {task.id: task for task in tasks}
        for name in placed:
            self.new_node(name, name, 1, "")
        for name, ids in placed.items():
            node = self.nodes[name]
            for task in ids:
                self.log[task] = Owner(task, 1, name, node.join_request.writer, self.term)
                node.machine.held[task] = Holding(Held.RUNNING, Role.ACTIVE, 1, STATE_SIZE, STATE_SIZE)
        self._start_group()
        self.group.hold(bool(placed))
        for node in self.nodes.values():
            self._connect(node)
        self._gathered()
        self.settle()
        if placed:
            self._stand_by()
            self.group.accept_as_is()
        if placed and len(self.log) < len(tasks):
            self.group.reconsider()  # what the file places nowhere is no stable start: it is placed with the next step
        self.events.clear()

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
            self._report(node)
        self.settle()

    def _start_group(self) -> None:
        self.group = Group(
            self.settings,
            self.tasks.values(),
            self.log.values(),
            term=self.term,
            now_ms=self.now_ms,
            generation=self.group.generation,
            gathering=True,
        )
        for operation in [*self.operations.values()]:
            self._to_group(replace(operation, resumed=True))

    def new_node(
        self,
        name: str,
        instance: str,
        capacity: int,
        zone: str,
        tasks: tuple[TaskRange, ...] | None = None,
        protocols: tuple[Protocol, ...] = PROTOCOL_ORDER,
    ) -> Node:
        incarnation = f"{name}#1"
        tasks = self.version if tasks is None else tasks
        join_request = JoinRequest(
            name, instance, incarnation, incarnation, capacity, zone, protocols=protocols, tasks=tasks
        )
        node = Node(name, join_request, MemberMachine(self.settings))
        self.nodes[name] = node
        return node

    def _connect(self, node: Node) -> None:
        self._sessions += 1
        session = self._sessions
        node.session = session
        node.machine.step(mem.SessionOpened(self.group.term), self.now_ms)
        if self._workers_of(node.join_request.instance) == [node] and not node.machine.leaving:
            self._leaving.discard(node.join_request.instance)  # another process, that nobody told
        if node.join_request.instance in self._leaving and not node.machine.leaving:
            node.machine.step(mem.LeaveWanted(), self.now_ms)
        join_request, status = node.join_request, node.machine.status()
        self._queue.append(lambda: self._to_group(ev.Joined(session, join_request, status)))

    # ---- delivery

    def settle(self) -> None:
        """Deliver messages until the group is quiet. Raises RuntimeError."""
        for _ in range(1_000_000):
            if not self._queue:
                return
            self._queue.popleft()()
        raise RuntimeError("the group does not come to rest")

    def _to_group(self, event: ev.Event) -> None:
        group = self.group
        for effect in group.step(event, self.now_ms):
            self._perform(group, effect)

    def _perform(self, group: Group, effect: ev.Effect) -> None:
        match effect:
            case ev.Send(session, assignment):
                self._queue.append(lambda: self._to_session(session, mem.Assigned(assignment)))
            case ev.CloseSession(session, fenced):
                self._queue.append(lambda: self._closed(session, fenced))
            case ev.RecordOwners(records):
                self.log.update({record.task: record for record in records})
                self._queue.append(lambda: self._to_group(ev.OwnersRecorded(records)))
            case ev.Fence(transactional_id):
                had = tuple(sorted(t for t, o in self.log.items() if o.writer == transactional_id))
                for task in had:
                    owner = self.log[task]
                    self.log[task] = Owner(task, owner.epoch + 1, owner.member, "", group.term)
                self._queue.append(lambda: self._to_group(ev.Fenced(transactional_id, had)))
            case ev.ComputeTarget(number, view):
                self._queue.append(lambda: self._to_group(ev.TargetComputed(number, assign_tasks(view))))
            case ev.Announced(text):
                self._announce(text)
            case ev.OperationEnded(operation):
                self.operations.pop(operation, None)
            case ev.HandedOver():
                pass

    def _announce(self, text: str) -> None:
        if text not in self.events:
            self.events.append(text)

    def _of_session(self, session: int) -> Node | None:
        return next((n for n in self.nodes.values() if n.session == session and n.alive), None)

    def _to_session(self, session: int, event: mem.MemberEvent) -> None:
        node = self._of_session(session)
        if node is None:
            return
        if node.stalled:
            node.inbox.append(event)
        else:
            self._to_member(node, event)

    def _closed(self, session: int, fenced: bool) -> None:
        node = self._of_session(session)
        if node is None or not fenced:
            return
        if node.stalled:
            node.inbox.append(mem.WriterLost())
        else:
            self._to_member(node, mem.WriterLost())

    def _to_member(self, node: Node, event: mem.MemberEvent) -> None:
        for effect in node.machine.step(event, self.now_ms):
            self._act(node, effect)

    def _act(self, node: Node, effect: mem.MemberEffect) -> None:
        """What a worker's shell would do, at once."""
        machine = node.machine
        match effect:
            case mem.Open(task, role, _) | mem.ChangeRole(task, role, _):
                if role is Role.ACTIVE:
                    machine.held[task].position = machine.held[task].end = STATE_SIZE
                    self._to_member(node, mem.Started(task))
                else:
                    # What lies on disk has to be opened and caught up, too: that ends when `ready` says so.
                    self._to_member(node, mem.Progress(task, machine.held[task].position, STATE_SIZE))
            case mem.Release(task, _):
                node.revoked.append(task)
                node.disk[task] = STATE_SIZE
                self._to_member(node, mem.ReleaseDone(task, 0, STATE_SIZE))
            case mem.Close(task):
                self._to_member(node, mem.DiskSeen(dict(node.disk)))
            case mem.Drop(task):
                node.disk[task] = STATE_SIZE
                self._to_member(node, mem.DiskSeen(dict(node.disk)))
            case mem.Report():
                self._report(node)
            case mem.Rejoin():
                self._rejoin(node)
            case mem.Exit():
                node.alive = False
                session = node.session
                if session is not None:
                    self._queue.append(lambda: self._to_group(ev.SessionEnded(session)))

    def _report(self, node: Node) -> None:
        session, status = node.session, node.machine.status()
        if session is not None:
            self._queue.append(lambda: self._to_group(ev.Heartbeat(session, status)))
        if self.former is not None and (old := self.former.sessions.get(node.name)) is not None:
            self._queue.append(lambda: self._to_former(ev.Heartbeat(old, status)))

    def _to_former(self, event: ev.Event) -> None:
        former = self.former
        if former is None:
            return
        assignments, refused = former.step(event, self.now_ms)
        for name, assignment in assignments:
            node = self.nodes[name]
            if node.alive and not node.stalled:
                self._to_member(node, mem.Assigned(assignment))
        if refused:
            self.former = None
            self._announce("the deposed coordinator is refused")

    def _rejoin(self, node: Node) -> None:
        node.lives += 1
        node.learn()
        incarnation = f"{node.name}#{node.lives}"
        node.join_request = replace(node.join_request, incarnation=incarnation, writer=incarnation)
        node.machine.disk = dict(node.disk)
        self._announce(f"{node.name} rejoined")
        self._connect(node)

    # ---- commands

    def leader(self) -> str | None:
        """The member that hosts the coordinator: the first by name of those alive."""
        alive = [n.name for n in self.nodes.values() if n.alive]
        return min(alive, key=natural) if alive else None

    def join(self, node: Node) -> None:
        self._connect(node)
        self.settle()

    def ready(self, node: Node, task: TaskId) -> None:
        """The restore of one copy finishes, and the coordinator hears of it."""
        self._to_member(node, mem.Progress(task, STATE_SIZE, STATE_SIZE))
        self._report(node)

    def restoring(self, node: Node) -> list[TaskId]:
        """Copies of `node` that still restore."""
        held = node.machine.held.items()
        return sorted(t for t, h in held if h.state is Held.COPYING and h.position < h.end)

    def leaving(self, node: Node) -> None:
        """An instance leaves as a whole: its parent process tells all its workers, also those it starts later."""
        self._leaving.add(node.join_request.instance)
        for worker in self._workers_of(node.join_request.instance):
            if worker.stalled:
                worker.inbox.append(mem.LeaveWanted())
            else:
                self._to_member(worker, mem.LeaveWanted())
        self.settle()

    def _workers_of(self, instance: str) -> list[Node]:
        return [n for n in self.nodes.values() if n.alive and n.join_request.instance == instance]

    def mark_leaving(self, instances: list[str], timeout_ms: int | None = None, force: bool = False) -> None:
        deadline_ms = None if timeout_ms is None else self.now_ms + timeout_ms
        self._begun += 1
        operation = ev.Leaving(f"scale-down {self._begun}", tuple(instances), deadline_ms, force)
        self.operations[operation.operation] = operation
        self._to_group(operation)
        self.settle()

    def undo_leaving(self) -> None:
        self._to_group(ev.UndoLeaving())
        self.settle()

    def crash(self, node: Node) -> None:
        """The process is gone, and everybody knows; its disk stays."""
        was_leader = self.leader() == node.name
        node.alive = False
        for task, holding in node.machine.held.items():
            position = STATE_SIZE if holding.epoch else holding.position
            node.disk[task] = max(position, node.disk.get(task, 0))
        session, node.session = node.session, None
        if was_leader:
            self.restart_coordinator(settle=False)
        elif session is not None:
            self._to_group(ev.SessionEnded(session))
        self.settle()
        self._to_group(ev.Expired(node.name))
        self.settle()

    def stall(self, node: Node) -> None:
        node.stalled = True

    def resume(self, node: Node) -> None:
        """Whatever was sent to it meanwhile arrives now."""
        node.stalled = False
        waiting, node.inbox = node.inbox, []
        for event in waiting:
            self._to_member(node, event)
        if node.missed and node.alive:
            self._join_again(node)
        if node.alive and node.session is None:
            self._connect(node)  # its coordinator is another one by now
        elif node.alive:
            self._report(node)
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

    def _join_again(self, node: Node) -> None:
        """The same incarnation, over the connection that it has, with the tasks that there are now."""
        node.learn()
        session, join_request, status = node.session, node.join_request, node.machine.status()
        if session is not None:
            self._queue.append(lambda: self._to_group(ev.Joined(session, join_request, status)))

    def rejoin(
        self, node: Node, tasks: tuple[TaskRange, ...] | None = None, protocols: tuple[Protocol, ...] | None = None
    ) -> None:
        """A process that was gone starts again, with its disk, as a new incarnation; `tasks`: as another version;
        `protocols`: those it supports from now on."""
        node.start_again(self.settings)
        if tasks is not None:
            node.join_request = replace(node.join_request, tasks=tasks)
        if protocols is not None:
            node.join_request = replace(node.join_request, protocols=protocols)
        self._rejoin(node)
        self.settle()

    def restart_coordinator(self, settle: bool = True) -> None:
        """A new coordinator reads the owner records and hears everybody who can speak."""
        self.term += 1
        self._queue.clear()
        self._start_group()
        for node in self.nodes.values():
            if node.alive and not node.stalled:
                self._connect(node)
            elif node.alive:
                node.session = None
        self._gathered()
        if settle:
            self.settle()

    def _gathered(self) -> None:
        """Whoever can come back has: no time passes for that here."""
        self._queue.append(lambda: self._to_group(ev.Gathered()))

    def depose_coordinator(self) -> None:
        """Another one takes the lease, and the old one does not know: it still hears the members, and answers them."""
        sessions = {name: n.session for name, n in self.nodes.items() if n.alive and n.session is not None}
        self.former = FormerCoordinator(self.group, sessions)
        self.restart_coordinator()

    def tick(self, ms: int) -> None:
        """Time passes in steps of a heartbeat."""
        end = self.now_ms + ms
        while self.now_ms < end:
            self.now_ms = min(end, self.now_ms + min(1_000, self.settings.heartbeat_ms))
            for node in self.nodes.values():
                if node.alive and not node.stalled:
                    facts = node.facts(self.measures, self.settings.weights, self.now_ms)
                    self._to_member(node, mem.Measured(facts))
                    self._report(node)
            self._queue.append(lambda: self._to_group(ev.Tick()))
            self.settle()

    def weigh(self, task: TaskId, weight: int) -> None:
        """Somebody gives the task another weight."""
        self.tasks[task] = replace(self.tasks[task], weight=weight)
        self.group.reconsider(declared=self.tasks)
        self.nudge()

    def nudge(self) -> None:
        """Let the coordinator think again, without time passing."""
        self._queue.append(lambda: self._to_group(ev.Tick()))
        self.settle()
