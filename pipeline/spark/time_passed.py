"""The time of a task passes on an executor, before its entries move: what is due is called there, once.

One rule: the very TaskProcess that runs the task live does it, with its entries as its stores; of them no more is in memory than
TaskState keeps there. Entries of one task in, rows of `PACKED` out. Used by `relocation`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.columns.arrays import bytes_of
from pipeline.definitions.topology import Subtopology
from pipeline.errors import ProcessorFailed
from pipeline.process import Changes, TaskProcess
from pipeline.resources import Resources
from pipeline.spark.misplaced import moving
from pipeline.spark.move_job import Owners, TimeNotPassed, owners_of
from pipeline.spark.moves import SENT, WRITTEN, packed, packed_batch
from pipeline.spark.rows import packed as packed_headers
from pipeline.spark.task_state import TaskState

MEMORY_BYTES = 256 << 20  # what the tables of a task whose time passes take before they go to the executor's disk
CHUNK = 5_000


def passed(job_text: str, number: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The entries of one task of a subtopology in; what `brought_forward` finds out."""
    for row in brought_forward(owners_of(job_text), number, batches):
        yield packed_batch([row])


def brought_forward(layout: Owners, number: int, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """What is to be written where the time of a task, of which these are the entries (topic, partition, key, found), has come to
    its goal. Raises TimeNotPassed."""
    sub = layout.subtopologies[number]
    changelogs = {layout.app.tables[table].changelog: table for table in sub.tables}
    with closing(TaskState(sub.tables, MEMORY_BYTES)) as state:
        here = None
        for batch in batches:
            here = _kept(state, changelogs, batch, here)
        if here is None:
            return
        _, (at_ms, _, _) = layout.job.times[f"{number}_{here}"]
        try:
            changes = asyncio.run(_advanced(layout, sub, here, state, at_ms))
        except ProcessorFailed as error:
            raise TimeNotPassed(
                f"task {number}_{here} is brought forward to {at_ms} ms, the time of others with which its keys come to share tasks, "
                f"and a call that comes due before failed; nothing was changed: {error}"
            ) from error
        for topic, table in changelogs.items():
            store, written = state.stores[table], changes.writes.get(table, {})
            known = {key for key in written if store.get(key) is not None}
            yield from _changed(layout, topic, here, written, known)
            yield from _staying(layout, topic, here, store.pairs(), written)
        yield from _sent(changes)


def _kept(state: TaskState, changelogs: Mapping[str, str], batch: pa.RecordBatch, here: int | None) -> int | None:
    """The entries of a batch go to the task's tables; its partition."""
    topics = batch.column("topic")
    for topic in pc.unique(topics).to_pylist():
        of_topic = batch.filter(pc.equal(topics, topic))
        keys, values = (bytes_of(of_topic.column(name)) for name in ("key", "found"))
        state.write({changelogs[topic]: dict(zip(keys, values, strict=True))})
    return here if not batch.num_rows else int(batch.column("partition")[0].as_py())


async def _advanced(layout: Owners, sub: Subtopology, partition: int, state: TaskState, at_ms: int) -> Changes:
    """What a task does when time comes to here. Raises ProcessorFailed, TimeNotPassed."""
    async with Resources(layout.app) as resources:
        stores = dict(state.stores)
        process = TaskProcess(layout.app, sub, partition, stores, layout.job.counts, resources)
        while not await process.advance(at_ms):
            if process.waiting is not None:
                raise TimeNotPassed(
                    f"{process.waiting.processor} waits at what is due in task {process.task}: {process.waiting.error}; nothing was changed"
                )
            if process.again is not None:
                await asyncio.sleep(process.again.delay_s)
        return process.collect()


def _changed(
    layout: Owners, topic: str, here: int, written: Mapping[bytes, bytes | None], known: set[bytes]
) -> Iterator[dict[str, Any]]:
    """Entries that the passing of time has written: a deletion where one was, a value where it belongs."""
    rest = ((key, value) for key, value in written.items() if not layout.is_time(topic, key))
    while some := list(islice(rest, CHUNK)):
        keys = pa.array([key for key, _ in some], pa.binary())
        _, there = layout.there(topic, keys)
        elsewhere = bytes_of(layout.keys_there(topic, here, keys))
        rows: list[tuple[int, bytes, bytes | None]] = []
        for (key, value), number, other in zip(some, there.tolist(), elsewhere, strict=True):
            if key in known and (value is None or number != here):
                rows.append((here, key, None))
            if value is not None:
                rows.append((number, key if number == here else other, value))
        if rows:
            numbers, names, values = zip(*rows, strict=True)
            arrays = {"there": pa.array(numbers, pa.int32()), "key": pa.array(names, pa.binary())}
            yield from packed(WRITTEN, topic, here, **arrays, value=pa.array(values, pa.binary()))


def _staying(
    layout: Owners, topic: str, here: int, pairs: Iterator[tuple[bytes, bytes]], changed: Mapping[bytes, bytes | None]
) -> Iterator[dict[str, Any]]:
    """The others, where they lie wrong."""
    rest = ((key, value) for key, value in pairs if key not in changed and not layout.is_time(topic, key))
    while some := list(islice(rest, CHUNK)):
        keys, values = (pa.array([pair[at] for pair in some], pa.binary()) for at in (0, 1))
        _, there = layout.there(topic, keys)
        yield from moving(layout, topic, here, there, keys, values)


def _sent(changes: Changes) -> Iterator[dict[str, Any]]:
    for (topic, partition), outputs in changes.outputs.items():
        rest = iter(outputs)
        while some := list(islice(rest, CHUNK)):
            yield from packed(
                SENT,
                topic,
                partition,
                there=pa.array([partition] * len(some), pa.int32()),
                key=pa.array([one.key for one in some], pa.binary()),
                value=pa.array([one.value for one in some], pa.binary()),
                number=pa.array([one.timestamp_ms for one in some], pa.int64()),
                headers=pa.array([packed_headers(one.headers) for one in some], pa.binary()),
            )
