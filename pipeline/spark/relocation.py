"""What a repartition moves, found on Spark: each entry of a changelog that does not lie where its key's records come to.

One rule: a task is looked at as it is when its time has come to where `task_times` says. Where something is due before, its time
passes first (`time_passed`), and what that writes and sends goes with what moves. Entries in, rows of `PACKED` out, which `moves`
keeps; `repartition` writes them. Nothing is changed here; on the executors `misplaced` looks at entries.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.errors import RefusedBySafety
from pipeline.app import App
from pipeline.definitions.entries import is_time
from pipeline.loading import load
from pipeline.spark.move_job import MoveJob
from pipeline.spark.moves import DUE, MOVED, PACKED, SENT, STRAY, WRITTEN, Moves, columns_of, cut_for
from pipeline.spark.session import failure
from pipeline.spark.set_to import set_to
from pipeline.spark.source import ship
from pipeline.spark.task_times import Task, TaskTimes
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.time.position import BEFORE_DUE, Place, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MEMORY_BYTES = 256 << 20  # what the tables of a task whose time passes take before they go to the executor's disk
_NOWHERE: Place = (-1, BEFORE_DUE, b"")


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
    from pipeline.spark.misplaced import relocated

    looked = moves.keep(entries.mapInArrow(partial(relocated, msgspec.json.encode(job).decode()), PACKED))
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

    from pipeline.spark.misplaced import relocated
    from pipeline.spark.time_passed import passed

    app = load(job.source.app)
    kept = _kept_times(app, job, entries)
    times = _times(app, job, kept, subtopologies)
    times.refuse_far(app.id, most_forward_ms)
    goals = {task: times.goal(task) or _NOWHERE for task in times.reached}
    job = msgspec.structs.replace(job, times={_name(task): (times.reached[task], goal) for task, goal in goals.items()})
    text = msgspec.json.encode(job).decode()
    looked = moves.keep(entries.mapInArrow(partial(relocated, text), PACKED))
    rows = looked.where(looked.kind.isin(DUE, STRAY)).collect()
    _refuse_strays(app, job, [row for row in rows if row["kind"] == STRAY])
    due: Counter[str] = Counter()
    passing: dict[int, set[int]] = {}
    for row in rows:
        due[job.tables[row["topic"]]] += row["rows"]
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
        after = moves.keep(placed.mapInArrow(partial(passed, text, number), PACKED))
        changed = moves.keep(after.where(after.kind != SENT).repartition(F.xxhash64("records")))
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


def _times(app: App, job: MoveJob, kept: Sequence[Any], subtopologies: Mapping[str, int]) -> TaskTimes:
    """The furthest time that a table of a task has kept is the task's."""
    reached: dict[Task, Place] = {}
    for row in kept:
        task = subtopologies[row["topic"]], row["partition"]
        order = app.tables[job.tables[row["topic"]]].order
        reached[task] = max(reached.get(task, _NOWHERE), read(bytes(row["found"]), order))
    return TaskTimes(job.before, job.to, reached)


def _refuse_strays(app: App, job: MoveJob, rows: Sequence[Any]) -> None:
    """Raises RefusedBySafety where entries lie where the records of their keys do not come to by the partitioner."""
    if rows:
        first = min(rows, key=lambda row: (row["topic"], row["here"]))
        found = columns_of(first)
        raise RefusedBySafety(
            f"'{app.id}': entries of {job.tables[first['topic']]} lie in partition {first['here']} of {first['topic']}, and by the "
            f"partitioner the key {found['key'][0]!r} belongs to {found['there'][0]} of {job.before}: what writes the app's inputs "
            "does not go by the hash of the key, so where its records come to with more partitions is not known; rekey the topic"
        )
