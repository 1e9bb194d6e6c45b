"""Instances in a rehearsal: a state directory, workers with the real member core, and one restore speed for all.

One rule: an instance restores at most as fast as its speeds say; a cold task costs its bytes, a warm one its lag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from orchestrator.member import events as mem
from orchestrator.member.machine import Held, MemberMachine
from orchestrator.model import Ending, JoinRequest, Role, Settings, TaskId
from orchestrator.simulator.benchmark.changelog import Changelog
from orchestrator.simulator.benchmark.history import Doing, History
from orchestrator.simulator.benchmark.workload import Workload
from orchestrator.simulator.nodes import Node, Uplink
from orchestrator.simulator.processes import Process
from orchestrator.simulator.scheduler import Scheduler

STEP_MS = 100


class Surroundings(Protocol):
    """What an instance needs of the rehearsal that it is in: time, the changelogs, and sessions with the coordinator."""

    workload: Workload
    settings: Settings
    snapshots: bool
    history: History
    changelogs: Mapping[TaskId, Changelog]

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def network(self) -> Uplink: ...

    @property
    def now_ms(self) -> int: ...

    def after(self, delay_ms: int, call: Callable[[], None], /) -> None:
        """Call back when the delay is over."""

    def end(self, task: TaskId, /) -> int:
        """The end of the task's changelog now."""

    def is_stateful(self, task: TaskId, /) -> bool: ...

    def connect(self, node: Node, /) -> None:
        """Open a session with the coordinator."""


class Host:
    """One instance. `positions`: how far each state on its disk is, held or not; `downloads`: bytes of a snapshot that
    are still to come."""

    def __init__(self, surroundings: Surroundings, name: str, workers: int) -> None:
        self.surroundings = surroundings
        self.name = name
        self.process = Process(surroundings.scheduler, name)
        self.process.kill()  # until it starts
        self.positions: dict[TaskId, int] = {}
        self.downloads: dict[TaskId, int] = {}
        self.workers = [Worker(self, name if workers == 1 else f"{name}-{n}") for n in range(workers)]

    @property
    def alive(self) -> bool:
        return self.process.alive

    def start(self) -> None:
        self.process.start()
        for worker in self.workers:
            worker.start()
        self._plan_step(self.process.life)

    def add_worker(self, member: str) -> None:
        """One more on a running instance."""
        self.workers.append(Worker(self, member))
        self.workers[-1].start()

    def crash(self) -> None:
        """The processes are gone; the disk stays."""
        self.process.kill()
        for worker in self.workers:
            worker.die()

    def unused(self) -> dict[TaskId, int]:
        """State that lies on disk and that no worker holds."""
        held = {task for worker in self.workers for task in worker.machine.held}
        return {task: at for task, at in self.positions.items() if task not in held and task not in self.downloads}

    def open(self, task: TaskId) -> None:
        """State that is not there at all comes from a snapshot, where there are some, else by replay from nothing."""
        if task in self.positions:
            return
        changelog, around = self.surroundings.changelogs[task], self.surroundings
        if around.snapshots:
            self.positions[task] = changelog.snapshot
            self.downloads[task] = changelog.live * around.workload.speeds.record_bytes
        else:
            self.positions[task] = changelog.oldest(around.now_ms)

    # ---- restoring

    def _plan_step(self, life: int) -> None:
        self.surroundings.after(STEP_MS, lambda: self._step(life))

    def _step(self, life: int) -> None:
        if not self.alive or life != self.process.life:
            return
        self._plan_step(life)
        waiting = [(worker, task) for worker in self.workers for task in worker.copies() if self.behind(task)]
        actives = [(worker, task) for worker, task in waiting if worker.is_starting(task)]
        copies = [(worker, task) for worker, task in waiting if not worker.is_starting(task)]
        # A task that runs nowhere goes first, as in a worker: copies have one eighth meanwhile.
        for group, eighths in ((actives, 7 if copies else 8), (copies, 1 if actives else 8)):
            for worker, task in group:
                self._restore(task, eighths / 8 / len(group))
                worker.progress(task)

    def behind(self, task: TaskId) -> bool:
        return task in self.downloads or self.positions[task] < self.surroundings.end(task)

    def _restore(self, task: TaskId, share: float) -> None:
        speeds, history = self.surroundings.workload.speeds, self.surroundings.history
        left = self.downloads.get(task)
        if left is not None:
            read = min(left, max(1, int(speeds.snapshot_bytes * STEP_MS / 1000 * share)))
            history.restored_bytes += read
            if read == left:
                del self.downloads[task]
            else:
                self.downloads[task] = left - read
            return
        budget = max(1, int(speeds.restore_bytes * STEP_MS / 1000 * share / speeds.record_bytes))
        read = min(budget, self.surroundings.end(task) - self.positions[task])
        self.positions[task] += read
        history.restored_bytes += read * speeds.record_bytes


class Worker(Node):
    """One member, and what it does with the state of its tasks."""

    def __init__(self, host: Host, member: str) -> None:
        self.host = host
        self.surroundings = host.surroundings
        super().__init__(member, host.process, self.surroundings.network, self.surroundings.settings)
        self.lives = 0
        self.running: set[TaskId] = set()

    # ---- life

    def start(self) -> None:
        self.machine = MemberMachine(self.surroundings.settings)
        self.gone = False
        self._join()

    def _join(self) -> None:
        self.lives += 1
        transactional_id = f"{self.name}#{self.lives}"
        self.join_request = JoinRequest(self.name, self.host.name, transactional_id, transactional_id)
        self.machine.disk = self.on_disk()
        self.surroundings.connect(self)
        self._heartbeat(self.lives)

    def die(self) -> None:
        for task in list(self.machine.held):
            self._stop(task)
            self.surroundings.history.now_does(task, self.host.name, None, self.surroundings.now_ms)
        self.machine = MemberMachine(self.surroundings.settings)
        self.lives += 1
        self.network.end(self)

    def _heartbeat(self, life: int) -> None:
        if self.alive and life == self.lives:
            for task in self.copies():
                self.progress(task)
            for task in sorted(self.running):
                end = self.surroundings.end(task)
                self.receive(mem.Progress(task, end, end))
            self.report()
            self.surroundings.after(self.surroundings.settings.heartbeat_ms, lambda: self._heartbeat(life))

    # ---- state

    def copies(self) -> list[TaskId]:
        """What this worker restores or follows now."""
        states = (Held.COPYING, Held.STARTING)
        held = self.machine.held.items()
        return [
            t for t, h in held if h.state in states and self.surroundings.is_stateful(t) and t in self.host.positions
        ]

    def is_starting(self, task: TaskId) -> bool:
        return self.machine.held[task].state is Held.STARTING

    def progress(self, task: TaskId) -> None:
        holding = self.machine.held.get(task)
        if holding is None:
            return
        if holding.state is Held.STARTING:
            self._begin(task)
        elif task not in self.host.downloads:
            self.receive(mem.Progress(task, self.host.positions[task], self.surroundings.end(task)))

    def _begin(self, task: TaskId) -> None:
        """Process, if the state is whole."""
        behind = self.surroundings.is_stateful(task) and self.host.behind(task)
        if behind or self.machine.held[task].state is not Held.STARTING:
            return
        self.running.add(task)
        self.surroundings.changelogs[task].start(self.surroundings.now_ms)
        self.surroundings.history.now_does(task, self.host.name, Doing.RUN, self.surroundings.now_ms)
        self.receive(mem.Started(task, self.surroundings.now_ms))

    def _stop(self, task: TaskId) -> None:
        if task in self.running:
            self.running.discard(task)
            self.surroundings.changelogs[task].stop(self.surroundings.now_ms)
            self.host.positions[task] = self.surroundings.end(task)

    # ---- what its machine wants

    def release(self, task: TaskId, epoch: int) -> None:
        self.surroundings.after(self.surroundings.workload.speeds.commit_ms, lambda: self._released(task, epoch))

    def closed(self, task: TaskId, *, dropped: bool) -> None:
        self._stop(task)
        self.surroundings.history.now_does(task, self.host.name, None, self.surroundings.now_ms)

    def on_disk(self) -> dict[TaskId, int]:
        return self.host.unused()

    def rejoin(self) -> None:
        self.session = None
        self._join()

    def opened(self, task: TaskId, role: Role, epoch: int, ending: Ending | None) -> None:
        around = self.surroundings
        if around.is_stateful(task):
            self.host.open(task)
        doing = {Role.ACTIVE: Doing.RESTORE, Role.LEARNER: Doing.LEARN, Role.STANDBY: Doing.STAND_BY}[role]
        around.history.now_does(task, self.host.name, doing, around.now_ms)
        if role is Role.ACTIVE:
            # The last records are a poll away; what is more is read in the steps of the host.
            around.after(around.workload.speeds.message_ms, lambda: self._catch_up(task))
        else:
            self.progress(task)

    def _catch_up(self, task: TaskId) -> None:
        """A warm copy reads its last records at once, as far as one step's budget goes."""
        holding = self.machine.held.get(task)
        if holding is None or holding.state is not Held.STARTING or not self.alive:
            return
        if self.surroundings.is_stateful(task) and task not in self.host.downloads:
            lag = self.surroundings.end(task) - self.host.positions[task]
            speeds = self.surroundings.workload.speeds
            if lag * speeds.record_bytes <= speeds.restore_bytes * STEP_MS // 1000:
                self.host.positions[task] += lag
                self.surroundings.history.restored_bytes += lag * speeds.record_bytes
        self._begin(task)

    def _released(self, task: TaskId, epoch: int) -> None:
        """The batch is finished and committed."""
        holding = self.machine.held.get(task)
        if holding is None or holding.state is not Held.RELEASING or holding.epoch != epoch:
            return
        self._stop(task)
        now = self.surroundings.now_ms
        self.surroundings.history.now_does(task, self.host.name, None, now)
        self.receive(mem.ReleaseDone(task, now, self.host.positions.get(task, 0), now))
