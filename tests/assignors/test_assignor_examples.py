"""Every worked example of the seeds, from examples.txt, and the three conditions of static membership."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.partition_assignors import (
    ASSIGNORS,
    Assignment,
    Assignor,
    AssignorError,
    StickyAssignor,
    Subscription,
)
from orchestrator.partition_assignors.description import Description, parse_partition, read_lines

TABLE = Path(__file__).with_name("examples.txt")


@dataclass
class Example:
    title: str
    line: int
    steps: list[tuple[int, str, list[str]]] = field(default_factory=list)


def examples() -> Iterator[Example]:
    found: Example | None = None
    for number, text in enumerate(TABLE.read_text().splitlines(), start=1):
        words = text.partition("#")[0].split()
        if not words:
            continue
        if words[0] == "example":
            if found:
                yield found
            found = Example(" ".join(words[1:]), number)
        else:
            assert found, f"line {number}: nothing before the first example"
            found.steps.append((number, words[0], words[1:]))
    if found:
        yield found


class Table:
    """Plays the steps of one example."""

    def __init__(self) -> None:
        self.given = Description()
        self.results: dict[str, Assignment] = {}
        self.last: Assignment = {}
        self.expected: dict[str, list[str]] = {}
        self.error: AssignorError | None = None

    def check(self, line: int) -> None:
        """The `gives` lines seen since the last run are the whole answer."""
        if self.expected:
            shown = {member: sorted(map(str, partitions)) for member, partitions in self.last.items()}
            assert shown == {m: sorted(p) for m, p in self.expected.items()}, f"line {line}"
            self.expected = {}

    def step(self, line: int, word: str, rest: list[str]) -> None:
        if word in ("topic", "member", "replicas"):
            more = read_lines([" ".join([word, *rest])], TABLE.name, line)
            self.given.topics |= more.topics
            self.given.members |= more.members
            self.given.replicas |= more.replicas
        elif word == "run":
            self.check(line)
            self.run(rest)
        elif word == "gives":
            assert self.error is None, self.error
            self.expected[rest[0]] = rest[1:]
        elif word == "keeps":
            kept = sum(len(set(self.last[m]) & set(s.owned)) for m, s in self.given.members.items())
            assert kept == int(rest[0]), f"line {line}: {kept} kept"
        elif word == "refuses":
            assert self.error is not None
            assert " ".join(rest) in str(self.error)
        elif word == "then":
            self.check(line)
            for member, partitions in self.results[rest[0]].items():
                before = self.given.members[member]
                self.given.members[member] = replace(before, owned=tuple(partitions), generation=before.generation + 1)
        elif word == "leave":
            del self.given.members[rest[0]]
        elif word == "rename":
            self.given.members[rest[1]] = self.given.members.pop(rest[0])
        else:
            assert word in ("seed", "reading"), f"line {line}: {word}?"

    def run(self, rest: list[str]) -> None:
        assignor: Assignor = ASSIGNORS[rest[0]]
        for setting in rest[1:]:
            assert setting.startswith("prefer=")
            assignor = StickyAssignor(prefer=setting.removeprefix("prefer="))  # type: ignore[arg-type]
        self.error, self.last = None, {}
        try:
            self.last = assignor.assign(self.given.topics, self.given.members, self.given.replicas or None)
        except AssignorError as error:
            self.error = error
        self.results[rest[0]] = self.last


@pytest.mark.parametrize("example", list(examples()), ids=lambda example: example.title)
def test_example(example: Example) -> None:
    table = Table()
    assert any(word == "seed" for _, word, _ in example.steps), "an example names its seed"
    assert any(word in ("gives", "refuses") for _, word, _ in example.steps), "an example says what comes out"
    for line, word, rest in example.steps:
        table.step(line, word, rest)
    table.check(0)


def test_the_table_holds_the_examples_of_all_four_seeds() -> None:
    seeds = {rest[0] for example in examples() for _, word, rest in example.steps if word == "seed"}
    assert seeds == {"000", "001", "003", "004"}


TOPICS = {"t0": 3, "t1": 3}


def instances(names: dict[str, str], topics: frozenset[str] = frozenset(TOPICS)) -> dict[str, Subscription]:
    """Members by member id, with their instance ids."""
    return {member: Subscription(topics, instance_id=instance) for member, instance in names.items()}


def by_instance(members: dict[str, Subscription], name: str) -> dict[str | None, list[str]]:
    result = ASSIGNORS[name].assign(TOPICS, members)
    return {members[member].instance_id: [str(p) for p in partitions] for member, partitions in result.items()}


@pytest.mark.parametrize("name", ["roundrobin", "range"])
def test_static_membership_holds_under_its_three_conditions_and_breaks_without_each(name: str) -> None:
    """Seed 001: same number of members, same identities, same subscriptions -> the assignment is always the same."""
    before = by_instance(instances({"m1": "I0", "m2": "I1", "m3": "I2"}), name)
    bounced = by_instance(instances({"m9": "I0", "m7": "I1", "m8": "I2"}), name)
    assert bounced == before
    fewer = by_instance(instances({"m9": "I1", "m7": "I2"}), name)
    assert fewer["I1"] != before["I1"], "1: the number of members changed"
    others = by_instance(instances({"m9": "I9", "m7": "I1", "m8": "I2"}), name)
    assert others["I1"] != before["I1"], "2: an identity changed"
    changed = instances({"m1": "I0", "m2": "I1", "m3": "I2"})
    changed["m1"] = replace(changed["m1"], topics=frozenset({"t0"}))
    assert by_instance(changed, name)["I1"] != before["I1"], "3: a subscription changed"


def test_static_members_come_before_dynamic_ones() -> None:
    members = {"a": Subscription(("t",)), "z": Subscription(("t",), instance_id="I0")}
    assert ASSIGNORS["range"].assign({"t": 1}, members) == {"a": [], "z": [parse_partition("t-0")]}


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_2100_members_over_2100_partitions(name: str) -> None:
    """Seed 000's case, which took minutes: one partition each, and a member lost moves one."""
    topics = {"t": 2100}
    members = {f"m{i:04}": Subscription(("t",)) for i in range(2100)}
    first = ASSIGNORS[name].assign(topics, members)
    assert [len(partitions) for partitions in first.values()] == [1] * 2100
    lost = {m: replace(s, owned=tuple(first[m])) for m, s in members.items() if m != "m0007"}
    second = ASSIGNORS[name].assign(topics, lost)
    assert sum(first[member] != second[member] for member in lost) == 1
