"""One subtopology on Spark: what an executor does with the rows of one task.

One rule: the task is run by the very TaskProcess that runs it live, over its records in their one order, and what it
leaves is given its name by a rename when it is whole: a retry finds it and does nothing again.
Gets a StageJob (plain data; the app is imported by name) and the rows of a partition, which are those of a task; leaves
in the work folder `<task>/outputs/<topic>`, `<task>/rekeyed/<topic>`, `<task>/state/<table>` (Parquet) and its facts,
and in the snapshot the SST files of its tables with their manifest.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from orchestrator.errors import OrchestratorError
from pipeline.app import App
from pipeline.errors import ProcessorFailed
from pipeline.process import Changes, TaskProcess
from pipeline.records import SourceRecord
from pipeline.resources import Resources
from pipeline.spark.rows import Written, records, write_pairs
from pipeline.spark.source import Source
from pipeline.topology import Subtopology
from state import base, manifest
from state.snapshot import Origin, write_table

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


class TaskFacts(msgspec.Struct):
    """What became of a task. `failure` and `frames`: the user's code raised, there is nothing else."""

    task: str
    scope_sum: str = ""
    records_in: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    outputs: dict[str, int] = {}
    rekeyed: dict[str, int] = {}
    entries: dict[str, int] = {}
    written_ms: dict[str, int] = {}
    seconds: float = 0.0
    failure: str = ""
    frames: str = ""


class HistoryStore:
    """The state of a table while its task is computed: a dict, sorted when somebody asks for a range."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self._sorted: list[bytes] | None = None

    def get(self, key: bytes) -> bytes | None:
        return self.data.get(key)

    def range(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        from bisect import bisect_left

        if self._sorted is None:
            self._sorted = sorted(self.data)
        keys = self._sorted
        first = 0 if start is None else bisect_left(keys, start)
        last = len(keys) if stop is None else bisect_left(keys, stop)
        return iter([(key, self.data[key]) for key in keys[first:last]])

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            if value is not None:
                if key not in self.data:
                    self._sorted = None
                self.data[key] = value
            elif self.data.pop(key, None) is not None:
                self._sorted = None

    def pairs(self) -> list[tuple[bytes, bytes]]:
        return sorted(self.data.items())


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
        self._stores = {table: HistoryStore() for table in self._sub.tables}
        self._files: dict[str, Written] = {}

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskFacts:
        begun = time.monotonic()
        self._draft.mkdir(parents=True, exist_ok=True)
        try:
            asyncio.run(self._process(batches))
        except ProcessorFailed as error:
            for _ in batches:
                continue
            return TaskFacts(self._facts.task, failure=str(error), frames=error.frames)
        for file in self._files.values():
            file.close()
        for topic, file in self._files.items():
            counts = self._facts.rekeyed if self._kinds[topic] == "repartition" else self._facts.outputs
            counts[topic] = file.count
        self._keep_state()
        self._facts.seconds = round(time.monotonic() - begun, 3)
        return self._facts

    async def _process(self, batches: Iterator[pa.RecordBatch]) -> None:
        async with Resources(self._app) as resources:
            stores = dict(self._stores)
            process = TaskProcess(self._app, self._sub, self._partition, stores, self._job.counts, resources)
            for batch in batches:
                self._check(batch)
                rows = [row for row in records(batch) if row[0]]
                for at in range(0, len(rows), RUN_RECORDS):
                    await self._some(process, rows[at : at + RUN_RECORDS])

    def _check(self, batch: pa.RecordBatch) -> None:
        """Whatever Spark's planner did: rows of another task would be counted where nobody looks for them."""
        strangers = set(batch.column("pid").to_pylist()) - {self._partition}
        if strangers:
            raise StageFailed(f"task {self._facts.task} was given rows of partition {min(strangers)}; report it")

    async def _some(self, process: TaskProcess, rows: list[tuple[str, SourceRecord]]) -> None:
        if process.needs_async:
            await process.run_async(rows)
        else:
            process.run(rows)
        changes = process.take()
        for table, writes in changes.writes.items():
            self._stores[table].write(writes)
        process.settle()
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

    def _keep_state(self) -> None:
        pairs = {table: store.pairs() for table, store in self._stores.items()}
        for table, found in pairs.items():
            self._facts.entries[table] = len(found)
            write_pairs(self._draft / "state" / f"{table}.parquet", found)
        if self._job.snapshot and pairs:
            self._facts.scope_sum = self._write_scope(pairs)

    def _write_scope(self, pairs: Mapping[str, list[tuple[bytes, bytes]]]) -> str:
        """The SST files and their manifest; returns its sum."""
        job, task = self._job, self._facts.task
        final = Path(job.snapshot) / task
        draft = final.with_name(f".{task}.{self._draft.name}")
        tables = []
        for table, found in pairs.items():
            topic = self._app.tables[table].changelog
            offset = base.OFFSET if job.base else len(found)
            origin = Origin(job.log_id, topic, job.topic_ids[topic], offset, job.time_ms)
            tables.append(write_table(draft, table, found, origin))
        scope = manifest.ScopeManifest(task, job.log_id, job.time_ms, tuple(tables))
        sum_ = manifest.write_scope(draft, scope)
        if manifest.settle(draft, final):
            return sum_
        # An attempt that ended between this rename and the next: its files are whole, and its sum is theirs.
        kept = msgspec.json.decode((final / manifest.MANIFEST).read_bytes(), type=manifest.ScopeManifest)
        return manifest.write_scope(final, kept)
