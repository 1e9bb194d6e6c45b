"""Runs: rows of one task in their order, in one cell of a row of Spark. What Spark shuffles and sorts are runs, not records.

One rule: what is in a run is known from its row alone (where it begins, of which source it is), so Spark places it and never
looks inside. The cell is a compressed stream of Arrow with one batch, as RUN has it. In the flow: `reading` packs them on
the executors, Spark brings those of a task together by ORDER, `merging` makes one order of their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

# `order` is what rows are sorted by; seq is null in history: its rows are counted when they are in their order.
RUN = pa.schema(
    [
        ("order", pa.int64()),
        ("seq", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.binary()),
    ]
)
ORDER = ("phase", "first", "source", "part")
BATCH_BYTES = "16m"  # of Arrow's batches between Java and Python: a run has up to some megabytes, not some bytes
UPSTREAM_BITS = 32
_WRITING = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READING = pa.ipc.IpcReadOptions(use_threads=False)
PACKED = pa.schema(
    [
        ("pid", pa.int32()),
        ("phase", pa.int32()),
        ("first", pa.int64()),
        ("source", pa.int64()),
        ("part", pa.int64()),
        ("rows", pa.binary()),
    ]
)


class Run(NamedTuple):
    """Rows in order. Everything of a lower phase comes before; at equal `order` the lower (source, part) is first."""

    phase: int
    source: int
    part: int
    order: Any  # numpy's int64
    rows: pa.RecordBatch

    @property
    def place(self) -> tuple[int, int]:
        return self.source, self.part


class Origin(NamedTuple):
    """Whose rows are packed. `part` counts what is read of one source, in the order in which it stands there."""

    phase: int
    source: int
    part: int


def source_number(topic: int, upstream: int = 0) -> int:
    """`topic`: its place among the sources of a subtopology, at one time the lower one is first."""
    return topic << UPSTREAM_BITS | upstream


def topic_of(source: Any) -> Any:
    """Of one, or of each of an array."""
    return source >> UPSTREAM_BITS


def pack(rows: pa.RecordBatch, pids: Any, origin: Origin) -> pa.RecordBatch:
    """Rows of RUN as they were read, of several tasks, as runs. Nothing in them is of the attempt that has read them: where a
    machine is lost Spark has some read again, and goes on only with the same."""
    order = rows.column("order").to_numpy()
    in_order = bool((order[1:] >= order[:-1]).all())
    chosen = _small(pids).argsort(kind="stable") if in_order else np.lexsort((order, pids))
    rows, pids, order = rows.take(pa.array(chosen)), pids[chosen], order[chosen]
    starts = np.flatnonzero(np.diff(pids, prepend=-1))
    stops = [*starts[1:].tolist(), len(pids)]
    runs = [
        (int(pids[start]), int(order[start]), _cell(rows.slice(start, stop - start)))
        for start, stop in zip(starts.tolist(), stops, strict=True)
    ]
    count = len(runs)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([pid for pid, _, _ in runs], pa.int32()),
            pa.array([origin.phase] * count, pa.int32()),
            pa.array([at for _, at, _ in runs], pa.int64()),
            pa.array([origin.source] * count, pa.int64()),
            pa.array([origin.part] * count, pa.int64()),
            pa.array([data for _, _, data in runs], pa.binary()),
        ],
        schema=PACKED,
    )


def _cell(rows: pa.RecordBatch) -> bytes:
    """Compressed here, where it is C: what Java moves, keeps and sorts is a fraction of the rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RUN, options=_WRITING) as stream:
        stream.write_batch(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _rows(cell: pa.BinaryScalar) -> pa.RecordBatch:
    """In memory of their own: the batch of the cell is not kept for them."""
    with pa.ipc.open_stream(cell.as_buffer(), options=_READING) as stream:
        return stream.read_next_batch()


def _small(pids: Any) -> Any:
    """Numbers of 16 bits are sorted in one pass over them."""
    return pids.astype(np.uint16) if len(pids) and pids.min() >= 0 and pids.max() < 1 << 16 else pids


def markers(tasks: int) -> pa.RecordBatch:
    """An empty run for each task, so that Spark leaves none out."""
    none = [0] * tasks
    columns = [list(range(tasks)), none, none, none, none, [None] * tasks]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, PACKED, strict=True)], schema=PACKED
    )


class Spent:
    """Seconds by stage of the way of a record."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Run | None]]:
    """(number of the task, run) in the order of the rows; None for a marker."""
    for batch in batches:
        fixed = [batch.column(name).to_pylist() for name in ("pid", "phase", "source", "part")]
        for at, (pid, phase, source, part) in enumerate(zip(*fixed, strict=True)):
            cell = batch.column("rows")[at]
            if not cell.is_valid:
                yield pid, None
                continue
            rows = _rows(cell)
            yield pid, Run(phase, source, part, rows.column("order").to_numpy(), rows)
