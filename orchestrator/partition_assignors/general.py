"""The path for unequal subscriptions (KIP-54 general). One rule: count per topic first, choose partitions last.

All partitions of a topic can go to the same members, so the search is over how many partitions of each topic each
member has. Only when the numbers stand, partitions are chosen: every member keeps what it can of its own. So two members
never swap partitions of one topic, whatever the search did.

Steps: keep what is validly claimed; give the free ones, topics with the fewest readers first, each to the reader with
the fewest; move from fuller to emptier readers until no single move helps, nor a chain of moves (`chains`); take back
moves that did not pay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from heapq import heapify, heappop, heappush, heapreplace
from itertools import compress
from operator import itemgetter

from orchestrator.partition_assignors.chains import even_out
from orchestrator.partition_assignors.claims import Claims
from orchestrator.partition_assignors.plan import Plan
from orchestrator.partition_assignors.reading import Group, topic_partitions
from orchestrator.partition_assignors.score import improves

_topic = itemgetter(0)


def assign_unequal(group: Group, claims: Claims, *, keep_all: bool = False) -> Plan:
    """Plan for any subscriptions; with `keep_all` no member gives up a partition."""
    search = _Search(group, claims)
    search.fill()
    before = search.snapshot()
    search.look_at_all()
    search.balance(surplus_only=True)
    if not keep_all:
        search.look_at_all()
        search.balance(surplus_only=False)
        even_out(search.loads, search.held, search.had, search.readers, search.move)
        search.balance(surplus_only=False)
        while search.take_back():  # another holder may open a way that was closed
            search.balance(surplus_only=False)
    if not improves(before.loads, search.loads):
        search.restore(before)
    return _chosen(group, claims, search)


class _Snapshot:
    """The numbers before the search moves anything."""

    def __init__(self, loads: list[int], held: list[dict[int, int]]) -> None:
        self.loads = list(loads)
        self.held = [dict(counts) for counts in held]


class _Search:
    """How many partitions of each topic each member has, and what it had."""

    def __init__(self, group: Group, claims: Claims) -> None:
        self.group = group
        self.readers = group.subscribers()
        number = {topic: i for i, topic in enumerate(group.topics)}
        # had[topic][member]: claimed; held[topic][member]: now. Topics of one's own are few, so dicts.
        self.had: list[dict[int, int]] = [{} for _ in group.topics]
        for member, objects in enumerate(claims.objects):
            for topic, count in Counter(map(_topic, objects)).items():
                self.had[number[topic]][member] = count
        self.held = [dict(counts) for counts in self.had]
        self.loads = [len(own) for own in claims.ids]
        # Topics of which a member's load has changed since they were looked at.
        self.stale: set[int] = set()
        self.touched: set[int] = set()  # topics of which anything was moved
        # Topics with few readers have the least choice and go first.
        self.order = sorted(range(len(group.topics)), key=lambda t: (len(self.readers[t]), t))

    def snapshot(self) -> _Snapshot:
        return _Snapshot(self.loads, self.held)

    def restore(self, snapshot: _Snapshot) -> None:
        self.loads, self.held = snapshot.loads, snapshot.held

    def fill(self) -> None:
        """Give every free partition to the reader with the fewest, ties by member."""
        size = len(self.loads)
        for topic in self.order:
            held = self.held[topic]
            missing = self.group.counts[topic] - sum(held.values())
            if not missing:
                continue
            heap = [self.loads[member] * size + member for member in self.readers[topic]]
            heapify(heap)
            for _ in range(missing):
                code = heap[0]
                member = code % size
                held[member] = held.get(member, 0) + 1
                heapreplace(heap, code + size)
            for code in heap:
                self.loads[code % size] = code // size

    def look_at_all(self) -> None:
        self.stale.update(self.order)

    def balance(self, *, surplus_only: bool) -> None:
        """Move partitions from fuller to emptier readers, topic by topic, until a whole pass changes nothing.

        With `surplus_only` just what was given in this assignment moves: that costs no member a partition it had.
        """
        while self.stale:
            for topic in [topic for topic in self.order if topic in self.stale]:
                self.stale.discard(topic)
                self._level(topic, surplus_only)

    def _level(self, topic: int, surplus_only: bool) -> None:
        """Move partitions of one topic while a reader is two or more below a holder.

        The fullest holder gives, what it did not have before if it can; of the emptiest readers one that gets its own
        back takes first. Entries of the heaps that a move has made old are left behind and skipped.
        """
        loads, held, had = self.loads, self.held[topic], self.had[topic]
        lowest = min(map(loads.__getitem__, self.readers[topic]))
        if max(map(loads.__getitem__, held), default=0) < lowest + 2:
            return

        size = len(loads)

        def giving(m: int) -> int:
            return ((held.get(m, 0) <= had.get(m, 0)) - 2 * loads[m]) * size + m

        def taking(m: int) -> int:
            return ((held.get(m, 0) >= had.get(m, 0)) + 2 * loads[m]) * size + m

        givers = [giving(m) for m in held if loads[m] > lowest + 1]
        takers = [taking(m) for m in self.readers[topic]]
        if surplus_only:
            givers = [code for code in givers if not _second(code, size)]
        heapify(givers)
        heapify(takers)
        while givers:
            giver, taker = givers[0] % size, takers[0] % size
            if giver not in held or givers[0] != giving(giver) or (surplus_only and _second(givers[0], size)):
                heappop(givers)
            elif takers[0] != taking(taker):
                heappop(takers)
            elif loads[giver] < loads[taker] + 2:
                return
            else:
                self.move(topic, giver, taker)
                for member in (giver, taker):
                    heappush(takers, taking(member))
                    heappush(givers, giving(member))

    def take_back(self) -> bool:
        """Undo moves that bought nothing: back to a former holder that has fewer than the member that was given it."""
        moved = False
        for topic in [topic for topic in self.order if topic in self.touched]:
            held, had, loads = self.held[topic], self.had[topic], self.loads
            for loser in sorted(member for member, count in had.items() if held.get(member, 0) < count):
                gainers = [m for m, count in held.items() if count > had.get(m, 0) and loads[m] > loads[loser]]
                if gainers:
                    self.move(topic, min(gainers, key=lambda m: (-loads[m], m)), loser)
                    moved = True
        return moved

    def move(self, topic: int, giver: int, taker: int) -> None:
        """One partition of a topic changes hands."""
        self.touched.add(topic)
        held = self.held[topic]
        held[giver] -= 1
        if not held[giver]:
            del held[giver]
        held[taker] = held.get(taker, 0) + 1
        self.loads[giver] -= 1
        self.loads[taker] += 1
        kinds, kind_of = self.group.kinds, self.group.kind_of
        self.stale.update(kinds[kind_of[giver]])
        self.stale.update(kinds[kind_of[taker]])


def _second(code: int, size: int) -> bool:
    """Whether a heap entry is marked as second choice; loads are even multiples of the size."""
    return code // size % 2 == 1


def _chosen(group: Group, claims: Claims, search: _Search) -> Plan:
    """Turn numbers into partitions: keep as many of one's own as the numbers allow, deal out the rest."""
    plan = Plan.of(claims)
    over: dict[int, list[int]] = {}
    for topic, had in enumerate(search.had):
        held, base = search.held[topic], group.bases[topic]
        for member, count in had.items():
            less = count - held.get(member, 0)
            if less > 0:
                own = plan.kept[member]
                end = bisect_left(own, base + group.counts[topic])
                over.setdefault(member, []).extend(own[end - less : end])
    for member, numbers in sorted(over.items()):
        plan.drop(claims, member, numbers)
    given: list[list[int]] = [[] for _ in group.members]
    for topic, held in enumerate(search.held):
        had = search.had[topic]
        if gainers := [(m, more) for m, count in sorted(held.items()) if (more := count - had.get(m, 0)) > 0]:
            _deal(group, claims, plan, topic, gainers, given)
    plan.given[:] = given
    return plan


def _deal(
    group: Group, claims: Claims, plan: Plan, topic: int, gainers: list[tuple[int, int]], given: list[list[int]]
) -> None:
    """Give the free partitions of one topic to those that are to have more than they had, in member order."""
    base = group.bases[topic]
    free = list(compress(range(group.counts[topic]), claims.free[base : base + group.counts[topic]]))
    objects = list(topic_partitions(group.topics[topic], free))
    at = 0
    for member, more in gainers:
        given[member] += [base + partition for partition in free[at : at + more]]
        plan.given_objects[member] += objects[at : at + more]
        at += more
