"""Entries that lie in another partition than their key's, found on the executors by arrays.

One rule: no entry becomes an object that is not needed: one batch in, rows of `PACKED` out, each with the entries of one partition
of a changelog. Used by `relocation`; for what stays where time has passed by `time_passed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.spark.move_job import Owners, owners_of
from pipeline.spark.moves import DUE, MOVED, STRAY, packed, packed_batch
from pipeline.tables.expiry import STREAM_TIME_KEY


def relocated(job_text: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Entries in; what `misplaced` finds out."""
    layout = owners_of(job_text)
    for batch in batches:
        yield packed_batch(misplaced(layout, batch))


def misplaced(layout: Owners, entries: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Of entries (topic, partition, key, found): those that lie in another partition than their key's, how many have calls that
    come due, and one of those that lie where they should not have been."""
    topics = entries.column("topic")
    for topic in pc.unique(topics).to_pylist():
        of_topic = entries.filter(pc.equal(topics, topic))
        keys, values = (_plain(of_topic.column(name)) for name in ("key", "found"))
        everything = of_topic.column("partition").to_numpy()
        for here in np.unique(everything).tolist():
            chosen = np.flatnonzero(everything == here)
            yield from _of_partition(layout, topic, here, keys.take(chosen), values.take(chosen))


def _of_partition(layout: Owners, topic: str, here: int, keys: pa.Array, values: pa.Array) -> Iterator[dict[str, Any]]:
    keys, values = without_time(layout, topic, keys, values)
    before, there = layout.there(topic, keys)
    strays = np.flatnonzero(before != here)[:1]
    if len(strays):
        yield from packed(STRAY, topic, here, there=pa.array(before[strays], pa.int32()), key=keys.take(strays))
    if due := layout.due(topic, here, keys, values):
        yield {"kind": DUE, "topic": topic, "here": here, "rows": due}
    yield from moving(layout, topic, here, there, keys, values)


def moving(
    layout: Owners, topic: str, here: int, there: Any, keys: pa.Array, values: pa.Array
) -> Iterator[dict[str, Any]]:
    """The rows of the entries that belong elsewhere, by where each belongs."""
    chosen = np.flatnonzero(there != here)
    if len(chosen):
        keys = keys.take(chosen)
        yield from packed(
            MOVED,
            topic,
            here,
            there=pa.array(there[chosen], pa.int32()),
            key=keys,
            key_there=layout.keys_there(topic, here, keys),
            value=values.take(chosen),
        )


def without_time(layout: Owners, topic: str, keys: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Entries without the time of their task."""
    if not layout.is_time(topic, STREAM_TIME_KEY):
        return keys, values
    others = pc.not_equal(keys, pa.scalar(STREAM_TIME_KEY, pa.binary()))
    return keys.filter(others), values.filter(others)


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())
