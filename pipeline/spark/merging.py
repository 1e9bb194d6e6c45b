"""Runs of a task to its records in their one order, in bounded memory.

One rule: a row leaves when no run that is still to come can have one before it. Runs come sorted by where they begin, so
histories in the order of time are held a run at a time; where rows lie anywhere, what exceeds the limit goes to the
executor's own disk as a sorted run, and these are merged when the last one of their phase has come.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.columns.numbers import of_numpy, to_numpy
from pipeline.spark.runs import RUN, Run

OUT_ROWS = 8_192
DISK_ROWS, DISK_BYTES = 4_096, 1 << 20  # of each run on disk so much is in memory while they are merged


class Piece(NamedTuple):
    """Rows in their order, and the source of each."""

    sources: Any  # numpy's int64
    rows: pa.RecordBatch


class Sorted(NamedTuple):
    """The same with what they are sorted by."""

    order: Any
    sources: Any
    parts: Any
    rows: pa.RecordBatch

    def cut(self, first: int, stop: int) -> Sorted:
        return Sorted(
            self.order[first:stop],
            self.sources[first:stop],
            self.parts[first:stop],
            self.rows.slice(first, stop - first),
        )

    def through(self, last: tuple[int, int, int]) -> int:
        """How many rows are not behind this place."""
        order, source, part = last
        low, high = np.searchsorted(self.order, order, "left"), np.searchsorted(self.order, order, "right")
        sources, parts = self.sources[low:high], self.parts[low:high]
        return int(low + ((sources < source) | ((sources == source) & (parts <= part))).sum())

    def last(self) -> tuple[int, int, int]:
        return int(self.order[-1]), int(self.sources[-1]), int(self.parts[-1])


class Merging:
    """Of one task; `limit_bytes` is what runs may take of memory. Its folder is gone when it is closed."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: list[Run] = []
        self._held_bytes = 0
        self._disk: list[Path] = []
        self._folder: Path | None = None

    def pieces(self, runs: Iterable[Run]) -> Iterator[Piece]:
        """All rows of all runs, which come in the order of `runs.ORDER`."""
        phase = None
        for run in runs:
            if run.phase != phase:
                yield from self._rest()
                phase = run.phase
            if not self._disk:
                yield from self._before(run)
            self._held.append(run)
            self._held_bytes += run.rows.nbytes
            if self._held_bytes > self._limit_bytes and len(self._held) > 1:
                self._spill()
        yield from self._rest()

    def close(self) -> None:
        """Nothing of it is left on disk."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _before(self, run: Run) -> Iterator[Piece]:
        """The rows before all of this run, and of those that begin after it, once there are enough of them."""
        first = int(run.order[0])
        counts = [
            int(np.searchsorted(held.order, first, "right" if held.place < run.place else "left"))
            for held in self._held
        ]
        if sum(counts) < OUT_ROWS:
            return
        taken = [_part(held, 0, count) for held, count in zip(self._held, counts, strict=True) if count]
        left = [(held, count) for held, count in zip(self._held, counts, strict=True) if count < len(held.order)]
        self._held = [_rest_of(held, count) if count else held for held, count in left]
        self._held_bytes = sum(held.rows.nbytes for held in self._held)
        yield from _cut(_sorted(taken))

    def _rest(self) -> Iterator[Piece]:
        """What is left of the phase."""
        held, self._held, self._held_bytes = self._held, [], 0
        if not self._disk:
            if held:
                yield from _cut(_sorted(held))
            return
        memory = [iter(_chunks(_sorted(held)))] if held else []
        disk, self._disk = self._disk, []
        yield from _merged([*memory, *map(_read, disk)])
        for path in disk:
            path.unlink()

    def _spill(self) -> None:
        if self._folder is None:
            local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]  # Spark passes its disks to its workers
            self._folder = Path(tempfile.mkdtemp(prefix="stream-orchestrator-", dir=local or None))
        path = self._folder / f"{len(self._disk)}.arrow"
        _write(path, _sorted(self._held))
        self._disk.append(path)
        self._held, self._held_bytes = [], 0


def _part(run: Run, first: int, stop: int) -> Run:
    return run._replace(order=run.order[first:stop], rows=run.rows.slice(first, stop - first))


def _rest_of(run: Run, first: int) -> Run:
    """What follows, without the memory of what came before it: a late row would keep all of its run."""
    rows = run.rows.slice(first)
    if 2 * rows.nbytes < rows.get_total_buffer_size():
        rows = rows.take(of_numpy(np.arange(rows.num_rows)))
        return run._replace(order=to_numpy(rows.column("order")), rows=rows)
    return run._replace(order=run.order[first:], rows=rows)


def _sorted(runs: list[Run]) -> Sorted:
    """One order of the rows of some runs of a phase."""
    runs = sorted(runs, key=lambda run: run.place)
    counts = [len(run.order) for run in runs]
    order = np.concatenate([run.order for run in runs])
    sources, parts = (np.repeat([run.place[at] for run in runs], counts) for at in (0, 1))
    rows = _one([run.rows for run in runs])
    if len(runs) == 1 or (order[1:] >= order[:-1]).all():
        return Sorted(order, sources, parts, rows)
    chosen = order.argsort(kind="stable")
    return Sorted(order[chosen], sources[chosen], parts[chosen], rows.take(of_numpy(chosen)))


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()
    return pa.RecordBatch.from_arrays([column.chunk(0) for column in table.columns], schema=RUN)


def _cut(found: Sorted) -> Iterator[Piece]:
    for first in range(0, len(found.order), OUT_ROWS):
        yield Piece(found.sources[first : first + OUT_ROWS], found.rows.slice(first, OUT_ROWS))


def _chunks(found: Sorted) -> Iterator[Sorted]:
    count = len(found.order)
    at_once = max(1, min(DISK_ROWS, DISK_BYTES * count // max(1, found.rows.nbytes)))
    for first in range(0, count, at_once):
        yield found.cut(first, min(first + at_once, count))


def _write(path: Path, found: Sorted) -> None:
    schema = pa.schema([("source", pa.int64()), ("part", pa.int64()), *RUN])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for chunk in _chunks(found):
            placed = [of_numpy(chunk.sources), of_numpy(chunk.parts)]
            writer.write_batch(pa.RecordBatch.from_arrays([*placed, *chunk.rows.columns], schema=schema))


def _read(path: Path) -> Iterator[Sorted]:
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            sources, parts, order = (to_numpy(batch.column(name)) for name in ("source", "part", "order"))
            yield Sorted(order, sources, parts, pa.RecordBatch.from_arrays(batch.columns[2:], schema=RUN))


def _merged(streams: list[Iterator[Sorted]]) -> Iterator[Piece]:
    """Several sorted streams as one: each time all rows up to the nearest end of what is in memory of one of them."""
    heads = [(head, stream) for stream in streams if (head := next(stream, None)) is not None]
    while heads:
        last = min(head.last() for head, _ in heads)
        taken: list[Sorted] = []
        left: list[tuple[Sorted, Iterator[Sorted]]] = []
        for head, stream in heads:
            count = head.through(last)
            if count:
                taken.append(head.cut(0, count))
            rest = head.cut(count, len(head.order)) if count < len(head.order) else next(stream, None)
            if rest is not None:
                left.append((rest, stream))
        heads = left
        order, sources, parts = (np.concatenate([one[at] for one in taken]) for at in (0, 1, 2))
        chosen = np.lexsort((parts, sources, order))
        rows = _one([one.rows for one in taken]).take(of_numpy(chosen))
        yield Piece(sources[chosen], rows)
