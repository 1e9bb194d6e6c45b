"""`orchestrator verify`: Spark computes everything again, and every key and every output is compared with the live ones.

One rule: what cannot be compared is a check that failed, never one that is left out. The comparison is made at one
moment of the log: between two equal readings of the committed positions, when nothing is under way in a re-key topic.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.clocks import monotonic_s, wall_ms
from pipeline.app import App
from pipeline.definitions.topology import Subtopology
from pipeline.files.shape import Shape
from pipeline.loading import load
from pipeline.spark.backfill import NOTHING, in_thread, refuse_outside, spark
from pipeline.spark.engine import MEMORY_BYTES, NO_SHAPE, Computed, Engine, Inputs, Say, checked_history, external
from pipeline.spark.log_source import log_frame
from pipeline.spark.rows import COLUMNS, PLACE
from pipeline.spark.session import absolute_log, failure
from pipeline.spark.snapshot_source import snapshot_frame
from state import manifest
from state.errors import SnapshotUnusable
from state.log import base
from state.log.base import Base
from state.log.group_store import GroupStore
from state.log.protocol import Log, Partition
from workers.fleet.client import description
from workers.log.logs import open_log
from workers.prepare import Prepared, prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Check = dict[str, Any]
QUIET_S, LOOK_S = 20.0, 0.1


@dataclass(frozen=True)
class Moment:
    """One state of the log: inputs read up to `until`; everything the app wrote lies before `ends`."""

    until: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    under_way: int
    gone: int


async def verify(
    app_ref: str,
    log_url: str,
    *,
    master: str = "local[2]",
    snapshots: Path | None = None,
    history: Mapping[str, Sequence[str]] = NOTHING,
    say: Say,
    allow_outside: bool = False,
    memory_bytes: int = MEMORY_BYTES,
    shape: Shape = NO_SHAPE,
    session: SparkSession | None = None,
) -> list[Check]:
    """Checks as {"check", "expected", "found", "ok"}: tables by key, outputs as multisets of (key, value).

    `snapshots` is where the base of the changelogs is, for an app that has one. Raises BaseMissing.
    """
    app = load(app_ref)
    refuse_outside(app, allow_outside, say)
    log_url = absolute_log(log_url)
    log = await open_log(log_url, create=False)
    try:
        await description(log, app.id)
        prepared = await prepare(log, app)
        chosen = checked_history(prepared, history)
        bases = await _bases(log, prepared, snapshots)
        moment = await _moment(log, prepared)
        inputs = Inputs(app_ref, prepared, log_url, log.log_id, moment.until, chosen, memory_bytes, shape)
    finally:
        await log.close()
    checks = [
        _check("inputs are whole in the log", 0, moment.gone),
        _check("re-keyed records are all processed", 0, moment.under_way),
    ]
    if not all(check["ok"] for check in checks):
        return checks
    async with spark(session, f"verify {app.id}", master) as spark_:
        with tempfile.TemporaryDirectory(prefix="stream-orchestrator-verify-") as work:
            engine = Engine(spark_, inputs, Path(work) / "work", None, wall_ms())
            computed = await in_thread(spark_, engine.run, say)
            compared: list[Check] = await in_thread(spark_, _compare, spark_, inputs, moment, bases, computed, say)
            return checks + compared


def _check(what: str, expected: Any, found: Any, ok: bool | None = None, **more: Any) -> Check:
    return {"check": what, "expected": expected, "found": found, "ok": expected == found if ok is None else ok, **more}


@dataclass(frozen=True)
class Bases:
    """What changelogs go on from: topic -> base, all in one folder."""

    root: Path
    by_topic: Mapping[str, Base]


async def _bases(log: GroupStore, prepared: Prepared, snapshots: Path | None) -> Bases:
    kept_bases = await log.metadata_of(prepared.app.id, base.BASE)
    kept = {topic: base.of_topic(kept_bases, info) for topic, info in prepared.topics.items()}
    found = {topic: one for topic, one in kept.items() if one is not None}
    for topic, one in found.items():
        if snapshots is None:
            raise base.missing(f"the changelog {topic}", one, "no folder of snapshots is named")
        try:
            manifest.load(snapshots, one.snapshot)
        except SnapshotUnusable as error:
            raise base.missing(f"the changelog {topic}", one, str(error)) from None
    return Bases(snapshots or Path(), found)


async def _moment(log: Log, prepared: Prepared) -> Moment:
    """A moment at which nothing is under way, or the last one looked at where there is none in time."""
    sources = [
        Partition(topic, number)
        for sub in prepared.topology.subtopologies
        for topic in sub.sources
        for number in range(sub.partitions)
    ]
    read = external(prepared)
    everything = [
        Partition(name, number) for name, info in prepared.topics.items() for number in range(info.partitions)
    ]
    starts = await log.starts(sources)
    deadline = monotonic_s() + QUIET_S
    while True:
        before = await log.positions(prepared.app.id, sources)
        ends = await log.ends(everything)
        if before == await log.positions(prepared.app.id, sources):
            rekeyed = [p for p in sources if p.topic not in read]
            under_way = sum(max(0, ends[p] - before.get(p, starts[p])) for p in rekeyed)
            if not under_way or monotonic_s() > deadline:
                until = {p: before.get(p, starts[p]) for p in sources if p.topic in read}
                return Moment(until, ends, under_way, sum(starts[p] for p in until))
        await asyncio.sleep(LOOK_S)


# ---------------------------------------------------------------- comparing


def _compare(
    session: SparkSession, inputs: Inputs, moment: Moment, bases: Bases, computed: Computed, say: Say
) -> list[Check]:
    prepared = inputs.prepared
    read = set(external(prepared))
    checks: list[Check] = []
    try:
        for sub in prepared.topology.subtopologies:
            for table in sub.tables:
                paths = [str(computed.state(f"{sub.number}_{n}", table)) for n in range(sub.partitions)]
                live = _live(session, inputs, moment, bases, sub, table)
                checks.append(_compare_table(session, table, paths, live))
                say(_line(checks[-1]))
        sinks = {name for sub in prepared.topology.subtopologies for name in sub.sinks}
        intermediate = _with_intermediate_results(prepared.app)
        for topic in sorted(name for name in sinks if prepared.topics[name].kind != "repartition"):
            paths = [str(path) for path in computed.outputs(topic)]
            written = _written(session, inputs, moment, topic)
            compare = _compare_last if topic in intermediate else _compare_outputs
            check = compare(session, topic, paths, written)
            if (
                topic in read
            ):  # what others produced into it cannot be distinguished from what the app wrote twice: it fails too
                check["check"] += " (the app reads it too: records of others count as doubled)"
            checks.append(check)
            say(_line(checks[-1]))
    except Exception as error:
        raise failure(session, error) from error
    return checks


def _line(check: Check) -> str:
    return f"{check['check']}: {check['found']} of {check['expected']}, {'ok' if check['ok'] else 'DIFFERS'}"


def _written(session: SparkSession, inputs: Inputs, moment: Moment, topic: str) -> DataFrame:
    ends = {str(p): end for p, end in moment.ends.items() if p.topic == topic}
    return log_frame(session, inputs.log_url, [topic], ends)


def _live(
    session: SparkSession, inputs: Inputs, moment: Moment, bases: Bases, sub: Subtopology, table: str
) -> DataFrame:
    """What was written to a table: its changelog, behind the entries that it goes on from."""
    topic = inputs.prepared.app.tables[table].changelog
    found = _written(session, inputs, moment, topic)
    based = bases.by_topic.get(topic)
    if based is None:
        return found
    scopes = {number: f"{sub.number}_{number}" for number in range(sub.partitions)}
    before = snapshot_frame(session, bases.root, based.snapshot, table, scopes)
    return found.where(f"offset >= {based.offset}").select(before.columns).unionByName(before)


def _compare_table(session: SparkSession, table: str, paths: Sequence[str], live: DataFrame) -> Check:
    """Every key of every task, byte by byte."""
    from pyspark.sql import functions as F

    number = F.regexp_extract(F.col("_metadata.file_path"), r"/\d+_(\d+)/state/", 1).cast("int")
    wanted = session.read.schema("key binary, value binary").parquet(*paths)
    wanted = wanted.select(number.alias("partition"), "key", F.col("value").alias("wanted"))
    last = live.groupBy("partition", "key").agg(F.max(F.struct("offset", "value")).alias("last"))
    found = last.select("partition", "key", F.col("last.value").alias("found")).where("found is not null")
    both = wanted.join(found, ["partition", "key"], "full")
    differs = ~F.col("wanted").eqNullSafe(F.col("found"))
    counts = both.agg(
        F.count("wanted").alias("wanted"),
        F.count("found").alias("found"),
        F.count_if(differs).alias("differ"),
        F.min(F.when(differs, F.struct("key", "wanted", "found"))).alias("example"),
    ).collect()[0]
    more: dict[str, Any] = {"differ": counts["differ"]}
    if counts["example"] is not None:
        more["example"] = {name: _text(counts["example"][name]) for name in ("key", "wanted", "found")}
    same = counts["differ"] == 0
    return _check(f"table {table}: every key", counts["wanted"], counts["found"], same, **more)


def _compare_outputs(session: SparkSession, topic: str, paths: Sequence[str], live: DataFrame) -> Check:
    """As multisets of (key, value): nothing lost, nothing doubled; no order is promised."""
    from pyspark.sql import functions as F

    found = live.groupBy("key", "value").agg(F.count("*").alias("found"))
    schema = "key binary, value binary"
    rows = session.read.schema(schema).parquet(*paths) if paths else session.createDataFrame([], schema)
    wanted = rows.groupBy("key", "value").agg(F.count("*").alias("wanted"))
    same = [wanted[name].eqNullSafe(found[name]) for name in ("key", "value")]
    both = wanted.join(found, same, "full").select(
        F.coalesce("wanted", F.lit(0)).alias("wanted"), F.coalesce("found", F.lit(0)).alias("found")
    )
    more = F.col("wanted") - F.col("found")
    counts = both.agg(
        F.coalesce(F.sum("wanted"), F.lit(0)).alias("wanted"),
        F.coalesce(F.sum("found"), F.lit(0)).alias("found"),
        F.coalesce(F.sum(F.greatest(more, F.lit(0))), F.lit(0)).alias("lost"),
        F.coalesce(F.sum(F.greatest(-more, F.lit(0))), F.lit(0)).alias("doubled"),
    ).collect()[0]
    ok = counts["lost"] == counts["doubled"] == 0
    extra = {"lost": counts["lost"], "doubled": counts["doubled"]}
    return _check(f"outputs {topic}: every record", counts["wanted"], counts["found"], ok, **extra)


def _compare_last(session: SparkSession, topic: str, paths: Sequence[str], live: DataFrame) -> Check:
    """The last record of each key: what came before it are intermediate results, which depend on when messages came."""
    from pyspark.sql import functions as F

    found = live.groupBy("key").agg(F.max(F.struct("offset", "value")).alias("last"))
    found = found.select("key", F.col("last.value").alias("found"), F.lit(1).alias("there"))
    rows = session.read.schema(COLUMNS).parquet(*paths) if paths else session.createDataFrame([], COLUMNS)
    wanted = rows.groupBy("key").agg(F.max(F.struct(*PLACE, "value")).alias("last"))
    wanted = wanted.select("key", F.col("last.value").alias("wanted"), F.lit(1).alias("computed"))
    both = wanted.join(found, wanted["key"].eqNullSafe(found["key"]), "full")
    same = F.col("wanted").eqNullSafe(F.col("found")) & F.col("computed").eqNullSafe(F.col("there"))
    counts = both.agg(
        F.count("computed").alias("wanted"), F.count("there").alias("found"), F.count_if(~same).alias("differ")
    ).collect()[0]
    differ = counts["differ"]
    what = f"outputs {topic}: the last record of every key (a join by foreign key sends intermediate results)"
    return _check(what, counts["wanted"], counts["found"], differ == 0, differ=differ)


def _with_intermediate_results(app: App) -> set[str]:
    """Topics that functions of joins by foreign keys send to."""
    joins = [processor for processor in app.processors.values() if processor.foreign_key is not None]
    return {topic.topic for processor in joins for topic in processor.sinks}


def _text(data: Any) -> str | None:
    return None if data is None else bytes(data).decode(errors="replace")
