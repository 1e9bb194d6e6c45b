"""One subtopology on Spark: what an executor does with the rows of one task.

One rule: the task is run by the very TaskProcess that runs it live, over its records in their one order, and what it
leaves is given its name by a rename when it is whole: a retry finds it and does nothing again.
Gets a StageJob (plain data; the app is imported by name) and the rows of a partition, which are those of a task; leaves
in the work folder `<task>/outputs/<topic>`, `<task>/rekeyed/<topic>`, `<task>/state/<table>` (Parquet) and its facts,
and in the snapshot the SST files of its tables with their manifest.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from orchestrator.clocks import monotonic_s
from orchestrator.errors import OrchestratorError
from pipeline.app import App
from pipeline.definitions.topology import Subtopology
from pipeline.errors import ProcessorFailed
from pipeline.process import Changes, TaskProcess
from pipeline.records import RawRecord
from pipeline.resources import Resources
from pipeline.spark.rows import Written, in_columns, records, write_pairs
from pipeline.spark.skew import Heavy, HeavyKeys
from pipeline.spark.source import Source
from pipeline.spark.task_state import TaskState
from state import manifest
from state.log import base
from state.private import make_folder, private_process
from state.snapshot import Origin, write_table

log = logging.getLogger("orchestrator.stage")
FACTS = "facts.json"
RUN_RECORDS = 2_000  # how many records a call of the process gets: batch processors see batches of this size


class StageFailed(OrchestratorError):
    """A task could not be computed."""


class StageJob(msgspec.Struct, frozen=True):
    """What every task of a subtopology must know. `snapshot` is the folder of the snapshot, "" for none; `base`: its
    changelogs go on from it, and have no entries of their own."""

    source: Source
    numbering: dict[str, Any]
    counts: dict[str, int]
    subtopology: int
    work: str
    snapshot: str
    base: bool
    log_id: str
    topic_ids: dict[str, str]
    time_ms: int
    memory_bytes: int


class TaskFacts(msgspec.Struct):
    """What became of a task. `failure` and `frames`: the user's code raised, there is nothing else."""

    task: str
    scope_sum: str = ""
    records_in: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    spilled: int = 0
    outputs: dict[str, int] = {}
    rekeyed: dict[str, int] = {}
    entries: dict[str, int] = {}
    written_ms: dict[str, int] = {}
    heavy: list[Heavy] = []
    seconds: float = 0.0
    failure: str = ""
    frames: str = ""


def run(job_text: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of mapInArrow: rows of one partition in, one row with the facts out."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    job = msgspec.json.decode(job_text, type=StageJob)
    facts = compute(job, context.partitionId(), context.taskAttemptId(), batches)
    yield pa.RecordBatch.from_pydict({"facts": [msgspec.json.encode(facts).decode()]})


def compute(job: StageJob, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> TaskFacts:
    """Run a task over its rows and leave what comes of it. An earlier attempt that was whole is used as it is."""
    task = f"{job.subtopology}_{partition}"
    final = Path(job.work) / task
    if (final / FACTS).exists():
        for _ in batches:
            continue
        return msgspec.json.decode((final / FACTS).read_bytes(), type=TaskFacts)
    draft = final.with_name(f".{task}.{attempt}")
    running = _Running(job, partition, draft)
    try:
        facts = running.run(batches)
        if facts.failure:
            return facts
        (draft / FACTS).write_bytes(msgspec.json.encode(facts))
        manifest.settle(draft, final)
        return facts
    finally:
        shutil.rmtree(draft, ignore_errors=True)


class _Running:
    """One task while it is computed."""

    def __init__(self, job: StageJob, partition: int, draft: Path) -> None:
        self._job = job
        self._partition = partition
        self._draft = draft
        self._app: App = job.source.load()
        topology = self._app.topology(job.numbering).with_partitions(job.counts)
        self._sub: Subtopology = topology.subtopology(job.subtopology)
        self._kinds = {name: topic.kind for name, topic in topology.topics.items()}
        self._facts = TaskFacts(f"{job.subtopology}_{partition}")
        self._state = TaskState(self._sub.tables, job.memory_bytes)
        self._files: dict[str, Written] = {}
        self._heavy = HeavyKeys()

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskFacts:
        begun = monotonic_s()
        private_process()  # the snapshot is its owner's
        make_folder(self._draft)
        try:
            asyncio.run(self._process(batches))
            self._keep()
        except ProcessorFailed as error:
            for _ in batches:
                continue
            return TaskFacts(self._facts.task, failure=str(error), frames=error.frames)
        finally:
            self._state.close()
        self._facts.heavy = self._heavy.top()
        self._facts.seconds = round(monotonic_s() - begun, 3)
        return self._facts

    def _keep(self) -> None:
        for file in self._files.values():
            file.close()
        for topic, file in self._files.items():
            counts = self._facts.rekeyed if self._kinds[topic] == "repartition" else self._facts.outputs
            counts[topic] = file.count
        for table, store in self._state.stores.items():
            self._facts.entries[table] = write_pairs(self._draft / "state" / f"{table}.parquet", store.pairs())
        if self._job.snapshot and self._state.stores:
            self._facts.scope_sum = self._write_scope()
        self._facts.spilled = self._state.spilled()

    async def _process(self, batches: Iterator[pa.RecordBatch]) -> None:
        async with Resources(self._app) as resources:
            stores = dict(self._state.stores)
            process = TaskProcess(self._app, self._sub, self._partition, stores, self._job.counts, resources)
            for batch in batches:
                self._check(batch)
                self._heavy.add(batch.column("key"))
                if process.takes_columns:
                    for piece in in_columns(batch):
                        if piece.topic:
                            await self._some(process, piece)
                    continue
                rows = [row for row in records(batch) if row[0]]
                for at in range(0, len(rows), RUN_RECORDS):
                    await self._some(process, rows[at : at + RUN_RECORDS])

    def _check(self, batch: pa.RecordBatch) -> None:
        """Whatever Spark's planner did: rows of another task would be counted where they are not looked for."""
        strangers = set(batch.column("pid").to_pylist()) - {self._partition}
        if strangers:
            raise StageFailed(f"task {self._facts.task} was given rows of partition {min(strangers)}; report it")

    async def _some(self, process: TaskProcess, rows: Sequence[tuple[str, RawRecord]]) -> None:
        left: Sequence[tuple[str, RawRecord]] = rows
        while True:
            if process.needs_async:
                await process.run_async(left)
            else:
                process.run(left)
            if process.again is None:
                break
            if process.waiting is not None:
                waits = process.waiting
                log.warning("%s: %s waits at %s: %s", process.task, waits.processor, waits.record, waits.error)
            await asyncio.sleep(process.again.delay_s)
            left = process.left(left)
        changes = process.collect()
        self._state.write(changes.writes)
        process.mark_applied()
        self._emit(changes)

    def _emit(self, changes: Changes) -> None:
        facts = self._facts
        facts.records_in += changes.records_in
        facts.skipped += changes.skipped
        facts.dead_lettered += changes.dead_lettered
        for table, at_ms in changes.write_timestamp_ms.items():
            facts.written_ms[table] = max(at_ms, facts.written_ms.get(table, 0))
        for (topic, partition), outputs in changes.outputs.items():
            file = self._files.get(topic)
            if file is None:
                kind = "rekeyed" if self._kinds[topic] == "repartition" else "outputs"
                file = self._files[topic] = Written(self._draft / kind / f"{topic}.parquet", topic, self._partition)
            file.add(partition, outputs)

    def _write_scope(self) -> str:
        """The SST files and their manifest; returns its sum."""
        job, task = self._job, self._facts.task
        final = Path(job.snapshot) / task
        draft = final.with_name(f".{task}.{self._draft.name}")
        tables = []
        for table, store in self._state.stores.items():
            topic = self._app.tables[table].changelog
            offset = base.OFFSET if job.base else self._facts.entries[table]
            origin = Origin(job.log_id, topic, job.topic_ids[topic], offset, job.time_ms)
            tables.append(write_table(draft, table, store.pairs(), origin))
        scope = manifest.ScopeManifest(task, job.log_id, job.time_ms, tuple(tables))
        sum_ = manifest.write_scope(draft, scope)
        if manifest.settle(draft, final):
            return sum_
        # An attempt that ended between this rename and the next: its files are whole, and its sum is theirs.
        kept = msgspec.json.decode((final / manifest.MANIFEST).read_bytes(), type=manifest.ScopeManifest)
        return manifest.write_scope(final, kept)
