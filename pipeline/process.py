"""The one place that calls user code: records and stores in, outputs and writes out. The Driver, the workers and Spark
all run a task through TaskProcess, which is why they give one answer.

One rule: a call of a user function is atomic. It either ends well, and its writes and sends are in the next `take()`,
or nothing of it is anywhere. Calls of one task never overlap. No clock, no group, no input or output of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.codecs import Codec
from pipeline.definitions import TableDef
from pipeline.describe import routing_codec
from pipeline.errors import DefinitionError, PipelineError, WrongTask
from pipeline.failures import dead_letter, failed, without_our_head
from pipeline.partitioner import partition_of
from pipeline.records import OutputRecord, RawRecord, Record
from pipeline.steps import Item, Step, count_of, place
from pipeline.table_view import TableView
from pipeline.tables import StoreView

if TYPE_CHECKING:
    from pipeline.app import App
    from pipeline.topology import Subtopology

_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Changes:
    """What a task wants committed: records for topics, and writes of tables (last per key, None deletes)."""

    outputs: dict[tuple[str, int], list[OutputRecord]]
    writes: dict[str, dict[bytes, bytes | None]]
    write_timestamp_ms: dict[str, int]
    records_in: int
    skipped: int
    dead_lettered: int
    stream_time_ms: int


class _Source:
    """What one topic needs: its codecs and who reads it."""

    def __init__(self, key_codec: Codec[Any], value_codec: Codec[Any]) -> None:
        self.key_codec = key_codec
        self.value_codec = value_codec
        self.steps: list[Step] = []
        self.batch_steps: list[Step] = []


class TaskProcess:
    """One task: `run` (or `run_async`) records, `take` the changes, write them, `settle`.

    `partitions` gives the partition count of every topic that is written to. `resources` are those of the worker, by
    name. After an error other than ProcessorFailed of the user's code (a store that cannot be read) drop the object.
    """

    def __init__(
        self,
        app: App,
        subtopology: Subtopology,
        partition: int,
        stores: Mapping[str, StoreView],
        partitions: Mapping[str, int],
        resources: Mapping[str, Any] = _NOTHING,
    ) -> None:
        self.task = f"{subtopology.number}_{partition}"
        self.partition = partition
        self.finished = 0  # records of the latest run that are done with; more than were committed after an error
        self._subtopology = subtopology
        self._partitions = partitions
        self._outputs: dict[tuple[str, int], list[OutputRecord]] = {}
        self._records_in = self._skipped = self._dead_lettered = 0
        self._tables = {name: self._table(app, app.tables[name], stores) for name in subtopology.tables}
        self.stream_time_ms = max((table.stream_ms for table in self._tables.values()), default=-1)
        self._steps: list[Step] = []
        self._sources: dict[str, _Source] = {}
        self._prepare(app, resources)
        self.needs_async = any(step.is_async for step in self._steps)
        # A sync call cannot be ended from within; a supervisor may look at the longest time the app allows itself.
        self.timeout_s = max((step.timeout_s for step in self._steps if step.timeout_s is not None), default=None)

    def _prepare(self, app: App, resources: Mapping[str, Any]) -> None:
        for name in self._subtopology.processors:
            processor = app.processors[name]
            step = Step(
                processor,
                app.error_policy(processor),
                tables=self._tables,
                resources=resources,
                partitions=self._partitions,
                task_partition=self.partition,
                outputs=self._outputs,
            )
            for table in step.tables:
                table.closed = True
            self._steps.append(step)
            for topic in processor.sources:
                source = self._sources.setdefault(topic.topic, _Source(topic.key_codec, topic.value_codec))
                (source.batch_steps if processor.batch else source.steps).append(step)
        self._batch_steps = [step for step in self._steps if step.processor.batch]

    def counts_are(self, partitions: Mapping[str, int]) -> None:
        """Topics have grown: what is sent from now on goes by these counts."""
        self._partitions = partitions
        for step in self._steps:
            for sink in step.sinks:
                sink.partitions = count_of(sink.topic, partitions)

    def run(self, records: Sequence[tuple[str, RawRecord]]) -> None:
        """Process records in the order given. Raises ProcessorFailed where a processor stops; what was done before the
        failing call stays in the next take()."""
        if self.needs_async:
            names = ", ".join(step.name for step in self._steps if step.is_async)
            raise PipelineError(f"task {self.task} has async processors ({names}); use run_async")
        waiting = self._begin()
        for topic, raw in records:
            item = self._arrive(topic, raw, waiting)
            if item is not None:
                for step in self._sources[topic].steps:
                    self._call(step, item)
            self.finished += 1
        for step, items in waiting:
            if items:
                self._call_batch(step, items)

    async def run_async(self, records: Sequence[tuple[str, RawRecord]]) -> None:
        """The same for every app. A cancelled run has undone the call it was in; `finished` says how far it came."""
        waiting = self._begin()
        for topic, raw in records:
            item = self._arrive(topic, raw, waiting)
            if item is not None:
                for step in self._sources[topic].steps:
                    if step.is_async:
                        await self._await(step, item)
                    else:
                        self._call(step, item)
            self.finished += 1
        for step, items in waiting:
            if not items:
                continue
            if step.is_async:
                await self._await_batch(step, items)
            else:
                self._call_batch(step, items)

    def take(self) -> Changes:
        """Everything since the last take. Writes stay visible to reads until `settle`."""
        for table in self._tables.values():
            table.stream_ms = self.stream_time_ms
        writes = {name: table.take() for name, table in self._tables.items()}
        changes = Changes(
            outputs=dict(self._outputs),
            writes={name: changed for name, changed in writes.items() if changed},
            write_timestamp_ms={
                name: max(self._tables[name].write_timestamp_ms, 0) for name, changed in writes.items() if changed
            },
            records_in=self._records_in,
            skipped=self._skipped,
            dead_lettered=self._dead_lettered,
            stream_time_ms=self.stream_time_ms,
        )
        self._outputs.clear()
        self._records_in = self._skipped = self._dead_lettered = 0
        return changes

    def settle(self) -> None:
        """The stores have what the oldest take that was not settled gave."""
        for table in self._tables.values():
            table.settle()

    # one record

    def _begin(self) -> list[tuple[Step, list[Item]]]:
        self.finished = 0
        return [(step, []) for step in self._batch_steps]

    def _arrive(self, topic: str, raw: RawRecord, waiting: list[tuple[Step, list[Item]]]) -> Item | None:
        """Decode; put into the batches that wait for it. None where it cannot be read and nobody stops for that."""
        source = self._sources.get(topic)
        if source is None:
            raise PipelineError(f"task {self.task} reads {', '.join(sorted(self._sources))}, not {topic!r}")
        self._records_in += 1
        if raw.timestamp_ms > self.stream_time_ms:
            self.stream_time_ms = raw.timestamp_ms
        key, value = raw.key, raw.value
        try:
            record: Record[Any, Any] = Record(
                None if key is None else source.key_codec.decode(key),
                None if value is None else source.value_codec.decode(value),
                raw.timestamp_ms,
                raw.headers,
                topic,
                self.partition,
                raw.offset,
            )
        except Exception as error:  # noqa: BLE001 - a codec of the user's may raise anything; on_error decides
            for step in (*source.steps, *source.batch_steps):
                self._failed(step, topic, raw, error, decoding=True)
            return None
        item = Item(record, raw, topic, self.stream_time_ms)
        if source.batch_steps:
            for step, items in waiting:
                if step in source.batch_steps:
                    items.append(item)
        return item

    def _call(self, step: Step, item: Item) -> None:
        try:
            with step.open(item.raw.timestamp_ms, item.stream_ms):
                if step.rekey is not None:
                    step.send_rekeyed(item.record, item.raw)
                else:
                    result = step.function(item.record, *step.arguments)
                    if result is not None:
                        _refuse_awaitable(step.name, result)
        except Exception as error:
            if error is step.fault:
                raise
            self._failed(step, item.topic, item.raw, error)

    async def _await(self, step: Step, item: Item) -> None:
        try:
            with step.open(item.raw.timestamp_ms, item.stream_ms):
                await _in_time(step, item.record)
        except Exception as error:
            if error is step.fault:
                raise
            self._failed(step, item.topic, item.raw, error)

    # a batch: one that fails is run again one by one, so the others' effects stay and the culprit is found

    def _call_batch(self, step: Step, items: Sequence[Item]) -> None:
        try:
            with step.open(_newest(items), items[-1].stream_ms):
                result = step.function(step.batch(items), *step.arguments)
                if result is not None:
                    _refuse_awaitable(step.name, result)
            return
        except Exception as error:
            if error is step.fault:
                raise
            if len(items) == 1:
                self._failed(step, items[0].topic, items[0].raw, error)
                return
        for item in items:
            self._call_batch(step, [item])

    async def _await_batch(self, step: Step, items: Sequence[Item]) -> None:
        try:
            with step.open(_newest(items), items[-1].stream_ms):
                await _in_time(step, step.batch(items))
            return
        except Exception as error:
            if error is step.fault:
                raise
            if len(items) == 1:
                self._failed(step, items[0].topic, items[0].raw, error)
                return
        for item in items:
            await self._await_batch(step, [item])

    # what went wrong

    def _failed(self, step: Step, topic: str, raw: RawRecord, error: Exception, decoding: bool = False) -> None:
        where: dict[str, Any] = {
            "processor": step.name,
            "task": self.task,
            "topic": topic,
            "partition": self.partition,
            "raw": raw,
        }
        if step.policy == "skip":
            self._skipped += 1
        elif not isinstance(step.policy, str):
            self._dead_lettered += 1
            target = place(raw, step.policy.topic, self._partitions, self.partition)
            self._outputs.setdefault(target, []).append(dead_letter(error, **where))
        else:
            raise failed(error, decoding=decoding, **where) from error.with_traceback(without_our_head(error))

    def _table(self, app: App, definition: TableDef[Any, Any], stores: Mapping[str, StoreView]) -> TableView[Any, Any]:
        store = stores.get(definition.name)
        if store is None:
            raise PipelineError(f"task {self.task} has no store for table {definition.name!r}; give it in stores=")
        if definition.local or self._subtopology.partitions == 1:
            return TableView(definition.spec, store)
        codec = routing_codec(app, self._subtopology.sources, definition.name)
        return TableView(definition.spec, store, self._owner_check(definition, codec))

    def _owner_check(self, definition: TableDef[Any, Any], codec: Codec[Any] | None) -> Callable[[Any, bytes], None]:
        count, number = self._subtopology.partitions, self._subtopology.number

        def check(key: Any, key_bytes: bytes) -> None:
            routed = key_bytes if definition.route is None and codec is None else definition.partition_key(key, codec)
            owner = partition_of(routed, count)
            if owner != self.partition:
                told = f"key {key!r} belongs to {number}_{owner}, this is {self.task}; rekey first"
                raise WrongTask(f"table {definition.name!r}: {told}")

        return check


async def _in_time(step: Step, argument: Any) -> None:
    """Await the user's function, for at most its timeout."""
    try:
        async with asyncio.timeout(step.timeout_s) as limit:
            await step.function(argument, *step.arguments)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimeoutError(f"{step.name} did not end within its timeout of {step.timeout_s:g} s") from error


def _newest(items: Sequence[Item]) -> int:
    """The time that what a batch sends carries."""
    return max(item.raw.timestamp_ms for item in items)


def _refuse_awaitable(name: str, result: Any) -> None:
    """A sync function that returns a coroutine would have done nothing at all."""
    if hasattr(result, "__await__"):
        if hasattr(result, "close"):
            result.close()
        raise DefinitionError(f"{name} returned something to await; declare it with async def")
