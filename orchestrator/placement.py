"""The learner assignor: where tasks belong. A pure function of tasks, members, copies and settings.

One rule: smooth transition before balance (learner-task seed, version 1.0). The order is active, learner, standby;
the numbers in the comments are those of the seed. How the group gets there safely is not decided here (group.py).
The eager and cooperative protocols use the same choices, only without a learner in between.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from orchestrator.model import Protocol, TaskId
from orchestrator.names import natural
from orchestrator.placement_view import Plan, View


def place(view: View) -> Plan:
    """Where every task belongs now. Deterministic; the identity when nothing is to be improved."""
    if not view.members:
        return Plan({}, {}, {})
    placing = _Placing(view)
    placing.place_actives()
    placing.keep_learners()
    placing.place_cold()
    placing.empty_leavers()
    placing.balance_hosts()
    placing.balance_workers()
    placing.place_standbys()
    return Plan(
        placing.active,
        placing.learners,
        {task: tuple(sorted(members)) for task, members in sorted(placing.standbys.items()) if members},
    )


class _Placing:
    """Working state of one placement. Load counts a task at its learner, where it has one: that is where it goes."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.order = sorted(view.tasks)
        self.weight = {task: max(1, view.tasks[task].weight) for task in self.order}
        self.host_of = {name: member.instance for name, member in view.members.items()}
        self.workers: dict[str, list[str]] = {}
        for name in sorted(view.members, key=natural):
            self.workers.setdefault(self.host_of[name], []).append(name)
        self.hosts = sorted(self.workers, key=natural)
        self.rank = {host: index for index, host in enumerate(self.hosts)}
        self.capacity = {h: max(1, sum(max(1, view.members[m].capacity) for m in self.workers[h])) for h in self.hosts}
        leaving = {view.members[name].instance for name in view.members if view.members[name].leaving}
        self.staying = [host for host in self.hosts if host not in leaving]
        self.leaving = leaving if self.staying else set()
        self.load = dict.fromkeys(self.hosts, 0)
        self.worker_load = dict.fromkeys(view.members, 0)
        self.active: dict[TaskId, str] = {}
        self.learners: dict[TaskId, str] = {}
        self.standbys: dict[TaskId, list[str]] = {}
        self.restoring = dict.fromkeys(self.hosts, 0)
        self.cold: list[TaskId] = []
        self.mixed = any(member.knows is not None for member in view.members.values())
        self.direct = view.protocol is not Protocol.LEARNER

    # ---- active

    def place_actives(self) -> None:
        """Seed rules 1 to 3 of the active tasks; what has no copy anywhere is left for place_cold."""
        view = self.view
        for task in self.order:
            learner = view.learners.get(task)
            owner = view.active.get(task)
            if learner is not None and learner.member not in view.members:
                learner = None
            if learner and learner.ready and self.host_of[learner.member] not in self.leaving:
                self._own(task, learner.member)  # (1) a ready learner takes over
            elif owner is not None and owner in view.members:
                self._own(task, owner)  # (2) the previous owner
            elif task in view.reserved:
                continue
            elif (back := self._returning(task)) is not None:
                self._own(task, back)  # static membership: a bounce moves nothing
            elif learner is not None:
                self._own(task, learner.member)  # (3) nobody runs it: the learner, ready or not
            elif (copy := self._best_copy(task)) is not None:
                self._own(task, copy)
            else:
                self.cold.append(task)

    def place_cold(self) -> None:
        """(4) To members with room: the least loaded host, ties by name. After learners are counted."""
        if self.mixed:
            for task in self.cold:
                self._place_with_able(task)
            return
        hosts = self.staying or self.hosts
        heap = [(self.load[h] / self.capacity[h], self.rank[h], h) for h in hosts]
        heapify(heap)
        for task in self.cold:
            _, rank, host = heap[0]
            self._own(task, self._least_worker(host, task))
            heapreplace(heap, (self.load[host] / self.capacity[host], rank, host))

    def _place_with_able(self, task: TaskId) -> None:
        """Versions of the app differ: the least loaded of the hosts that have the task; nobody, where none has it."""
        able = [h for h in self.staying if self._able(h, task)] or [h for h in self.hosts if self._able(h, task)]
        if able:
            host = min(able, key=lambda h: (self.load[h] / self.capacity[h], self.rank[h]))
            self._own(task, self._least_worker(host, task))

    def _able(self, host: str, task: TaskId) -> bool:
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

    def _best_copy(self, task: TaskId) -> str | None:
        """Standbys by lag, then state on disk by lag; one on a leaving host only where there is no other."""
        best: list[tuple[bool, bool, int, int, str]] = []
        for member, lag in self.view.standbys.get(task, {}).items():
            if member in self.view.members:
                host = self.host_of[member]
                best.append((host in self.leaving, False, lag, self.rank[host], member))
        for host, lag in self.view.disk.get(task, {}).items():
            if host in self.rank and self._able(host, task):
                best.append((host in self.leaving, True, lag, self.rank[host], self._least_worker(host, task)))
        return min(best)[4] if best else None

    def _own(self, task: TaskId, member: str) -> None:
        self.active[task] = member
        self._count(task, member, +1)

    def _count(self, task: TaskId, member: str, sign: int) -> None:
        weight = sign * self.weight[task]
        self.load[self.host_of[member]] += weight
        self.worker_load[member] += weight

    def _least_worker(self, host: str, task: TaskId) -> str:
        workers = [m for m in self.workers[host] if self._knows(m, task)] if self.mixed else self.workers[host]
        if len(workers) == 1:
            return workers[0]
        return min(workers, key=lambda m: (self.worker_load[m] / max(1, self.view.members[m].capacity), natural(m)))

    # ---- learners

    def keep_learners(self) -> None:
        """(1) Current learners stay until finished, wherever balance has gone meanwhile; not on leaving hosts."""
        if self.direct:
            return
        for task in self.order:
            learner = self.view.learners.get(task)
            if learner is None or learner.member not in self.view.members or task not in self.view.tasks:
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

    def _move(self, task: TaskId, host: str) -> None:
        """Begin to move a task to `host`: through a learner, or at once where nothing has to be restored."""
        standby = [m for m in self.view.standbys.get(task, {}) if self.host_of.get(m) == host]
        member = min(standby, key=natural) if standby else self._least_worker(host, task)
        if self.direct or not self.view.tasks[task].stateful:
            self._count(task, self.active[task], -1)
            self._own(task, member)
        else:
            self._learn(task, member, False)

    def _funded(self, task: TaskId, host: str) -> bool:
        """Whether `host` may begin to learn `task`: it knows it, budget left, not given up there."""
        if (task, host) in self.view.given_up or not self._able(host, task):
            return False
        if self.direct or not self.view.tasks[task].stateful:
            return True
        return self.restoring[host] < self.view.settings.max_learners_per_instance

    def _has_copy(self, task: TaskId, host: str) -> bool:
        """A standby or state on disk (4): restoring there is short."""
        if any(self.host_of.get(m) == host for m in self.view.standbys.get(task, {})):
            return True
        return host in self.view.disk.get(task, {})

    def empty_leavers(self) -> None:
        """(2) Tasks of leaving instances always get a learner: dealt in task order to a host with a copy and room,
        else to the first by name with room, else to the least loaded."""
        if not self.leaving:
            return
        tasks = [
            t for t in self.order if t in self.active and t not in self.learners and self._on_leaver(self.active[t])
        ]
        if not tasks:
            return
        room = self._room()
        for task in tasks:
            hosts = [h for h in self.staying if self._funded(task, h)]
            if not hosts:
                continue
            weight = self.weight[task]
            with_room = [h for h in hosts if room[h] >= weight]
            warm = [h for h in (with_room or hosts) if self._has_copy(task, h)]
            if warm:
                host = warm[0]
            elif with_room:
                host = with_room[0]
            else:
                host = min(hosts, key=lambda h: (self.load[h] / self.capacity[h], self.rank[h]))
            room[host] -= weight
            self._move(task, host)

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

    def balance_hosts(self) -> None:
        """(2) From heavy hosts to light ones while they differ by more than the balancing factor, (3) to a fixed
        point. The fullest donates first, ties first by name; it gives its lowest task; (4) copies attract."""
        if len(self.staying) < 2:
            return
        movable: dict[str, list[TaskId]] = {h: [] for h in self.staying}
        for task in reversed(self.order):
            owner = self.active.get(task)
            if owner is not None and task not in self.learners and self.host_of[owner] in movable:
                movable[self.host_of[owner]].append(task)
        donors = [(-self.load[h] / self.capacity[h], self.rank[h], h) for h in self.staying]
        receivers = [(self._after(h), self.rank[h], h) for h in self.staying]
        heapify(donors)
        heapify(receivers)
        while donors:
            key, _, donor = heappop(donors)
            if -key != self.load[donor] / self.capacity[donor] or not movable[donor]:
                if movable[donor]:
                    heappush(donors, (-self.load[donor] / self.capacity[donor], self.rank[donor], donor))
                continue
            found = self._choose_move(donor, movable[donor], receivers)
            if found is None:
                continue
            task, host = found
            movable[donor].remove(task)
            self._move(task, host)
            heappush(donors, (-self.load[donor] / self.capacity[donor], self.rank[donor], donor))
            heappush(receivers, (self._after(host), self.rank[host], host))
            heappush(receivers, (self._after(donor), self.rank[donor], donor))

    def _after(self, host: str) -> float:
        """How loaded a host is with one more: with unequal capacities the emptiest is not the best receiver."""
        return (self.load[host] + 1) / self.capacity[host]

    def _choose_move(
        self, donor: str, tasks: list[TaskId], receivers: list[tuple[float, int, str]]
    ) -> tuple[TaskId, str] | None:
        """The task (lowest last in `tasks`) and the receiver, or None where no move of this donor is worth it."""
        aside: list[tuple[float, int, str]] = []
        found: tuple[TaskId, str] | None = None
        while receivers and found is None:
            key, _, host = receivers[0]
            if key != self._after(host):
                heappop(receivers)
                continue
            if not self._worth(donor, host, self.weight[tasks[-1]], strict=False):
                break
            candidates = [
                t for t in reversed(tasks) if self._funded(t, host) and self._worth(donor, host, self.weight[t])
            ]
            if candidates:
                found = next((t for t in candidates if self._has_copy(t, host)), candidates[0]), host
            else:
                aside.append(heappop(receivers))
        for entry in aside:
            heappush(receivers, entry)
        if found is None or self._has_copy(*found):
            return found
        return self._warmer(donor, tasks) or found

    def _warmer(self, donor: str, tasks: list[TaskId]) -> tuple[TaskId, str] | None:
        """(4) A move to any light host that already has a copy goes before a cold one."""
        if not self.view.standbys and not self.view.disk:
            return None
        best: tuple[float, int, TaskId, str] | None = None
        for task in reversed(tasks):
            hosts = {self.host_of[m] for m in self.view.standbys.get(task, {}) if m in self.host_of}
            hosts |= {h for h in self.view.disk.get(task, {}) if h in self.rank}
            for host in sorted(hosts - self.leaving - {donor}, key=natural):
                if self._funded(task, host) and self._worth(donor, host, self.weight[task]):
                    entry = (self.load[host] / self.capacity[host], self.rank[host], task, host)
                    best = min(best, entry) if best else entry
        return (best[2], best[3]) if best else None

    def _worth(self, donor: str, host: str, weight: int, strict: bool = True) -> bool:
        """Whether moving `weight` leaves a real gain: the donor stays above the receiver by the balancing factor."""
        if donor == host:
            return False
        factor = max(1, self.view.settings.balancing_factor) if strict else 1
        least = weight if strict else 1
        return self.load[donor] * self.capacity[host] > (self.load[host] + factor * least) * self.capacity[donor]

    def balance_workers(self) -> None:
        """Within an instance the workers share its state directory: a move needs no learner."""
        for host in self.hosts:
            workers = self.workers[host]
            if len(workers) < 2:
                continue
            tasks = sorted(t for t, m in self.active.items() if self.host_of[m] == host and t not in self.learners)
            for task in tasks:
                source = self.active[task]
                target = self._least_worker(host, task)
                factor = max(1, self.view.settings.balancing_factor) * self.weight[task]
                left = self.worker_load[source] * max(1, self.view.members[target].capacity)
                if target != source and left > (self.worker_load[target] + factor) * max(
                    1, self.view.members[source].capacity
                ):
                    self._count(task, source, -1)
                    self._own(task, target)

    # ---- standbys

    def place_standbys(self) -> None:
        """(1) On hosts with room, never beside another copy, spread over zones; (2) a former owner keeps its copy."""
        wanted = self.view.settings.standbys
        if wanted <= 0:
            return
        copies = dict.fromkeys(self.hosts, 0)
        for task in self.order:
            for member in (self.active.get(task), self.learners.get(task)):
                if member is not None:
                    copies[self.host_of[member]] += 1
        for task in self.order:
            if self.view.tasks[task].stateful and task in self.active:
                self._keep_standbys(task, wanted, copies)
        for task in self.order:
            if self.view.tasks[task].stateful and task in self.active:
                self._new_standbys(task, wanted, copies)

    def _taken(self, task: TaskId) -> set[str]:
        members = [self.active.get(task), self.learners.get(task), *self.standbys.get(task, [])]
        return {self.host_of[m] for m in members if m is not None}

    def _keep_standbys(self, task: TaskId, wanted: int, copies: dict[str, int]) -> None:
        current = self.view.standbys.get(task, {})
        for member in sorted(current, key=lambda m: (current[m], natural(m))):
            host = self.host_of.get(member)
            if host is None or host in self.leaving or host in self._taken(task):
                continue
            if len(self.standbys.get(task, [])) < wanted:
                self.standbys.setdefault(task, []).append(member)
                copies[host] += 1

    def _new_standbys(self, task: TaskId, wanted: int, copies: dict[str, int]) -> None:
        # A learner will soon leave its slot to the former owner: it counts as one of the copies meanwhile.
        missing = wanted - len(self.standbys.get(task, [])) - (1 if task in self.learners else 0)
        former = self.view.active.get(task)
        for _ in range(missing):
            taken = self._taken(task)
            zones = {self.view.members[self.workers[h][0]].zone for h in taken}
            best: tuple[bool, bool, bool, float, int, str] | None = None
            for host in self.staying:
                if host in taken or not self._able(host, task):
                    continue
                zone = self.view.members[self.workers[host][0]].zone
                was_owner = former is not None and self.host_of.get(former) == host
                on_disk = host in self.view.disk.get(task, {})
                key = (zone != "" and zone in zones, not was_owner, not on_disk)
                entry = (*key, copies[host] / self.capacity[host], self.rank[host], host)
                best = min(best, entry) if best else entry
            if best is None:
                return
            host = best[5]
            self.standbys.setdefault(task, []).append(self._least_worker(host, task))
            copies[host] += 1
