"""Keys that have more of the records than an even share of a task: one task takes as long as they do, and no executor helps.

One rule: what is counted is at least what there is of a key, and never more; it costs a count of each Arrow batch, and a bounded
table of keys. In the flow: stage (`HeavyKeys`, in each task) -> TaskFacts -> engine (`skewed`, in the driver).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nlargest

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

OF_BATCH, KEPT, NAMED = 64, 256, 3
RECORDS_MIN = 10_000  # below that no task takes long


class Heavy(msgspec.Struct, frozen=True):
    """A key and at least how many records of its task it has."""

    key: bytes
    count: int


class Skewed(msgspec.Struct, frozen=True):
    """A key that has more of a subtopology's records than an even share of a task. `share`: of all of them, at least."""

    task: str
    key: str
    records: int
    share: float


class HeavyKeys:
    """The most frequent keys of a task. The counts of a key leave out batches in which others were more frequent."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}

    def add(self, keys: pa.Array) -> None:
        counted = pc.value_counts(keys)
        counts = counted.field("counts")
        if len(counts) > OF_BATCH:
            at = pc.top_k_unstable(counts, OF_BATCH)
            counted, counts = counted.take(at), counts.take(at)
        known = self._counts
        for key, count in zip(counted.field("values").to_pylist(), counts.to_pylist(), strict=True):
            if key is not None:
                known[key] = known.get(key, 0) + count
        if len(known) > KEPT:
            self._counts = dict(nlargest(KEPT // 2, known.items(), key=lambda one: one[1]))

    def top(self) -> list[Heavy]:
        found = nlargest(NAMED, self._counts.items(), key=lambda one: one[1])
        return [Heavy(key, count) for key, count in found]


def skewed(tasks: Iterable[tuple[str, int, list[Heavy]]], shown: Callable[[bytes], str]) -> list[Skewed]:
    """The keys, largest first, from (task, records, heavy keys) of all tasks of a subtopology."""
    listed = list(tasks)
    total = sum(records for _, records, _ in listed)
    if total < RECORDS_MIN or len(listed) < 2:
        return []
    found = [
        Skewed(task, shown(one.key), one.count, round(one.count / total, 4))
        for task, _, heavy in listed
        for one in heavy
        if one.count * len(listed) > total
    ]
    return sorted(found, key=lambda one: -one.records)


def line(one: Skewed) -> str:
    """For people."""
    return (
        f"key {one.key} has {one.share:.0%} of these records: task {one.task} takes as long as they do, whatever the number of "
        "executors"
    )
