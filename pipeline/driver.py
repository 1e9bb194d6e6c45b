"""An app in a test: no broker, no process, no clock. One rule: it runs the very TaskProcess that production runs.

    with Driver(app) as bank:
        bank.send(payments, "ann", Payment("ann", -5))
        assert bank.table(balances) == {"ann": -5}

All subtopologies and partitions run; what is sent to a re-key or another source of the app is processed at once. Inside
a running loop it is `async with Driver(app) as bank: await bank.send(...)`, with the same answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pipeline.app import App
from pipeline.calls.call import without_waiting
from pipeline.calls.global_records import GlobalRecords
from pipeline.calls.retries import behind, cannot_wait
from pipeline.calls.task_tables import global_views
from pipeline.definitions.definition import Stored
from pipeline.definitions.options import checked_partitions
from pipeline.definitions.processor import checked_app, checked_table, checked_topic
from pipeline.definitions.topic_tables import GlobalTableDef
from pipeline.errors import DefinitionError, PipelineError, ProcessorFailed
from pipeline.meeting import Flow, met
from pipeline.merge import Merger
from pipeline.process import TaskProcess
from pipeline.records import OutputRecord, Record, SourceRecord
from pipeline.resources import Resources
from pipeline.sinks import checked_headers, checked_time, checked_timestamp, encoded
from pipeline.tables.dict_store import DictStore
from pipeline.values.partitioner import partition_of

if TYPE_CHECKING:
    from pipeline.definitions.definition import TableDef, Topic
    from pipeline.definitions.timed import HoppingDef, SessionDef, TimedDef, TimersDef, TumblingDef
    from pipeline.definitions.topic_tables import TopicTableDef
    from pipeline.time.windows import Window

K = TypeVar("K")
V = TypeVar("V")


class Driver:
    """Runs an app in memory. `partitions` stands in for the counts of its plain topics, `resources` for its resources.

    A record's timestamp is one more than the latest (0, 1, 2, ...) unless given; a record without key goes round robin.
    It has no clock: a retry follows at once, and where an error waits (`on_error={...: "wait"}`), ProcessorFailed is raised
    and the record is tried again when the next one is sent.
    """

    def __init__(self, app: App, *, partitions: int | None = None, resources: Mapping[str, Any] | None = None) -> None:
        if not isinstance(app, App):
            raise DefinitionError(f"Driver({app!r}): that is no app; give an App")
        self.app = app
        self.topology = found = app.topology()
        if partitions is not None:
            plain = [name for name, topic in found.topics.items() if topic.kind == "plain"]
            self.topology = found.with_partitions(dict.fromkeys(plain, checked_partitions("Driver", partitions)))
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
        self._event_times = {topic.topic: topic.event_time for topic in app.topics.values()}
        self._late: Counter[str] = Counter()
        self._global = GlobalRecords(app)
        self._held = False
        self._flow = Flow(self.topology.subtopologies)
        self._sent: dict[tuple[str, int], list[Sequence[OutputRecord]]] = {}  # to tasks, and not there yet

    def __enter__(self) -> Driver:
        self._begin(self._wait(self._resources.__aenter__()) if self.app.resources else {})
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if self.app.resources:
                self._wait(self._resources.__aexit__(*error))
        finally:
            if self._runner is not None:
                self._runner.close()
                self._runner = None

    async def __aenter__(self) -> AsyncDriver:
        self._begin(await self._resources.__aenter__() if self.app.resources else {})
        return AsyncDriver(self)

    async def __aexit__(self, *error: object) -> None:
        if self.app.resources:
            await self._resources.__aexit__(*error)

    def _begin(self, resources: Mapping[str, Any]) -> None:
        for sub in self.topology.subtopologies:
            for partition in range(sub.partitions):
                task = f"{sub.number}_{partition}"
                stores = self._stores[task] = {table: DictStore() for table in sub.tables}
                self._inbox[task] = Merger()
                outside: dict[Any, Any] = {**resources, **global_views(self.app, self._global.stores)}
                process = TaskProcess(self.app, sub, partition, stores, self._partitions, outside, rests=False)
                self._tasks[task] = process
        self._task_of = {topic: sub.number for sub in self.topology.subtopologies for topic in sub.sources}

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
        checked_topic(self.app, topic)
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
        self._write(topic, key, value, timestamp_ms, headers)
        if not self._held:
            self._complete(self._process())

    def _write(
        self,
        topic: Topic[Any, Any],
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int | None,
        headers: Iterable[tuple[str, bytes]],
    ) -> None:
        checked_topic(self.app, topic)
        if not self._tasks:
            raise PipelineError("a Driver runs inside its block: with Driver(app) as driver: ...")
        name = topic.topic
        timestamp_ms = self._latest_ms + 1 if timestamp_ms is None else timestamp_ms
        self._latest_ms = max(self._latest_ms, checked_timestamp(name, timestamp_ms))
        keyless = self._keyless.get(name, 0)
        if key is None:
            self._keyless[name] = keyless + 1
        partition = partition_of(key, self._partitions[name], keyless=keyless)
        self._append(name, partition, key, value, timestamp_ms, checked_headers(name, headers))

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is sent inside the block is processed at its end, in as few batches as can be."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self._complete(self._process())

    @overload
    def table(self, table: TableDef[K, V], partition: int | None = None) -> dict[K, V]: ...
    @overload
    def table(
        self, table: TumblingDef[K, V] | HoppingDef[K, V] | SessionDef[K, V], partition: int | None = None
    ) -> dict[tuple[K, Window], V]: ...
    @overload
    def table(self, table: TopicTableDef[K, V] | GlobalTableDef[K, V], partition: int | None = None) -> dict[K, V]: ...
    @overload
    def table(self, table: TimersDef[K], partition: int | None = None) -> dict[K, int]: ...
    def table(self, table: Stored[Any] | GlobalTableDef[Any, Any], partition: int | None = None) -> dict[Any, Any]:
        """What a table holds, of all tasks or of one partition's: by key, of windows and sessions by (key, Window), of
        timers the due times. Raises PipelineError."""
        checked_table(self.app, table)
        if isinstance(table, GlobalTableDef):
            return dict(table.pairs(self._global.stores[table.name]))
        result: dict[Any, Any] = {}
        for task, stores in self._stores.items():
            if table.name not in stores or partition not in (None, self._tasks[task].partition):
                continue
            for key, value in table.pairs(stores[table.name]):
                if key in result:
                    raise PipelineError(
                        f"table {table.name!r}: several tasks hold the key {key!r}; look at one with partition=..."
                    )
                result[key] = value
        return result

    def late(self, timed: TimedDef[Any] | Callable[..., Any]) -> int:
        """How many records came when all of a windowed table, or of a join (by its function), was closed for them.
        Raises PipelineError."""
        if isinstance(timed, Stored):
            checked_app(self.app, timed)
            if not timed.keeps_time:
                raise PipelineError(f"{timed.kind} {timed.name!r} has no windows, so nothing comes late for it")
            return self._late[timed.name]
        joins = [one.join for one in self.app.processors.values() if one.function is timed and one.join is not None]
        if not joins:
            raise PipelineError(f"{timed!r} is neither a windowed table nor the function of a join")
        return sum(self._late[join.name] for join in joins)

    def advance(self, to_ms: int) -> None:
        """Time comes to here in every task, as with a quiet input: what is due before happens, and records of an earlier
        time are out of order from now on. Raises ProcessorFailed."""
        self._complete(self._advance(to_ms))

    async def _advance(self, to_ms: int) -> int:
        if not self._tasks:
            raise PipelineError("a Driver runs inside its block: with Driver(app) as driver: ...")
        checked_time("advance", to_ms)
        self._latest_ms = max(self._latest_ms, to_ms)
        runs = 0
        for number in self._flow.in_order():  # what comes due at one is there before time has come further at another
            with self._meeting():
                for task, _ in self._inbox_of(number):
                    await self._advance_task(task, self._tasks[task], to_ms)
            runs += await self._process()
        return runs

    async def _advance_task(self, task: str, process: TaskProcess, to_ms: int) -> None:
        try:
            while not await process.advance(to_ms):
                if process.waiting is not None:
                    raise cannot_wait(process.waiting, task)
        finally:
            self._take(task, process)

    def items(self, topic: Topic[K, V]) -> list[tuple[K, V]]:
        """The (key, value) pairs of all records of a topic so far, in the order they were written."""
        return [(record.key, record.value) for record in self.records(topic)]

    def records(self, topic: Topic[K, V]) -> list[Record[K, V]]:
        """All records of a topic so far, in the order they were written."""
        checked_topic(self.app, topic)
        name = topic.topic
        return [
            Record(
                _decoded(topic.key_codec, raw.key),
                _decoded(topic.value_codec, raw.value),
                *(raw.timestamp_ms, raw.headers),
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
        self._global.put(topic, partition, raw)
        number = self._task_of.get(topic)
        if number is not None:
            self._inbox[f"{number}_{partition}"].add(topic, partition, self._event_times[topic].stamped([raw]))

    def _complete(self, work: Coroutine[Any, Any, int]) -> None:
        if any(process.needs_async for process in self._tasks.values()):
            self._wait(work)
        else:
            without_waiting(work)

    async def _process(self) -> int:
        """Run tasks, those first that send to others, until nothing waits; returns how many runs that took."""
        runs = 0
        while waiting := {_subtopology(task) for task, inbox in self._inbox.items() if inbox}:
            with self._meeting():
                for task, inbox in self._inbox_of(self._flow.first(waiting)):
                    if inbox:
                        await self._run(task, inbox.take(len(inbox)))
                        runs += 1
        self._global.check()
        return runs

    def _inbox_of(self, number: int) -> list[tuple[str, Merger]]:
        return [(task, inbox) for task, inbox in self._inbox.items() if _subtopology(task) == number]

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """Of the tasks of one subtopology: what they have sent to others is there when all have run."""
        try:
            yield
        finally:
            sent, self._sent = self._sent, {}
            for (topic, partition), lists in sent.items():
                self._append_all(topic, partition, met(lists))

    async def _run(self, task: str, records: Sequence[tuple[str, Any]]) -> None:
        process = self._tasks[task]
        try:
            await self._run_to_the_end(task, process, records)
        finally:
            self._take(task, process)

    def _take(self, task: str, process: TaskProcess) -> None:
        """What a task did is there: for tables, and for the readers of what it sent."""
        changes = process.collect()
        for table, written in changes.writes.items():
            self._stores[task][table].write(written)
        process.mark_applied()
        self._late.update(changes.late)
        for (topic, partition), outputs in changes.outputs.items():
            if topic in self._task_of:
                self._sent.setdefault((topic, partition), []).append(outputs)
            else:
                self._append_all(topic, partition, outputs)

    def _append_all(self, topic: str, partition: int, outputs: Iterable[OutputRecord]) -> None:
        for output in outputs:
            self._append(topic, partition, output.key, output.value, output.timestamp_ms, output.headers)

    async def _run_to_the_end(self, task: str, process: TaskProcess, records: Sequence[tuple[str, Any]]) -> None:
        """A retry follows at once; an error that waits ends it. What lies behind a record that fails goes with what is sent next."""
        while True:
            try:
                await process.run_async(records) if process.needs_async else process.run(records)
            except (ProcessorFailed, asyncio.CancelledError) as error:  # the records are in their topics
                left = process.left(records)
                left = behind(left, error) if isinstance(error, ProcessorFailed) else left
                self._inbox[task].put_back(process.partition, left)
                raise
            if process.again is None:
                return
            records = process.left(records)
            if process.waiting is not None:
                self._inbox[task].put_back(process.partition, records)
                raise cannot_wait(process.waiting, task)

    def _wait(self, awaitable: Coroutine[Any, Any, Any]) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._runner.run(awaitable)
        awaitable.close()
        raise PipelineError(
            "the Driver awaits processors and resources by itself; in an async def use it as "
            "`async with Driver(app) as driver: await driver.send(...)`"
        )


class AsyncDriver:
    """A Driver in a running loop: what processes is awaited, what looks is not."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._one_at_a_time = asyncio.Lock()
        self.app = driver.app
        self.table = driver.table
        self.items = driver.items
        self.records = driver.records
        self.late = driver.late

    async def send(
        self,
        topic: Topic[K, V],
        key: K | None,
        value: V | None,
        *,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """See `Driver.send`. Where it is cancelled its record is sent all the same, and is processed with what is sent next."""
        checked_topic(self.app, topic)
        key_bytes, value_bytes = encoded(topic.name, topic.key_codec, topic.value_codec, key, value)
        await self.send_bytes(topic, key_bytes, value_bytes, timestamp_ms=timestamp_ms, headers=headers)

    async def send_bytes(
        self,
        topic: Topic[Any, Any],
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """See `Driver.send_bytes`."""
        self._driver._write(topic, key, value, timestamp_ms, headers)
        if not self._driver._held:
            await self._process()

    async def advance(self, to_ms: int) -> None:
        """See `Driver.advance`."""
        async with self._one_at_a_time:
            await self._driver._advance(to_ms)

    async def _process(self) -> None:
        async with self._one_at_a_time:
            await self._driver._process()

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """See `Driver.together`."""
        self._driver._held = True
        try:
            yield
        finally:
            self._driver._held = False
        await self._process()


def _subtopology(task: str) -> int:
    return int(task.partition("_")[0])


def _decoded(codec: Any, data: bytes | None) -> Any:
    return None if data is None else codec.decode(data)
