"""Where standbys belong: the last part of the learner assignor (placement.py), in the same way pure.

One rule: never beside another copy of the task in one instance; kept where they are while that holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from orchestrator.model import TaskId
from orchestrator.names import natural
from orchestrator.placement_view import STEP, Ranked

if TYPE_CHECKING:
    from orchestrator.placement import Placing


def place_standbys(placing: Placing) -> Iterator[None]:
    """(1) On hosts with room, never beside another copy, spread over zones; (2) a former owner keeps its copy."""
    wanted = placing.view.settings.standbys
    if wanted <= 0:
        return
    copies = dict.fromkeys(placing.hosts, 0)
    for member in (*placing.active.values(), *placing.learners.values()):
        copies[placing.host_of[member]] += 1
    tasks = [t for t in placing.order if placing.view.tasks[t].stateful and t in placing.active]
    for number, task in enumerate(tasks):
        if number % STEP == 0:
            yield
        _keep_standbys(placing, task, wanted, copies)
    if not placing.staying:
        return
    emptiest: dict[str, list[Ranked]] = {}  # of each zone
    for host in placing.staying:
        entry = (copies[host] / placing.capacity[host], placing.rank[host], host)
        emptiest.setdefault(placing.zone(host), []).append(entry)
    for heap in emptiest.values():
        heapify(heap)
    for number, task in enumerate(tasks):
        if number % STEP == 0:
            yield
        _new_standbys(placing, task, wanted, copies, emptiest)


def _taken(placing: Placing, task: TaskId) -> set[str]:
    members = [placing.active.get(task), placing.learners.get(task), *placing.standbys.get(task, [])]
    return {placing.host_of[m] for m in members if m is not None}


def _keep_standbys(placing: Placing, task: TaskId, wanted: int, copies: dict[str, int]) -> None:
    current = placing.view.standbys.get(task, {})
    for member in sorted(current, key=lambda m: (current[m], natural(m))):
        host = placing.host_of.get(member)
        if host is None or host in placing.leaving or host in _taken(placing, task):
            continue
        if len(placing.standbys.get(task, [])) < wanted:
            placing.standbys.setdefault(task, []).append(member)
            copies[host] += 1


def _new_standbys(
    placing: Placing, task: TaskId, wanted: int, copies: dict[str, int], emptiest: dict[str, list[Ranked]]
) -> None:
    # A learner will soon leave its slot to the former owner: it counts as one of the copies meanwhile.
    missing = wanted - len(placing.standbys.get(task, [])) - (1 if task in placing.learners else 0)
    if missing <= 0:
        return
    former = placing.host_of.get(placing.view.active.get(task, ""))
    disks = placing.view.disk.get(task, {})
    for _ in range(missing):
        taken = _taken(placing, task)
        zones = {placing.zone(h) for h in taken}
        if placing.mixed:
            taken |= {h for h in placing.staying if not placing.able(h, task)}
        hosts = {h for h in (former, *disks) if h in placing.rank and h not in placing.leaving and h not in taken}
        hosts.update(h for heap in emptiest.values() if (h := _emptiest(placing, heap, taken, copies)))
        best: tuple[bool, bool, bool, float, int, str] | None = None
        for host in hosts:
            zone = placing.zone(host)
            key = (zone != "" and zone in zones, host != former, host not in disks)
            entry = (*key, copies[host] / placing.capacity[host], placing.rank[host], host)
            best = min(best, entry) if best else entry
        if best is None:
            return
        host = best[5]
        placing.standbys.setdefault(task, []).append(placing.least_worker(host, task))
        copies[host] += 1
        heappush(emptiest[placing.zone(host)], (copies[host] / placing.capacity[host], placing.rank[host], host))


def _emptiest(placing: Placing, heap: list[Ranked], taken: set[str], copies: dict[str, int]) -> str | None:
    """The host of a zone with the fewest copies for its size, that is not taken."""
    aside: list[Ranked] = []
    found = None
    while heap and found is None:
        key, _, host = heap[0]
        if key != copies[host] / placing.capacity[host]:
            heappop(heap)  # it has got more since
        elif host in taken:
            aside.append(heappop(heap))
        else:
            found = host
    for entry in aside:
        heappush(heap, entry)
    return found
