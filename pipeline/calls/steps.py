"""One processor in one task: its function, and the arguments made for it. One rule: a call's effects are all or none.

`with step.open(...)` is one call. Between calls its tables and sinks are closed, and in a task whose calls wait they know whose the call
under way is: an asyncio task that an earlier one has left behind gets an error there, whenever it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pipeline.calls.batch import Batch
from pipeline.calls.call_failures import FAILURES, FAILURES_OR_CANCELLED
from pipeline.calls.timeouts import Countdown
from pipeline.columns.public import Columns
from pipeline.definitions.definition import Resource, Stored, Topic
from pipeline.definitions.error_policy import ErrorPolicy
from pipeline.definitions.processor import Processor
from pipeline.definitions.timed import TimedDef
from pipeline.definitions.topic_tables import GlobalTableDef
from pipeline.errors import PipelineError
from pipeline.records import Headers, OutputRecord, RawRecord, Record
from pipeline.sinks import LiveSink, Sent
from pipeline.tables import call_number
from pipeline.tables.call_number import NOBODY
from pipeline.tables.observed import ObservedTable
from pipeline.tables.view import TableView
from pipeline.time.join_view import JoinView
from pipeline.time.sliding_view import SlidingView
from pipeline.time.timed_view import TimedView
from pipeline.values.partitioner import partition_of

if TYPE_CHECKING:
    from pipeline.app import App
    from pipeline.columns.arguments import ColumnArguments
    from pipeline.definitions.topology import Subtopology


class Item(msgspec.Struct, frozen=True, gc=False):
    """A record on its way: decoded, as it came, from which topic, and the task's stream time with it."""

    record: Any  # of a join a pair; of what is due what it is
    raw: RawRecord
    topic: str
    stream_ms: int

    def of_call(self, nth: int) -> Item:
        """The same for the nth of several calls that are known by the same."""
        raw = self.raw
        if nth == 1 or not isinstance(raw, CallRecord):
            return self
        return Item(self.record, raw._replace(nth=nth), self.topic, self.stream_ms)


class CallRecord(NamedTuple):
    """What a failed call of a timer, a window or a join is known by: there is no one record of the log for it. `shown`, asked
    when the call has failed: what it was for a person, or "" where `offset` says it, and what its dead letter's headers add.
    `nth`: of those that count together and are known by the same."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    shown: Callable[[], Shown]
    nth: int = 1


Shown = tuple[str, Mapping[str, object]]


Arrived = tuple[str, RawRecord, Item | None]  # from which topic, as it came, and decoded where it can be read


class Step:
    """A processor bound to a task. `outputs` is the task's; what a good call sent is added there."""

    def __init__(
        self,
        processor: Processor,
        policy: ErrorPolicy,
        *,
        tables: Mapping[str, TableView[Any, Any]],
        resources: Mapping[Any, Any],
        partitions: Mapping[str, int],
        task_partition: int,
        outputs: dict[tuple[str, int], list[OutputRecord]],
        task_partitions: int = 1,
    ) -> None:
        self.processor = processor
        self.columns = _column_arguments(processor, (task_partitions, task_partition)) if processor.columns else None
        self.name = processor.name
        self.function: Callable[..., Any] = processor.function
        self.policy = policy
        self.is_async = processor.is_async
        self.failures = FAILURES if processor.is_async else FAILURES_OR_CANCELLED
        self.beside_others = processor.is_async  # or another one of its task is, whose calls have the same tables
        self.countdown = None if processor.timeout_s is None else Countdown(processor.timeout_s)
        self.retries = processor.retries
        self.backoff_s = processor.backoff_s
        self.topics_as_tables = {table.source.topic for table in processor.tables if table.source is not None}
        self.tables: list[TableView[Any, Any]] = []
        self.sinks: list[LiveSink] = []
        self.rekey: LiveSink | None = None
        self._sent: list[Sent] = []
        self._outputs = outputs
        self._stream_ms = -1
        self.fault: Exception | None = None  # set when a store failed during a call

        def sink(topic: Topic[Any, Any]) -> LiveSink:
            made = (LiveSink if self.columns is None else self.columns.sink)(
                topic.topic,
                topic.key_codec,
                topic.value_codec,
                partitions=count_of(topic.topic, partitions),
                task_partition=task_partition,
                sent=self._sent,
            )
            self.sinks.append(made)
            return made

        arguments: list[Any] = []
        for item in processor.others:
            if isinstance(item, Stored):
                self.tables.append(table := tables[item.name])
                arguments.append(table.argument if self.columns is None else self.columns.table(table))
            elif isinstance(item, Topic):
                arguments.append(sink(item))
            elif isinstance(item, GlobalTableDef):
                self.tables.append(resources[item])
                arguments.append(resources[item])
            elif isinstance(item, Resource):
                if item.name not in resources:
                    raise PipelineError(
                        f"{processor.name} needs resource {item.name!r}, which was not opened; give resources= with it"
                    )
                arguments.append(resources[item.name])
        self.arguments = tuple(arguments)
        # A call has one time: a batch whose tables expire ends where that time steps on.
        expiring = {table.spec.time_step_ms for table in self.tables if table.spec.expire_ms is not None}
        self.time_steps = tuple(sorted(expiring)) if processor.batch else ()
        if processor.rekey_to is not None:
            self.rekey = sink(processor.rekey_to)
            source = processor.sources[0].value_codec
            self._rekey_raw = processor.rekey_to.value_codec == source

    def open(self, timestamp_ms: int, stream_ms: int, keys: Collection[bytes | None] = ()) -> Step:
        """For one call, as `with step.open(...)`: whose time its sends and writes carry, and the keys of its records. The
        block is the call: left well, its writes and sends count, together; left by any exception, nothing of it does."""
        self.begin()
        for table in self.tables:
            table.stream_ms = stream_ms
            if table.is_by_record_key:
                table.record_keys = keys
        if self.time_steps:
            for table in self.tables:
                table.stream_ms = stream_ms - stream_ms % table.spec.time_step_ms
        for sink in self.sinks:
            sink.timestamp_ms = timestamp_ms
        self._stream_ms = stream_ms
        return self

    def may_write(self, topic: str, table: str | None) -> bool:
        """Whether a call, or what is left of a record, may go to the topic, or where there is a `table` to its changelog."""
        if table is not None:
            return any(view.spec.name == table for view in self.tables)
        letters = {choice.topic for choice in self.policy.choices() if isinstance(choice, Topic)}
        return topic in letters or any(sink.topic == topic for sink in self.sinks)

    def leaves_to(self, error: BaseException) -> str | None:
        """The topic of the dead letter of a record that is left for this error."""
        chosen = self.policy.of(error)
        return chosen.topic if isinstance(chosen, Topic) else None

    def looked_at(self, timestamp_ms: int) -> None:
        """Within a batch: whose time what is sent from now on carries."""
        for sink in self.sinks:
            sink.timestamp_ms = timestamp_ms

    def batch(self, items: Sequence[Item]) -> list[Record[Any, Any]] | Columns[Any, Any]:
        """The records of a batch for the function; a plain list where the function cannot see a difference."""
        if self.columns is not None:
            return self.columns.of_records(items[0].topic, [item.raw for item in items], self.sinks)
        records = [item.record for item in items]
        return Batch(records, self.looked_at) if self.sinks else records

    def cut(self, arrived: Sequence[Arrived]) -> Iterable[Sequence[Arrived]]:
        """The batches of what arrived: the time of none of its expiring tables steps on within one."""
        if not self.time_steps:
            return (arrived,)
        batches: list[list[Arrived]] = []
        last: list[int] | None = None
        for one in arrived:
            time = last if one[2] is None else [one[2].stream_ms // step for step in self.time_steps]
            if not batches or (last is not None and time != last):
                batches.append([])
            batches[-1].append(one)
            last = time
        return batches

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.keep(self._stream_ms)
            else:
                self.forget()
        except BaseException:
            if error is None:
                self.forget()
            raise
        finally:
            self.close()

    # The same in parts, for calls that follow each other (pipeline.calls.plain_calls).

    def begin(self) -> None:
        """Calls follow each other until `end`; each ends with `keep` or `forget`. One that may wait is alone."""
        if self.beside_others:
            number = call_number.begin()
            for table in self.tables:
                table.call = number
            for sink in self.sinks:
                sink.call = number
            return
        for table in self.tables:
            table.closed = False
        for sink in self.sinks:
            sink.closed = False

    def keep(self, stream_ms: int) -> None:
        """The call has ended well: what it wrote and sent counts. Raises, with nothing kept, where a value cannot be
        encoded, a key belongs to another task, or a store failed, whatever the user's code made of that."""
        tables = self.tables
        if len(tables) == 1:
            table = tables[0]
            if table.fault is not None:
                raise table.fault
            if table.is_touched and not table.keep_one(stream_ms):
                table.apply(table.changes(), stream_ms)
        elif tables:
            self._keep_several(stream_ms)
        if self._sent:
            outputs = self._outputs
            for where, output in self._sent:
                if where in outputs:
                    outputs[where].append(output)
                else:
                    outputs[where] = [output]
            self._sent.clear()

    def _keep_several(self, stream_ms: int) -> None:
        for table in self.tables:
            if table.fault is not None:
                raise table.fault
        # All are encoded before any counts.
        touched = [(table, table.changes()) for table in self.tables if table.is_touched]
        for table, changes in touched:
            table.apply(changes, stream_ms)

    def forget(self) -> None:
        """The call has failed: nothing of it is anywhere. Raises the store's error where a store failed: no fault of the
        record."""
        self._sent.clear()
        fault: Exception | None = None
        for table in self.tables:
            table.forget()
            if table.fault is not None:
                fault, table.fault = table.fault, None
        if fault is not None:
            self.fault = fault
            raise fault

    def end(self) -> None:
        """No call follows. Nothing of one that was left in the middle is anywhere."""
        for table in self.tables:
            table.forget()
        self._sent.clear()
        self.close()

    def close(self) -> None:
        """What a call was given is of no use until the next one."""
        if self.beside_others:
            for table in self.tables:
                table.call = NOBODY
            for sink in self.sinks:
                sink.call = NOBODY
            return
        for table in self.tables:
            table.closed = True
        for sink in self.sinks:
            sink.closed = True

    def send_rekeyed(self, record: Record[Any, Any], raw: RawRecord) -> None:
        """The call of a re-key: the same record under another key; without other options the value's bytes go as
        they came, so that fields unknown to this version are not lost."""
        sink = self.rekey
        assert sink is not None
        key = self.function(record)
        if key is None:
            return
        if self._rekey_raw:
            sink.send_encoded(key, raw.value, raw.headers)
        else:
            sink.send(key, record.value, headers=raw.headers)


class TimedStep(Step):
    """A step of a task in which time passes or tables are joined: its windowed tables are at the time of the call, and a
    join's function takes two records."""

    def __init__(
        self, processor: Processor, policy: ErrorPolicy, *, tables: Mapping[str, TableView[Any, Any]], **rest: Any
    ) -> None:
        super().__init__(processor, policy, tables=tables, **rest)
        self.timed = [table for table in self.tables if isinstance(table, TimedView)]
        self.sliding = [table for table in self.timed if isinstance(table, SlidingView)]
        declared = [item for item in processor.tables if isinstance(item, TimedDef)]
        self.late_topics = {item.name: None if item.on_late is None else item.on_late.topic for item in declared}
        self.join_view: JoinView | None = None
        if processor.join is not None:
            found = tables[processor.join.name]
            assert isinstance(found, JoinView)
            self.join_view = found
        if processor.join is not None or processor.joins_tables:
            self.function = _with_a_pair(processor.function)
        self.observed = [table for table in self.tables if isinstance(table, ObservedTable)]

    def may_write(self, topic: str, table: str | None) -> bool:
        """A record that is late, and one that waits for its partner, go somewhere, too."""
        if table is not None and self.join_view is not None and self.join_view.spec.name == table:
            return True
        return topic in self.late_topics.values() or super().may_write(topic, table)

    def belongs_to(self, key: Any) -> None:
        """Whose key the next call has: sliding windows go by the records of a key."""
        for view in self.sliding:
            view.record_key = key

    def open(self, timestamp_ms: int, stream_ms: int, keys: Collection[bytes | None] = ()) -> Step:
        for view in self.timed:
            view.at_ms = None if self.processor.batch else timestamp_ms
        for table in self.observed:
            table.at_ms = timestamp_ms
        return super().open(timestamp_ms, stream_ms, keys)


def _column_arguments(processor: Processor, owner: tuple[int, int]) -> ColumnArguments:
    from pipeline.columns.arguments import ColumnArguments  # with pyarrow, which others do not need

    source = processor.sources[0]  # several have the same types
    return ColumnArguments(source.key_codec, source.value_codec, owner)


def _with_a_pair(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda pair, *others: function(*pair, *others)


def steps_of(
    app: App,
    subtopology: Subtopology,
    partition: int,
    partitions: Mapping[str, int],
    resources: Mapping[Any, Any],
    max_call_s: float | None,
    tables: Mapping[str, TableView[Any, Any]],
    outputs: dict[tuple[str, int], list[OutputRecord]],
) -> dict[str, Step]:
    """The steps of a task by name, with these tables and outputs. `max_call_s`: where a processor has no timeout."""
    steps: dict[str, Step] = {}
    waits = any(app.processors[name].is_async for name in subtopology.processors)
    is_timed = any(isinstance(table, TimedView) or app.tables[name].is_joined for name, table in tables.items())
    for name in subtopology.processors:
        processor = app.processors[name]
        steps[name] = (TimedStep if is_timed else Step)(
            processor,
            app.error_policy(processor),
            tables=tables,
            resources=resources,
            partitions=partitions,
            task_partition=partition,
            outputs=outputs,
            task_partitions=subtopology.partitions,
        )
        steps[name].beside_others = waits
        if processor.timeout_s is None and max_call_s is not None:
            steps[name].countdown = Countdown(max_call_s)
    return steps


def count_of(topic: str, partitions: Mapping[str, int]) -> int:
    """Partitions of a topic that is written to. Raises PipelineError."""
    count = partitions.get(topic)
    if count is None:
        raise PipelineError(f"the partition count of topic {topic!r} is not known; give it in partitions=")
    return count


def place(raw: RawRecord, topic: str, partitions: Mapping[str, int], task_partition: int) -> tuple[str, int]:
    """Where a record that keeps its key goes."""
    return topic, partition_of(raw.key, count_of(topic, partitions), keyless=task_partition)
