"""All subtopologies of an app over its inputs, on Spark: one shuffle each, in order of dependency.

One rule: what one stage leaves for the next is kept once, in Parquet, so nothing is computed twice and nothing differs.
Reads the log up to given positions (and history files before it); leaves the work folder that `stage` describes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from orchestrator.clocks import monotonic_s
from orchestrator.errors import OrchestratorError, WrongUse
from orchestrator.names import counted
from pipeline.definitions.topology import Subtopology
from pipeline.files.shape import Reading, Shape
from pipeline.spark.bad_rows import BadRecords, gather
from pipeline.spark.history import files, history_rows
from pipeline.spark.log_source import log_frame
from pipeline.spark.rows import COLUMNS, PLACE
from pipeline.spark.session import failure
from pipeline.spark.skew import Skewed, line, skewed
from pipeline.spark.source import Source, ship
from pipeline.spark.sources import From, local_files
from pipeline.spark.stage import StageJob, TaskFacts, run
from pipeline.spark.stage_order import messages_of, stages
from state.log.protocol import Partition
from workers.prepare import Prepared

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Say = Callable[[str], None]
History = Mapping[str, Sequence[str | From]]  # patterns of files, and what Spark reads, by topic
MEMORY_BYTES = 256 << 20
NO_SHAPE = Shape()
BEFORE_ALL_MS = -(1 << 63)
EARLIER = "earlier"  # in the work folder: what earlier stages of subtopologies sent that are computed again


class ComputationFailed(OrchestratorError):
    """The user's code raised on a record. `frames` are the user's own."""

    def __init__(self, message: str, frames: str) -> None:
        super().__init__(message)
        self.frames = frames


@dataclass(frozen=True)
class Inputs:
    """What is computed: of which app, from which log from where (`begins`; where nothing is named, from the beginning) up to
    where, after which files of which shape; with how much memory for the tables of a task. `follow`: what the app writes into its own inputs is read on the way, because no log has it
    yet (a backfill; where the app ran, its log has it)."""

    app_ref: str
    prepared: Prepared
    log_url: str
    log_id: str
    until: Mapping[Partition, int]
    history: History
    memory_bytes: int = MEMORY_BYTES
    shape: Shape = NO_SHAPE
    follow: bool = False
    begins: Mapping[Partition, int] = field(default_factory=dict)
    bad: BadRecords | None = None


@dataclass
class Computed:
    """What came of it; the records themselves are in `work`."""

    work: Path
    tasks: dict[str, TaskFacts] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    bad: dict[str, int] = field(default_factory=dict)  # rows of history that were left out, by topic
    skewed: list[Skewed] = field(default_factory=list)

    def total(self, what: str) -> int:
        return sum(getattr(facts, what) for facts in self.tasks.values())

    def sums(self, what: str) -> dict[str, int]:
        """Of a mapping of every task."""
        found: dict[str, int] = {}
        for facts in self.tasks.values():
            for name, count in getattr(facts, what).items():
                found[name] = found.get(name, 0) + count
        return dict(sorted(found.items()))

    def outputs(self, topic: str) -> list[Path]:
        return sorted(self.work.glob(f"*/outputs/{topic}.parquet"))

    def state(self, task: str, table: str) -> Path:
        return self.work / task / "state" / f"{table}.parquet"


def external(prepared: Prepared) -> list[str]:
    """The topics that are read from the log: all sources but the re-keys."""
    sources = {name for sub in prepared.topology.subtopologies for name in sub.sources}
    return sorted(name for name in sources if prepared.topics[name].kind != "repartition")


def followed(prepared: Prepared) -> list[str]:
    """Inputs, other than re-keys, that the app itself writes."""
    written = {name for sub in prepared.topology.subtopologies for name in sub.sinks}
    return [name for name in external(prepared) if name in written]


def checked_history(prepared: Prepared, history: History) -> dict[str, list[str | From]]:
    """Files, and what Spark reads, by topic of the log. Raises WrongUse for a topic that is no input, BadHistory for files
    that are none."""
    known = external(prepared)
    by_name = {topic.name: topic.topic for topic in prepared.app.topics.values()}
    found: dict[str, list[str | From]] = {}
    for name, patterns in history.items():
        topic = by_name.get(name, name)
        if topic not in known:
            raise WrongUse(f"'{name}' is no input of '{prepared.app.id}'; its inputs are {', '.join(known)}")
        found[topic] = []
        for pattern in patterns:
            found[topic] += [pattern] if isinstance(pattern, From) else files([pattern])
    return found


class Engine:
    """Runs the stages. `snapshot` is the folder for SST files, or None; `base`: changelogs go on from it.

    Blocks: call it from a thread.
    """

    def __init__(
        self,
        session: SparkSession,
        inputs: Inputs,
        work: Path,
        snapshot: Path | None,
        time_ms: int,
        *,
        base: bool = False,
    ) -> None:
        self._session = session
        self._inputs = inputs
        self._prepared = inputs.prepared
        self._snapshot = snapshot
        self._base = base
        self._time_ms = time_ms
        self._computed = Computed(work)
        self._source: Source | None = None
        self._topics = {topic.topic: topic for topic in inputs.prepared.app.topics.values()}

    def run(self, say: Say) -> Computed:
        """Every subtopology, upstream first. Raises SparkFailed, ComputationFailed, WrongUse."""
        computed = self._computed
        for folder in (computed.work, self._snapshot):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        for sub in self._ordered():
            begun = monotonic_s()
            if f"subtopology {sub.number}" in computed.seconds:
                self._clear_stage(sub)
            facts = self._stage(sub)
            computed.tasks.update({one.task: one for one in facts})
            seconds = monotonic_s() - begun
            spent = computed.seconds.get(f"subtopology {sub.number}", 0.0)
            computed.seconds[f"subtopology {sub.number}"] = round(spent + seconds, 2)
            count = sum(one.records_in for one in facts)
            say(f"subtopology {sub.number}: {counted(count, 'record')}, {counted(len(facts), 'task')}, {seconds:.1f} s")
            found = skewed([(one.task, one.records_in, one.heavy) for one in facts], self._shown_key(sub))
            computed.skewed += found
            for one in found:
                say(line(one))
        return computed

    def _shown_key(self, sub: Subtopology) -> Callable[[bytes], str]:
        """How people read the keys of a subtopology: its inputs are partitioned by the same ones."""
        about = self._topics.get(sub.sources[0])

        def shown(key: bytes) -> str:
            try:
                return repr(key if about is None else about.key_codec.decode(key))
            except Exception:  # noqa: BLE001 - a codec of the user's may raise anything; the bytes name the key as well
                return repr(key)

        return shown

    def _ordered(self) -> list[Subtopology]:
        """The stages. Raises WrongUse."""
        app, prepared = self._prepared.app, self._prepared
        rekeyed = {name for name, info in prepared.topics.items() if info.kind == "repartition"}
        followed_ = followed(prepared) if self._inputs.follow else []
        return stages(app.id, prepared.topology.subtopologies, rekeyed, followed_, messages_of(app))

    def _clear_stage(self, sub: Subtopology) -> None:
        """What an earlier stage of a subtopology left goes, but for what it sent: that may be read by this one."""
        kept = self._computed.work / EARLIER / f"{sub.number}"
        shutil.rmtree(kept, ignore_errors=True)
        for number in range(sub.partitions):
            task = self._computed.work / f"{sub.number}_{number}"
            if (task / "rekeyed").exists():
                (kept / task.name).mkdir(parents=True)
                (task / "rekeyed").rename(kept / task.name / "rekeyed")
            shutil.rmtree(task)
            if self._snapshot is not None:
                shutil.rmtree(self._snapshot / task.name, ignore_errors=True)

    def _rekeyed(self, topic: str) -> list[Path]:
        """What was sent to a topic between subtopologies."""
        work = self._computed.work
        for pattern in (f"*/rekeyed/{topic}.parquet", f"{EARLIER}/*/*/rekeyed/{topic}.parquet"):
            if found := sorted(work.glob(pattern)):
                return found
        return []

    def _stage(self, sub: Subtopology) -> list[TaskFacts]:
        job = msgspec.json.encode(self._job(sub)).decode()
        self._session.sparkContext.setJobDescription(f"{self._prepared.app.id}: processors of subtopology {sub.number}")
        rows = self._rows(sub).repartitionById(sub.partitions, "pid").sortWithinPartitions(*self._place())
        try:
            answers = rows.mapInArrow(partial(run, job), "facts string").collect()
        except Exception as error:  # whatever Spark raises: its own text is a page of Java
            raise failure(self._session, error) from error
        facts = [msgspec.json.decode(row["facts"], type=TaskFacts) for row in answers]
        for one in facts:
            if one.failure:
                raise ComputationFailed(one.failure, one.frames)
        wanted = {f"{sub.number}_{number}" for number in range(sub.partitions)}
        if {one.task for one in facts} != wanted:
            raise OrchestratorError(f"Spark ran {len(facts)} of {len(wanted)} tasks of subtopology {sub.number}")
        return facts

    def _place(self) -> list[Column]:
        """The order of the rows of a task: at one time the messages of joins come after what they may answer."""
        from pyspark.sql import functions as F

        messages = list(messages_of(self._prepared.app))
        order_ms, *rest = (F.col(name) for name in PLACE)
        return [order_ms, F.col("topic").isin(messages).cast("int"), *rest] if messages else [order_ms, *rest]

    def _job(self, sub: Subtopology) -> StageJob:
        inputs, prepared = self._inputs, self._prepared
        return StageJob(
            source=self._shipped(),
            numbering=prepared.topology.numbering(),
            counts=prepared.counts(),
            subtopology=sub.number,
            work=str(self._computed.work),
            snapshot="" if self._snapshot is None else str(self._snapshot),
            base=self._base,
            log_id=inputs.log_id,
            topic_ids={name: info.topic_id for name, info in prepared.topics.items()},
            time_ms=self._time_ms,
            memory_bytes=inputs.memory_bytes,
        )

    def _shipped(self) -> Source:
        if self._source is None:
            self._source = ship(self._session, self._inputs.app_ref)
        return self._source

    # ---- rows

    def _rows(self, sub: Subtopology) -> DataFrame:
        """All rows of a subtopology, and one for each task that says nothing, so that no task is left out."""
        from pyspark.sql import functions as F

        plain = [name for name in sub.sources if self._prepared.topics[name].kind != "repartition"]
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
        followed_ = followed(self._prepared) if self._inputs.follow else []
        alone = [name for name in plain if name not in self._inputs.history and name not in followed_]
        if alone:
            frames.append(self._log_rows(alone))
        frames += [self._one_after_the_other(name) for name in plain if name not in alone]
        for name in sub.sources:
            if paths := self._rekeyed(name):
                frames.append(self._session.read.schema(COLUMNS).parquet(*map(str, paths)))
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _sent(self, topic: str) -> DataFrame:
        """What the app has sent into one of its own inputs, at the offsets that it is going to have in the log."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        sent = self._session.read.schema(COLUMNS).parquet(*map(str, self._computed.outputs(topic)))
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
        return log_frame(self._session, self._inputs.log_url, topics, until, since).select(
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
        inputs = self._inputs
        count = self._prepared.topics[topic].partitions
        kept = str(self._computed.work / "history" / topic)
        self._session.sparkContext.setJobDescription(f"{self._prepared.app.id}: history of {topic}")
        names, shown, shape = *self._files(topic), inputs.shape
        bad_rows = self._computed.work / "bad"
        folder = str(bad_rows / topic) if inputs.bad is not None else ""
        before = history_rows(self._session, self._shipped(), self._topics[topic], count, names, shape, folder, shown)
        try:
            before.write.parquet(kept)
        except Exception as error:
            raise failure(self._session, error) from error
        if inputs.bad is not None:
            self._computed.bad[topic] = gather(bad_rows, topic, inputs.bad)
        return self._session.read.schema(COLUMNS).parquet(kept)

    def _files(self, topic: str) -> tuple[list[str], dict[str, str]]:
        """The files of a topic, in the order given, and how errors call those that stand for something else."""
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
        return list(dict.fromkeys(names)), shown
