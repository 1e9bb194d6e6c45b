"""The topics that a task reads: how their records are decoded, and which steps each is for, in order of declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.calls.steps import Item, Step, TimedStep
from pipeline.records import TICK, RawRecord, Record
from pipeline.tables.table import IMMUTABLE
from pipeline.tables.view import TableView
from pipeline.time.event_time import TooFarAhead, too_far_ahead
from pipeline.time.topic_view import TopicTableView
from pipeline.values.codecs import BytesCodec, Codec

if TYPE_CHECKING:
    from pipeline.app import App


class Source:
    """What one topic needs: its codecs and who reads it."""

    def __init__(self, key_codec: Codec[Any], value_codec: Codec[Any], max_ahead_ms: int | None) -> None:
        self.max_ahead_ms = max_ahead_ms
        self.key_codec = key_codec
        self.value_codec = value_codec
        self.steps: list[Step] = []
        self.batch_steps: list[Step] = []
        self.tables: list[TopicTableView[Any, Any]] = []  # that its records write
        self.readers: list[Step] = []  # of these tables

    @property
    def answering(self) -> list[Step]:
        """The steps whose policy decides about a record that is left out: those that it is for, or else whose tables it writes."""
        return [*self.steps, *self.batch_steps] or self.readers

    def record(self, topic: str, raw: RawRecord, partition: int) -> Record[Any, Any]:
        """Returns the record decoded. Raises what a codec raises."""
        key, value = raw.key, raw.value
        return Record(
            None if key is None else self.key_codec.decode(key),
            None if value is None else self.value_codec.decode(value),
            raw.timestamp_ms,
            raw.headers,
            topic,
            partition,
            raw.offset,
        )

    def anew(self, item: Item, partition: int) -> Item:
        """Returns the record for a further call, decoded again where an earlier call may have changed it in place."""
        if is_fixed(item.record):
            return item
        return msgspec.structs.replace(item, record=self.record(item.topic, item.raw, partition))

    @property
    def first(self) -> Step:
        """The step that a record is decoded for; it is decoded again for the others."""
        return (self.steps or self.batch_steps)[0]

    def too_far(self, raw: RawRecord, stream_ms: int) -> TooFarAhead | None:
        """What is wrong with the time of a record; None where nothing is."""
        return None if self.max_ahead_ms is None else too_far_ahead(raw, stream_ms, self.max_ahead_ms)


def is_fixed(record: Record[Any, Any]) -> bool:
    """Returns whether nothing of a record can change in place."""
    return type(record.value) in IMMUTABLE and type(record.key) in IMMUTABLE


def sources_of(app: App, steps: Sequence[Step], tables: Mapping[str, TableView[Any, Any]]) -> dict[str, Source]:
    """By the topics' names in the log. `tables` are those of the task."""
    sources: dict[str, Source] = {}
    for step in steps:
        for topic in step.processor.sources:
            source = sources.setdefault(
                topic.topic, Source(topic.key_codec, topic.event_time.codec(), topic.event_time.max_ahead_ms)
            )
            (source.batch_steps if step.processor.batch else source.steps).append(step)
    for name, view in tables.items():
        of = app.tables[name].source
        if of is not None and isinstance(view, TopicTableView):
            source = sources.setdefault(
                of.topic, Source(of.key_codec, of.event_time.codec(), of.event_time.max_ahead_ms)
            )
            source.tables.append(view)
            source.readers += [step for step in steps if any(table is view for table in step.tables)]
    if any(isinstance(step, TimedStep) for step in steps):
        tick = sources[TICK] = Source(BytesCodec(), BytesCodec(), None)
        tick.steps += [step for step in steps if step.processor.due is not None]
    return sources
