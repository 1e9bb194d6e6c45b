"""What a function with `columns=True` is given in place of records, tables and sinks. Loaded only where a task has one.

One rule: out of records, and out of what came in columns, the same arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.columns.batch_table import Tables
from pipeline.columns.public import Columns
from pipeline.columns.raw import RawColumns, from_records
from pipeline.columns.sink import ColumnSink
from pipeline.columns.view import ColumnView
from pipeline.records import RawRecord
from pipeline.sinks import LiveSink
from pipeline.tables.view import TableView
from pipeline.values.codecs import Codec


class ColumnArguments:
    """Of one step, whose topics have these codecs. `owner`: the number of partitions of its task's subtopology, and the
    task's own."""

    sink = ColumnSink

    def __init__(self, key_codec: Codec[Any], value_codec: Codec[Any], owner: tuple[int, int]) -> None:
        self._tables = Tables(key_codec, value_codec)
        self._owner = owner

    def table(self, view: TableView[Any, Any]) -> ColumnView:
        return ColumnView(view, self._owner)

    def of_records(self, topic: str, records: Sequence[RawRecord], sinks: Sequence[LiveSink]) -> Columns[Any, Any]:
        """The columns of a batch. Raises CodecError where a value that can be read cannot be in a column."""
        return self.of(from_records(topic, records), sinks)

    def of(self, raw: RawColumns, sinks: Sequence[LiveSink]) -> Columns[Any, Any]:
        """The same of records that came in columns. Raises what a codec of the user's raises, too."""
        columns = self._tables.of(raw)
        for sink in sinks:
            if isinstance(sink, ColumnSink):
                sink.times = raw.timestamps
        return columns
