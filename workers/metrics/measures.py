"""What one process has measured, by metric and labels. One rule: to measure costs a few dictionary look-ups and never waits;
what crosses to another process is a copy. A histogram is the counts of its buckets (with +Inf), then the sum. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from workers.metrics.families import Family

Samples = dict[str, list[tuple[tuple[str, ...], list[float]]]]  # by name of metric: labels and numbers


class Measures:
    """See the module text."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._values: dict[str, dict[tuple[str, ...], list[float]]] = {family.name: {} for family in families}
        for family in families:
            if not family.labels:  # what is never labelled is there from the start, as 0
                self._values[family.name][()] = self._zero(family)

    @staticmethod
    def _zero(family: Family) -> list[float]:
        return [0.0] * (len(family.buckets) + 2 if family.buckets else 1)

    def add(self, family: Family, by: float, *labels: str) -> None:
        """A counter grows."""
        values = self._values[family.name]
        if labels in values:
            values[labels][0] += by
        else:
            values[labels] = [by]

    def put(self, family: Family, value: float, *labels: str) -> None:
        """A gauge is `value` now; or a counter that is counted elsewhere."""
        self._values[family.name][labels] = [value]

    def put_all(self, family: Family, values: Mapping[tuple[str, ...], float]) -> None:
        """A gauge is this now, and nothing for other labels."""
        self._values[family.name] = {labels: [value] for labels, value in values.items()}

    def observe(self, family: Family, value: float, *labels: str) -> None:
        """A histogram has one value more."""
        values = self._values[family.name]
        if labels not in values:
            values[labels] = self._zero(family)
        numbers = values[labels]
        numbers[bisect_left(family.buckets, value)] += 1
        numbers[-1] += value

    def samples(self) -> Samples:
        """Returns a copy of everything."""
        return {name: [(key, list(found)) for key, found in values.items()] for name, values in self._values.items()}
