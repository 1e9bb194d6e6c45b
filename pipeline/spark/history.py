"""History files as rows of a topic: every executor reads parts of them, with the one reader of files.

One rule: history comes before everything in the log, in the order of `offset`, or where there is none by time (of a record of another
log: the time by which a task takes it) and then by place in the files. What the topic's type cannot read stops the backfill, with its file and line. Partitions are given
by the same partitioner that producers use. The seq of a row of history is below 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from orchestrator.errors import WrongUse
from pipeline.app import App
from pipeline.columns.murmur import partitions_of
from pipeline.columns.numbers import of_numpy
from pipeline.definitions.definition import Topic
from pipeline.files import parts as reader
from pipeline.files.parts import Part
from pipeline.files.shape import BadFile, BadRow, FileRecord, OnBad, Reading, Shape
from pipeline.spark import parquet_rows
from pipeline.spark.bad_rows import set_aside
from pipeline.spark.file_groups import groups, sizes
from pipeline.spark.parquet_rows import Cells
from pipeline.spark.rows import packed
from pipeline.spark.source import Source
from pipeline.values.partitioner import partition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST_SEQ = -(1 << 40)
BATCH = 4_096
NOTHING: Mapping[str, str] = MappingProxyType({})
_PLACED = "pid int, timestamp_ms bigint, key binary, value binary, headers binary, at bigint, order_ms bigint, file int, start bigint, line bigint"
PLACED = pa.schema(
    [
        ("pid", pa.int32()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.binary()),
        ("at", pa.int64()),
        ("order_ms", pa.int64()),
        ("file", pa.int32()),
        ("start", pa.int64()),
        ("line", pa.int64()),
    ]
)


class BadHistory(WrongUse):
    """History files that are not there, or do not hold records of their topic."""


class ReadJob(msgspec.Struct, frozen=True):
    """What every executor must know to read the parts of a topic's files. `files` are in the order of reading."""

    source: Source
    topic: str
    partitions: int
    shape: Shape
    files: list[str]
    parts: list[Part]
    bad: str = ""  # the folder for rows that are no records; "": the first one ends it
    shown: dict[str, str] = {}  # how errors call files that stand for something else

    def called(self, text: str, file: str) -> str:
        return text.replace(file, self.shown[file]) if file in self.shown else text


def files(patterns: Sequence[str]) -> list[str]:
    """The files that patterns name, in order. Raises BadHistory for a pattern that names none."""
    try:
        return reader.files(patterns)
    except BadFile as error:
        raise BadHistory(str(error)) from None


def history_job(
    shipped: Source,
    topic: Topic[Any, Any],
    partitions: int,
    names: Sequence[str],
    shape: Shape,
    bad: str = "",
    shown: Mapping[str, str] = NOTHING,
) -> ReadJob:
    """Cuts the files into parts. `bad`, `shown`: see ReadJob. Raises BadHistory."""
    reading = Reading(topic.topic, topic.key_codec, topic.value_codec, partitions, is_history=True)
    try:
        for name in names:
            reader.check(name, reading, shape)
        cut = [part for name in names for part in reader.parts(name)]
    except BadFile as error:
        text = str(error)
        for name, called in shown.items():
            text = text.replace(name, called)
        raise BadHistory(text) from None
    return ReadJob(shipped, topic.topic, partitions, shape, list(names), cut, bad, dict(shown))


def history_rows(session: SparkSession, job: ReadJob) -> DataFrame:
    """The rows of the files, as in `rows.ROWS`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    made = groups(sizes(job.parts), session.sparkContext.defaultParallelism)
    read = partial(read_parts, msgspec.json.encode(job).decode(), made)
    placed = session.range(0, len(made), 1, max(1, len(made))).mapInArrow(read, _PLACED)
    source = Window.partitionBy("pid").orderBy(
        F.col("at").asc_nulls_last(), F.when(F.col("at").isNull(), F.col("order_ms")), "file", "start", "line"
    )
    so_far = source.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return placed.select(
        "pid",
        F.max("timestamp_ms").over(so_far).alias("order_ms"),
        F.lit(job.topic).alias("topic"),
        F.col("pid").alias("upstream"),
        (F.row_number().over(source).cast("bigint") + F.lit(FIRST_SEQ)).alias("seq"),
        "timestamp_ms",
        "key",
        "value",
        "headers",
    )


def read_parts(
    job_text: str, made: Sequence[Sequence[int]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On an executor: numbers of groups in, placed records of their parts out. Raises BadHistory."""
    job = msgspec.json.decode(job_text, type=ReadJob)
    app = job.source.load()
    for batch in batches:
        for group in batch.column(0).to_pylist():
            for number in made[group]:
                yield from placed(job, app, number)


def placed(job: ReadJob, app: App, number: int) -> Iterator[pa.RecordBatch]:
    """The rows of a part of a file with their partitions, as PLACED has them. Raises BadHistory."""
    topic = next(topic for topic in app.topics.values() if topic.topic == job.topic)
    reading = Reading(topic.topic, topic.key_codec, topic.value_codec, job.partitions, is_history=True)
    part = job.parts[number]
    file = job.files.index(part.file)
    with _bad_of(job, number) as on_bad:
        try:
            for before, found in _read(part, reading, job.shape, on_bad):
                if isinstance(found, Cells):
                    yield _placed_cells(job, file, part, before, found)
                    continue
                for some in _batches(found):
                    yield _placed(job, file, part, some)
        except (BadRow, BadFile) as error:
            is_left = isinstance(error, BadRow) and on_bad is None
            advice = ", or set such rows aside with --bad-records DIR" if is_left else ""
            raise BadHistory(f"{job.called(str(error), part.file)}; correct the file{advice}") from None


def _read(
    part: Part, reading: Reading, shape: Shape, on_bad: OnBad | None
) -> Iterator[tuple[int, Cells | Iterator[FileRecord]]]:
    if part.kind == "parquet":
        yield from parquet_rows.read(part, reading, shape, on_bad)
    else:
        yield 0, reader.read(part, reading, shape, on_bad)


def _bad_of(job: ReadJob, number: int) -> AbstractContextManager[OnBad | None]:
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = 0 if context is None else context.taskAttemptId()
    file = job.parts[number].file
    return set_aside(Path(job.bad), number, attempt, job.called(file, file)) if job.bad else nullcontext()


def _batches(found: Iterable[FileRecord]) -> Iterator[list[FileRecord]]:
    iterator = iter(found)
    while some := list(islice(iterator, BATCH)):
        yield some


def _placed(job: ReadJob, file: int, part: Part, some: list[FileRecord]) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {
        "pid": [
            partition_of(one.key, job.partitions, keyless=one.line) if one.partition is None else one.partition
            for one in some
        ],
        "timestamp_ms": [one.timestamp_ms for one in some],
        "key": [one.key for one in some],
        "value": [one.value for one in some],
        "headers": [packed(one.headers) for one in some],
        "at": [one.offset for one in some],
        "order_ms": [one.timestamp_ms if one.order_ms is None else one.order_ms for one in some],
        "file": [file] * len(some),
        "start": [part.start] * len(some),
        "line": [one.line for one in some],
    }
    return pa.RecordBatch.from_pydict(columns, schema=PLACED)


def _placed_cells(job: ReadJob, file: int, part: Part, before: int, cells: Cells) -> pa.RecordBatch:
    """The same of rows that are columns already."""
    count = len(cells.times)
    lines = np.arange(before + 1, before + count + 1)
    keys = cells.keys
    if keys.null_count:
        pids = lines % job.partitions
        there = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        pids[there] = partitions_of(keys.drop_null(), job.partitions)
    else:
        pids = partitions_of(keys, job.partitions)
    columns = {
        "pid": of_numpy(pids.astype(np.int32)),
        "timestamp_ms": of_numpy(cells.times),
        "key": keys,
        "value": cells.values,
        "headers": pa.nulls(count, pa.binary()),
        "at": pa.nulls(count, pa.int64()),
        "order_ms": of_numpy(cells.times),
        "file": of_numpy(np.full(count, file, np.int32)),
        "start": of_numpy(np.full(count, part.start)),
        "line": of_numpy(lines),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in PLACED.names], schema=PLACED)
