"""Independent answers for small groups: a min-cost flow, and checks of what the assignors promise. Slow and simple."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from orchestrator.partition_assignors import Assignment, Subscription, TopicPartition

Racks = Mapping[TopicPartition, tuple[str, ...]]


class Flow:
    """Min-cost flow by shortest augmenting paths (Bellman-Ford), one unit at a time."""

    def __init__(self) -> None:
        self.to: list[int] = []
        self.room: list[int] = []
        self.cost: list[int] = []
        self.out: dict[int, list[int]] = {}

    def edge(self, a: int, b: int, room: int, cost: int) -> int:
        number = len(self.to)
        for x, y, r, c in ((a, b, room, cost), (b, a, 0, -cost)):
            self.out.setdefault(x, []).append(len(self.to))
            self.to.append(y)
            self.room.append(r)
            self.cost.append(c)
        return number

    def run(self, source: int, sink: int) -> tuple[int, int]:
        """The largest flow and its least cost."""
        flow = cost = 0
        while True:
            far: dict[int, int] = {source: 0}
            by: dict[int, int] = {}
            queue = [source]
            while queue:
                following: set[int] = set()
                for node in queue:
                    for edge in self.out.get(node, ()):
                        there = far[node] + self.cost[edge]
                        if self.room[edge] and there < far.get(self.to[edge], 1 << 60):
                            far[self.to[edge]] = there
                            by[self.to[edge]] = edge
                            following.add(self.to[edge])
                queue = sorted(following)
            if sink not in far:
                return flow, cost
            node = sink
            while node != source:
                edge = by[node]
                self.room[edge] -= 1
                self.room[edge ^ 1] += 1
                node = self.to[edge ^ 1]
            flow, cost = flow + 1, cost + far[sink]


def universe(topics: Mapping[str, int], members: Mapping[str, Subscription]) -> dict[TopicPartition, list[str]]:
    """Every partition of a subscribed topic, and who reads it."""
    found: dict[TopicPartition, list[str]] = {}
    for topic, count in topics.items():
        readers = sorted(member for member, subscription in members.items() if topic in subscription.topics)
        if readers:
            found |= {TopicPartition(topic, p): readers for p in range(count)}
    return found


def valid_claims(topics: Mapping[str, int], members: Mapping[str, Subscription]) -> dict[TopicPartition, str]:
    """Who may keep what: it claims it in a later generation than everybody else, and subscribes to it."""
    found: dict[TopicPartition, str] = {}
    for partition, readers in universe(topics, members).items():
        claims = [(s.generation, member) for member, s in members.items() if partition in s.owned]
        newest = [member for generation, member in claims if generation == max(claims)[0]]
        if len(newest) == 1 and newest[0] in readers:
            found[partition] = newest[0]
    return found


def best(
    topics: Mapping[str, int], members: Mapping[str, Subscription], racks: Racks | None = None
) -> tuple[list[int], int, int]:
    """The optimum over all assignments: loads (sorted), then partitions away from their racks, then moves."""
    readers = universe(topics, members)
    claims = valid_claims(topics, members)
    size = len(readers)
    away_cost, load_cost = size + 1, (size + 1) ** 2
    flow = Flow()
    number = {member: 1 + i for i, member in enumerate(sorted(members))}
    sink = 1 + len(number)
    edges: list[tuple[int, TopicPartition, str]] = []
    for node, (partition, able) in enumerate(readers.items(), start=sink + 1):
        flow.edge(0, node, 1, 0)
        for member in able:
            cost = away_cost * is_away(partition, members[member], racks)
            cost += partition in claims and claims[partition] != member
            edges.append((flow.edge(node, number[member], 1, cost), partition, member))
    for member in number.values():
        for unit in range(size):
            flow.edge(member, sink, 1, load_cost * unit)
    found, _ = flow.run(0, sink)
    assert found == size
    owner = {partition: member for edge, partition, member in edges if not flow.room[edge]}
    loads = Counter(owner.values())
    away = sum(is_away(partition, members[member], racks) for partition, member in owner.items())
    moves = sum(owner[partition] != member for partition, member in claims.items())
    return sorted(loads[member] for member in members), away, moves


def is_away(partition: TopicPartition, subscription: Subscription, racks: Racks | None) -> bool:
    """The member has a rack, and no replica is in it."""
    return bool(racks) and subscription.rack is not None and subscription.rack not in (racks or {}).get(partition, ())


def owners(assignment: Assignment) -> dict[TopicPartition, str]:
    """Who has what; fails when something is in two places."""
    found: dict[TopicPartition, str] = {}
    for member, partitions in assignment.items():
        for partition in partitions:
            assert partition not in found, f"{partition} is with {found[partition]} and {member}"
            found[partition] = member
    return found


def moves(topics: Mapping[str, int], members: Mapping[str, Subscription], assignment: Assignment) -> int:
    """Valid claims that were not kept."""
    found = owners(assignment)
    return sum(found.get(partition) != member for partition, member in valid_claims(topics, members).items())


def check_valid(topics: Mapping[str, int], members: Mapping[str, Subscription], assignment: Assignment) -> None:
    """Every partition of a subscribed topic has one owner that reads it; every member has a key; lists are sorted."""
    assert assignment.keys() == members.keys()
    found, readers = owners(assignment), universe(topics, members)
    assert found.keys() == readers.keys()
    for partition, member in found.items():
        assert member in readers[partition], f"{member} does not read {partition}"
    for partitions in assignment.values():
        assert partitions == sorted(partitions)
        assert all(type(partition) is TopicPartition for partition in partitions)


def check_cooperative(topics: Mapping[str, int], members: Mapping[str, Subscription], assignment: Assignment) -> int:
    """Nothing is given that somebody else reports; what is missing is reported by somebody. Returns how many miss."""
    assert assignment.keys() == members.keys()
    found, readers = owners(assignment), universe(topics, members)
    for partition, member in found.items():
        assert member in readers[partition]
        others = [m for m, s in members.items() if m != member and partition in s.owned]
        kept = valid_claims(topics, members).get(partition) == member
        assert kept or not others, f"{partition} is given to {member} while {others} report it"
    missing = readers.keys() - found.keys()
    for partition in missing:
        assert any(partition in subscription.owned for subscription in members.values()), f"{partition} is lost"
    return len(missing)


def improving_move(
    topics: Mapping[str, int], members: Mapping[str, Subscription], assignment: Assignment
) -> tuple[TopicPartition, str] | None:
    """A single move that evens the assignment out, if there is one left."""
    readers = universe(topics, members)
    for partition, member in owners(assignment).items():
        for other in readers[partition]:
            if len(assignment[other]) + 1 < len(assignment[member]):
                return partition, other
    return None


def swapped(
    topics: Mapping[str, int], members: Mapping[str, Subscription], assignment: Assignment
) -> tuple[TopicPartition, str] | None:
    """Two members that hold partitions of one topic that were each other's, if there are."""
    found = owners(assignment)
    seen: dict[tuple[str, str, str], TopicPartition] = {}
    for partition, before in valid_claims(topics, members).items():
        now = found.get(partition)
        if now is not None and now != before:
            if (partition.topic, now, before) in seen:
                return partition, now
            seen[partition.topic, before, now] = partition
    return None
