"""What a join of tables is called with: for each change of a side the pair of rows that its key has now.

One rule: a result that is there, or was, gives a call; nothing else does. One that is no more is taken back: the first
record has no value, and the second is None. Bound to a step of a task; `passing` makes the calls.
"""

from __future__ import annotations

from typing import Any, Protocol

from pipeline.calls.steps import CallRecord, Item
from pipeline.definitions.definition import Stored
from pipeline.definitions.table_join import TableJoin
from pipeline.records import RawRecord, Record
from pipeline.tables.observed import Row, RowChange
from pipeline.tables.table import TableSpec


class JoinFailed(Exception):
    """A row cannot be read, or gives no key: the call fails with the cause of this."""


class Side(Protocol):
    """A table that is joined, as its task has it. `change`: the one that the last record of its topic made."""

    @property
    def change(self) -> RowChange | None: ...

    def row(self, key: bytes) -> Row | None: ...


class Rows:
    """One side of a join in a task: its rows by the bytes of their keys (where its `view` is of this task), and as
    records."""

    def __init__(self, table: Stored[Any], view: Side | None, partition: int) -> None:
        self.table = table
        self._view = view
        self._spec: TableSpec = table.spec
        self._topic = table.name if table.source is None else table.source.topic
        self._partition = partition

    def at(self, key: bytes) -> Row | None:
        assert self._view is not None
        return self._view.row(key)

    def changed(self, key: bytes) -> RowChange | None:
        """The change that the last record of its topic has made, where it is of this key."""
        assert self._view is not None
        found = self._view.change
        return found if found is not None and found.key == key else None

    def record(self, key: bytes, row: Row | None, timestamp_ms: int) -> Record[Any, Any]:
        """A row as a record; without one the record has no value. Raises JoinFailed."""
        try:
            value = None if row is None else self._spec.decode_value(row.value)
            decoded = self._spec.key_codec.decode(key)
        except Exception as error:
            raise JoinFailed from error
        at_ms = row.timestamp_ms if row is not None and row.timestamp_ms >= 0 else timestamp_ms
        return Record(decoded, value, at_ms, (), self._topic, self._partition)


class TableJoinCalls:
    """See the module text. `rows` are those of the left side and of the right one. One call may change both: what was there is
    what the last result was of, so that it is taken back once."""

    def __init__(self, join: TableJoin, rows: tuple[Rows, Rows]) -> None:
        self._join = join
        self._rows = rows
        self._was: dict[bytes, dict[int, Row | None]] = {}  # by key and side: the rows of the last result
        self._seen: RowChange | None = None  # of a topic: the last one that a result was of

    def note(self, table: str, change: RowChange) -> None:
        """A call has changed a row: it is called for that later."""
        was = self._was.setdefault(change.key, {})
        for side, rows in enumerate(self._rows):
            if rows.table.name == table:
                was.setdefault(side, change.before)

    def forget(self) -> None:
        """It was called for all that was noted, or that never was."""
        self._was.clear()

    def of_change(self, table: str, change: RowChange, item: Item | None, stream_ms: int) -> Item | None:
        """The call for a change of a table; `item`: the record that made it, where one did. None where no result is, or
        was. Raises JoinFailed."""
        now = [change.after if rows.table.name == table else rows.at(change.key) for rows in self._rows]
        before = self._before(table, change, item, now)
        if not self._join.has_result(*now) and not self._join.has_result(*before):
            return None
        at_ms = max([change.timestamp_ms, *(row.timestamp_ms for row in now if row is not None)])
        return self._call(table, change, now, item, at_ms, stream_ms)

    def _before(self, table: str, change: RowChange, item: Item | None, now: list[Row | None]) -> list[Row | None]:
        """The rows that the last result was of."""
        if item is not None:
            of_topic = now if change is self._seen else [change.before] * 2
            self._seen = change
            return [of_topic[n] if rows.table.name == table else now[n] for n, rows in enumerate(self._rows)]
        was = self._was[change.key]
        before = []
        for side, rows in enumerate(self._rows):
            of_record = rows.changed(change.key)
            if side in was:
                before.append(was[side])
            elif of_record is not None and of_record is not self._seen:  # that record's own call is yet to come
                self._seen = of_record
                before.append(of_record.before)
            else:
                before.append(now[side])
        self._was[change.key] = dict(enumerate(now))
        return before

    def _call(
        self, table: str, change: RowChange, now: list[Row | None], item: Item | None, at_ms: int, stream_ms: int
    ) -> Item:
        left, right = self._rows
        pair: tuple[Any, Any]
        if self._join.has_result(*now):
            pair = (
                None if now[0] is None else _record(left, table, change, now[0], item),
                None if now[1] is None else _record(right, table, change, now[1], item),
            )
        else:
            gone = item is not None and left.table.name == table and change.after is None
            pair = (item.record if item is not None and gone else left.record(change.key, None, at_ms), None)
        return Item(pair, raw_of(table, change, item, at_ms), table if item is None else item.topic, stream_ms)


def _record(rows: Rows, table: str, change: RowChange, row: Row, item: Item | None) -> Any:
    if item is not None and rows.table.name == table:
        return item.record
    return rows.record(change.key, row, change.timestamp_ms)


def raw_of(table: str, change: RowChange, item: Item | None, at_ms: int | None = None) -> RawRecord:
    """What a failed call is known by: the record that made the change, or the row. `at_ms`: the call's time, where it is
    another than the change's."""
    at_ms = change.timestamp_ms if at_ms is None else at_ms
    if item is not None:
        raw = item.raw
        return CallRecord(raw.offset, at_ms, raw.key, raw.value, raw.headers, lambda: ("", {}))
    value = None if change.after is None else change.after.value
    return CallRecord(
        -1, at_ms, change.key, value, (), lambda: (f"the row {change.key!r} of table {table!r}", {"table": table})
    )
