"""Where the entries of an app's tables belong when it has more partitions, as executors need to know it.

One rule: the bytes of an entry say where the records of its key come to, by the old count and by the new one. In the flow:
`relocation` makes a MoveJob -> `misplaced` and `time_passed` ask here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.errors import OrchestratorError
from pipeline.app import App
from pipeline.calls.task_tables import routed
from pipeline.definitions.definition import Stored, TableDef
from pipeline.definitions.describe import routing_codec
from pipeline.definitions.entries import due_at, is_by_record, is_time, key_of, moved
from pipeline.definitions.join import JoinDef
from pipeline.spark.source import Source
from pipeline.time.position import Place

if TYPE_CHECKING:
    import pyarrow as pa


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


class Owners:
    """Where the entries of an app's tables belong; many at once, as arrays of their bytes."""

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
        """What gives, of an entry, the bytes of the key to whose records it belongs; None where these are the entry's own."""
        of_entry = key_of(table)
        if is_by_record(table):
            return of_entry
        sub = self.by_table[table.name]
        if table.route is None and routing_codec(self.app, sub.sources, table.name) is None:
            return None if type(table) is TableDef else of_entry
        of_key, decode = routed(self.app, sub, table), table.key_codec.decode

        def owner(entry: bytes) -> bytes:
            key = of_entry(entry)
            return of_key(decode(key), key)

        return owner

    def is_time(self, topic: str, key: bytes) -> bool:
        return is_time(self._tables[topic], key)

    def there(self, topic: str, keys: pa.Array) -> tuple[Any, Any]:
        """The partitions of entries, as numpy's arrays: by the old count, and by the new one."""
        import pyarrow as pa

        from pipeline.columns.arrays import bytes_of
        from pipeline.columns.murmur import partitions_of

        owner, of_both = self._owners[topic], self.job.before * self.job.to
        if owner is not None:
            keys = pa.array([owner(key) for key in bytes_of(keys)], pa.binary())
        placed = partitions_of(keys, of_both)
        return placed % self.job.before, placed % self.job.to

    def keys_there(self, topic: str, here: int, keys: pa.Array) -> pa.Array:
        """The keys of entries as they lie in another partition."""
        table = self._tables[topic]
        if not isinstance(table, JoinDef):
            return keys
        import pyarrow as pa

        from pipeline.columns.arrays import bytes_of

        ends = {name: self.job.ends.get(f"{name}-{here}", 0) for name in self.by_table[table.name].sources}
        return pa.array([moved(table, key, ends) for key in bytes_of(keys)], pa.binary())

    def due(self, topic: str, here: int, keys: pa.Array, values: pa.Array) -> int:
        """How many calls of entries come due before their task's time is where it comes to."""
        times = self.job.times.get(f"{self.by_table[self.job.tables[topic]].number}_{here}")
        if times is None or times[0] == times[1]:
            return 0
        from pipeline.columns.arrays import bytes_of

        places = map(self._due_at[topic], bytes_of(keys), bytes_of(values))
        return sum(place is not None and times[0] < place < times[1] for place in places)


def owners_of(job_text: str) -> Owners:
    """On an executor."""
    job = msgspec.json.decode(job_text, type=MoveJob)
    return Owners(job, job.source.load())
