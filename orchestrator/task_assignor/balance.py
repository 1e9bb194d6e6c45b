"""From heavy hosts to light ones: the part of the learner assignor (task_assignor/assign.py) that balances, in the same way pure.

One rule: a move is made only where its donor stays above its receiver by the balancing factor, so that there is a
fixed point. Donors and receivers are heaps whose entries are checked when they come up, not searched when they change.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from orchestrator.model import TaskId
from orchestrator.task_assignor.builder import AssignmentBuilder
from orchestrator.task_assignor.view import STEP, Ranked


def balance_hosts(builder: AssignmentBuilder) -> Iterator[None]:
    """(2) From heavy hosts to light ones while they differ by more than the balancing factor, (3) to a fixed
    point. The fullest donates first, and of those that are as full the one that was less full before, then the first by name: slots that
    do not divide evenly stay with those that were the fullest. It gives its lowest task; (4) copies attract."""
    if len(builder.staying) < 2:
        return
    movable: dict[str, list[TaskId]] = {h: [] for h in builder.staying}
    lightest = min(builder.weight.values(), default=1)
    free: set[str] = set()  # hosts with tasks that move without a learner
    for number, task in enumerate(reversed(builder.order)):
        if number % STEP == 0:
            yield
        owner = builder.active.get(task)
        if owner is not None and task not in builder.learners and (host := builder.host_of[owner]) in movable:
            movable[host].append(task)
            if builder.is_free(task):
                free.add(host)
    before = {h: builder.load[h] / builder.capacity[h] for h in builder.staying}

    def as_donor(host: str) -> tuple[float, float, int, str]:
        return -builder.load[host] / builder.capacity[host], before[host], builder.rank[host], host

    donors = [as_donor(h) for h in builder.staying]
    receivers = [(_after(builder, h), builder.rank[h], h) for h in builder.staying if h not in builder.silent]
    heapify(donors)
    heapify(receivers)
    tried = 0
    while donors:
        tried += 1
        if tried % (STEP // 5) == 0:
            yield
        key, *_, donor = heappop(donors)
        if -key != builder.load[donor] / builder.capacity[donor] or not movable[donor]:
            if movable[donor]:
                heappush(donors, as_donor(donor))
            continue
        if donor in free:
            while builder.spent:  # it may have tasks for those without a budget, too
                heappush(receivers, builder.spent.pop())
        found = _choose_move(builder, donor, movable[donor], receivers, lightest, donor in free)
        if found is None:
            continue
        task, host = found
        if movable[donor][-1] == task:
            movable[donor].pop()
        else:
            movable[donor].remove(task)
        builder.move(task, host)
        heappush(donors, as_donor(donor))
        heappush(receivers, (_after(builder, host), builder.rank[host], host))
        if donor not in builder.silent:
            heappush(receivers, (_after(builder, donor), builder.rank[donor], donor))


def _after(builder: AssignmentBuilder, host: str) -> float:
    """How loaded a host is with one more: with unequal capacities the emptiest is not the best receiver."""
    return (builder.load[host] + 1) / builder.capacity[host]


def _choose_move(
    builder: AssignmentBuilder, donor: str, tasks: list[TaskId], receivers: list[Ranked], lightest: int, free: bool
) -> tuple[TaskId, str] | None:
    """The task (lowest last in `tasks`) and the receiver, or None where no move of this donor is worth it."""
    set_aside: list[Ranked] = []
    found: tuple[TaskId, str] | None = None
    while receivers and found is None:
        key, _, host = receivers[0]
        if key != _after(builder, host):
            heappop(receivers)
            continue
        if not _worth(builder, donor, host, builder.weight[tasks[-1]], strict=False):
            break
        if not free and not builder.has_budget(host):
            builder.spent.append(heappop(receivers))
            continue
        if not _worth(builder, donor, host, lightest):
            if builder.even:
                break  # nor is any other
            set_aside.append(heappop(receivers))
            continue
        task = _candidate(builder, donor, host, tasks)
        if task is not None:
            found = task, host
        else:
            set_aside.append(heappop(receivers))
    for entry in set_aside:
        heappush(receivers, entry)
    if found is None or builder.has_copy(*found):
        return found
    return _warmer(builder, donor, tasks) or found


def _candidate(builder: AssignmentBuilder, donor: str, host: str, tasks: list[TaskId]) -> TaskId | None:
    """The lowest task that is worth moving there; one of which a copy is there goes first."""
    good = (t for t in reversed(tasks) if builder.funded(t, host) and _worth(builder, donor, host, builder.weight[t]))
    first = next(good, None)
    if first is None or builder.has_copy(first, host) or not (builder.view.standbys or builder.view.disk):
        return first
    return next((t for t in good if builder.has_copy(t, host)), first)


def _warmer(builder: AssignmentBuilder, donor: str, tasks: list[TaskId]) -> tuple[TaskId, str] | None:
    """(4) A move to any light host that already has a copy goes before a cold one."""
    if not builder.view.standbys and not builder.view.disk:
        return None
    best: tuple[float, int, TaskId, str] | None = None
    for task in reversed(tasks):
        for host in builder.copy_hosts(task):
            if host in builder.leaving or host == donor:
                continue
            if builder.funded(task, host) and _worth(builder, donor, host, builder.weight[task]):
                entry = (builder.load[host] / builder.capacity[host], builder.rank[host], task, host)
                best = min(best, entry) if best else entry
    return (best[2], best[3]) if best else None


def _worth(builder: AssignmentBuilder, donor: str, host: str, weight: int, strict: bool = True) -> bool:
    """Whether moving `weight` leaves a real gain: the donor stays above the receiver by the balancing factor."""
    if donor == host:
        return False
    factor = max(1, builder.view.settings.balancing_factor) if strict else 1
    least = weight if strict else 1
    return (
        builder.load[donor] * builder.capacity[host] > (builder.load[host] + factor * least) * builder.capacity[donor]
    )
