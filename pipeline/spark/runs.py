"""Runs: rows of one task in their order, in one cell. What Spark moves are cells, not records.

One rule: what is in a cell is known from its place alone (its task, where it begins, its source), so nothing on the way looks inside. A cell is a compressed stream of Arrow with one batch, as RUN has it. In the flow: `reading` packs them on the
executors, Spark brings those of a task together, `cells` puts them in the order of their places, `merging` makes one order of their
rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.columns.numbers import of_numpy, to_numpy

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
UPSTREAM_BITS = 32
_WRITING = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READING = pa.ipc.IpcReadOptions(use_threads=False)


class Place(NamedTuple):
    """Of a cell: its task (`pid`), and what orders the cells of one task."""

    pid: int
    phase: int
    first: int
    source: int
    part: int


class End(NamedTuple):
    """The end of a group of items, and how many cells it had for a task. Where the machine that read it is lost, Spark ends the input
    of a Python function as if that were all, and fails the task after it."""

    pid: int
    cells: int


Cell = tuple[Place, bytes]
Moved = Cell | tuple[End, bytes]  # what goes from readers to tasks


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


def pack(rows: pa.RecordBatch, pids: Any, origin: Origin) -> list[Cell]:
    """Rows of RUN as they were read, of several tasks, as cells. Nothing in them is of the attempt that has read them: where a
    machine is lost Spark has some read again, and goes on only with the same."""
    order = to_numpy(rows.column("order"))
    in_order = bool((order[1:] >= order[:-1]).all())
    chosen = _small(pids).argsort(kind="stable") if in_order else np.lexsort((order, pids))
    rows, pids, order = rows.take(of_numpy(chosen)), pids[chosen], order[chosen]
    starts = np.flatnonzero(np.diff(pids, prepend=-1))
    stops = [*starts[1:].tolist(), len(pids)]
    return [
        (
            Place(int(pids[start]), origin.phase, int(order[start]), origin.source, origin.part),
            _cell(rows.slice(start, stop - start)),
        )
        for start, stop in zip(starts.tolist(), stops, strict=True)
    ]


def _cell(rows: pa.RecordBatch) -> bytes:
    """Compressed here, where it is C: what Java moves, keeps and sorts is a fraction of the rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RUN, options=_WRITING) as stream:
        stream.write_batch(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _rows(cell: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(cell), options=_READING) as stream:
        return stream.read_next_batch()


def _small(pids: Any) -> Any:
    """Numbers of 16 bits are sorted in one pass over them."""
    return pids.astype(np.uint16) if len(pids) and pids.min() >= 0 and pids.max() < 1 << 16 else pids


class Spent:
    """Seconds by stage of the way of a record."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


def unpack(cells: Iterable[Cell]) -> Iterator[Run]:
    for place, cell in cells:
        rows = _rows(cell)
        yield Run(place.phase, place.source, place.part, to_numpy(rows.column("order")), rows)
