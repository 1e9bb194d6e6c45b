"""A Driver whose app gets more tasks, as `orchestrator repartition` gives it: by the same functions, without Spark and a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from orchestrator.testing import Driver
from pipeline.definitions.entries import is_time, keeps_time
from pipeline.records import OutputRecord
from pipeline.spark import moves
from pipeline.spark.misplaced import misplaced
from pipeline.spark.move_job import MoveJob, Owners
from pipeline.spark.rows import unpacked
from pipeline.spark.source import Source
from pipeline.spark.task_times import Task, TaskTimes
from pipeline.spark.time_passed import brought_forward
from pipeline.tables.expiry import STREAM_TIME_KEY, stored_time
from pipeline.time.position import Place, read, stored

Stores = dict[str, dict[str, dict[bytes, bytes]]]  # by task and table


ENTRIES = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("key", pa.binary()), ("found", pa.binary())])


def batch_of(entries: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(entries, schema=ENTRIES)


def unpacked_row(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Its records or entries, one by one."""
    columns = moves.columns_of(row)
    assert len(columns["key"]) == row["rows"]
    for cells in zip(*columns.values(), strict=True):
        yield {"topic": row["topic"], "here": row["here"], **dict(zip(columns, cells, strict=True))}


class Moved(Driver):
    """`before` with more partitions: what it holds lies in its tasks. `rows`: what was written for that, by kind."""

    def __init__(self, before: Driver, to: int) -> None:
        super().__init__(before.app, partitions=to)
        every = dict.fromkeys(before.topology.topics, to)
        self.topology = before.topology.with_partitions(every)
        self._partitions = {name: topic.partitions for name, topic in self.topology.topics.items()}
        self._records = {name: list(found) for name, found in before._records.items()}
        self._ends = dict(before._ends)
        self._latest_ms = before._latest_ms
        self._before = before
        self.to = to
        self.rows: dict[str, list[Any]] = {}
        self.times, self._moved = self._move()

    def _begin(self, resources: Mapping[str, Any]) -> None:
        kept: Stores = self._moved

        super()._begin(resources)
        for task, process in list(self._tasks.items()):
            for table, entries in kept.get(task, {}).items():
                self._stores[task][table].write(entries)
            number = int(task.partition("_")[0])
            sub = self.topology.subtopology(number)
            outside: dict[Any, Any] = {**resources}
            self._tasks[task] = type(process)(
                self.app, sub, process.partition, self._stores[task], self._partitions, outside, rests=False
            )
        for row in self.rows.get(moves.SENT, ()):
            output = OutputRecord(row["key"], row["value"], row["number"], unpacked(row.get("headers")))
            self._append_all(row["topic"], row["there"], [output])
        self._complete(self._process())

    def _move(self) -> tuple[TaskTimes, Stores]:
        before, app = self._before, self.app
        count = before.topology.subtopologies[0].partitions
        tables = {app.tables[table].changelog: table for sub in before.topology.subtopologies for table in sub.tables}
        numbers = {tables_of: sub.number for sub in before.topology.subtopologies for tables_of in sub.tables}
        entries = [
            {"topic": app.tables[table].changelog, "partition": int(task.partition("_")[2]), "key": key, "found": value}
            for task, stores in before._stores.items()
            for table, store in stores.items()
            for key, value in store.data.items()
        ]
        reached: dict[Task, Place] = {}
        for entry in entries:
            table = tables[entry["topic"]]
            if is_time(app.tables[table], entry["key"]):
                task = numbers[table], entry["partition"]
                reached[task] = max(reached.get(task, read(None)), read(entry["found"]))
        times = TaskTimes(count, self.to, reached)
        known = {f"{sub}_{n}": (reached[sub, n], times.goal((sub, n)) or read(None)) for sub, n in reached}
        ends = {f"{topic}-{number}": end for (topic, number), end in before._ends.items()}
        given = Source("none:app", ""), before.topology.numbering(), tables, count, self.to
        job = MoveJob(*given, ends, dict(self._partitions), known)
        owners = Owners(msgspec.json.decode(msgspec.json.encode(job), type=MoveJob), app)
        rows = list(misplaced(owners, batch_of(entries)))
        assert not [row for row in rows if row["kind"] == moves.STRAY]
        self.passing = passing = {
            (numbers[tables[row["topic"]]], row["here"]) for row in rows if row["kind"] == moves.DUE
        }
        self.due = Counter({row["topic"]: row["rows"] for row in rows if row["kind"] == moves.DUE})
        rows = [row for row in rows if (numbers[tables[row["topic"]]], row["here"]) not in passing]
        for number, here in sorted(passing):
            of_task = [one for one in entries if (numbers[tables[one["topic"]]], one["partition"]) == (number, here)]
            middle = len(of_task) // 2
            rows += brought_forward(owners, number, [batch_of(of_task[:middle]), batch_of(of_task[middle:])])
        for row in rows:
            if row["kind"] != moves.DUE:
                self.rows.setdefault(row["kind"], []).extend(unpacked_row(row))
        return times, self._filled(entries, tables, numbers, times)

    def _filled(
        self, entries: list[dict[str, Any]], tables: Mapping[str, str], numbers: Mapping[str, int], times: TaskTimes
    ) -> Stores:
        kept: Stores = {}

        def put(topic: str, number: int, key: bytes, value: bytes | None) -> None:
            table = tables[topic]
            store = kept.setdefault(f"{numbers[table]}_{number}", {}).setdefault(table, {})
            if value is None:
                assert store.pop(key, None) is not None, "what is deleted was there"
            else:
                store[key] = value

        for entry in entries:
            put(entry["topic"], entry["partition"], entry["key"], entry["found"])
        for row in self.rows.get(moves.MOVED, ()):
            put(row["topic"], row["here"], row["key"], None)
        for row in self.rows.get(moves.MOVED, ()):
            put(row["topic"], row["there"], row["key_there"], row["value"])
        for row in self.rows.get(moves.WRITTEN, ()):
            put(row["topic"], row["there"], row["key"], row["value"])
        for topic, table in tables.items():
            for number in range(self.to) if keeps_time(self.app.tables[table]) else ():
                goal = times.goal((numbers[table], number))
                if goal is not None:
                    keeps = self.app.tables[table]
                    time = stored(goal, keeps.order) if keeps.keeps_time else stored_time(goal[0])
                    put(topic, number, STREAM_TIME_KEY, time)
        return kept
