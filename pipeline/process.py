"""The one place that calls user code: records and stores in, outputs and writes out. The Driver, the workers and Spark
all run a task through TaskProcess, which is why they give one answer.

One rule: a call of a user function is atomic. It either ends well, and its writes and sends count, or nothing of it is
anywhere; and `take()` holds what completed records did, with their positions, and nothing else, also while a call is
under way. Calls of one task overlap where `concurrency=` says so (pipeline.calls.overlap), and count in the order of their
records all the same. No clock, no group, no input or output of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.calls.answering import Answering
from pipeline.calls.at_once import AtOnce
from pipeline.calls.batches import Batches
from pipeline.calls.call import CALL, DONE, FAILED, RECORD, RUN, in_time, refuse_awaitable, unit_of, without_waiting
from pipeline.calls.effects import Changes as Changes
from pipeline.calls.effects import Effects
from pipeline.calls.failed_calls import FailedCalls
from pipeline.calls.lanes import Lane, Outputs
from pipeline.calls.overlap import More
from pipeline.calls.passing import passing_of
from pipeline.calls.plain_awaits import PlainAwaits, plain_awaits
from pipeline.calls.plain_batches import plain_batch
from pipeline.calls.plain_calls import plain_calls
from pipeline.calls.retries import CallAgain, Waiting
from pipeline.calls.steps import Item, Step, count_of, steps_of
from pipeline.calls.task_sources import Source, sources_of
from pipeline.calls.task_tables import routed, tables_of
from pipeline.calls.waiting_batches import WaitingBatches
from pipeline.calls.window_calls import window_calls
from pipeline.errors import PipelineError, ProcessorFailed
from pipeline.records import TICK, RawRecord
from pipeline.tables.table import StoreView
from pipeline.tables.view import TableView
from pipeline.time.position import Position

if TYPE_CHECKING:
    from pipeline.app import App
    from pipeline.definitions.topology import Subtopology

_NOTHING: Mapping[Any, Any] = {}
_STANDING_STILL = float  # as a clock: float() is 0.0


class TaskProcess:
    """One task: `run` (or `run_async`) records, `take` the changes, write them, `settle`. After a run `again` says whether
    a call is to be made again: then give it the records that are `left` once its delay is over.

    `partitions` gives the partition count of every topic that is written to. `resources` are those of the worker, by
    name, and global tables; `max_call_s` is the timeout of async calls that have none of their own; `rests`: False where the caller does not wait between
    tries: an error that waits ends the run. After an error other than ProcessorFailed of the user's code (a store that cannot be read) drop the object.
    """

    def __init__(
        self,
        app: App,
        subtopology: Subtopology,
        partition: int,
        stores: Mapping[str, StoreView],
        partitions: Mapping[str, int],
        resources: Mapping[Any, Any] = _NOTHING,
        max_call_s: float | None = None,
        *,
        rests: bool = True,
    ) -> None:
        self.task = f"{subtopology.number}_{partition}"
        self.partition = partition
        self.finished = 0  # records of the latest run that are completed; read by the watch of long calls
        self._partitions = partitions
        self.again: CallAgain | None = None
        self.waiting: Waiting | None = None  # for a client outside: what an operator should know
        position = Position()
        self._tables = tables_of(app, subtopology, partition, stores, position)
        self._stream_time_ms = max((table.stream_ms for table in self._tables.values()), default=-1)
        self._unit = unit_of(app, subtopology)
        units = self._unit != CALL
        self._effects = Effects(self._tables, partitions, units=units, stream_time_ms=self._stream_time_ms)
        self.on_error = FailedCalls(self.task, partition, partitions, self._effects)
        self._batches = Batches(self.task, self._effects, self.on_error, self._unit, self.anew)

        def made(tables: Mapping[str, TableView[Any, Any]], outputs: Outputs) -> dict[str, Step]:
            return steps_of(app, subtopology, partition, self._partitions, resources, max_call_s, tables, outputs)

        steps = made(self._tables, self._effects.outputs)
        self._steps = [steps[name] for name in subtopology.processors]
        self._has_batches = any(step.processor.batch for step in self._steps)
        self._sources = sources_of(app, self._steps, self._tables)
        self.answering = Answering(self._steps, self._sources, self.on_error, self._effects, self._unit)
        self._passing = passing_of(self, self._effects, self.on_error, position, self._tables, self._steps, partition)
        self.due_calls = None if self._passing is None else self._passing.due_calls
        self._is_limited = any(source.max_ahead_ms is not None for source in self._sources.values())
        self.keeps_time = any(app.tables[name].keeps_time for name in subtopology.tables)
        self.keeps_order = self.keeps_time or any(source.tables for source in self._sources.values())
        plain = (self._steps, self._sources, self._unit, partition, self.on_error)
        self._plain = plain_calls(*plain) or plain_awaits(*plain)
        self._plain_batch = plain_batch(*plain)
        self.takes_columns = self._passing is None and getattr(self._plain_batch, "takes_columns", False)
        self._windowed = window_calls(self._steps, self._sources, self._tables, self._passing)
        self.needs_async = any(step.is_async for step in self._steps)
        self.most_at_once = max((step.processor.concurrency for step in self._steps), default=1)
        self._at_once: AtOnce | None = None
        if self.most_at_once > 1:
            topics = {topic: self.answering.processors_of(topic) for topic in self._sources}
            keys = {name: routed(app, subtopology, app.tables[name]) for name in self._tables}
            self._at_once = AtOnce(
                self, self._effects, self.on_error.tries, self._unit, topics, self._steps, keys, made, rests=rests
            )
        self._waiting = WaitingBatches(self._steps, self._sources, self._batches, self.answering)

    @property
    def has_completed(self) -> bool:
        """Whether the next `take` has completed records."""
        return self._effects.has_completed

    @property
    def stream_time_ms(self) -> int:
        """Of the completed records."""
        return self._effects.stream_time_ms

    def counts_are(self, partitions: Mapping[str, int]) -> None:
        """Topics have grown: what is sent from now on goes by these counts."""
        self._partitions = self.on_error.partitions = self._effects.partitions = partitions
        lanes = self._at_once.lanes if self._at_once is not None else ()
        for step in [*self._steps, *(step for lane in lanes for step in lane.steps.values())]:
            for sink in step.sinks:
                sink.has_partitions(count_of(sink.topic, partitions))

    def run(
        self,
        records: Sequence[tuple[str, RawRecord]],
        clock: Callable[[], float] = _STANDING_STILL,
        until: float = math.inf,
    ) -> int:
        """Process records in the order given, until after one of them `clock` has reached `until`; returns how many were
        completed, the first ones unless `again` is set. Raises ProcessorFailed where a processor stops: what completed
        records did stays for `take`."""
        if self.needs_async:
            names = ", ".join(step.name for step in self._steps if step.is_async)
            raise PipelineError(f"task {self.task} has async processors ({names}); use run_async")
        windowed = self._windowed if self._windowed and all(topic != TICK for topic, _ in records) else None
        if windowed is None and (self._has_batches or self._unit != CALL):
            return without_waiting(self.run_async(records, clock, until))
        effects = self._effects
        self._stream_time_ms, self.finished = effects.stream_time_ms, 0
        try:
            if fast := windowed or self._plain:
                self._stream_time_ms = fast.run(self, records, clock, until, self._stream_time_ms)
            else:
                self._run_sync(records, clock, until)
        except BaseException as error:
            for topic, raw in records[: self.finished]:
                effects.completed(topic, raw)
            if not isinstance(error, CallAgain):
                raise
            self._ended(error)
            return self.finished
        effects.all_completed(records[: self.finished], self._stream_time_ms, is_one_topic=len(self._sources) == 1)
        self._ended(None)
        return self.finished

    def _run_sync(self, records: Sequence[tuple[str, RawRecord]], clock: Callable[[], float], until: float) -> None:
        for topic, raw in records:
            item = self.arrive(topic, raw)
            if item is not None:
                for nth, step in enumerate(self._sources[topic].steps):
                    self.call(step, self.anew(item) if nth else item)
            self.finished += 1
            if clock() >= until:
                break

    async def run_async(
        self,
        records: Sequence[tuple[str, RawRecord]],
        clock: Callable[[], float] = _STANDING_STILL,
        until: float = math.inf,
        more: More = tuple,
    ) -> int:
        """The same for every app. A cancelled run has undone the calls it was in; `take` may come at any moment. Where
        calls overlap, `more` is asked for further records as long as some could begin; it adds them to `records` too."""

        def goes_on() -> bool:
            return clock() < until

        try:
            if isinstance(self._plain, PlainAwaits):
                await self._plain.run_async(self, self._effects, records, clock, until)
            elif self._passing is not None and self._has_batches:
                await self._passing.run_parts(records, goes_on)
            else:
                await self.run_some(records, goes_on, more)
        except CallAgain as error:
            self._ended(error)
        else:
            self._ended(None)
        return self.finished

    def _ended(self, again: CallAgain | None) -> None:
        """A run has ended without an error."""
        self.again = again
        self.waiting = again.waiting if again is not None else None
        if again is None:
            self.on_error.tries.clear()

    def left(self, records: Sequence[tuple[str, RawRecord]]) -> list[tuple[str, RawRecord]]:
        """Those of the latest run's records that are not completed, where `again` is set."""
        reached = self._effects.reached
        return [(topic, raw) for topic, raw in records if raw.offset >= reached.get(topic, -1)]

    def nudge(self) -> None:
        """Calls that overlap: there may be more records, or no further call may begin."""
        if self._at_once is not None:
            self._at_once.nudge()

    async def run_some(
        self, records: Sequence[tuple[str, RawRecord]], goes_on: Callable[[], bool], more: More = tuple
    ) -> None:
        """Any app's calls. Waits only where a processor does. Raises CallAgain, ProcessorFailed."""
        passing = self._passing
        if passing is None and self._unit == CALL and len(self._steps) == 1 and self._has_batches:
            await self._run_batch(self._steps[0], records)
            return
        effects = self._effects
        self._stream_time_ms = effects.stream_time_ms
        self.finished = 0
        self._waiting.begin()
        if self._unit == RUN:
            effects.begin()
        failure: ProcessorFailed | CallAgain | None = None
        try:
            try:
                if self._at_once is not None and self.answering.lost is None:
                    await self._at_once.run(records, goes_on, more, self._one)
                else:
                    for topic, raw in records:
                        too_far = self._sources[topic].too_far(raw, self._stream_time_ms)
                        if passing is not None and not too_far and not await passing.has_come(raw, goes_on):
                            break
                        await self._one(topic, raw)
                        self.finished += 1
                        if not goes_on():
                            break
            except (ProcessorFailed, CallAgain) as error:
                if self._unit == RUN:
                    raise
                failure = error  # the records before it are completed by the batches that wait for them
            await self._waiting.end_all()
        except BaseException:
            if self._unit == RUN:
                effects.undo()
            raise
        finally:
            self.answering.run_ended()
        if failure is not None:
            raise failure
        if self._unit == RUN:
            effects.end()
            for topic, raw in records[: self.finished]:
                if topic != TICK:
                    effects.completed(topic, raw)

    async def _run_batch(self, step: Step, records: Sequence[tuple[str, RawRecord]]) -> None:
        """The same where one batch step is all there is: nothing is done per record but reading it."""
        self._stream_time_ms, self.finished = self._effects.stream_time_ms, 0
        found = "" if self._plain_batch is None else self._plain_batch.call(self, records, self._stream_time_ms)
        if self._plain_batch is not None and found == DONE:
            self._stream_time_ms = self._plain_batch.completed(self._effects, records)
            return
        items: list[Item | None] = []
        failure: ProcessorFailed | CallAgain | None = None
        try:
            for topic, raw in records:
                items.append(self.arrive(topic, raw))
        except (ProcessorFailed, CallAgain) as error:
            failure = error  # the records before it are completed first
        read = [item for item in items if item is not None]
        self.finished = len(items)
        whole = failure is None and not step.time_steps and len(read) == len(items)
        if whole and found != FAILED and (not read or await self._batches.call(step, read)):
            self._effects.all_completed(records, self._stream_time_ms, is_one_topic=len(self._sources) == 1)
            return
        arrived = [(topic, raw, item) for (topic, raw), item in zip(records, items, strict=False)]
        await self._batches.run(step, arrived, has_failed=whole)
        if failure is not None:
            raise failure

    def collect(self, *, in_parts: bool = False) -> Changes:
        """All that completed records did since the last take; it stays visible until `mark_applied`. `in_parts`: see Effects."""
        return self._effects.collect(in_parts=in_parts)

    def mark_applied(self) -> None:
        """The stores have what the oldest take that was not settled gave."""
        self._effects.mark_applied()

    async def advance(self, timestamp_ms: int, goes_on: Callable[[], bool] = lambda: True) -> bool:
        """Time has come to here without a record: what is due before happens, for as long as `goes_on`; whether all of it
        has. Raises ProcessorFailed."""
        again: CallAgain | None = None
        try:
            if self._passing is not None and not await self._passing.pass_to(timestamp_ms, goes_on):
                return False
            if timestamp_ms > self._effects.stream_time_ms:
                self._effects.time_passed(timestamp_ms)
        except CallAgain as error:
            again = error
        self._ended(again)
        return again is None

    # one record

    async def _one(self, topic: str, raw: RawRecord) -> None:
        """The calls of one record; what reads it in batches gets it later, and completes it."""
        effects, waiting = self._effects, self._waiting
        if topic in waiting.ended_by:
            await waiting.end_before(topic)
        if topic == TICK:
            effects.time_passed(raw.timestamp_ms)
            return
        too_far = self._sources[topic].too_far(raw, self._stream_time_ms) if self._is_limited else None
        if too_far is not None:
            self.answering.refuse(topic, raw, too_far, too_far.moving_no_time(raw))
            return
        answering = self.answering
        answering.under_way, answering.record = None, None if self._passing is None else (topic, raw)
        if self._unit == RECORD:
            effects.begin()
        try:
            item = self.arrive(topic, raw)
            source = self._sources[topic]
            if item is not None:  # what cannot be read is not in a table, either
                for table in source.tables:
                    table.take(raw, self._stream_time_ms)
                for step in source.steps:
                    answering.under_way = step.name
                    if (answering.note or answering.lost) and not answering.calls(step, topic, raw):
                        continue
                    own = self._own(source, step, item)
                    if self._passing is not None:
                        await self._passing.call(step, own)
                    else:
                        await self.make(step, own)
        except BaseException:
            if self._unit == RECORD:
                effects.undo()
            raise
        if self._unit == RECORD:
            effects.end()
        for step in source.batch_steps:
            is_left = item is not None and (
                not answering.calls(step, topic, raw)
                or (self._passing is not None and self._passing.is_late(step, item))
            )
            waiting.add(step, (topic, raw, None if item is None or is_left else self._own(source, step, item)))
        if waiting.ended_soon:
            await waiting.end_soon()
        if self._unit != RUN and not source.batch_steps:
            effects.completed(topic, raw)

    def reached(self, raw: RawRecord) -> int:
        """The stream time with this record, the next one in order."""
        self._stream_time_ms = max(self._stream_time_ms, raw.timestamp_ms)
        return self._stream_time_ms

    def arrive(self, topic: str, raw: RawRecord, into: Effects | Lane | None = None) -> Item | None:
        """Decode. None where it cannot be read and the policy does not stop for that. Raises PipelineError."""
        source = self._sources.get(topic)
        if source is None:
            reads = ", ".join(sorted(filter(None, self._sources)))
            raise PipelineError(f"task {self.task} reads {reads}, not {topic!r}")
        if raw.timestamp_ms > self._stream_time_ms:
            self._stream_time_ms = raw.timestamp_ms
        if self._passing is not None:
            self._stream_time_ms = self._passing.reach(raw)
        try:
            record = source.record(topic, raw, self.partition)
        except Exception as error:  # noqa: BLE001 - a codec of the user's may raise anything; on_error decides
            self._batches.unreadable(source.answering, topic, raw, error, into)
            return None
        return Item(record, raw, topic, self._stream_time_ms)

    def anew(self, item: Item) -> Item:
        """Returns the same record for a further call, without what an earlier one has changed in place."""
        return self._sources[item.topic].anew(item, self.partition)

    def _own(self, source: Source, step: Step, item: Item) -> Item:
        """Returns the record as this step is given it."""
        return item if step is source.first else source.anew(item, self.partition)

    def call(self, step: Step, item: Item, into: Effects | Lane | None = None) -> None:
        try:
            with step.open(item.raw.timestamp_ms, item.stream_ms, (item.raw.key,)):
                if step.rekey is not None:
                    step.send_rekeyed(item.record, item.raw)
                else:
                    result = step.function(item.record, *step.arguments)
                    if result is not None:
                        refuse_awaitable(step.name, result)
        except step.failures as error:
            if error is step.fault:
                raise
            self.on_error.failed(step, item.topic, item.raw, error, into)

    async def make(self, step: Step, item: Item) -> None:
        if step.is_async:
            await self.wait_for(step, item)
        else:
            self.call(step, item)

    async def wait_for(self, step: Step, item: Item, into: Effects | Lane | None = None) -> None:
        try:
            with step.open(item.raw.timestamp_ms, item.stream_ms, (item.raw.key,)):
                await in_time(step, item.record)
                self.on_error.refuse_undone(step)
        except step.failures as error:
            if error is step.fault:
                raise
            self.on_error.failed(step, item.topic, item.raw, error, into)
