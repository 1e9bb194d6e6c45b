"""The state of one run of the task assignor: loads, budgets, and the choices for active tasks and learners.

One rule: smooth transition before balance, and load counts a task at its learner, where it has one. The numbers in the
comments are those of the learner-task seed. The order of the phases is in assign.py; balance.py and
standbys.py work on this state, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heapreplace

from orchestrator.model import Protocol, TaskId
from orchestrator.names import natural
from orchestrator.task_assignor.view import FAR, STEP, Ranked, View


class AssignmentBuilder:
    """Working state of one run of the task assignor. Load counts a task at its learner, where it has one: that is where it goes."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.order = sorted(view.tasks)
        self.weight: dict[TaskId, int] = {}
        self.host_of = {name: member.instance for name, member in view.members.items()}
        self.workers: dict[str, list[str]] = {}
        for name in sorted(view.members, key=natural):
            self.workers.setdefault(self.host_of[name], []).append(name)
        self.hosts = sorted(self.workers, key=natural)
        self.rank = {host: index for index, host in enumerate(self.hosts)}
        self.capacity = {h: max(1, sum(max(1, view.members[m].capacity) for m in self.workers[h])) for h in self.hosts}
        leaving = {view.members[name].instance for name in view.members if view.members[name].leaving}
        self.silent = {h for h in self.hosts if view.silent.issuperset(self.workers[h])} if view.silent else set[str]()
        self.staying = [host for host in self.hosts if host not in leaving] or self._last_to_leave()
        self.leaving = leaving.difference(self.staying)
        self.load = dict.fromkeys(self.hosts, 0)
        self.worker_load = dict.fromkeys(view.members, 0)
        self.active: dict[TaskId, str] = {}
        self.reassigned: set[TaskId] = set()  # other than by staying where they are
        self.learners: dict[TaskId, str] = {}
        self.standbys: dict[TaskId, list[str]] = {}
        self.restoring = dict.fromkeys(self.hosts, 0)
        self.cold: list[TaskId] = []
        self.spent: list[Ranked] = []  # light hosts that have no learner budget left
        self.even = len(set(self.capacity.values())) == 1
        self.mixed = any(member.knows is not None for member in view.members.values())
        self.direct = view.protocol is not Protocol.LEARNER

    def _last_to_leave(self) -> list[str]:
        """Every instance leaves, and one always stays: the one that has and learns the most, of those that can be reached."""
        load = dict.fromkeys(self.hosts, 0)
        learning = ((task, learner.member) for task, learner in self.view.learners.items())
        for task, member in (*self.view.active.items(), *learning):
            if member in self.host_of and task in self.view.tasks:
                load[self.host_of[member]] += self.view.tasks[task].weight
        return self.hosts and [min(self.hosts, key=lambda h: (h in self.silent, -load[h], self.rank[h]))]

    # ---- active

    def assign_actives(self) -> Iterator[None]:
        """Seed rules 1 to 3 of the active tasks; what has no copy anywhere is left for assign_cold."""
        tasks, owners, learners, members = self.view.tasks, self.view.active, self.view.learners, self.view.members
        view = self.view
        unheard_of = not (learners or view.former or view.standbys or view.disk or view.reserved)  # a fresh group
        for number, task in enumerate(self.order):
            if number % STEP == 0:
                yield
            weight = self.weight[task] = max(1, tasks[task].weight)
            owner = owners.get(task)
            if owner is not None and owner in members and task not in learners:  # by far the most
                self.active[task] = owner
                self.load[self.host_of[owner]] += weight
                self.worker_load[owner] += weight
            elif unheard_of and owner is None:
                self.cold.append(task)
            else:
                self._assign_active(task, owner)

    def _assign_active(self, task: TaskId, owner: str | None) -> None:
        view = self.view
        learner = view.learners.get(task)
        if learner is not None and learner.member not in view.members:
            learner = None
        here = learner is not None and learner.member not in view.silent
        if learner and learner.ready and here and self.host_of[learner.member] not in self.leaving:
            self._own(task, learner.member)  # (1) a ready learner takes over
        elif owner is not None and owner in view.members:
            self._own(task, owner)  # (2) the previous owner
        elif task in view.reserved:
            return
        elif (back := self._returning(task)) is not None:
            self._own(task, back)  # static membership: a bounce moves nothing
        elif (copy := self._best_copy(task, learner.member if learner else None)) is not None:
            self._own(task, copy)  # (3) it has no owner: a warm copy, else the copy with the least lag
        else:
            self.cold.append(task)

    def assign_cold(self) -> Iterator[None]:
        """(4) To members with room: the least loaded host, ties by name. After learners are counted."""
        if self.mixed:
            for task in self.cold:
                self._assign_to_able(task)
            return
        hosts = [h for h in self.staying if h not in self.silent] or self.staying or self.hosts
        heap = [(self.load[h] / self.capacity[h], self.rank[h], h) for h in hosts]
        heapify(heap)
        for number, task in enumerate(self.cold, 1):
            if number % STEP == 0:
                yield
            _, rank, host = heap[0]
            self._own(task, self.least_worker(host, task))
            heapreplace(heap, (self.load[host] / self.capacity[host], rank, host))

    def _assign_to_able(self, task: TaskId) -> None:
        """Versions of the app differ: the least loaded of the hosts that have the task; None where none has it."""
        able = [h for h in self.staying if self.able(h, task)] or [h for h in self.hosts if self.able(h, task)]
        if able:
            host = min(able, key=lambda h: (h in self.silent, self.load[h] / self.capacity[h], self.rank[h]))
            self._own(task, self.least_worker(host, task))

    def able(self, host: str, task: TaskId) -> bool:
        """Whether a worker of the host has a version of the app with this task."""
        return not self.mixed or any(self._knows(m, task) for m in self.workers[host])

    def _knows(self, member: str, task: TaskId) -> bool:
        knows = self.view.members[member].knows
        return knows is None or task in knows

    def _returning(self, task: TaskId) -> str | None:
        former = self.view.former.get(task)
        member = self.view.members.get(former) if former else None
        if member is None or member.instance in self.leaving or not self._knows(member.name, task):
            return None
        has_state = not self.view.tasks[task].stateful or member.instance in self.view.disk.get(task, {})
        return member.name if has_state else None

    def _best_copy(self, task: TaskId, learner: str | None) -> str | None:
        """One that is close enough to the end to take over now, as a ready learner is; else, on hosts that stay before
        leaving ones, the least lag. Of those alike the learner goes first, then standbys, then state on disk. What cannot
        be reached comes last."""
        view = self.view
        close = view.settings.acceptable_recovery_lag
        best: list[tuple[bool, bool, bool, int, int, int, str]] = []  # the least one is taken

        def add(kind: int, lag: int, member: str) -> None:
            host, silent = self.host_of[member], member in view.silent
            best.append((silent, lag > close, host in self.leaving, lag, kind, self.rank[host], member))

        if learner is not None:
            add(0, view.learner_lags.get(task, close + 1), learner)
        for member, lag in view.standbys.get(task, {}).items():
            if member in view.members:
                add(1, lag, member)
        for host, lag in view.disk.get(task, {}).items():
            if learner is not None and self.host_of[learner] == host:
                add(0, lag, learner)  # its instance's folder is the one that it has open
            elif host in self.rank and self.able(host, task):
                add(2, lag, self.least_worker(host, task))
        return min(best)[-1] if best else None

    def _own(self, task: TaskId, member: str) -> None:
        self.active[task] = member
        self.reassigned.add(task)
        self._count(task, member, +1)

    def _count(self, task: TaskId, member: str, sign: int) -> None:
        weight = sign * self.weight[task]
        self.load[self.host_of[member]] += weight
        self.worker_load[member] += weight

    def zone(self, host: str) -> str:
        return self.view.members[self.workers[host][0]].zone

    def least_worker(self, host: str, task: TaskId) -> str:
        workers = [m for m in self.workers[host] if self._knows(m, task)] if self.mixed else self.workers[host]
        if len(workers) == 1:
            return workers[0]
        silent = self.view.silent
        return min(
            workers,
            key=lambda m: (m in silent, self.worker_load[m] / max(1, self.view.members[m].capacity), natural(m)),
        )

    # ---- learners

    def keep_learners(self) -> None:
        """(1) Current learners stay until finished, wherever balance has gone meanwhile; not on leaving hosts."""
        if self.direct:
            return
        for task, learner in sorted(self.view.learners.items(), key=lambda item: item[0]):
            if learner.member not in self.view.members or task not in self.view.tasks:
                continue
            host = self.host_of[learner.member]
            owner = self.active.get(task)
            if host in self.leaving or owner == learner.member or (task, host) in self.view.given_up:
                continue
            self._learn(task, learner.member, learner.ready)

    def _learn(self, task: TaskId, member: str, ready: bool) -> None:
        self.learners[task] = member
        self._count(task, member, +1)
        if task in self.active:
            self._count(task, self.active[task], -1)
        if not ready:
            self.restoring[self.host_of[member]] += 1

    def move(self, task: TaskId, host: str) -> None:
        """Begin to move a task to `host`: through a learner, or at once where nothing has to be restored."""
        standby = [m for m in self.view.standbys.get(task, {}) if self.host_of.get(m) == host]
        member = min(standby, key=natural) if standby else self.least_worker(host, task)
        if self.direct or not self.view.tasks[task].stateful:
            self._count(task, self.active[task], -1)
            self._own(task, member)
        else:
            self._learn(task, member, False)

    def funded(self, task: TaskId, host: str) -> bool:
        """Whether `host` may begin to learn `task`: it can be reached, it knows the task, budget left, not given up there; and it
        is not about to hand it over."""
        if host in self.silent or (task, host) in self.view.given_up or not self.able(host, task):
            return False
        owner = self.view.active.get(task)
        if owner is not None and self.active.get(task) != owner and self.host_of.get(owner) == host:
            return False
        return self.is_free(task) or self.has_budget(host)

    def is_free(self, task: TaskId) -> bool:
        """Whether the task moves without a learner."""
        return self.direct or not self.view.tasks[task].stateful

    def has_budget(self, host: str) -> bool:
        return self.restoring[host] < self.view.settings.max_learners_per_instance

    def has_copy(self, task: TaskId, host: str) -> bool:
        """A standby or state on disk (4): restoring there is short."""
        if any(self.host_of.get(m) == host for m in self.view.standbys.get(task, {})):
            return True
        return host in self.view.disk.get(task, {})

    def _is_close(self, task: TaskId, host: str) -> bool:
        """Whether a standby there could take over now: room is made afterwards, and the leaver does not wait for a restore.
        State that only lies on a disk was not put there for that, and would cost a second move for nothing."""
        lags = (lag for m, lag in self.view.standbys.get(task, {}).items() if self.host_of.get(m) == host)
        return min(lags, default=FAR) <= self.view.settings.acceptable_recovery_lag

    def copy_hosts(self, task: TaskId) -> list[str]:
        """Hosts with a standby, or with state on disk, by name."""
        hosts = {self.host_of[m] for m in self.view.standbys.get(task, ()) if m in self.host_of}
        hosts.update(host for host in self.view.disk.get(task, ()) if host in self.rank)
        return sorted(hosts, key=self.rank.__getitem__)

    def empty_leavers(self) -> Iterator[None]:
        """(2) Tasks of leaving instances always get a learner: dealt in task order to a host with a copy and room,
        else to the first by name with room, else to the least loaded."""
        if not self.leaving:
            return
        tasks = [
            t for t in self.order if t in self.active and t not in self.learners and self._on_leaver(self.active[t])
        ]
        if not tasks:
            return
        yield
        room = self._room()
        # Hosts that are full, or have no budget left, are not looked at again.
        roomy = [h for h in self.staying if room[h] > 0]
        able = [h for h in self.staying if self.has_budget(h)]
        roomy_able = [h for h in roomy if self.has_budget(h)]
        for number, task in enumerate(tasks, 1):
            if number % STEP == 0:
                yield
            free = self.is_free(task)
            host = self._deal(task, room, self.staying if free else able, roomy if free else roomy_able)
            if host is None:
                continue
            room[host] -= self.weight[task]
            self.move(task, host)
            if room[host] <= 0:
                _remove(roomy, host)
                _remove(roomy_able, host)
            if not self.has_budget(host):
                _remove(able, host)
                _remove(roomy_able, host)

    def _deal(self, task: TaskId, room: dict[str, int], hosts: list[str], roomy: list[str]) -> str | None:
        """Where a leaver's task goes: `hosts` may take it, `roomy` are those of them that are not full."""
        weight = self.weight[task]
        if not hosts:
            return None
        with_room = next((h for h in roomy if room[h] >= weight and self.funded(task, h)), None)
        copies = [h for h in self.copy_hosts(task) if h not in self.leaving and self.funded(task, h)]
        for host in copies:
            if with_room is None or room[host] >= weight:
                return host
        if warm := [h for h in copies if self._is_close(task, h)]:
            return min(warm, key=lambda h: (self.load[h] / self.capacity[h], self.rank[h]))
        if with_room is not None:
            return with_room
        funded = [h for h in hosts if self.funded(task, h)]
        return min(funded, key=lambda h: (self.load[h] / self.capacity[h], self.rank[h])) if funded else None

    def _on_leaver(self, member: str) -> bool:
        return self.host_of[member] in self.leaving

    def _room(self) -> dict[str, int]:
        """How much more each staying host may take: its share of all load, the slots that do not divide evenly with
        the fullest hosts, ties with the last by name."""
        total = sum(self.load.values())
        capacity = sum(self.capacity[h] for h in self.staying)
        quota = {h: total * self.capacity[h] // capacity for h in self.staying}
        fullest = sorted(self.staying, key=lambda h: (-self.load[h] / self.capacity[h], -self.rank[h]))
        left = total - sum(quota.values())
        while left > 0:
            for host in fullest[:left]:
                quota[host] += 1
            left -= min(left, len(fullest))
        return {h: quota[h] - self.load[h] for h in self.staying}

    def balance_workers(self) -> None:
        """Within an instance the workers share its state directory: a move needs no learner. What is on its way to one
        of them goes there first: it is open there, and ready."""
        shared: dict[str, list[TaskId]] = {h: [] for h in self.hosts if len(self.workers[h]) > 1}
        if not shared:
            return
        for task in self.order:
            owner = self.active.get(task)
            at_rest = self.view.active.get(task) == owner and task not in self.learners and task not in self.view.moving
            if owner is not None and at_rest and (host := self.host_of[owner]) in shared:
                shared[host].append(task)
        for host, tasks in shared.items():
            for task in tasks:
                source = self.active[task]
                target = self.least_worker(host, task)
                factor = max(1, self.view.settings.balancing_factor) * self.weight[task]
                left = self.worker_load[source] * max(1, self.view.members[target].capacity)
                if target != source and left > (self.worker_load[target] + factor) * max(
                    1, self.view.members[source].capacity
                ):
                    self._count(task, source, -1)
                    self._own(task, target)


def _remove(hosts: list[str], host: str) -> None:
    if host in hosts:
        hosts.remove(host)
