"""The long campaign: `python -m tests.assignors.campaign --groups 10000`. Prints the seed of what it finds.

Every group lives through a few events under the sticky rule; after each one all promises are checked.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from random import Random

from orchestrator.partition_assignors import ASSIGNORS, Assignment
from tests.assignors import oracle
from tests.assignors.lives import Life, reporting


def check_sticky(life: Life) -> tuple[Assignment, Counter[str]]:
    """All promises of `sticky` for the group as it stands; and how far from the optimum it is."""
    sticky = ASSIGNORS["sticky"]
    result = sticky.assign(life.topics, life.members)
    oracle.check_valid(life.topics, life.members, result)
    assert sticky.assign(*life.shuffled()) == result
    loads, _, least = oracle.best(life.topics, life.members)
    found = sorted(map(len, result.values()))
    moves = oracle.moves(life.topics, life.members, result)
    counts = Counter({"assignments": 1, "moves": moves, "least moves": least})
    assert found == loads, f"{found} each, {loads} can be had"  # the least sum of squares is also single-move free
    if life.equal:
        assert found[-1] - found[0] <= 1 if found else True
        assert moves == least, f"{moves} moves, {least} would do"
    else:
        assert oracle.improving_move(life.topics, life.members, result) is None
        assert oracle.swapped(life.topics, life.members, result) is None
        counts["more moves than needed"] = moves > least
    again = sticky.assign(life.topics, reporting(life.members, result, life.generation + 1))
    assert again == result, "nothing changed, and something moved"
    return result, counts


def check_racks(life: Life) -> Assignment:
    """Evenness, then racks, then moves: exactly the optimum, in that order."""
    result = ASSIGNORS["sticky"].assign(life.topics, life.members, life.racks)
    oracle.check_valid(life.topics, life.members, result)
    owners = oracle.owners(result).items()
    away = sum(oracle.is_away(partition, life.members[member], life.racks) for partition, member in owners)
    moves = oracle.moves(life.topics, life.members, result)
    assert (sorted(map(len, result.values())), away, moves) == oracle.best(life.topics, life.members, life.racks)
    return result


def rounds(life: Life) -> int:
    """Cooperative rebalances until nothing changes; in none of them is a partition in two places."""
    members, generation = dict(life.members), life.generation
    for number in range(12):
        result = ASSIGNORS["cooperative-sticky"].assign(life.topics, members, life.racks)
        missing = oracle.check_cooperative(life.topics, members, result)
        if not missing and all(set(result[m]) == set(s.owned) for m, s in members.items()):
            return number
        generation += 1
        members = reporting(members, result, generation)
    return 12


def live(seed: int) -> Counter[str]:
    """One group, all checks."""
    random = Random(seed)
    equal, racked = seed % 2 == 0, seed % 5 == 0
    life = Life(random, equal=equal, racked=racked, wide=seed % 3 == 0)
    counts: Counter[str] = Counter(groups=1)
    for _ in range(random.randint(1, 5)):
        if racked:
            result = check_racks(life)
            counts["assignments with racks"] += 1
        else:
            result, more = check_sticky(life)
            counts += more
        taken = rounds(life)
        assert taken <= (2 if equal and not racked else 4), f"{taken} rounds"
        counts[f"cooperative, {taken} rounds"] += 1
        life.settle(result)
        counts[f"event {life.happen()}"] += 1
        if seed % 7 == 0:
            life.miss_rebalances()
            counts["groups with reports of several generations"] += 1
    return counts


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.assignors.campaign", allow_abbrev=False)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first group")
    options = parser.parse_args(argv)
    counts: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.groups):
        try:
            counts += live(seed)
        except AssertionError as error:
            print(f"seed {seed}: {error}; see it again with --first {seed} --groups 1", file=sys.stderr)
            raise
    for name, count in sorted(counts.items()):
        print(f"{count:>9,}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
