"""The one place that calls user code: records and stores in, outputs and writes out. The Driver, the workers and Spark
all run a task through TaskProcess, which is why they give one answer.

One rule: a call of a user function is atomic. It either ends well, and its writes and sends count, or nothing of it is
anywhere; and `take()` holds what completed records did, with their positions, and nothing else, also while a call is
under way. Calls of one task never overlap. No clock, no group, no input or output of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.calls import CALL, RECORD, RUN, in_time, newest, refuse_awaitable, unit_of, without_waiting
from pipeline.codecs import Codec
from pipeline.definitions import TableDef
from pipeline.describe import routing_codec
from pipeline.effects import Changes as Changes
from pipeline.effects import Effects
from pipeline.errors import PipelineError, ProcessorFailed, WrongTask
from pipeline.failures import dead_letter, failed, without_our_head
from pipeline.partitioner import partition_of
from pipeline.records import RawRecord, Record
from pipeline.steps import Arrived, Item, Step, count_of, place
from pipeline.table_view import TableView
from pipeline.tables import StoreView

if TYPE_CHECKING:
    from pipeline.app import App
    from pipeline.topology import Subtopology

_NOTHING: Mapping[str, Any] = {}
# What a user function may raise as a failure of its call: sys.exit() in a processor is no orderly end.
_FAILURES = (Exception, SystemExit)
_STANDING_STILL = float  # as a clock: float() is 0.0


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
    name; `max_call_s` is the timeout of async calls that have none of their own. After an error other than ProcessorFailed of the user's code (a store that cannot be read) drop the object.
    """

    def __init__(
        self,
        app: App,
        subtopology: Subtopology,
        partition: int,
        stores: Mapping[str, StoreView],
        partitions: Mapping[str, int],
        resources: Mapping[str, Any] = _NOTHING,
        max_call_s: float | None = None,
    ) -> None:
        self.task = f"{subtopology.number}_{partition}"
        self.partition = partition
        self.finished = 0  # records of the latest run that are completed; read by whoever watches a long call
        self._subtopology = subtopology
        self._partitions = partitions
        self._tables = {name: self._table(app, app.tables[name], stores) for name in subtopology.tables}
        self._stream_time_ms = max((table.stream_ms for table in self._tables.values()), default=-1)
        self._unit = unit_of(app, subtopology)
        self._effects = Effects(self._tables, units=self._unit != "call", stream_time_ms=self._stream_time_ms)
        self._steps: list[Step] = []
        self._sources: dict[str, _Source] = {}
        self._prepare(app, resources, max_call_s)
        self.needs_async = any(step.is_async for step in self._steps)

    @property
    def has_completed(self) -> bool:
        """Whether the next `take` has completed records."""
        return self._effects.has_completed

    @property
    def stream_time_ms(self) -> int:
        """Of the completed records."""
        return self._effects.stream_time_ms

    def _prepare(self, app: App, resources: Mapping[str, Any], max_call_s: float | None) -> None:
        for name in self._subtopology.processors:
            processor = app.processors[name]
            step = Step(
                processor,
                app.error_policy(processor),
                tables=self._tables,
                resources=resources,
                partitions=self._partitions,
                task_partition=self.partition,
                outputs=self._effects.outputs,
            )
            step.timeout_s = processor.timeout_s if processor.timeout_s is not None else max_call_s
            for table in step.tables:
                table.closed = True
            self._steps.append(step)
            for topic in processor.sources:
                source = self._sources.setdefault(topic.topic, _Source(topic.key_codec, topic.value_codec))
                (source.batch_steps if processor.batch else source.steps).append(step)
        self._batch_steps = [step for step in self._steps if step.processor.batch]

    def processors_of(self, topic: str) -> list[str]:
        """The names of the processors that read a topic."""
        source = self._sources[topic]
        return [step.name for step in (*source.steps, *source.batch_steps)]

    def counts_are(self, partitions: Mapping[str, int]) -> None:
        """Topics have grown: what is sent from now on goes by these counts."""
        self._partitions = partitions
        for step in self._steps:
            for sink in step.sinks:
                sink.partitions = count_of(sink.topic, partitions)

    def run(
        self,
        records: Sequence[tuple[str, RawRecord]],
        clock: Callable[[], float] = _STANDING_STILL,
        until: float = math.inf,
    ) -> int:
        """Process records in the order given, until after one of them `clock` has reached `until`; returns how many were
        completed. Raises ProcessorFailed where a processor stops: what completed records did stays for `take`."""
        if self.needs_async:
            names = ", ".join(step.name for step in self._steps if step.is_async)
            raise PipelineError(f"task {self.task} has async processors ({names}); use run_async")
        if self._batch_steps or self._unit != CALL:
            return without_waiting(self._run(records, clock, until))
        effects, sources = self._effects, self._sources
        self._stream_time_ms = effects.stream_time_ms
        done = self.finished = 0
        try:
            for topic, raw in records:
                item = self._arrive(topic, raw)
                if item is not None:
                    for step in sources[topic].steps:
                        self._call(step, item)
                self.finished = done = done + 1
                if clock() >= until:
                    break
        except BaseException:
            for topic, raw in records[:done]:
                effects.completed(topic, raw)
            raise
        self._all_completed(records[:done] if done < len(records) else records)
        return done

    async def run_async(
        self,
        records: Sequence[tuple[str, RawRecord]],
        clock: Callable[[], float] = _STANDING_STILL,
        until: float = math.inf,
    ) -> int:
        """The same for every app. A cancelled run has undone the call it was in; `take` may come at any moment."""
        return await self._run(records, clock, until)

    async def _run(self, records: Sequence[tuple[str, RawRecord]], clock: Callable[[], float], until: float) -> int:
        """Any app's calls. Waits only where a processor does."""
        if len(self._steps) == len(self._batch_steps) == 1:
            return await self._run_batch(self._steps[0], records)
        effects = self._effects
        self._stream_time_ms = effects.stream_time_ms
        self.finished = 0
        waiting: list[tuple[Step, list[Arrived]]] = [(step, []) for step in self._batch_steps]
        if self._unit == RUN:
            effects.begin()
        failure: ProcessorFailed | None = None
        try:
            try:
                for topic, raw in records:
                    await self._one(topic, raw, waiting)
                    self.finished += 1
                    if clock() >= until:
                        break
            except ProcessorFailed as error:
                if self._unit == RUN:
                    raise
                failure = error  # the records before it are completed by the batches that wait for them
            for step, arrived in waiting:
                await self._batch(step, arrived)
        except BaseException:
            if self._unit == RUN:
                effects.undo()
            raise
        if failure is not None:
            raise failure
        if self._unit == RUN:
            effects.end()
            for topic, raw in records[: self.finished]:
                effects.completed(topic, raw)
        return self.finished

    async def _run_batch(self, step: Step, records: Sequence[tuple[str, RawRecord]]) -> int:
        """The same where one batch step is all there is: nothing is done per record but reading it."""
        self._stream_time_ms = self._effects.stream_time_ms
        self.finished = 0
        items: list[Item | None] = []
        failure: ProcessorFailed | None = None
        try:
            for topic, raw in records:
                items.append(self._arrive(topic, raw))
        except ProcessorFailed as error:
            failure = error  # the records before it are completed first
        read = [item for item in items if item is not None]
        self.finished = len(items)
        if failure is None and not step.time_steps and (not read or await self._call_batch(step, read)):
            self._all_completed(records)
            return self.finished
        arrived = [(topic, raw, item) for (topic, raw), item in zip(records, items, strict=False)]
        await self._batch(step, arrived)
        if failure is not None:
            raise failure
        return self.finished

    def _all_completed(self, records: Sequence[tuple[str, RawRecord]]) -> None:
        """These records, with which the stream time is what it is now, are completed."""
        if records:
            last = records[-1:] if len(self._sources) == 1 else records
            self._effects.all_completed(last, len(records), self._stream_time_ms)

    def skip(self, topic: str, raw: RawRecord) -> None:
        """Complete a record without calling anything."""
        self._effects.skipped_one()
        self._effects.completed(topic, raw)

    def refuse(self, topic: str, raw: RawRecord, error: Exception) -> None:
        """Complete a record without calling anything, as if each of its processors had raised `error`. Raises
        ProcessorFailed where one of them stops."""
        if self._unit != CALL:
            self._effects.begin()
        try:
            for step in (*self._sources[topic].steps, *self._sources[topic].batch_steps):
                self._failed(step, topic, raw, error)
        except ProcessorFailed:
            if self._unit != CALL:
                self._effects.undo()
            raise
        if self._unit != CALL:
            self._effects.end()
        self._effects.completed(topic, raw)

    def take(self) -> Changes:
        """Everything that completed records did since the last take. Writes stay visible to reads until `settle`."""
        return self._effects.take()

    def settle(self) -> None:
        """The stores have what the oldest take that was not settled gave."""
        self._effects.settle()

    # one record

    async def _one(self, topic: str, raw: RawRecord, waiting: list[tuple[Step, list[Arrived]]]) -> None:
        """The calls of one record; what reads it in batches gets it later, and completes it."""
        effects = self._effects
        if self._unit == RECORD:
            effects.begin()
        try:
            item = self._arrive(topic, raw)
            source = self._sources[topic]
            if item is not None:
                for step in source.steps:
                    if step.is_async:
                        await self._await(step, item)
                    else:
                        self._call(step, item)
        except BaseException:
            if self._unit == RECORD:
                effects.undo()
            raise
        if self._unit == RECORD:
            effects.end()
        for step, arrived in waiting:
            if step in source.batch_steps:
                arrived.append((topic, raw, item))
        if self._unit != RUN and not source.batch_steps:
            effects.completed(topic, raw)

    def _arrive(self, topic: str, raw: RawRecord) -> Item | None:
        """Decode. None where it cannot be read and the policy does not stop for that."""
        source = self._sources.get(topic)
        if source is None:
            raise PipelineError(f"task {self.task} reads {', '.join(sorted(self._sources))}, not {topic!r}")
        if raw.timestamp_ms > self._stream_time_ms:
            self._stream_time_ms = raw.timestamp_ms
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
        return Item(record, raw, topic, self._stream_time_ms)

    def _call(self, step: Step, item: Item) -> None:
        try:
            with step.open(item.raw.timestamp_ms, item.stream_ms):
                if step.rekey is not None:
                    step.send_rekeyed(item.record, item.raw)
                else:
                    result = step.function(item.record, *step.arguments)
                    if result is not None:
                        refuse_awaitable(step.name, result)
        except _FAILURES as error:
            if error is step.fault:
                raise
            self._failed(step, item.topic, item.raw, error)

    async def _await(self, step: Step, item: Item) -> None:
        try:
            with step.open(item.raw.timestamp_ms, item.stream_ms):
                await in_time(step, item.record)
        except _FAILURES as error:
            if error is step.fault:
                raise
            self._failed(step, item.topic, item.raw, error)

    # a batch: one that fails is run again one by one, so the others' effects stay and the culprit is found

    async def _batch(self, step: Step, arrived: Sequence[Arrived]) -> None:
        """The calls of a batch step, which complete its records."""
        for part in step.cut(arrived):
            await self._part(step, part)

    async def _part(self, step: Step, arrived: Sequence[Arrived]) -> None:
        items = [item for _, _, item in arrived if item is not None]
        whole = not items or await self._call_batch(step, items)
        for topic, raw, item in arrived:
            if not whole and item is not None and not await self._call_batch(step, [item]):
                raise PipelineError(f"task {self.task}: a batch of one is neither done nor failed")
            if self._unit != RUN:
                self._effects.completed(topic, raw)

    async def _call_batch(self, step: Step, items: Sequence[Item]) -> bool:
        """False where a batch of several failed: nothing of it counts."""
        try:
            with step.open(newest(items), items[-1].stream_ms):
                if step.is_async:
                    await in_time(step, step.batch(items))
                else:
                    result = step.function(step.batch(items), *step.arguments)
                    if result is not None:
                        refuse_awaitable(step.name, result)
        except _FAILURES as error:
            if error is step.fault:
                raise
            if len(items) > 1:
                return False
            self._failed(step, items[0].topic, items[0].raw, error)
        return True

    # what went wrong

    def _failed(self, step: Step, topic: str, raw: RawRecord, error: BaseException, decoding: bool = False) -> None:
        where: dict[str, Any] = {
            "processor": step.name,
            "task": self.task,
            "topic": topic,
            "partition": self.partition,
            "raw": raw,
        }
        if step.policy == "skip":
            self._effects.skipped += 1
        elif not isinstance(step.policy, str):
            self._effects.dead_lettered += 1
            target = place(raw, step.policy.topic, self._partitions, self.partition)
            self._effects.outputs.setdefault(target, []).append(dead_letter(error, **where))
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
