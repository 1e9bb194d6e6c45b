"""Sticky with racks: evenness first, then partitions beside their replicas, then as few moves as possible. One rule:
exactly that, by a least-cost flow, not by hope.

Partitions with the same readers, the same racks and the same holder are one node of the network, and members of one
rack that read the same are reached through one pool, so the network has the size of the group, not of its partitions.
A first assignment without racks says about how many partitions each member gets; the flow may give each one more or
one less. If it uses that, it is asked again around the new numbers: when one up or down helps no member, nothing does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.partition_assignors.claims import Claims
from orchestrator.partition_assignors.flow import Flow
from orchestrator.partition_assignors.model import PartitionRacks
from orchestrator.partition_assignors.plan import Plan
from orchestrator.partition_assignors.reading import Group

_Bundle = tuple[int, tuple[str, ...], int]  # class of readers, racks of the replicas, holder or -1


def racks_matter(group: Group, partition_racks: PartitionRacks | None) -> bool:
    """Without a rack on either side every place is as good as another."""
    return bool(partition_racks) and any(subscription.rack is not None for subscription in group.subscriptions)


def assign_beside(
    group: Group, claims: Claims, racks: PartitionRacks, loads: Sequence[int], *, keep_all: bool = False
) -> Plan:
    """Plan with racks; `loads` is how many partitions each member has without looking at racks."""
    network = _Network(group, claims, racks, keep_all)
    cost: int | None = None
    while True:
        found = network.solve(loads)
        now = network.cost(found)
        if found == loads or now == cost:  # the best within one up or down is the best of all
            return network.plan()
        loads, cost = found, now


@dataclass
class _Network:
    """The bundles of one group, and the flow through them."""

    group: Group
    claims: Claims
    racks: PartitionRacks
    keep_all: bool
    bundles: dict[_Bundle, list[int]] = field(default_factory=dict)
    classes: list[list[int]] = field(default_factory=list)
    flow: Flow = field(default_factory=lambda: Flow(0))
    to_holder: dict[_Bundle, int] = field(default_factory=dict)
    to_pool: dict[tuple[_Bundle, str | None], int] = field(default_factory=dict)
    to_member: dict[tuple[int, str | None, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        here = {rack for subscription in self.group.subscriptions if (rack := subscription.rack) is not None}
        holder = [-1] * self.group.total
        for member, own in enumerate(self.claims.ids):
            for number in own:
                holder[number] = member
        known: dict[tuple[int, ...], int] = {}
        number = 0
        for topic, readers in enumerate(self.group.subscribers()):
            kind = known.setdefault(tuple(readers), len(known))
            if kind == len(self.classes):
                self.classes.append(readers)
            for partition in self.group.objects(range(number, number + self.group.counts[topic])):
                if not (self.keep_all and holder[number] >= 0):
                    where = tuple(sorted(here.intersection(self.racks.get(partition, ()))))
                    self.bundles.setdefault((kind, where, holder[number]), []).append(number)
                number += 1
        self.base = [len(own) if self.keep_all else 0 for own in self.claims.ids]

    def rack(self, member: int) -> str | None:
        return self.group.subscriptions[member].rack

    def solve(self, loads: Sequence[int]) -> list[int]:
        """Send every bundle to members, each of which takes what `loads` says, one more or one less."""
        members = len(loads)
        pools = {(kind, self.rack(member)) for kind, readers in enumerate(self.classes) for member in readers}
        order = sorted(pools, key=lambda pool: (pool[0], pool[1] is None, pool[1] or ""))
        pool_node = {pool: 2 + members + i for i, pool in enumerate(order)}
        first_bundle = 2 + members + len(order)
        flow = self.flow = Flow(first_bundle + len(self.bundles))
        # Evenness outweighs all racks together, a rack outweighs all moves together.
        away = self.group.total + 1
        uneven = away * away
        for node, (bundle, numbers) in enumerate(sorted(self.bundles.items()), start=first_bundle):
            kind, where, holder = bundle
            flow.edge(0, node, len(numbers), 0)
            if holder >= 0:
                cost = away * (self.rack(holder) is not None and self.rack(holder) not in where)
                self.to_holder[bundle] = flow.edge(node, 2 + holder, len(numbers), cost)
            for pool in order:
                if pool[0] == kind:
                    cost = away * (pool[1] is not None and pool[1] not in where) + (holder >= 0)
                    self.to_pool[bundle, pool[1]] = flow.edge(node, pool_node[pool], len(numbers), cost)
        for kind, readers in enumerate(self.classes):
            for member in readers:
                rack = self.rack(member)
                self.to_member[kind, rack, member] = flow.edge(pool_node[kind, rack], 2 + member, self.group.total, 0)
        exits: list[list[int]] = []
        for member, load in enumerate(loads):
            surely = max(load - 1, self.base[member])
            exits.append([flow.edge(2 + member, 1, surely - self.base[member], 0)])
            for height in range(surely, load + 1):
                exits[-1].append(flow.edge(2 + member, 1, 1, uneven * (1 + height)))
        flow.run(0, 1)
        return [base + sum(map(flow.used, edges)) for base, edges in zip(self.base, exits, strict=True)]

    def cost(self, loads: Sequence[int]) -> int:
        """What the answer costs, on one scale for all numbers it was asked around."""
        edges = [*self.to_holder.values(), *self.to_pool.values()]
        uneven = sum(load * (load + 1) // 2 for load in loads)
        return uneven * (self.group.total + 1) ** 2 + sum(self.flow.used(edge) * self.flow.cost[edge] for edge in edges)

    def plan(self) -> Plan:
        """Read the flow: who keeps how many of each bundle, and who is given the rest."""
        plan = Plan.of(self.claims)
        pooled: defaultdict[tuple[int, str | None], list[int]] = defaultdict(list)
        over: defaultdict[int, list[int]] = defaultdict(list)
        for bundle, numbers in sorted(self.bundles.items()):
            kind, _, holder = bundle
            at = self.flow.used(self.to_holder[bundle]) if holder >= 0 else 0
            if holder >= 0:
                over[holder] += numbers[at:]
            for rack in sorted({self.rack(m) for m in self.classes[kind]}, key=lambda r: (r is None, r or "")):
                count = self.flow.used(self.to_pool[bundle, rack])
                pooled[kind, rack] += numbers[at : at + count]
                at += count
        for member, numbers in sorted(over.items()):
            plan.drop(self.claims, member, numbers)
        for pool in pooled.values():
            pool.sort()
        given: list[list[int]] = [[] for _ in self.group.members]
        for (kind, rack, member), edge in self.to_member.items():
            count = self.flow.used(edge)
            given[member] += pooled[kind, rack][:count]
            del pooled[kind, rack][:count]
        for member, numbers in enumerate(given):
            numbers.sort()
            plan.given[member] = numbers
            plan.given_objects[member] += self.group.objects(numbers)
        return plan
