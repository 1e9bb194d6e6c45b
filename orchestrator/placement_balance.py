"""From heavy hosts to light ones: the part of the learner assignor (placement.py) that balances, in the same way pure.

One rule: a move is made only where its donor stays above its receiver by the balancing factor, so that there is a
fixed point. Donors and receivers are heaps whose entries are checked when they come up, not searched when they change.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from orchestrator.model import TaskId
from orchestrator.placement_view import STEP, Ranked

if TYPE_CHECKING:
    from orchestrator.placement import Placing


def balance_hosts(placing: Placing) -> Iterator[None]:
    """(2) From heavy hosts to light ones while they differ by more than the balancing factor, (3) to a fixed
    point. The fullest donates first, ties first by name; it gives its lowest task; (4) copies attract."""
    if len(placing.staying) < 2:
        return
    movable: dict[str, list[TaskId]] = {h: [] for h in placing.staying}
    lightest = min(placing.weight.values(), default=1)
    free: set[str] = set()  # hosts with tasks that move without a learner
    for number, task in enumerate(reversed(placing.order)):
        if number % STEP == 0:
            yield
        owner = placing.active.get(task)
        if owner is not None and task not in placing.learners and (host := placing.host_of[owner]) in movable:
            movable[host].append(task)
            if placing.is_free(task):
                free.add(host)
    donors = [(-placing.load[h] / placing.capacity[h], placing.rank[h], h) for h in placing.staying]
    receivers = [(_after(placing, h), placing.rank[h], h) for h in placing.staying if h not in placing.silent]
    heapify(donors)
    heapify(receivers)
    tried = 0
    while donors:
        tried += 1
        if tried % (STEP // 5) == 0:
            yield
        key, _, donor = heappop(donors)
        if -key != placing.load[donor] / placing.capacity[donor] or not movable[donor]:
            if movable[donor]:
                heappush(donors, (-placing.load[donor] / placing.capacity[donor], placing.rank[donor], donor))
            continue
        if donor in free:
            while placing.spent:  # it may have something for those without a budget, too
                heappush(receivers, placing.spent.pop())
        found = _choose_move(placing, donor, movable[donor], receivers, lightest, donor in free)
        if found is None:
            continue
        task, host = found
        if movable[donor][-1] == task:
            movable[donor].pop()
        else:
            movable[donor].remove(task)
        placing.move(task, host)
        heappush(donors, (-placing.load[donor] / placing.capacity[donor], placing.rank[donor], donor))
        heappush(receivers, (_after(placing, host), placing.rank[host], host))
        if donor not in placing.silent:
            heappush(receivers, (_after(placing, donor), placing.rank[donor], donor))


def _after(placing: Placing, host: str) -> float:
    """How loaded a host is with one more: with unequal capacities the emptiest is not the best receiver."""
    return (placing.load[host] + 1) / placing.capacity[host]


def _choose_move(
    placing: Placing, donor: str, tasks: list[TaskId], receivers: list[Ranked], lightest: int, free: bool
) -> tuple[TaskId, str] | None:
    """The task (lowest last in `tasks`) and the receiver, or None where no move of this donor is worth it."""
    aside: list[Ranked] = []
    found: tuple[TaskId, str] | None = None
    while receivers and found is None:
        key, _, host = receivers[0]
        if key != _after(placing, host):
            heappop(receivers)
            continue
        if not _worth(placing, donor, host, placing.weight[tasks[-1]], strict=False):
            break
        if not free and not placing.has_budget(host):
            placing.spent.append(heappop(receivers))
            continue
        if not _worth(placing, donor, host, lightest):
            if placing.even:
                break  # nor is any other
            aside.append(heappop(receivers))
            continue
        task = _candidate(placing, donor, host, tasks)
        if task is not None:
            found = task, host
        else:
            aside.append(heappop(receivers))
    for entry in aside:
        heappush(receivers, entry)
    if found is None or placing.has_copy(*found):
        return found
    return _warmer(placing, donor, tasks) or found


def _candidate(placing: Placing, donor: str, host: str, tasks: list[TaskId]) -> TaskId | None:
    """The lowest task that is worth moving there; one of which a copy is there goes first."""
    good = (t for t in reversed(tasks) if placing.funded(t, host) and _worth(placing, donor, host, placing.weight[t]))
    first = next(good, None)
    if first is None or placing.has_copy(first, host) or not (placing.view.standbys or placing.view.disk):
        return first
    return next((t for t in good if placing.has_copy(t, host)), first)


def _warmer(placing: Placing, donor: str, tasks: list[TaskId]) -> tuple[TaskId, str] | None:
    """(4) A move to any light host that already has a copy goes before a cold one."""
    if not placing.view.standbys and not placing.view.disk:
        return None
    best: tuple[float, int, TaskId, str] | None = None
    for task in reversed(tasks):
        for host in placing.copy_hosts(task):
            if host in placing.leaving or host == donor:
                continue
            if placing.funded(task, host) and _worth(placing, donor, host, placing.weight[task]):
                entry = (placing.load[host] / placing.capacity[host], placing.rank[host], task, host)
                best = min(best, entry) if best else entry
    return (best[2], best[3]) if best else None


def _worth(placing: Placing, donor: str, host: str, weight: int, strict: bool = True) -> bool:
    """Whether moving `weight` leaves a real gain: the donor stays above the receiver by the balancing factor."""
    if donor == host:
        return False
    factor = max(1, placing.view.settings.balancing_factor) if strict else 1
    least = weight if strict else 1
    return (
        placing.load[donor] * placing.capacity[host] > (placing.load[host] + factor * least) * placing.capacity[donor]
    )
