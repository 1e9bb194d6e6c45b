"""How even an assignment is. One rule: lower is better, 0 is perfect; the number is the one of Kafka's KIP-54."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized


def balance_score(assignment: Mapping[str, Sized]) -> int:
    """Sum over all pairs of members of the difference of their numbers of partitions."""
    return score_of(map(len, assignment.values()))


def score_of(loads: Iterable[int]) -> int:
    """The score of bare loads. In ascending order the i-th of n loads is added i times and taken away n-1-i times."""
    ordered = sorted(loads)
    last = len(ordered) - 1
    return sum((2 * i - last) * load for i, load in enumerate(ordered))


def improves(before: Iterable[int], after: Iterable[int]) -> bool:
    """Whether a re-assignment is worth its moves; when it is not, what was stays."""
    return score_of(after) < score_of(before)
