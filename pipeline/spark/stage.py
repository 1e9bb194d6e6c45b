"""One subtopology on Spark: what an executor does with the rows of one task.

One rule: the task is run by the very TaskProcess that runs it live, over its records in their one order, and what it
leaves is given its name by one rename when it is whole: a retry finds it and does nothing again.
Gets a StageJob (plain data; the app is imported by name) and the rows of a partition, which are those of a task; leaves
in the work folder `<task>/outputs/<topic>`, `<task>/rekeyed/<topic>`, `<task>/state/<table>` (Parquet) and its facts,
and for a snapshot the SST files of its tables with their manifest (`<task>/scope`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
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
from pipeline.records import OutputRecord, RawRecord
from pipeline.resources import Resources
from pipeline.spark.attempts import Draft
from pipeline.spark.cells import Cells
from pipeline.spark.letters import letters_of, without_place
from pipeline.spark.merging import Merging
from pipeline.spark.numbered import Numbered, Sources, has_place, sent_on
from pipeline.spark.row_counts import PROCESSED, RowCount
from pipeline.spark.rows import Rows, Written, in_columns, of_records, records, write_pairs
from pipeline.spark.runs import Moved, Spent, unpack
from pipeline.spark.skew import Heavy, HeavyKeys
from pipeline.spark.source import Source
from pipeline.spark.task_state import TaskState
from pipeline.spark.waits import Waits
from state import manifest
from state.disk_full import writing_to
from state.errors import NoSpaceLeft
from state.log import base
from state.private import private_process
from state.snapshot import Origin, write_table

log = logging.getLogger("orchestrator.stage")
FACTS, SCOPE = "facts.json", "scope"
RUN_RECORDS = 10_000  # how many records a call of the process gets at most: batch processors see batches of this size
RUNS_SHARE = 4  # of the memory of a task: what its rows may take while they wait for their order
RUNS_BYTES_MAX = 1 << 30  # Arrow's arrays end at 2 GiB
OBJECTS = 100_000  # made before the collector looks for circles: of records there are none, and it looks at all of them


class StageFailed(OrchestratorError):
    """A task could not be computed."""


class StageJob(msgspec.Struct, frozen=True):
    """What every task of a subtopology must know. `work` has what is whole, `attempts` what is being written; `snapshot`: files for
    one are wanted; `base`: changelogs go on from it, and have no entries of their own."""

    source: Source
    numbering: dict[str, Any]
    counts: dict[str, int]
    subtopology: int
    work: str
    attempts: str
    snapshot: bool
    base: bool
    log_id: str
    topic_ids: dict[str, str]
    time_ms: int
    memory_bytes: int
    sources: Sources


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
    placed: dict[str, dict[int, int]] = {}  # what was sent, by topic and partition
    oldest_ms: dict[str, int] = {}  # of the outputs of a topic
    entries: dict[str, int] = {}
    written_ms: dict[str, int] = {}
    heavy: list[Heavy] = []
    seconds: float = 0.0
    spent: dict[str, float] = {}
    failure: str = ""
    frames: str = ""


def run(job_text: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of mapInArrow: rows of one partition in, one row with the facts out."""
    job = msgspec.json.decode(job_text, type=StageJob)
    number, attempt = _place()
    found = (of_records(_of_task(job, number, batch)) for batch in batches)
    facts = compute(job, number, attempt, found, Spent())
    yield pa.RecordBatch.from_pydict({"facts": [msgspec.json.encode(facts).decode()]})


def run_packed(job_text: str, groups: int, found: Iterator[Moved]) -> Iterator[str]:
    """The same of runs: the cells of a task, of so many groups of items, in, its facts out."""
    job = msgspec.json.decode(job_text, type=StageJob)
    number, attempt = _place()
    limit = min(job.memory_bytes // RUNS_SHARE, RUNS_BYTES_MAX)
    with closing(Cells(limit, groups)) as cells, closing(Merging(limit)) as merging:
        runs = unpack(cells.in_order(_of_task_alone(job, number, found)))
        rows = Numbered(job.sources).rows(merging.pieces(runs))
        yield msgspec.json.encode(compute(job, number, attempt, rows, Spent())).decode()


def _place() -> tuple[int, int]:
    """The partition that this is, and the number of the attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.partitionId(), context.taskAttemptId()


def _of_task(job: StageJob, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Whatever Spark's planner did: rows of another task would be counted where they are not looked for."""
    strangers = set(batch.column("pid").to_pylist()) - {number}
    if strangers:
        raise _stranger(job, number, min(strangers))
    return batch


def _of_task_alone(job: StageJob, number: int, found: Iterable[Moved]) -> Iterator[Moved]:
    for one in found:
        if one[0].pid != number:
            raise _stranger(job, number, one[0].pid)
        yield one


def _stranger(job: StageJob, number: int, pid: int) -> StageFailed:
    return StageFailed(f"task {job.subtopology}_{number} was given rows of partition {pid}; report it")


def compute(job: StageJob, partition: int, attempt: int, rows: Iterator[Rows], spent: Spent) -> TaskFacts:
    """Run a task over its rows and leave what comes of it. An earlier attempt that was whole is used as it is."""
    task = f"{job.subtopology}_{partition}"
    final = Path(job.work) / task
    if (final / FACTS).exists():
        for _ in rows:
            continue
        return msgspec.json.decode((final / FACTS).read_bytes(), type=TaskFacts)
    private_process()  # the snapshot is its owner's
    try:
        with _into(job):
            draft = Draft(Path(job.attempts), task, attempt)
    except NoSpaceLeft as error:
        return _failed(task, rows, error)
    try:
        facts = _Running(job, partition, draft, spent).run(rows)
        if facts.failure:
            return facts
        with _into(job):
            (draft.path / FACTS).write_bytes(msgspec.json.encode(facts))
        if not draft.settle(final):
            return msgspec.json.decode((final / FACTS).read_bytes(), type=TaskFacts)
        return facts
    except NoSpaceLeft as error:
        return _failed(task, rows, error)
    finally:
        draft.remove()


def _into(job: StageJob) -> AbstractContextManager[None]:
    """Around what is written to the work folder. Raises NoSpaceLeft."""
    other = "--snapshots" if job.snapshot else "TMPDIR"
    return writing_to(
        Path(job.work).parent, f"tables and outputs are written there; free some, or name another folder with {other}"
    )


def _failed(task: str, rows: Iterator[Rows], error: ProcessorFailed | NoSpaceLeft, text: str = "") -> TaskFacts:
    """The facts of a task whose other attempts would fail, too: it ends without an exception, so Spark makes none, and the driver stops."""
    for _ in rows:
        continue
    return TaskFacts(task, failure=text or str(error), frames=getattr(error, "frames", ""))


class _Running:
    """One task while it is computed."""

    def __init__(self, job: StageJob, partition: int, draft: Draft, spent: Spent) -> None:
        self._spent = spent
        self._job = job
        self._partition = partition
        self._draft = draft
        self._app: App = job.source.load()
        topology = self._app.topology(job.numbering).with_partitions(job.counts)
        self._sub: Subtopology = topology.subtopology(job.subtopology)
        self._kinds = {name: topic.kind for name, topic in topology.topics.items()}
        self._sent_on = {name for name in self._sub.sources if self._kinds[name] == "repartition"}
        self._letters = letters_of(self._app, self._sub)
        self._facts = TaskFacts(f"{job.subtopology}_{partition}")
        self._state = TaskState(self._sub.tables, job.memory_bytes)
        self._files: dict[str, Written] = {}
        self._heavy = HeavyKeys()
        self._rows = RowCount(Path(job.attempts), PROCESSED, partition)
        self._waits = Waits(Path(job.attempts), partition)
        self._held: Sequence[tuple[str, RawRecord]] = ()  # what is processed

    def run(self, rows: Iterator[Rows]) -> TaskFacts:
        begun = monotonic_s()
        kept = gc.get_threshold()
        gc.set_threshold(OBJECTS, *kept[1:])
        try:
            asyncio.run(self._process(sent_on(rows, self._sent_on)))
            with self._timed("write"), _into(self._job):
                self._keep()
        except ProcessorFailed as error:
            return _failed(self._facts.task, rows, error, self._in_history(error))
        finally:
            gc.set_threshold(*kept)
            self._state.close()
        self._facts.heavy = self._heavy.top()
        self._facts.seconds = round(monotonic_s() - begun, 3)
        self._facts.spent = self._spent.seconds
        return self._facts

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        begun = monotonic_s()
        yield
        self._spent.add(stage, monotonic_s() - begun)

    def _keep(self) -> None:
        for file in self._files.values():
            file.close()
        for topic, file in self._files.items():
            counts = self._facts.rekeyed if self._kinds[topic] == "repartition" else self._facts.outputs
            counts[topic] = file.count
            if file.oldest_ms is not None and counts is self._facts.outputs:
                self._facts.oldest_ms[topic] = file.oldest_ms
            self._facts.placed[topic] = file.counts
        for table, store in self._state.stores.items():
            path = self._draft.folder("state") / f"{table}.parquet"
            self._facts.entries[table] = write_pairs(path, store.pairs())
        if self._job.snapshot and self._state.stores:
            self._facts.scope_sum = self._write_scope()
        self._facts.spilled = self._state.spilled()

    async def _process(self, rows: Iterator[Rows]) -> None:
        async with Resources(self._app) as resources:
            stores = dict(self._state.stores)
            process = TaskProcess(self._app, self._sub, self._partition, stores, self._job.counts, resources)
            while True:
                with self._timed("shuffle"):
                    some = next(rows, None)
                if some is None:
                    break
                with self._timed("processors"):
                    self._heavy.add(some.batch.column("key"))
                    await self._call(process, some)
                self._rows.add(some.batch.num_rows)
            self._rows.write()

    async def _call(self, process: TaskProcess, some: Rows) -> None:
        if process.takes_columns:
            for piece in in_columns(some):
                await self._some(process, piece)
            return
        listed = records(some)
        for at in range(0, len(listed), RUN_RECORDS):
            await self._some(process, listed[at : at + RUN_RECORDS])

    def _in_history(self, error: ProcessorFailed) -> str:
        """What failed, with the record as its file has it: a row of history has a number of ours in the place of an offset, and so has one
        that a task has sent on."""
        if has_place(error.offset):
            return str(error)
        held = (raw for topic, raw in self._held if (topic, raw.offset) == (error.topic, error.offset))
        raw = next(held, None)
        about = (
            "a record"
            if raw is None
            else f"the record of key {self._shown(error.topic, raw.key)} at {raw.timestamp_ms} ms"
        )
        place = f"{error.topic}-{error.partition}@{error.offset}"
        where = error.topic if error.topic in self._sent_on else f"the history of {error.topic}"
        return str(error).replace(place, f"{about} in {where}")

    def _shown(self, topic: str, key: bytes | None) -> str:
        about = next((one for one in self._app.topics.values() if one.topic == topic), None)
        try:
            return repr(key if about is None or key is None else about.key_codec.decode(key))
        except Exception:  # noqa: BLE001 - a codec of the user's may raise anything; the bytes name the key as well
            return repr(key)

    async def _some(self, process: TaskProcess, rows: Sequence[tuple[str, RawRecord]]) -> None:
        left: Sequence[tuple[str, RawRecord]] = rows
        self._held = rows
        while True:
            if process.needs_async:
                await process.run_async(left)
            else:
                process.run(left)
            if process.again is None:
                break
            if process.waiting is not None:
                waits = process.waiting
                text = f"{waits.processor} waits at {waits.record} in task {process.task}: {waits.error}"
                log.warning("%s", text)
                self._waits.begin(text)
            await asyncio.sleep(process.again.delay_s)
            left = process.left(left)
        self._waits.over()
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
        with _into(self._job):
            self._send(changes.outputs)

    def _send(self, outputs: Mapping[tuple[str, int], list[OutputRecord]]) -> None:
        for (topic, partition), some in outputs.items():
            sent = without_place(some) if topic in self._letters else some
            file = self._files.get(topic)
            if file is None:
                kind = "rekeyed" if self._kinds[topic] == "repartition" else "outputs"
                file = self._files[topic] = Written(
                    self._draft.folder(kind) / f"{topic}.parquet", topic, self._partition
                )
            file.add(partition, sent)

    def _write_scope(self) -> str:
        """The SST files and their manifest; returns its sum."""
        job, task = self._job, self._facts.task
        folder = self._draft.folder(SCOPE)
        tables = []
        for table, store in self._state.stores.items():
            topic = self._app.tables[table].changelog
            offset = base.OFFSET if job.base else self._facts.entries[table]
            origin = Origin(job.log_id, topic, job.topic_ids[topic], offset, job.time_ms)
            tables.append(write_table(folder, table, store.pairs(), origin))
        scope = manifest.ScopeManifest(task, job.log_id, job.time_ms, tuple(tables))
        return manifest.write_scope(folder, scope)
