"""Where standbys belong: the last part of the learner assignor (task_assignor/assign.py), in the same way pure.

One rule: never beside another copy of the task in one instance; kept where they are while that holds, until one that
restores on an emptier instance has caught up.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from orchestrator.model import TaskId
from orchestrator.names import natural
from orchestrator.task_assignor.builder import AssignmentBuilder
from orchestrator.task_assignor.view import FAR, STEP, Ranked


def assign_standbys(builder: AssignmentBuilder) -> Iterator[None]:
    """(1) On hosts with room, never beside another copy, spread over zones; (2) a former owner keeps its copy; (3) spread
    over instances that joined later, once no task moves through a learner."""
    wanted = builder.view.settings.standbys
    if wanted <= 0:
        return
    copies = dict.fromkeys(builder.hosts, 0)
    for member in (*builder.active.values(), *builder.learners.values()):
        copies[builder.host_of[member]] += 1
    tasks = [t for t in builder.order if builder.view.tasks[t].stateful and t in builder.active]
    for number, task in enumerate(tasks):
        if number % STEP == 0:
            yield
        _keep_standbys(builder, task, wanted, copies)
    if not builder.staying:
        return
    emptiest: dict[str, list[Ranked]] = {}  # of each zone
    for host in builder.staying:
        entry = (copies[host] / builder.capacity[host], builder.rank[host], host)
        emptiest.setdefault(builder.zone(host), []).append(entry)
    for heap in emptiest.values():
        heapify(heap)
    for number, task in enumerate(tasks):
        if number % STEP == 0:
            yield
        _new_standbys(builder, task, wanted, copies, emptiest)
    yield from _spread(builder, tasks, wanted, copies)


def _taken(builder: AssignmentBuilder, task: TaskId) -> set[str]:
    members = [builder.active.get(task), builder.learners.get(task), *builder.standbys.get(task, [])]
    return {builder.host_of[m] for m in members if m is not None}


def _keep_standbys(builder: AssignmentBuilder, task: TaskId, wanted: int, copies: dict[str, int]) -> None:
    current = builder.view.standbys.get(task, {})
    for member in sorted(current, key=lambda m: (current[m], natural(m))):
        host = builder.host_of.get(member)
        if host is None or host in builder.leaving or host in _taken(builder, task):
            continue
        if len(builder.standbys.get(task, [])) < wanted:
            builder.standbys.setdefault(task, []).append(member)
            copies[host] += 1


def _new_standbys(
    builder: AssignmentBuilder, task: TaskId, wanted: int, copies: dict[str, int], emptiest: dict[str, list[Ranked]]
) -> None:
    # A learner will soon leave its slot to the former owner: it counts as one of the copies meanwhile.
    missing = wanted - len(builder.standbys.get(task, [])) - (1 if task in builder.learners else 0)
    if missing <= 0:
        return
    former = builder.host_of.get(builder.view.active.get(task, ""))
    disks = builder.view.disk.get(task, {})
    for _ in range(missing):
        taken = _taken(builder, task)
        zones = {builder.zone(h) for h in taken}
        if builder.mixed:
            taken |= {h for h in builder.staying if not builder.able(h, task)}
        hosts = {h for h in (former, *disks) if h in builder.rank and h not in builder.leaving and h not in taken}
        hosts.update(h for heap in emptiest.values() if (h := _emptiest(builder, heap, taken, copies)))
        best: tuple[bool, bool, bool, float, int, str] | None = None
        for host in hosts:
            zone = builder.zone(host)
            key = (zone != "" and zone in zones, host != former, host not in disks)
            entry = (*key, copies[host] / builder.capacity[host], builder.rank[host], host)
            best = min(best, entry) if best else entry
        if best is None:
            return
        host = best[5]
        builder.standbys.setdefault(task, []).append(builder.least_worker(host, task))
        copies[host] += 1
        heappush(emptiest[builder.zone(host)], (copies[host] / builder.capacity[host], builder.rank[host], host))


def _emptiest(builder: AssignmentBuilder, heap: list[Ranked], taken: set[str], copies: dict[str, int]) -> str | None:
    """The host of a zone with the fewest copies for its size, that is not taken."""
    set_aside: list[Ranked] = []
    found = None
    while heap and found is None:
        key, _, host = heap[0]
        if key != copies[host] / builder.capacity[host]:
            heappop(heap)  # it has got more since
        elif host in taken:
            set_aside.append(heappop(heap))
        else:
            found = host
    for entry in set_aside:
        heappush(heap, entry)
    return found


def _spread(builder: AssignmentBuilder, tasks: list[TaskId], wanted: int, copies: dict[str, int]) -> Iterator[None]:
    """Standbys go from hosts with many copies to those with few while they differ by more than the balancing factor, and out of
    zones that have another copy whatever these have. The new one restores beside the old one, which is let go when it has caught
    up. What is on its way comes first."""
    if builder.learners or len(builder.staying) < 2:
        return
    restoring = dict.fromkeys(builder.staying, 0)
    for task in tasks:
        kept = builder.standbys.get(task, [])
        coming = builder.view.standbys.get(task, {})
        if len(coming) > len(kept) == wanted and coming.keys() >= set(kept):
            for member in sorted(coming, key=natural):
                host = builder.host_of.get(member)
                new = host in restoring and member not in kept
                if new and host and (former := _former(builder, task, host, copies)):
                    _replace(builder, task, former, member, copies, restoring)
                    break
    heap = [(_after(builder, h, copies), builder.rank[h], h) for h in builder.staying if h not in builder.silent]
    heapify(heap)
    open_zones = _open_zones(builder, restoring)
    for number, task in enumerate(tasks):
        if number % STEP == 0:
            yield
        kept = builder.standbys.get(task, [])
        if len(kept) != wanted or not builder.view.standbys.get(task, {}).keys() >= set(kept):
            continue  # those that it misses restore first
        if len(open_zones) > 1 and _part(builder, task, copies, restoring, open_zones):
            continue
        if fullest := _fullest(builder, task, copies):
            _spread_one(builder, task, fullest, copies, restoring, heap)


def _open_zones(builder: AssignmentBuilder, restoring: dict[str, int]) -> dict[str, set[str]]:
    """The hosts of each zone on which one more copy may restore; a zone stays where none of them is left."""
    zones: dict[str, set[str]] = {}
    for host in builder.staying:
        if builder.zone(host) and host not in builder.silent:
            hosts = zones.setdefault(builder.zone(host), set())
            if restoring[host] < builder.view.settings.max_learners_per_instance:
                hosts.add(host)
    return zones


def _part(
    builder: AssignmentBuilder,
    task: TaskId,
    copies: dict[str, int],
    restoring: dict[str, int],
    open_zones: dict[str, set[str]],
) -> bool:
    """A standby in a zone that has another copy of the task goes to the emptiest host of a zone that has none, if there is one."""
    taken = _taken(builder, task)
    zones = {builder.zone(host) for host in taken}
    if len(zones) == len(taken) or zones >= open_zones.keys():
        return False
    former = _sharing(builder, task, copies)
    if former is None:
        return False
    others = _zones_beside(builder, task, former)
    hosts = [
        host
        for zone, there in open_zones.items()
        if zone not in others
        for host in there
        if host not in taken and builder.able(host, task)
    ]
    if not hosts:
        return False
    host = min(hosts, key=lambda h: (copies[h] / builder.capacity[h], builder.rank[h]))
    _replace(builder, task, former, builder.least_worker(host, task), copies, restoring)
    if restoring[host] >= builder.view.settings.max_learners_per_instance:
        open_zones[builder.zone(host)].discard(host)
    return True


def _spread_one(
    builder: AssignmentBuilder,
    task: TaskId,
    fullest: str,
    copies: dict[str, int],
    restoring: dict[str, int],
    heap: list[Ranked],
) -> None:
    """A standby of the task goes to the emptiest host that may have it, if any should."""
    set_aside: list[Ranked] = []
    while heap:
        key, _, host = heap[0]
        if key != _after(builder, host, copies):
            heappop(heap)  # it has got more, or less, since
            heappush(heap, (_after(builder, host, copies), builder.rank[host], host))
        elif not _is_above(builder, fullest, host, copies):
            break  # nor is any other host so empty
        elif restoring[host] < builder.view.settings.max_learners_per_instance and _may_come(
            builder, task, fullest, host, copies
        ):
            _replace(builder, task, fullest, builder.least_worker(host, task), copies, restoring)
            break
        else:
            set_aside.append(heappop(heap))
    for entry in set_aside:
        heappush(heap, entry)


def _after(builder: AssignmentBuilder, host: str, copies: dict[str, int]) -> float:
    """How full a host is with as many more as make a move worth while."""
    return (copies[host] + max(1, builder.view.settings.balancing_factor)) / builder.capacity[host]


def _fullest(builder: AssignmentBuilder, task: TaskId, copies: dict[str, int], *, sharing: bool = False) -> str | None:
    """The member whose host has the most copies for its size, of those that keep a standby of the task already; of those alone that
    are `sharing` their zone with another copy."""
    there = builder.view.standbys.get(task, {})
    kept = [
        (member, builder.host_of[member])
        for member in builder.standbys.get(task, ())
        if member in there and (not sharing or _shares(builder, task, member))
    ]
    fullest = max(kept, key=lambda m: (copies[m[1]] / builder.capacity[m[1]], builder.rank[m[1]]), default=None)
    return None if fullest is None else fullest[0]


def _sharing(builder: AssignmentBuilder, task: TaskId, copies: dict[str, int]) -> str | None:
    return _fullest(builder, task, copies, sharing=True)


def _shares(builder: AssignmentBuilder, task: TaskId, member: str) -> bool:
    zone = builder.zone(builder.host_of[member])
    return zone != "" and zone in _zones_beside(builder, task, member)


def _zones_beside(builder: AssignmentBuilder, task: TaskId, member: str) -> set[str]:
    """The zones of the other copies of a task."""
    return {builder.zone(h) for h in _taken(builder, task) - {builder.host_of[member]}}


def _former(builder: AssignmentBuilder, task: TaskId, host: str, copies: dict[str, int]) -> str | None:
    """The member whose standby is to be the host's, if any is."""
    for former in (_sharing(builder, task, copies), _fullest(builder, task, copies)):
        if former is not None and _may_come(builder, task, former, host, copies):
            return former
    return None


def _is_above(builder: AssignmentBuilder, member: str, host: str, copies: dict[str, int]) -> bool:
    donor = builder.host_of[member]
    return copies[donor] / builder.capacity[donor] > _after(builder, host, copies)


def _may_come(builder: AssignmentBuilder, task: TaskId, former: str, host: str, copies: dict[str, int]) -> bool:
    """Whether the host can have it, no zone gets a second copy by it, and the move is worth while."""
    if host in builder.silent or host in _taken(builder, task) or not builder.able(host, task):
        return False
    others, zone = _zones_beside(builder, task, former), builder.zone(host)
    parts = zone != "" and _shares(builder, task, former)
    return (zone == "" or zone not in others) and (parts or _is_above(builder, former, host, copies))


def _replace(
    builder: AssignmentBuilder,
    task: TaskId,
    former: str,
    member: str,
    copies: dict[str, int],
    restoring: dict[str, int],
) -> None:
    """`member` is to have the standby of `former`; until it has caught up both have it."""
    host = builder.host_of[member]
    copies[builder.host_of[former]] -= 1
    copies[host] += 1
    lag = builder.view.standbys.get(task, {}).get(member, FAR)
    if lag <= builder.view.settings.acceptable_recovery_lag:
        builder.standbys[task].remove(former)
    else:
        restoring[host] += 1
    builder.standbys[task].append(member)
