"""All subtopologies of an app over its inputs, on Spark, in order of dependency.

One rule: what one stage leaves for the next is kept once, in Parquet, so nothing is computed twice and nothing differs.
Reads the log up to given positions (and history files before it); leaves the work folder that `stage` describes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from orchestrator.clocks import monotonic_s
from orchestrator.errors import OrchestratorError, WrongUse
from orchestrator.names import counted
from pipeline.app import App
from pipeline.definitions.topology import Subtopology
from pipeline.spark.attempts import opened
from pipeline.spark.history import files
from pipeline.spark.inputs import EARLIER, Computed, History, Inputs, Say, followed, whole
from pipeline.spark.row_counts import shown
from pipeline.spark.skew import line, skewed
from pipeline.spark.source import Source, ship
from pipeline.spark.sources import From
from pipeline.spark.stage import SCOPE, StageJob, TaskFacts
from pipeline.spark.stage_order import in_order_at_one_time, messages_of, of_batches, stages
from pipeline.spark.stage_rows import StageRows
from pipeline.spark.under_way import take_out
from pipeline.spark.waits import waits_of
from state.log.group_store import AppMetadata, GroupStore
from state.private import make_folder
from workers.prepare import BACKFILLED, Prepared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ComputationFailed(OrchestratorError):
    """The user's code raised on a record. `frames` are the user's own."""

    def __init__(self, message: str, frames: str) -> None:
        super().__init__(message)
        self.frames = frames


def checked_history(app: App, history: History) -> dict[str, list[str | From]]:
    """Files, and what Spark reads, by topic of the log: before the log is asked, so that what was mistyped makes no topic. Raises
    WrongUse for a topic that is no input, BadHistory for files that are none."""
    topology = app.topology()
    read = {name for sub in topology.subtopologies for name in sub.sources}
    known = sorted(name for name in read if topology.topics[name].kind != "repartition")
    by_name = {topic.name: topic.topic for topic in app.topics.values()}
    found: dict[str, list[str | From]] = {}
    for name, patterns in history.items():
        topic = by_name.get(name, name)
        if topic not in known:
            raise WrongUse(f"'{name}' is no input of '{app.id}'; its inputs are {', '.join(known)}")
        found[topic] = []
        for pattern in patterns:
            found[topic] += [pattern] if isinstance(pattern, From) else files([pattern])
    return found


def notes_of(inputs: Inputs) -> list[AppMetadata]:
    """What a backfill leaves in the log of the history that it reads: who computes it again has to be given it again."""
    return [
        AppMetadata(inputs.prepared.app.id, BACKFILLED, topic, b"1") for topic, given in inputs.history.items() if given
    ]


async def refuse_without_history(log: GroupStore, prepared: Prepared, chosen: History) -> None:
    """Raises WrongUse where a backfill has read more history than is given: right tables would be said to differ."""
    missing = sorted(
        set(await log.metadata_of(prepared.app.id, BACKFILLED)) - {topic for topic, given in chosen.items() if given}
    )
    if missing:
        raise WrongUse(
            f"'{prepared.app.id}' began with a backfill of history of {', '.join(missing)}, which is not in the log; name it again, as "
            f"{missing[0]}=PATTERN or with --from, and with the options that the backfill had"
        )


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
        self._stages = 0
        self._attempts: Path | None = None
        self._topics = {topic.topic: topic for topic in inputs.prepared.app.topics.values()}

    def run(self, say: Say) -> Computed:
        """Every subtopology, upstream first. Raises SparkFailed, ComputationFailed, WrongUse."""
        computed = self._computed
        computed.work.mkdir(parents=True, exist_ok=True)
        for sub in self._ordered():
            begun = monotonic_s()
            if f"subtopology {sub.number}" in computed.seconds:
                self._clear_stage(sub)
            facts = self._stage(sub)
            # what it sent before it was complete is not read for what it does not send any more
            shutil.rmtree(computed.work / EARLIER / f"{sub.number}", ignore_errors=True)
            self._take_out(sub)
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
        if self._snapshot is not None:
            self._gather(self._snapshot)
        return computed

    def rows(self) -> str:
        """How many rows the stage that runs has come through, in words. From any thread."""
        return "" if self._attempts is None else shown(self._attempts)

    def waits(self) -> set[str]:
        """What waits for a client in the stage that runs. From any thread."""
        return set() if self._attempts is None else waits_of(self._attempts)

    def _take_out(self, sub: Subtopology) -> None:
        """What it has sent to re-keys is for the next stage, but for what waits there."""
        untimed = of_batches(self._prepared.app)
        for topic, wanted in self._inputs.under_way.items():
            if topic in sub.sinks:
                paths = whole(self._computed.work, f"{sub.number}_*/rekeyed/{topic}.parquet")
                self._computed.strangers += take_out(paths, wanted, is_timed=topic not in untimed)

    def _gather(self, snapshot: Path) -> None:
        """What tasks have written for the snapshot comes into its folder."""
        make_folder(snapshot)
        for task, facts in self._computed.tasks.items():
            if facts.scope_sum:
                (self._computed.work / task / SCOPE).rename(snapshot / task)

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
        followed_ = followed(self._inputs)
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

    def _stage(self, sub: Subtopology) -> list[TaskFacts]:
        self._session.sparkContext.setJobDescription(f"{self._prepared.app.id}: processors of subtopology {sub.number}")
        rows = StageRows(self._session, self._inputs, self._computed, self._shipped(), sub)
        self._stages += 1
        with opened(self._computed.work / f".attempts-{self._stages}") as attempts:
            self._attempts = attempts
            answers = rows.collect(msgspec.json.encode(self._job(sub, attempts)).decode(), attempts)
        facts = [msgspec.json.decode(text, type=TaskFacts) for text in answers]
        for one in facts:
            if one.failure:
                raise ComputationFailed(one.failure, one.frames)
        wanted = {f"{sub.number}_{number}" for number in range(sub.partitions)}
        if {one.task for one in facts} != wanted:
            raise OrchestratorError(f"Spark ran {len(facts)} of {len(wanted)} tasks of subtopology {sub.number}")
        return facts

    def _job(self, sub: Subtopology, attempts: Path) -> StageJob:
        inputs, prepared = self._inputs, self._prepared
        return StageJob(
            source=self._shipped(),
            numbering=prepared.topology.numbering(),
            counts=prepared.counts(),
            subtopology=sub.number,
            work=str(self._computed.work),
            attempts=str(attempts),
            snapshot=self._snapshot is not None,
            base=self._base,
            log_id=inputs.log_id,
            topic_ids={name: info.topic_id for name, info in prepared.topics.items()},
            time_ms=self._time_ms,
            memory_bytes=inputs.memory_bytes,
            sources=in_order_at_one_time(prepared.app, sub),
        )

    def _shipped(self) -> Source:
        if self._source is None:
            self._source = ship(self._session, self._inputs.app_ref)
        return self._source
