"""Random groups and what befalls them: joins, leaves, topics that grow, shrink or go, stale and double reports.

One rule: a life is a function of its random source, so that a seed is enough to see it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from orchestrator.partition_assignors import Assignment, Subscription, TopicPartition

RACKS = ("a", "b", "c")


@dataclass
class Life:
    """A group in the course of time; `members` report what they were given last."""

    random: Random
    equal: bool = False
    racked: bool = False
    wide: bool = False  # more members and topics, of which each member reads few
    topics: dict[str, int] = field(default_factory=dict)
    members: dict[str, Subscription] = field(default_factory=dict)
    racks: dict[TopicPartition, tuple[str, ...]] | None = None
    generation: int = 0
    born: int = 0
    history: list[dict[str, Subscription]] = field(default_factory=list)  # what members reported, oldest first

    def __post_init__(self) -> None:
        for number in range(self.random.randint(4, 10) if self.wide else self.random.randint(1, 4)):
            self.topics[f"t{number}"] = self.random.randint(0, 6)
        for _ in range(self.random.randint(4, 10) if self.wide else self.random.randint(1, 5)):
            self.join()
        self.replicate()

    def names(self) -> list[str]:
        return [*self.topics, "unknown"]

    def subscription(self) -> frozenset[str]:
        if self.equal:
            return frozenset(self.names())
        most = min(3, len(self.names())) if self.wide else len(self.names())
        return frozenset(self.random.sample(self.names(), self.random.randint(0, most)))

    def join(self) -> None:
        rack = self.random.choice([*RACKS, None]) if self.racked else None
        name = f"m{self.random.randint(0, 99):02}-{self.born}"
        instance = f"i{self.random.randint(0, 99)}-{self.born}" if self.random.random() < 0.2 else None
        self.members[name] = Subscription(self.subscription(), rack=rack, instance_id=instance)
        self.born += 1

    def replicate(self) -> None:
        if self.racked:
            self.racks = {
                TopicPartition(topic, p): tuple(self.random.sample(RACKS, self.random.randint(0, 2)))
                for topic, count in self.topics.items()
                for p in range(count)
            }

    def happen(self) -> str:
        """One event; its name."""
        event = self.random.choice(
            [
                "join",
                "join",
                "leave",
                "leave",
                "grow",
                "shrink",
                "delete",
                "add",
                "stale",
                "double",
                "change",
                "nothing",
            ]
        )
        someone = self.random.choice(sorted(self.members)) if self.members else None
        topic = self.random.choice(sorted(self.topics)) if self.topics else None
        if event == "join":
            self.join()
        elif event == "leave" and someone:
            del self.members[someone]
        elif event == "grow" and topic:
            self.topics[topic] += self.random.randint(1, 4)
        elif event == "shrink" and topic:
            self.topics[topic] = self.random.randint(0, self.topics[topic])
        elif event == "delete" and topic:
            del self.topics[topic]
        elif event == "add":
            self.topics[f"t{self.random.randint(5, 8)}"] = self.random.randint(1, 5)
        elif event == "stale" and someone:
            self.members[someone] = replace(self.members[someone], generation=self.generation - 1)
        elif event == "double" and someone:
            other = self.random.choice(sorted(self.members))
            both = tuple(dict.fromkeys(self.members[someone].owned + self.members[other].owned))
            self.members[someone] = replace(self.members[someone], owned=both)
        elif event == "change" and someone and not self.equal:
            self.members[someone] = replace(self.members[someone], topics=self.subscription())
        if self.equal:
            topics = frozenset(self.names())
            self.members = {m: replace(s, topics=topics) for m, s in self.members.items()}
        self.replicate()
        return event

    def settle(self, assignment: Assignment) -> None:
        """Members hold what they were given, and say so next time."""
        self.generation += 1
        self.members = reporting(self.members, assignment, self.generation)
        self.history.append(self.members)

    def miss_rebalances(self) -> None:
        """Some members missed the last rebalances: they still report what they held before them."""
        for member in sorted(self.members):
            reports = [earlier[member] for earlier in self.history if member in earlier]
            if reports and self.random.random() < 0.5:
                report = self.random.choice(reports)
                owned, generation = report.owned, report.generation
                self.members[member] = replace(self.members[member], owned=owned, generation=generation)

    def shuffled(self) -> tuple[dict[str, int], dict[str, Subscription]]:
        """The same input in another order of arrival."""
        topics = list(self.topics.items())
        members = [
            (
                member,
                replace(
                    s,
                    owned=tuple(self.random.sample(s.owned, len(s.owned))),
                    topics=tuple(self.random.sample(sorted(s.topics), len(s.topics))),
                ),
            )
            for member, s in self.members.items()
        ]
        self.random.shuffle(topics)
        self.random.shuffle(members)
        return dict(topics), dict(members)


def reporting(members: dict[str, Subscription], assignment: Assignment, generation: int) -> dict[str, Subscription]:
    """The members after they were told an assignment."""
    return {m: replace(s, owned=tuple(assignment[m]), generation=generation) for m, s in members.items()}
