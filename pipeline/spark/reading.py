"""What a subtopology reads, packed into runs on the executors: parts of files, slices of the log, what earlier stages sent.

One rule: a source that is alone has its rows in the order of their offsets, history first; several sources are in order
by the running maximum of their times, as `rows.PLACE` says, which a history without offsets has from the start. In the flow:
`stage_rows` plans a ReadingJob, each executor carries out some of its items, `runs` are what comes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.clocks import monotonic_s
from pipeline.app import App
from pipeline.columns.numbers import to_numpy
from pipeline.spark.history import ReadJob, placed
from pipeline.spark.row_counts import READ, RowCount
from pipeline.spark.rows import batches_of
from pipeline.spark.runs import RUN, Cell, End, Moved, Origin, Spent, pack, source_number
from pipeline.spark.source import Source

BY_OFFSET, BY_TIME, FROM_LOG = range(3)  # phases of a source that is alone
PART_BITS = 24  # batches of an item
ROWS_MIN, ROWS_MAX, TASK_ROWS = 1 << 16, 1 << 19, 1 << 12  # of a batch, and of it for each task
BATCH_BYTES = 8 << 20
LOG_ROWS = 1 << 14  # of the log
NOTE = ".spent"


class FileItem(msgspec.Struct, frozen=True, tag="file"):
    """Part `number` of the files of a topic."""

    topic: str
    number: int


class LogItem(msgspec.Struct, frozen=True, tag="log"):
    """A partition of a topic of the log, from `start` until before `end`."""

    topic: str
    number: int
    start: int
    end: int


class SentItem(msgspec.Struct, frozen=True, tag="sent"):
    """A file of what a task of an earlier stage sent."""

    topic: str
    path: str


Item = FileItem | LogItem | SentItem


class ReadingJob(msgspec.Struct, frozen=True):
    """`topics`: in the order that they have at one time. `is_alone`: there is one source only. `groups`: the numbers of the items that
    a task reads. `spent`: the folder where executors note how long they took."""

    source: Source
    log_url: str
    tasks: int
    topics: list[str]
    is_alone: bool
    files: dict[str, ReadJob]
    items: list[Item]
    groups: list[list[int]]
    spent: str = ""


def read_items(job_text: str, groups: Iterable[int]) -> Iterator[Moved]:
    """On an executor: numbers of groups of items in, their cells out, and behind those of a group its end for each task. Each item
    gives the same whenever it is read, and by whichever task."""
    job = msgspec.json.decode(job_text, type=ReadingJob)
    app = job.source.load()
    spent = Spent()
    for group in groups:
        counts = [0] * job.tasks
        for cell in _runs_of(job, app, job.groups[group], spent):
            counts[cell[0].pid] += 1
            yield cell
        yield from ((End(pid, count), b"") for pid, count in enumerate(counts))


def _runs_of(job: ReadingJob, app: App, numbers: Iterable[int], spent: Spent) -> Iterator[Cell]:
    for number in numbers:
        item = job.items[number]
        topic = job.topics.index(item.topic)
        if isinstance(item, FileItem):
            found = _of_files(placed(job.files[item.topic], app, item.number), job.is_alone)
        elif isinstance(item, LogItem):
            found = _of_log(job, item)
        else:
            found = _of_sent(item)
        if job.spent:
            found = _counted(found, RowCount(Path(job.spent), READ, number))
        yield from _packed(found, job.tasks, topic, number, spent)
        if job.spent:
            _note(Path(job.spent), number, spent)


def _note(folder: Path, item: int, spent: Spent) -> None:
    """Of several attempts one counts. It is no part of the runs, which are the same for all."""
    draft = folder / f".{item}.{token_hex(4)}"
    draft.write_bytes(msgspec.json.encode(spent.seconds))
    draft.rename(folder / f"{item}{NOTE}")
    spent.seconds.clear()


def noted(folder: Path) -> dict[str, float]:
    """In the driver: what executors have noted, summed up."""
    found = Spent()
    for path in folder.glob(f"[0-9]*{NOTE}"):
        for stage, seconds in msgspec.json.decode(path.read_bytes(), type=dict[str, float]).items():
            found.add(stage, seconds)
    return found.seconds


Rows = tuple[int, int, pa.RecordBatch, Any]  # phase, upstream, rows of RUN, and numpy's int64: their partitions


def _counted(found: Iterator[Rows], count: RowCount) -> Iterator[Rows]:
    for one in found:
        count.add(len(one[3]))
        yield one
    count.write()


def _packed(found: Iterator[Rows], tasks: int, topic: int, item: int, spent: Spent) -> Iterator[Cell]:
    """Rows of one phase and source are gathered until a run of each task is worth its cell."""
    most = min(max(ROWS_MIN, TASK_ROWS * tasks), ROWS_MAX)
    held: list[Rows] = []
    count, size, part, begun = 0, 0, item << PART_BITS, monotonic_s()
    for one in found:
        if held and (one[:2] != held[0][:2] or count + len(one[3]) > most or size > BATCH_BYTES):
            spent.add("read", monotonic_s() - begun)
            yield from _runs(held, topic, part, spent)
            held, count, size, part, begun = [], 0, 0, part + 1, monotonic_s()
        held.append(one)
        count += len(one[3])
        size += one[2].nbytes
    if held:
        spent.add("read", monotonic_s() - begun)
        yield from _runs(held, topic, part, spent)


def _runs(held: list[Rows], topic: int, part: int, spent: Spent) -> list[Cell]:
    begun = monotonic_s()
    phase, upstream, rows, pids = held[0]
    if len(held) > 1:
        table = pa.Table.from_batches([one[2] for one in held]).combine_chunks()
        rows = pa.RecordBatch.from_arrays([column.chunk(0) for column in table.columns], schema=RUN)
        pids = np.concatenate([one[3] for one in held])
    found = pack(rows, pids, Origin(phase, source_number(topic, upstream), part))
    spent.add("encode", monotonic_s() - begun)
    return found


def _of_files(batches: Iterator[pa.RecordBatch], is_alone: bool) -> Iterator[Rows]:
    """Rows with an offset come before those without, in its order; these by time. Several sources have none with one."""
    for batch in batches:
        at = batch.column("at")
        if at.null_count < len(at):
            there = batch.filter(at.is_valid())
            if there.num_rows:
                yield BY_OFFSET, 0, *_rows(there, there.column("at"), None)
            batch = batch.filter(at.is_null())
        if batch.num_rows:
            yield BY_TIME if is_alone else 0, 0, *_rows(batch, batch.column("order_ms"), None)


def _of_log(job: ReadingJob, item: LogItem) -> Iterator[Rows]:
    from pipeline.spark.log_source import Slice  # a client of logs and all that it needs: not for files
    from pipeline.spark.log_source import read as read_slice

    for batch in even(read_slice(job.log_url, Slice(item.topic, item.number, item.start, item.end))):
        seq = batch.column("offset")
        order = seq if job.is_alone else batch.column("order_ms")
        rows = _run(order, seq, *(batch.column(name) for name in RUN.names[2:]))
        yield FROM_LOG if job.is_alone else 0, 0, rows, np.full(len(seq), item.number)


def even(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that depend on nothing but them: a broker gives as much at a time as it has at hand."""
    held: list[pa.RecordBatch] = []
    count, size = 0, 0
    for batch in batches:
        ends = np.cumsum(_sizes(batch))
        first = before = 0
        while first < batch.num_rows:
            full = int(np.searchsorted(ends, before + BATCH_BYTES - size)) + 1
            stop = min(first + LOG_ROWS - count, full, batch.num_rows)
            held.append(batch.slice(first, stop - first))
            count, size = count + stop - first, size + int(ends[stop - 1]) - before
            first, before = stop, int(ends[stop - 1])
            if count == LOG_ROWS or size >= BATCH_BYTES:
                yield _whole(held)
                held, count, size = [], 0, 0
    if held:
        yield _whole(held)


def _sizes(batch: pa.RecordBatch) -> Any:
    """Bytes of each row."""
    columns = [pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in ("key", "value", "headers")]
    return sum(to_numpy(one).astype(np.int64) for one in columns)


def _whole(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)


def _of_sent(item: SentItem) -> Iterator[Rows]:
    with pq.ParquetFile(item.path) as file:
        for batch in batches_of(file, ROWS_MIN):
            if batch.num_rows:
                upstream = int(pc.min(batch.column("upstream")).as_py())  # one task has written all of it
                yield 0, upstream, *_rows(batch, batch.column("order_ms"), batch.column("seq"))


def _rows(batch: pa.RecordBatch, order: pa.Array, seq: pa.Array | None) -> tuple[pa.RecordBatch, Any]:
    none = pa.nulls(batch.num_rows, pa.int64())
    rows = _run(order, none if seq is None else seq, *(batch.column(name) for name in RUN.names[2:]))
    return rows, to_numpy(batch.column("pid")).astype(np.int64)


def _run(*columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), schema=RUN)
