"""An app in a test: no broker, no process, no clock. One rule: it runs the very TaskProcess that production runs.

    with Driver(app) as bank:
        bank.send(payments, "ann", Payment("ann", -5))
        assert bank.table(balances) == {"ann": -5}

All subtopologies and partitions run; what is sent to a re-key or another source of the app is processed at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.errors import PipelineError
from pipeline.merge import Merger
from pipeline.partitioner import partition_of
from pipeline.process import TaskProcess
from pipeline.processors import checked_app
from pipeline.records import Record, SourceRecord
from pipeline.resources import Resources
from pipeline.sinks import checked_headers, checked_timestamp, encoded
from pipeline.tables import stored_pairs

if TYPE_CHECKING:
    from pipeline.app import App
    from pipeline.definitions import TableDef, Topic

K = TypeVar("K")
V = TypeVar("V")


class DictStore:
    """A StoreView over a dict."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.data.get(key)

    def range(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(self.data):
            if (start is None or key >= start) and (stop is None or key < stop):
                yield key, self.data[key]

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            if value is None:
                self.data.pop(key, None)
            else:
                self.data[key] = value


class Driver:
    """Runs an app in memory. `partitions` stands in for the counts of its plain topics, `resources` for its resources.

    A record's timestamp is one more than the latest (0, 1, 2, ...) unless given; a record without key goes round robin.
    """

    def __init__(self, app: App, *, partitions: int | None = None, resources: Mapping[str, Any] | None = None) -> None:
        self.app = app
        self.topology = app.topology()
        if partitions is not None:
            plain = [name for name, topic in self.topology.topics.items() if topic.kind == "plain"]
            self.topology = self.topology.with_partitions(dict.fromkeys(plain, partitions))
        self._partitions = {name: topic.partitions for name, topic in self.topology.topics.items()}
        self._resources = Resources(app, resources)
        self._runner: asyncio.Runner | None = None
        self._records: dict[str, list[tuple[int, SourceRecord]]] = {name: [] for name in self._partitions}
        self._ends: dict[tuple[str, int], int] = {}
        self._keyless: dict[str, int] = {}
        self._tasks: dict[str, TaskProcess] = {}
        self._inbox: dict[str, Merger] = {}
        self._stores: dict[str, dict[str, DictStore]] = {}
        self._latest_ms = -1
        self._held = False

    def __enter__(self) -> Driver:
        values: dict[str, Any] = {}
        if self.app.resources:
            values = self._wait(self._resources.__aenter__())
        for sub in self.topology.subtopologies:
            for partition in range(sub.partitions):
                task = f"{sub.number}_{partition}"
                stores = {table: DictStore() for table in sub.tables}
                self._stores[task] = stores
                self._inbox[task] = Merger()
                self._tasks[task] = TaskProcess(self.app, sub, partition, stores, self._partitions, values)
        self._task_of = {topic: sub.number for sub in self.topology.subtopologies for topic in sub.sources}
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if self.app.resources:
                self._wait(self._resources.__aexit__(*error))
        finally:
            if self._runner is not None:
                self._runner.close()
                self._runner = None

    def send(
        self,
        topic: Topic[K, V],
        key: K | None,
        value: V | None,
        *,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """Write a record as a producer would, and process all that follows from it. Raises ProcessorFailed."""
        key_bytes, value_bytes = encoded(topic.name, topic.key_codec, topic.value_codec, key, value)
        self.send_bytes(topic, key_bytes, value_bytes, timestamp_ms=timestamp_ms, headers=headers)

    def send_bytes(
        self,
        topic: Topic[Any, Any],
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """The same with bytes, for records that cannot be read."""
        checked_app(self.app, topic)
        if not self._tasks:
            raise PipelineError("a Driver runs inside its block: with Driver(app) as driver: ...")
        name = topic.topic
        if timestamp_ms is None:
            timestamp_ms = self._latest_ms + 1
        self._latest_ms = max(self._latest_ms, checked_timestamp(name, timestamp_ms))
        keyless = self._keyless.get(name, 0)
        if key is None:
            self._keyless[name] = keyless + 1
        partition = partition_of(key, self._partitions[name], keyless=keyless)
        self._append(name, partition, key, value, timestamp_ms, checked_headers(name, headers))
        if not self._held:
            self._process()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is sent inside the block is processed at its end, in as few batches as can be."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self._process()

    def table(self, table: TableDef[K, V], partition: int | None = None) -> dict[K, V]:
        """What a table holds, of all tasks or of one partition's."""
        checked_app(self.app, table)
        result: dict[K, V] = {}
        for task, stores in self._stores.items():
            if table.name not in stores or partition not in (None, self._tasks[task].partition):
                continue
            for key, value in stored_pairs(table.spec, stores[table.name]):
                if key in result:
                    raise PipelineError(
                        f"table {table.name!r}: several tasks hold the key {key!r}; look at one with partition=..."
                    )
                result[key] = value
        return result

    def items(self, topic: Topic[K, V]) -> list[tuple[K, V]]:
        """The (key, value) pairs of all records of a topic so far, in the order they were written."""
        return [(record.key, record.value) for record in self.records(topic)]

    def records(self, topic: Topic[K, V]) -> list[Record[K, V]]:
        """All records of a topic so far, in the order they were written."""
        checked_app(self.app, topic)
        name = topic.topic
        return [
            Record(
                _decoded(topic.key_codec, raw.key),
                _decoded(topic.value_codec, raw.value),
                raw.timestamp_ms,
                raw.headers,
                name,
                partition,
                raw.offset,
            )
            for partition, raw in self._records[name]
        ]

    def _append(self, topic: str, partition: int, *rest: Any) -> None:
        offset = self._ends.get((topic, partition), 0)
        self._ends[topic, partition] = offset + 1
        raw = SourceRecord(offset, rest[2], rest[0], rest[1], rest[3])
        self._records[topic].append((partition, raw))
        number = self._task_of.get(topic)
        if number is not None:
            self._inbox[f"{number}_{partition}"].add(topic, partition, [raw])

    def _process(self) -> None:
        """Run tasks, in their natural order, until nothing waits."""
        while any(self._inbox.values()):
            for task, inbox in self._inbox.items():
                if inbox:
                    self._run(task, inbox.take(len(inbox)))

    def _run(self, task: str, records: list[tuple[str, Any]]) -> None:
        process = self._tasks[task]
        try:
            if process.needs_async:
                self._wait(process.run_async(records))
            else:
                process.run(records)
        finally:
            changes = process.take()
            for table, written in changes.writes.items():
                self._stores[task][table].write(written)
            process.settle()
            for (topic, partition), outputs in changes.outputs.items():
                for output in outputs:
                    self._append(topic, partition, output.key, output.value, output.timestamp_ms, output.headers)

    def _wait(self, awaitable: Any) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._runner.run(awaitable)
        awaitable.close()
        raise PipelineError(
            "the Driver awaits processors and resources by itself; use it in a plain def, not in an async one"
        )


def _decoded(codec: Any, data: bytes | None) -> Any:
    return None if data is None else codec.decode(data)
