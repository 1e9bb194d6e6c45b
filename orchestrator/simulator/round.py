"""A whole group in one process: the simulator's cluster without delays, at any size.

One rule: the real cores, nothing else. Restores end together as soon as nothing else is to be delivered, the log answers
at once. Used by the benchmark of large groups, which times its steps, and by tests, which count them.
"""

from __future__ import annotations

from collections import Counter

from orchestrator.group import events as ev
from orchestrator.group.step import Group
from orchestrator.member import events as mem
from orchestrator.member.machine import Held, Holding
from orchestrator.model import Ending, JoinRequest, Owner, Role, Settings, Task, TaskId, TaskRange
from orchestrator.simulator.cluster import Cluster
from orchestrator.simulator.coordinator import Backend, Coordinator, Watch
from orchestrator.simulator.ledger import Ledger
from orchestrator.simulator.network import Network
from orchestrator.simulator.nodes import Node
from orchestrator.simulator.processes import Process

STATE = 1_000_000


def name_of(number: int) -> str:
    """The name of the member with this number."""
    return f"stream-{number:05}"


class Counted(Watch):
    """How many events of each name the group has taken, and how many owner records followed."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.handed_over = 0

    def stepped(self, coordinator: Coordinator, event: ev.Event) -> None:
        self.steps[type(event).__name__] += 1

    def effect(self, coordinator: Coordinator, effect: ev.Effect) -> None:
        if isinstance(effect, ev.RecordOwners):
            self.handed_over += len(effect.records)


class Worker(Node):
    """A member that starts at once, and restores when the round says so."""

    def __init__(self, made: Round, join_request: JoinRequest) -> None:
        super().__init__(join_request.member, Process(made.scheduler, join_request.member), made.network, made.settings)
        self.join_request = join_request
        self.learning = made.learning

    def opened(self, task: TaskId, role: Role, epoch: int, ending: Ending | None) -> None:
        if role is Role.ACTIVE:
            self.machine.step(mem.Started(task, 1), self.clock())
        else:
            self.learning.append((self, task))

    def release(self, task: TaskId, epoch: int) -> None:
        self.process.after(0, lambda: self.receive(mem.ReleaseDone(task, 1, STATE, 1)))

    def closed(self, task: TaskId, *, dropped: bool) -> None:
        """Its machine knows already what lies on its disk."""

    def on_disk(self) -> dict[TaskId, int]:
        return dict(self.machine.disk)

    def rejoin(self) -> None:
        raise AssertionError(f"{self.name} was fenced, and a member of a round cannot rejoin")


class Round(Cluster):
    """A group of `instances` and `tasks`; `run` delivers until nothing is left to deliver. `at_rest`: every member has its
    share already, as after a first round, without making it."""

    def __init__(
        self,
        instances: int,
        tasks: int,
        settings: Settings | None = None,
        *,
        at_rest: bool = False,
        watch: Counted | None = None,
        backend: Backend | None = None,
    ) -> None:
        super().__init__(settings or Settings(), Ledger(), Network())
        self.watch = self.counted = watch or Counted()
        self.nodes: dict[int, Worker] = {}
        self.learning: list[tuple[Worker, TaskId]] = []
        ids = sorted(TaskId(p % 10, p // 10) for p in range(tasks))
        shares = {number: ids[number::instances] if at_rest else [] for number in range(instances)}
        for number, share in shares.items():
            for task in share:
                self.ledger.put(Owner(task, 1, name_of(number), f"{name_of(number)}#1", 1))
        self.coordinator = self.coordinate(
            Process(self.scheduler, "coordinator"),
            [Task(task) for task in ids],
            backend or Backend(),
            term=self.take_lease("coordinator").term,
            gathering=False,
        )
        for number, share in shares.items():
            self.join(number)
            for task in share:
                self.nodes[number].machine.held[task] = Holding(Held.RUNNING, Role.ACTIVE, 1, STATE, STATE)

    @property
    def group(self) -> Group:
        return self.coordinator.group

    @property
    def handed_over(self) -> int:
        return self.counted.handed_over

    def join(self, number: int, tasks: tuple[TaskRange, ...] | None = None) -> None:
        name = name_of(number)
        node = self.nodes[number] = Worker(self, JoinRequest(name, name, f"{name}#1", f"{name}#1", tasks=tasks))
        self.network.connect(node, self.coordinator)

    def crash(self, number: int) -> None:
        """Its connection ends, and the group is notified that it is dead."""
        node = self.nodes.pop(number)
        self.network.end(node)
        node.process.kill()
        self.send(ev.Expired(node.name))

    def send(self, event: ev.Event) -> None:
        """The coordinator receives it behind what is on its way."""
        self.after(0, lambda: self.coordinator.receive(event))

    def run(self) -> Counter[str]:
        """To rest: everything delivered, every restore finished. Returns how many events of each name that took."""
        self.counted.steps = Counter()
        self.scheduler.run_until(self.now_ms)
        while self.learning:
            self.scheduler.run_until(self.now_ms + 10)
            restored = self.learning[:]
            self.learning.clear()
            for node, task in restored:
                node.process.after(0, lambda node=node, task=task: node.receive(mem.Progress(task, STATE, STATE)))  # type: ignore[misc]
            self.scheduler.run_until(self.now_ms)
        return self.counted.steps
