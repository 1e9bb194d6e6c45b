"""What every assignor promises, on random groups; the optimum comes from a min-cost flow that shares no code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.partition_assignors import (
    ASSIGNORS,
    Assignment,
    AssignorError,
    StickyAssignor,
    Subscription,
    TopicPartition,
    balance_score,
)
from orchestrator.partition_assignors.claims import read_claims
from orchestrator.partition_assignors.racks import assign_beside
from orchestrator.partition_assignors.reading import read
from orchestrator.partition_assignors.score import improves
from tests.assignors import campaign, oracle
from tests.assignors.lives import Life, reporting

quick = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def lives(draw: st.DrawFn, equal: bool = False, racked: bool = False) -> Life:
    """A group after a few events, under the sticky rule."""
    life = Life(Random(draw(st.integers(0, 1 << 32))), equal=equal, racked=racked, wide=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 4))):
        life.settle(ASSIGNORS["sticky"].assign(life.topics, life.members, life.racks))
        life.happen()
    if draw(st.booleans()):
        life.miss_rebalances()
    return life


@quick
@given(lives(), st.sampled_from(sorted({*ASSIGNORS} - {"constrained-cooperative-sticky"})))
def test_order_of_arrival_does_not_matter(life: Life, name: str) -> None:
    topics, members = life.shuffled()
    assert ASSIGNORS[name].assign(topics, members) == ASSIGNORS[name].assign(life.topics, life.members)


@quick
@given(lives(racked=True), st.sampled_from(["range", "roundrobin", "sticky"]))
def test_every_partition_has_one_owner_that_reads_it(life: Life, name: str) -> None:
    oracle.check_valid(life.topics, life.members, ASSIGNORS[name].assign(life.topics, life.members, life.racks))


@quick
@given(lives(equal=True))
def test_equal_subscriptions_are_even_with_the_fewest_moves(life: Life) -> None:
    campaign.check_sticky(life)


@quick
@given(lives())
def test_unequal_subscriptions_leave_no_improving_move_and_no_swap(life: Life) -> None:
    campaign.check_sticky(life)


@quick
@given(lives(racked=True), st.booleans())
def test_racks_come_after_evenness_and_before_moves(life: Life, equal: bool) -> None:
    if equal:
        life.equal = True
        topics = frozenset(life.names())
        life.members = {m: replace(s, topics=topics) for m, s in life.members.items()}
    campaign.check_racks(life)


@quick
@given(lives(equal=True))
def test_cooperative_settles_in_two_rounds_with_equal_subscriptions(life: Life) -> None:
    assert campaign.rounds(life) <= 2


@quick
@given(lives())
def test_cooperative_settles_in_four_rounds_with_unequal_subscriptions(life: Life) -> None:
    assert campaign.rounds(life) <= 4


@quick
@given(lives(racked=True))
def test_cooperative_settles_with_racks(life: Life) -> None:
    assert campaign.rounds(life) <= 4


@quick
@given(lives())
def test_cooperative_withholds_from_the_sticky_answer_and_changes_nothing_else(life: Life) -> None:
    full = ASSIGNORS["sticky"].assign(life.topics, life.members)
    part = ASSIGNORS["cooperative-sticky"].assign(life.topics, life.members)
    for member, partitions in part.items():
        withheld = set(full[member]) - set(partitions)
        assert set(partitions) <= set(full[member])
        for partition in withheld:
            assert any(partition in s.owned for m, s in life.members.items() if m != member)


@quick
@given(lives())
def test_stickiness_first_moves_nothing_that_is_held(life: Life) -> None:
    result = StickyAssignor(prefer="stickiness").assign(life.topics, life.members)
    oracle.check_valid(life.topics, life.members, result)
    assert oracle.moves(life.topics, life.members, result) == 0


@quick
@given(lives(racked=True))
def test_stickiness_first_holds_with_racks_too(life: Life) -> None:
    result = StickyAssignor(prefer="stickiness").assign(life.topics, life.members, life.racks)
    oracle.check_valid(life.topics, life.members, result)
    assert oracle.moves(life.topics, life.members, result) == 0


@quick
@given(lives())
def test_fair_does_not_look_back(life: Life) -> None:
    fair = StickyAssignor(prefer="fair")
    forgetful = {m: replace(s, owned=()) for m, s in life.members.items()}
    assert fair.assign(life.topics, life.members) == ASSIGNORS["sticky"].assign(life.topics, forgetful)


@quick
@given(lives(), st.integers(0, 1 << 32))
def test_a_new_leader_goes_on_from_what_members_carry(life: Life, seed: int) -> None:
    """The leader dies: whoever leads next has nothing but what the others report, and keeps all that can be kept."""
    given_before = ASSIGNORS["sticky"].assign(life.topics, life.members)
    reported = reporting(life.members, given_before, life.generation + 1)
    if not reported:
        return
    leader = Random(seed).choice(sorted(reported))
    del reported[leader]
    after = ASSIGNORS["sticky"].assign(life.topics, reported)
    oracle.check_valid(life.topics, reported, after)
    loads, _, least = oracle.best(life.topics, reported)
    if sorted(map(len, after.values())) == loads and life.equal:
        assert oracle.moves(life.topics, reported, after) == least


@given(st.lists(st.integers(0, 50), max_size=12))
def test_balance_score_is_the_sum_over_all_pairs(loads: list[int]) -> None:
    pairs = sum(abs(a - b) for i, a in enumerate(loads) for b in loads[:i])
    assert balance_score({str(i): range(load) for i, load in enumerate(loads)}) == pairs


@given(st.lists(st.integers(0, 20), min_size=2, max_size=8), st.data())
def test_a_move_between_near_equals_improves_nothing(loads: list[int], data: st.DataObject) -> None:
    giver, taker = data.draw(st.permutations(range(len(loads))))[:2]
    after = list(loads)
    after[giver] -= 1
    after[taker] += 1
    assert improves(loads, after) == (loads[giver] - loads[taker] >= 2)


BAD: list[tuple[Mapping[str, int], Mapping[str, Subscription], tuple[str, ...]]] = [
    ({"t0": -1}, {"m": Subscription(("t0",))}, ("t0", "-1")),
    ({"t0": True}, {"m": Subscription(("t0",))}, ("t0", "True")),
    ({"t0": 1}, {"m7": Subscription(("t0",), (TopicPartition("t0", -2),))}, ("m7", "-2", "t0")),
    ({"t0": 3}, {"m7": Subscription(("t0",), (TopicPartition("t0", -2),))}, ("m7", "-2", "t0")),
    ({"t0": 1}, {"m7": Subscription(("t0",), (TopicPartition("t0", "1"),))}, ("m7", "'1'")),  # type: ignore[arg-type]
    ({"t0": 1}, {"m7": Subscription(("t0",), ("t0",))}, ("m7", "'t0'")),  # type: ignore[arg-type]
    ({"t0": 1}, {"m7": Subscription(("t0", 5))}, ("m7", "5")),  # type: ignore[arg-type]
    ({"t0": 1}, {"m7": Subscription(frozenset({None}))}, ("m7", "None")),  # type: ignore[arg-type]
    ({"t0": 1}, {"m7": Subscription("t0")}, ("m7", "'t0'")),  # type: ignore[arg-type]
    ({"t0": 1}, {"m7": Subscription(None)}, ("m7", "None")),  # type: ignore[arg-type]
    ({"t0": 1}, {"m7": Subscription(("t0",), generation=None)}, ("m7", "None")),  # type: ignore[arg-type]
    ({"t0": 1}, {"m7": Subscription(("t0",), None)}, ("m7", "None")),  # type: ignore[arg-type]
    ({"t0": 1}, {"m7": Subscription(("t0",), rack=5)}, ("m7", "rack 5")),  # type: ignore[arg-type]
    ({"t0": 1}, {"m7": Subscription(("t0",), instance_id=5)}, ("m7", "instance id 5")),  # type: ignore[arg-type]
    ({"t0": 1}, {"m7": ("t0",)}, ("m7", "('t0',)")),  # type: ignore[dict-item]
    ({"t0": 1}, {"m7": None}, ("m7", "None")),  # type: ignore[dict-item]
]


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@pytest.mark.parametrize(("topics", "members", "named"), BAD)
def test_bad_input_is_named(
    name: str, topics: Mapping[str, int], members: Mapping[str, Subscription], named: tuple[str, ...]
) -> None:
    with pytest.raises(AssignorError) as error:
        ASSIGNORS[name].assign(topics, members)
    for part in named:
        assert part in str(error.value)


def test_an_unknown_preference_is_named() -> None:
    with pytest.raises(AssignorError, match="fairness"):
        StickyAssignor(prefer="fairness")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_nobody_and_nothing(name: str) -> None:
    assert ASSIGNORS[name].assign({"t": 3}, {}) == {}
    assert ASSIGNORS[name].assign({}, {"m": Subscription(("t",))}) == {"m": []}
    assert ASSIGNORS[name].assign({"t": 0}, {"m": Subscription(("t",))}) == {"m": []}
    assert ASSIGNORS[name].assign({"t": 3}, {"m": Subscription(())}) == {"m": []}


def test_pairs_of_another_kind_come_back_as_ours() -> None:
    foreign: tuple[TopicPartition, ...] = (("t", 1),)  # type: ignore[assignment]
    result = ASSIGNORS["sticky"].assign({"t": 2}, {"a": Subscription(("t",)), "b": Subscription(("t",), foreign)})
    assert result == {"a": [TopicPartition("t", 0)], "b": [TopicPartition("t", 1)]}
    assert str(result["b"][0]) == "t-1"


@pytest.mark.parametrize("loads", [[8, 0, 0], [0, 0, 8], [3, 3, 2]])
def test_racks_do_not_depend_on_where_the_search_begins(loads: list[int]) -> None:
    members = {m: Subscription(("t",), rack=rack) for m, rack in {"m0": "a", "m1": "b", "m2": "c"}.items()}
    racks = {TopicPartition("t", p): ("c",) if p < 4 else ("a",) for p in range(8)}
    group = read({"t": 8}, members)
    found = flat(assign_beside(group, read_claims(group), racks, loads).assignment(group))
    assert [len(partitions) for partitions in found.values()] == [3, 2, 3]
    assert all(int(name[-1]) >= 4 for name in found["m0"])
    assert all(int(name[-1]) < 4 for name in found["m2"])


def test_readers_are_listed_in_member_order_whatever_else_they_read() -> None:
    members = {"a": ("t0", "t1"), "b": ("t0",), "c": ("t0", "t1"), "d": ("t1",)}
    group = read({"t0": 1, "t1": 1}, {m: Subscription(topics) for m, topics in members.items()})
    assert group.subscribers() == [[0, 1, 2], [0, 2, 3]]


SHOW = """
from random import Random
from orchestrator.partition_assignors import ASSIGNORS
from tests.assignors.lives import Life
for seed in range(12):
    for equal in (True, False):
        life = Life(Random(seed), equal=equal, racked=seed % 3 == 0)
        for _ in range(3):
            for name in ("range", "roundrobin", "sticky", "cooperative-sticky"):
                print(seed, name, ASSIGNORS[name].assign(life.topics, life.members, life.racks))
            life.settle(ASSIGNORS["sticky"].assign(life.topics, life.members, life.racks))
            life.happen()
"""


@pytest.mark.processes
def test_the_seed_of_hashing_does_not_matter() -> None:
    def shown(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
        done = subprocess.run([sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    first = shown("0")
    assert first.count("\n") == 12 * 2 * 3 * 4
    assert [shown(seed) == first for seed in ("1", "42", "4294967295")] == [True] * 3


def flat(assignment: Assignment) -> dict[str, list[str]]:
    return {member: [str(partition) for partition in partitions] for member, partitions in assignment.items()}


def test_range_keeps_co_partitioned_topics_together_beside_their_racks() -> None:
    topics = {"t0": 3, "t1": 3}
    members = {m: Subscription(("t0", "t1"), rack=rack) for m, rack in {"m0": "a", "m1": "b", "m2": "c"}.items()}
    racks = {TopicPartition(t, p): (rack,) for t in topics for p, rack in enumerate("cab")}
    assert flat(ASSIGNORS["range"].assign(topics, members, racks)) == {
        "m0": ["t0-1", "t1-1"],
        "m1": ["t0-2", "t1-2"],
        "m2": ["t0-0", "t1-0"],
    }
    everywhere = dict.fromkeys(racks, ("a", "b", "c"))
    assert ASSIGNORS["range"].assign(topics, members, everywhere) == ASSIGNORS["range"].assign(topics, members)


def test_range_with_racks_keeps_its_sizes() -> None:
    topics = {"t": 5}
    members = {m: Subscription(("t",), rack="a") for m in ("m0", "m1")} | {"m2": Subscription(("t",), rack="b")}
    racks = {TopicPartition("t", p): ("b",) if p < 3 else ("a",) for p in range(5)}
    assert flat(ASSIGNORS["range"].assign(topics, members, racks)) == {
        "m0": ["t-3", "t-4"],
        "m1": ["t-2"],
        "m2": ["t-0", "t-1"],
    }


@pytest.mark.parametrize(("seed", "events"), [(945, 1), (781, 3), (1274, 1)])
def test_moves_that_bought_nothing_are_taken_back(seed: int, events: int) -> None:
    """Groups in which evening out takes a partition away that a member may as well keep: found by search."""
    life = Life(Random(seed), wide=True)
    for _ in range(events):
        life.settle(ASSIGNORS["sticky"].assign(life.topics, life.members))
        life.happen()
        life.happen()
    result = ASSIGNORS["sticky"].assign(life.topics, life.members)
    assert oracle.moves(life.topics, life.members, result) == oracle.best(life.topics, life.members)[2]


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_a_member_id_that_is_no_text_is_refused(name: str) -> None:
    """The constrained one sorted the ids before they were looked at, and raised TypeError."""
    members = {1: Subscription(("t",)), "b": Subscription(("t",))}
    with pytest.raises(AssignorError, match="member id 1 is not text"):
        ASSIGNORS[name].assign({"t": 3}, members)  # type: ignore[arg-type]
