"""Where standbys belong: the last part of the learner assignor (task_assignor/assign.py), in the same way pure.

One rule: never beside another copy of the task in one instance; kept where they are while that holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from orchestrator.model import TaskId
from orchestrator.names import natural
from orchestrator.task_assignor.builder import AssignmentBuilder
from orchestrator.task_assignor.view import STEP, Ranked


def assign_standbys(builder: AssignmentBuilder) -> Iterator[None]:
    """(1) On hosts with room, never beside another copy, spread over zones; (2) a former owner keeps its copy."""
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
