"""What a repartition moves, found on Spark: each entry of a changelog that does not lie where its key's records come to.

One rule: a task is looked at as it is when its time has come to where `task_times` says. Where something is due before, the very
TaskProcess that runs it live passes that time, with its entries as its stores, and what it writes and sends goes with what moves.
Entries in, rows of `ROWS` out, which `moves` keeps; `repartition` writes them. Nothing is changed here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.errors import OrchestratorError, RefusedBySafety
from pipeline.app import App
from pipeline.calls.task_tables import routed
from pipeline.definitions.definition import Stored
from pipeline.definitions.entries import due_at, is_by_record, is_time, key_of, moved
from pipeline.definitions.topology import Subtopology
from pipeline.errors import ProcessorFailed
from pipeline.loading import load
from pipeline.process import Changes, TaskProcess
from pipeline.resources import Resources
from pipeline.spark.moves import MOVED, ROWS, SENT, WRITTEN, Moves, cut_for, set_to
from pipeline.spark.session import failure
from pipeline.spark.source import Source, ship
from pipeline.spark.task_state import TaskState
from pipeline.spark.task_times import Task, TaskTimes
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.time.position import BEFORE_DUE, Place, read
from pipeline.values.partitioner import partition_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DUE, STRAY = "due", "stray"
MEMORY_BYTES = 256 << 20  # what the tables of a task whose time passes take before they go to the executor's disk
_NOWHERE: Place = (-1, BEFORE_DUE, b"")


class TimeNotPassed(OrchestratorError):
    """What is due in a task could not be called."""


class MoveJob(msgspec.Struct, frozen=True):
    """What every executor must know. `ends`: of the inputs, by partition; `times` by task: how far its time has come, and where
    it comes to; `counts`: the partitions of all topics that are written to, when all has moved."""

    source: Source
    numbering: dict[str, Any]
    tables: dict[str, str]
    before: int
    to: int
    ends: dict[str, int]
    counts: dict[str, int]
    times: dict[str, tuple[Place, Place]] = {}


@dataclass(frozen=True)
class Found:
    """What is to be written. `moved` entries, their `bytes`, records that are `sent`; `due`: calls of each table that come due on the
    way; `moves` gives them."""

    times: TaskTimes
    moves: Moves
    entries: int = 0
    moved: int = 0
    bytes: int = 0
    sent: int = 0
    due: Mapping[str, int] = field(default_factory=dict)

    def close(self) -> None:
        self.moves.close()


# ---------------------------------------------------------------- on the driver


def found_moves(
    session: SparkSession,
    app_ref: str,
    url: str,
    job: MoveJob,
    subtopologies: Mapping[str, int],
    most_forward_ms: int,
    *,
    passes: bool,
    is_rest: bool = False,
) -> Found:
    """`subtopologies`: of each changelog. `passes`: False for a look alone, in which nothing of the app is called. `is_rest`: time has
    passed, and some of the entries lie right by now. What is found is kept until it is closed. Raises SparkFailed, RefusedBySafety, TimeNotPassed."""
    moves = Moves(session)
    try:
        from pipeline.spark.differences import last_values
        from pipeline.spark.log_source import log_frame, slices

        job = msgspec.structs.replace(job, source=ship(session, app_ref))
        most = sum(one.end - one.start for one in asyncio.run(slices(url, list(job.tables), None)))
        with set_to(session, cut_for(session, most)):
            entries = last_values(log_frame(session, url, list(job.tables)), "topic", "partition").cache()
            try:
                if is_rest:
                    return _rest(job, entries, moves)
                return _of_entries(job, entries, moves, subtopologies, most_forward_ms, passes=passes)
            finally:
                entries.unpersist()
    except RefusedBySafety:
        moves.close()
        raise
    except Exception as error:
        moves.close()
        raise failure(session, error) from error


def _rest(job: MoveJob, entries: DataFrame, moves: Moves) -> Found:
    """What another run has not moved."""
    looked = moves.keep(entries.mapInArrow(partial(relocated, msgspec.json.encode(job).decode()), ROWS))
    moves.add(MOVED, looked.where(looked.kind == MOVED))
    count = entries.count() - len(_kept_times(load(job.source.app), job, entries))
    return Found(TaskTimes(job.before, job.to), moves, count, *moves.sizes().get(MOVED, (0, 0)))


def _kept_times(app: App, job: MoveJob, entries: DataFrame) -> list[Any]:
    """The rows that are the time of a task."""
    from pyspark.sql import functions as F

    rows = entries.where(F.col("key") == F.lit(STREAM_TIME_KEY)).collect()
    return [row for row in rows if is_time(app.tables[job.tables[row["topic"]]], bytes(row["key"]))]


def _of_entries(
    job: MoveJob,
    entries: DataFrame,
    moves: Moves,
    subtopologies: Mapping[str, int],
    most_forward_ms: int,
    *,
    passes: bool,
) -> Found:
    from pyspark.sql import functions as F

    app = load(job.source.app)
    kept = _kept_times(app, job, entries)
    times = _times(job, kept, subtopologies)
    times.refuse_far(app.id, most_forward_ms)
    goals = {task: times.goal(task) or _NOWHERE for task in times.reached}
    job = msgspec.structs.replace(job, times={_name(task): (times.reached[task], goal) for task, goal in goals.items()})
    text = msgspec.json.encode(job).decode()
    looked = moves.keep(entries.mapInArrow(partial(relocated, text), ROWS))
    rows = looked.where(looked.kind.isin(DUE, STRAY)).collect()
    _refuse_strays(app, job, [row for row in rows if row["kind"] == STRAY])
    due: Counter[str] = Counter()
    passing: dict[int, set[int]] = {}
    for row in rows:
        due[job.tables[row["topic"]]] += row["number"]
        passing.setdefault(subtopologies[row["topic"]], set()).add(row["here"])
    if due and app.globals:
        raise RefusedBySafety(
            f"'{app.id}': what comes due before the tasks that meet are at one time ({shown_due(due)}) may read global tables, which "
            "are not at hand here; let the app run until it has passed that time, or give --to a multiple of its present number"
        )
    at_rest = looked.where(looked.kind == MOVED)
    for number, partitions in sorted(passing.items()) if passes else ():
        topics = [topic for topic, sub in subtopologies.items() if sub == number]
        in_them = F.col("topic").isin(topics)
        at_rest = at_rest.where(~(in_them & F.col("here").isin(sorted(partitions))))
        chosen = entries.where(in_them & F.col("partition").isin(sorted(partitions)))
        placed = chosen.repartitionById(job.before, chosen.partition)
        after = moves.keep(placed.mapInArrow(partial(passed, text, number), ROWS))
        changed = moves.keep(after.where(after.kind != SENT).repartition("topic", "key"))
        for kind in (WRITTEN, MOVED):
            moves.add(kind, changed.where(changed.kind == kind))
        moves.add(SENT, after.where(after.kind == SENT))
    moves.add(MOVED, at_rest)
    sizes = moves.sizes()
    count = entries.count() - len(kept)
    return Found(times, moves, count, *sizes.get(MOVED, (0, 0)), sizes.get(SENT, (0, 0))[0], due)


def shown_due(due: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {table}" for table, count in sorted(due.items()))


def _name(task: Task) -> str:
    return f"{task[0]}_{task[1]}"


def _times(job: MoveJob, kept: Sequence[Any], subtopologies: Mapping[str, int]) -> TaskTimes:
    """The furthest time that a table of a task has kept is the task's."""
    reached: dict[Task, Place] = {}
    for row in kept:
        task = subtopologies[row["topic"]], row["partition"]
        reached[task] = max(reached.get(task, _NOWHERE), read(bytes(row["found"])))
    return TaskTimes(job.before, job.to, reached)


def _refuse_strays(app: App, job: MoveJob, rows: Sequence[Any]) -> None:
    """Raises RefusedBySafety where entries lie where the records of their keys do not come to by the partitioner."""
    if rows:
        first = min(rows, key=lambda row: (row["topic"], row["here"]))
        raise RefusedBySafety(
            f"'{app.id}': entries of {job.tables[first['topic']]} lie in partition {first['here']} of {first['topic']}, and by the "
            f"partitioner the key {bytes(first['key'])!r} belongs to {first['there']} of {job.before}: what writes the app's inputs "
            "does not go by the hash of the key, so where its records come to with more partitions is not known; rekey the topic"
        )


# ---------------------------------------------------------------- on the executors


class Owners:
    """Where the entries of an app's tables belong."""

    def __init__(self, job: MoveJob, app: App) -> None:
        self.app = app
        self.job = job
        topology = self.app.topology(job.numbering)
        self.subtopologies = {sub.number: replace(sub, partitions=job.before) for sub in topology.subtopologies}
        self.by_table = {table: sub for sub in self.subtopologies.values() for table in sub.tables}
        announced = {processor.due for processor in self.app.processors.values()}
        self._tables = {topic: self.app.tables[table] for topic, table in job.tables.items()}
        self._owners = {topic: self._owner(table) for topic, table in self._tables.items()}
        self._due_at = {topic: due_at(table, announces=table in announced) for topic, table in self._tables.items()}

    def _owner(self, table: Stored[Any]) -> Any:
        """What gives, of an entry, the bytes of the key to whose records it belongs."""
        of_entry = key_of(table)
        if is_by_record(table):
            return of_entry
        of_key, decode = routed(self.app, self.by_table[table.name], table), table.key_codec.decode

        def owner(entry: bytes) -> bytes:
            key = of_entry(entry)
            return of_key(decode(key), key)

        return owner

    def is_time(self, topic: str, key: bytes) -> bool:
        return is_time(self._tables[topic], key)

    def there(self, topic: str, key: bytes) -> tuple[int, int]:
        """The partitions of an entry: by the old count, and by the new one."""
        owner = self._owners[topic](key)
        return partition_of(owner, self.job.before), partition_of(owner, self.job.to)

    def key_there(self, topic: str, here: int, key: bytes) -> bytes:
        ends = {name: self.job.ends.get(f"{name}-{here}", 0) for name in self.by_table[self.job.tables[topic]].sources}
        return moved(self._tables[topic], key, ends)

    def move(self, topic: str, here: int, there: int, key: bytes, value: bytes) -> dict[str, Any]:
        """The row of an entry that moves."""
        placed = {
            "here": here,
            "there": there,
            "key": key,
            "key_there": self.key_there(topic, here, key),
            "value": value,
        }
        return {"kind": MOVED, "topic": topic, **placed}

    def is_due(self, topic: str, here: int, key: bytes, value: bytes) -> bool:
        """Whether a call of an entry comes due before its task's time is where it comes to."""
        times = self.job.times.get(f"{self.by_table[self.job.tables[topic]].number}_{here}")
        if times is None or times[0] == times[1]:
            return False
        place = self._due_at[topic](key, value)
        return place is not None and times[0] < place < times[1]


def relocated(job_text: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Entries in; what `misplaced` finds out."""
    layout = _loaded(job_text)
    for batch in batches:
        yield _batch(misplaced(layout, batch.to_pylist()))


def passed(job_text: str, number: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The entries of one task of a subtopology in; what `brought_forward` finds out."""
    layout = _loaded(job_text)
    entries = (entry for batch in batches for entry in batch.to_pylist())
    for rows in brought_forward(layout, number, entries):
        yield _batch(rows)


def _loaded(job_text: str) -> Owners:
    job = msgspec.json.decode(job_text, type=MoveJob)
    return Owners(job, job.source.load())


def misplaced(layout: Owners, entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those that lie in another partition than their key's, how many have calls that come due, and one of those that lie where
    they should not have been."""
    rows: list[dict[str, Any]] = []
    due: Counter[tuple[str, int]] = Counter()
    strays: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in entries:
        topic, here, key, value = entry["topic"], entry["partition"], entry["key"], entry["found"]
        if layout.is_time(topic, key):
            continue
        before, there = layout.there(topic, key)
        if before != here:
            strays[topic, here] = {"kind": STRAY, "topic": topic, "here": here, "there": before, "key": key}
        if layout.is_due(topic, here, key, value):
            due[topic, here] += 1
        if there != here:
            rows.append(layout.move(topic, here, there, key, value))
    rows += ({"kind": DUE, "topic": topic, "here": here, "number": count} for (topic, here), count in due.items())
    return [*rows, *strays.values()]


def brought_forward(
    layout: Owners, number: int, entries: Iterable[Mapping[str, Any]]
) -> Iterator[list[dict[str, Any]]]:
    """What is to be written where the time of a task has come to its goal. Raises TimeNotPassed."""
    sub = layout.subtopologies[number]
    changelogs = {layout.app.tables[table].changelog: table for table in sub.tables}
    with closing(TaskState(sub.tables, MEMORY_BYTES)) as state:
        here = None
        for entry in entries:
            here = entry["partition"]
            state.write({changelogs[entry["topic"]]: {entry["key"]: entry["found"]}})
        if here is None:
            return
        _, (at_ms, _, _) = layout.job.times[f"{number}_{here}"]
        try:
            changes = asyncio.run(_advanced(layout, sub, here, state, at_ms))
        except ProcessorFailed as error:
            raise TimeNotPassed(
                f"task {number}_{here} is brought forward to {at_ms} ms, the time of others with which its keys come to share tasks, "
                f"and a call that comes due before failed; nothing was changed: {error}"
            ) from error
        for topic, table in changelogs.items():
            store, written = state.stores[table], changes.writes.get(table, {})
            known = {key for key in written if store.get(key) is not None}
            yield list(_changed(layout, topic, here, written, known))
            yield list(_staying(layout, topic, here, store.pairs(), written))
        yield list(_sent(changes))


async def _advanced(layout: Owners, sub: Subtopology, partition: int, state: TaskState, at_ms: int) -> Changes:
    """What a task does when time comes to here. Raises ProcessorFailed, TimeNotPassed."""
    async with Resources(layout.app) as resources:
        stores = dict(state.stores)
        process = TaskProcess(layout.app, sub, partition, stores, layout.job.counts, resources)
        while not await process.advance(at_ms):
            if process.waiting is not None:
                raise TimeNotPassed(
                    f"{process.waiting.processor} waits at what is due in task {process.task}: {process.waiting.error}; nothing was changed"
                )
            if process.again is not None:
                await asyncio.sleep(process.again.delay_s)
        return process.collect()


def _changed(
    layout: Owners, topic: str, here: int, written: Mapping[bytes, bytes | None], known: set[bytes]
) -> Iterator[dict[str, Any]]:
    """Entries that the passing of time has written: a deletion where one was, a value where it belongs."""
    for key, value in written.items():
        if layout.is_time(topic, key):
            continue
        _, there = layout.there(topic, key)
        row = {"kind": WRITTEN, "topic": topic, "here": here}
        if key in known and (value is None or there != here):
            yield {**row, "key": key}
        if value is not None:
            at = key if there == here else layout.key_there(topic, here, key)
            yield {**row, "here": there, "key": at, "value": value}


def _staying(
    layout: Owners, topic: str, here: int, pairs: Iterator[tuple[bytes, bytes]], changed: Mapping[bytes, bytes | None]
) -> Iterator[dict[str, Any]]:
    """The others, where they lie wrong."""
    for key, value in pairs:
        if key in changed or layout.is_time(topic, key):
            continue
        _, there = layout.there(topic, key)
        if there != here:
            yield layout.move(topic, here, there, key, value)


def _sent(changes: Changes) -> Iterator[dict[str, Any]]:
    from pipeline.spark.rows import packed

    for (topic, partition), outputs in changes.outputs.items():
        for one in outputs:
            row = {"kind": SENT, "topic": topic, "there": partition, "key": one.key, "value": one.value}
            yield {**row, "number": one.timestamp_ms, "headers": packed(one.headers)}


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "binary": pa.binary()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in (column.split() for column in ROWS.split(", "))])
    return pa.RecordBatch.from_pylist(rows, schema=schema)
