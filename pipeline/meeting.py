"""In which order a Driver runs the parts of an app, and in which order what they send to each other meets.

One rule: as over history on Spark. What one subtopology sends another is whole before that is run, and what several tasks send
into one partition is merged by the smallest timestamp among what each has sent next. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pipeline.definitions.topology import Subtopology
from pipeline.merge import Merger
from pipeline.records import OutputRecord, SourceRecord


class Flow:
    """Of an app: its subtopologies by what they send each other."""

    def __init__(self, subtopologies: Sequence[Subtopology]) -> None:
        reads = {topic: sub.number for sub in subtopologies for topic in sub.sources}
        sends = {sub.number: {reads[topic] for topic in sub.sinks if topic in reads} for sub in subtopologies}
        self._reached = {number: _reached(number, sends) for number in sends}

    def first(self, numbers: Collection[int]) -> int:
        """Which of these subtopologies is next: one that none of the others sends to; of a circle the first."""
        return next(
            number
            for number in sorted(numbers)
            if all(self._reaches(number, other) or not self._reaches(other, number) for other in numbers)
        )

    def in_order(self) -> list[int]:
        """All of them, each behind those that send to it."""
        left, found = set(self._reached), list[int]()
        while left:
            found.append(self.first(left))
            left.remove(found[-1])
        return found

    def _reaches(self, number: int, other: int) -> bool:
        return other in self._reached[number]


def _reached(number: int, sends: dict[int, set[int]]) -> set[int]:
    """Where what a subtopology sends comes to, at once or by way of others."""
    found: set[int] = set()
    left = set(sends[number])
    while left:
        one = left.pop()
        found.add(one)
        left |= sends[one] - found
    return found


def met(sent: Sequence[Sequence[OutputRecord]]) -> list[OutputRecord]:
    """What tasks have sent into one partition, each list in its own order, as it lies there."""
    if len(sent) == 1:
        return list(sent[0])
    merger = Merger()
    for upstream, outputs in enumerate(sent):
        merger.add(
            str(upstream).zfill(9), 0, [SourceRecord(n, o.timestamp_ms, None, None) for n, o in enumerate(outputs)]
        )
    return [sent[int(upstream)][record.offset] for upstream, record in merger.take(len(merger))]
