"""The rows of a subtopology on their way to its tasks: one shuffle and one sort, of runs where their order is known.

One rule: the order is the one in which a task takes its records live. Executors know it of each row, and pack rows into runs
(`reading`), unless it takes a look at all rows first: of several sources, where one has history with offsets, or what comes after
its history; then Spark's windows place each row. In the flow: engine -> here -> `stage`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline.definitions.topology import Subtopology
from pipeline.files import parquet
from pipeline.files.parts import kind_of
from pipeline.files.shape import ORDER, Reading
from pipeline.spark.bad_rows import gather
from pipeline.spark.file_groups import groups, sizes
from pipeline.spark.history import ReadJob, history_job, history_rows
from pipeline.spark.inputs import EARLIER, Computed, Files, Inputs, followed, whole
from pipeline.spark.log_source import log_frame, slices
from pipeline.spark.moving import moved
from pipeline.spark.one_file import one_file
from pipeline.spark.reading import FileItem, Item, LogItem, ReadingJob, SentItem, noted, read_items
from pipeline.spark.rows import COLUMNS, PLACE
from pipeline.spark.session import failure
from pipeline.spark.source import Source
from pipeline.spark.sources import From, local_files
from pipeline.spark.stage import run, run_packed
from pipeline.spark.stage_order import in_order_at_one_time, ranks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BEFORE_ALL_MS = -(1 << 63)


class StageRows:
    """Of one stage. Blocks."""

    def __init__(
        self, session: SparkSession, inputs: Inputs, computed: Computed, shipped: Source, sub: Subtopology
    ) -> None:
        self._session = session
        self._inputs = inputs
        self._prepared = inputs.prepared
        self._computed = computed
        self._shipped = shipped
        self._sub = sub
        self._topics = {topic.topic: topic for topic in inputs.prepared.app.topics.values()}

    def collect(self, job: str, attempts: Path) -> Sequence[str]:
        """The facts that `stage` answers of each task, which is given a StageJob. Raises what an executor raised, SparkFailed, or
        InputsRemoved."""
        if self._is_packed():
            return self._run_packed(job, attempts)
        from pyspark.sql.types import StringType, StructType

        answer = StructType().add("facts", StringType())  # as text it would need Java's parser of SQL, 0.2 s
        rows = self._rows()
        try:
            rows = rows.repartitionById(self._sub.partitions, "pid").sortWithinPartitions(*self._place())
            return [row["facts"] for row in rows.mapInArrow(partial(run, job), answer).collect()]
        except Exception as error:  # whatever Spark raises: its own text is a page of Java
            raise failure(self._session, error) from error

    # ---- runs

    def _plain(self) -> list[str]:
        """The sources that are read from the log and from history."""
        return [name for name in self._sub.sources if self._prepared.topics[name].kind != "repartition"]

    def _is_packed(self) -> bool:
        """Whether the order of each row is known where it is read."""
        plain = self._plain()
        if set(plain) & set(followed(self._inputs)):
            return False
        if len(self._sub.sources) == 1:
            return True
        with_history = [name for name in plain if name in self._inputs.history]
        return all(not self._slices(name) and self._is_by_time(name) for name in with_history)

    def _slices(self, topic: str) -> list[LogItem]:
        """What is read of the log, partition by partition. Raises InputsRemoved."""
        until = {str(p): end for p, end in self._inputs.until.items() if p.topic == topic}
        since = {str(p): position for p, position in self._inputs.begins.items()}
        found = asyncio.run(slices(self._inputs.log_url, [topic], until, since, is_whole=True))
        return [LogItem(one.topic, one.number, one.start, one.end) for one in found if one.end > one.start]

    def _is_by_time(self, topic: str) -> bool:
        """Whether no row of its files can have another place than that of its time."""
        if self._inputs.shape.flat:
            return True
        names, _ = self._files(topic)
        return all(kind_of(name) == "parquet" and not {"offset", ORDER} & set(parquet.names(name)) for name in names)

    def _run_packed(self, job: str, attempts: Path) -> Sequence[str]:
        """Without SQL, which Java would take a second to get ready."""
        reading = msgspec.structs.replace(self._reading(), spent=str(attempts))
        numbers = len(reading.groups)
        read = partial(read_items, msgspec.json.encode(reading).decode())
        try:
            groups = self._session.sparkContext.parallelize(range(numbers), max(1, numbers))
            cells = moved(groups.mapPartitions(read), self._sub.partitions)
            answers = cells.mapPartitions(partial(run_packed, job, numbers)).collect()
        except Exception as error:  # whatever Spark raises: its own text is a page of Java
            raise failure(self._session, error) from error
        for stage, seconds in noted(attempts).items():
            self._computed.reading[stage] = self._computed.reading.get(stage, 0.0) + seconds
        for topic in reading.files:
            self._gather(topic)
        return answers

    def _reading(self) -> ReadingJob:
        items: list[Item] = []
        made: list[list[int]] = []
        files: dict[str, ReadJob] = {}

        def add(found: Sequence[Item], grouped: Sequence[Sequence[int]] | None = None) -> None:
            first = len(items)
            each = [[number] for number in range(len(found))] if grouped is None else grouped
            made.extend([first + number for number in group] for group in each)
            items.extend(found)

        at_once = self._session.sparkContext.defaultParallelism
        for name in self._plain():
            if name in self._inputs.history:
                parts = (job := self._history_job(name)).parts
                files[name] = job
                add([FileItem(name, number) for number in range(len(parts))], groups(sizes(parts), at_once))
            add(self._slices(name))
        for name in self._sub.sources:
            add([SentItem(name, str(path)) for path in self._rekeyed(name)])
        topics = in_order_at_one_time(self._prepared.app, self._sub)
        return ReadingJob(
            self._shipped,
            self._inputs.log_url,
            self._sub.partitions,
            topics,
            len(self._sub.sources) == 1 and bool(self._plain()),
            files,
            items,
            made,
        )

    # ---- rows, placed by Spark

    def _rows(self) -> DataFrame:
        """All rows of a subtopology, and one for each task that says nothing, so that no task is left out."""
        from pyspark.sql import functions as F

        sub, plain = self._sub, self._plain()
        frames = [
            self._session.range(0, sub.partitions, 1, 1).select(
                F.col("id").cast("int").alias("pid"),
                F.lit(BEFORE_ALL_MS).cast("bigint").alias("order_ms"),
                F.lit("").alias("topic"),
                F.lit(0).alias("upstream"),
                F.lit(0).cast("bigint").alias("seq"),
                F.lit(0).cast("bigint").alias("timestamp_ms"),
                F.lit(None).cast("binary").alias("key"),
                F.lit(None).cast("binary").alias("value"),
                F.lit(None).cast("binary").alias("headers"),
            )
        ]
        followed_ = followed(self._inputs)
        alone = [name for name in plain if name not in self._inputs.history and name not in followed_]
        if alone:
            frames.append(self._log_rows(alone))
        frames += [self._one_after_the_other(name) for name in plain if name not in alone]
        for name in sub.sources:
            if paths := self._rekeyed(name):
                frames.append(self._session.read.schema(COLUMNS).parquet(*map(one_file, paths)))
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _sent(self, topic: str) -> DataFrame:
        """What the app has sent into one of its own inputs, at the offsets that it is going to have in the log."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        sent = self._session.read.schema(COLUMNS).parquet(*map(one_file, self._computed.outputs(topic)))
        until = [(p.number, end) for p, end in self._inputs.until.items() if p.topic == topic]
        ends = self._session.createDataFrame(until, "pid int, until bigint")
        placed = Window.partitionBy("pid").orderBy(*PLACE)
        return (
            sent.join(F.broadcast(ends), "pid")
            .withColumn("seq", F.col("until") + F.row_number().over(placed) - 1)
            .withColumn("upstream", F.col("pid"))
            .withColumn("order_ms", F.max("timestamp_ms").over(Window.partitionBy("pid").orderBy("seq")))
            .drop("until")
        )

    def _after(self, rows: DataFrame, later: DataFrame) -> DataFrame:
        """Both, with `later` after `rows` in each partition, whatever its times."""
        from pyspark.sql import functions as F

        latest = rows.groupBy("pid").agg(F.max("order_ms").alias("latest"))
        placed = later.join(F.broadcast(latest), "pid", "left").withColumn("order_ms", F.greatest("order_ms", "latest"))
        return rows.unionByName(placed.drop("latest"))

    def _log_rows(self, topics: Sequence[str]) -> DataFrame:
        from pyspark.sql import functions as F

        until = {str(p): position for p, position in self._inputs.until.items() if p.topic in topics}
        since = {str(p): position for p, position in self._inputs.begins.items()}
        return log_frame(self._session, self._inputs.log_url, topics, until, since, is_whole=True).select(
            F.col("partition").alias("pid"),
            "order_ms",
            "topic",
            F.col("partition").alias("upstream"),
            F.col("offset").alias("seq"),
            "timestamp_ms",
            "key",
            "value",
            "headers",
        )

    def _one_after_the_other(self, topic: str) -> DataFrame:
        """History, then the log, then what the app has sent: whatever the times of a later one, it is not before."""
        rows = self._log_rows([topic])
        if topic in self._inputs.history:
            rows = self._after(self._history(topic), rows)
        if self._inputs.follow and self._computed.outputs(topic):
            rows = self._after(rows, self._sent(topic))
        return rows

    def _history(self, topic: str) -> DataFrame:
        """The rows of the files, read once."""
        kept = self._computed.work / "history" / topic
        if not kept.exists():
            self._session.sparkContext.setJobDescription(f"{self._prepared.app.id}: history of {topic}")
            job = self._history_job(topic)
            try:
                history_rows(self._session, job).write.parquet(str(kept))
            except Exception as error:
                raise failure(self._session, error) from error
            self._gather(topic)
        return self._session.read.schema(COLUMNS).parquet(one_file(kept))

    # ---- files

    def _history_job(self, topic: str) -> ReadJob:
        names, shown = self._files(topic)
        bad = self._computed.work / "bad" / topic
        if self._inputs.bad is not None:
            bad.mkdir(parents=True, exist_ok=True)
        folder = str(bad) if self._inputs.bad is not None else ""
        count, about = self._prepared.topics[topic].partitions, self._topics[topic]
        return history_job(self._shipped, about, count, names, self._inputs.shape, folder, shown)

    def _gather(self, topic: str) -> None:
        """Rows that are no records go where the user wants them. Raises TooManyBad."""
        if self._inputs.bad is not None:
            self._computed.bad[topic] = gather(self._computed.work / "bad", topic, self._inputs.bad)

    def _files(self, topic: str) -> Files:
        if topic in self._computed.files:
            return self._computed.files[topic]
        names: list[str] = []
        shown: dict[str, str] = {}
        about, inputs = self._topics[topic], self._inputs
        reading = Reading(topic, about.key_codec, about.value_codec, self._prepared.topics[topic].partitions)
        for number, source in enumerate(inputs.history[topic]):
            if isinstance(source, From):
                folder = self._computed.work / "sources" / topic / str(number)
                found, called = local_files(self._session, source, folder, reading, inputs.shape)
                shown |= called
            else:
                found = [source]
            names += found
        self._computed.files[topic] = list(dict.fromkeys(names)), shown
        return self._computed.files[topic]

    def _rekeyed(self, topic: str) -> list[Path]:
        """What was sent to a topic between subtopologies."""
        work = self._computed.work
        for pattern in (f"*/rekeyed/{topic}.parquet", f"{EARLIER}/*/*/rekeyed/{topic}.parquet"):
            if found := whole(work, pattern):
                return found
        return []

    def _place(self) -> list[Column]:
        """The order of the rows of a task: at one time the messages of joins come after what they may answer (`in_order_at_one_time`)."""
        from pyspark.sql import functions as F

        found = ranks(self._prepared.app)
        order_ms, *rest = (F.col(name) for name in PLACE)
        levels = [[name for name in found if found[name] >= level] for level in sorted(set(found.values()))]
        return [order_ms, *(F.col("topic").isin(names).cast("int") for names in levels), *rest]
