"""The joins of tables of one task: which call follows from which change of a table, or message of another task.

One rule: the joins of a table are called once for each change that a call made, in order, right after that call; for a change
that a record of a topic made, with that record. `passing` makes the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.calls.effects import Effects
from pipeline.calls.foreign_key_joins import LeftSide, RightSide
from pipeline.calls.steps import Item, Step
from pipeline.calls.table_joins import Rows, TableJoinCalls
from pipeline.definitions.definition import Stored
from pipeline.tables.observed import ObservedTable, RowChange
from pipeline.time.topic_view import TopicTableView

Calls = TableJoinCalls | LeftSide | RightSide


class Changed(NamedTuple):
    """A change that a call made, for a join that it concerns. `depth`: how many changes, each made by a call for the one
    before it, led here."""

    step: Step
    table: str
    change: RowChange
    depth: int


class TableJoins:
    """The joins of tables of a task, by step, and the changes of its tables that they have yet to be called for."""

    def __init__(self, steps: Sequence[Step], tables: Mapping[str, Any], effects: Effects, partition: int) -> None:
        self._calls: dict[str, Calls] = {}
        self._observed: dict[str, tuple[ObservedTable[Any, Any], list[Step]]] = {}
        self._of_topics: dict[str, TopicTableView[Any, Any]] = {}
        self._waiting: deque[Changed] = deque()
        self._depth = 0
        self._of_tables: list[TableJoinCalls] = []
        for step in steps:
            processor = step.processor
            joined: Sequence[Stored[Any]]
            if processor.table_join is not None:
                join = processor.table_join
                left, right = (Rows(side, tables[side.name], partition) for side in (join.left, join.right))
                self._of_tables.append(made := TableJoinCalls(join, (left, right)))
                self._calls[step.name], joined = made, join.sides
            elif processor.foreign_key is not None:
                side = processor.foreign_key
                side_calls = LeftSide if side.is_left else RightSide
                self._calls[step.name], joined = side_calls(side.join, tables, effects, partition), (side.table,)
            else:
                continue
            for table in joined:
                view = tables[table.name]
                if isinstance(view, ObservedTable):
                    self._observed.setdefault(table.name, (view, []))[1].append(step)
                elif table.source is not None:
                    self._of_topics[table.source.topic] = view

    def __bool__(self) -> bool:
        return bool(self._calls)

    def of_record(self, step: Step, item: Item) -> Item | None:
        """The call for a record of a topic that is a side, which is in its table, or for a message of the other side.
        Raises JoinFailed."""
        view, calls = self._of_topics.get(item.topic), self._calls[step.name]
        if view is None:
            assert not isinstance(calls, TableJoinCalls)
            return calls.of_message(item)
        assert view.change is not None
        return calls.of_change(view.spec.name, view.change, item, item.stream_ms)

    def of_change(self, changed: Changed, stream_ms: int) -> Item | None:
        """The call for a change that a call has made. Raises JoinFailed."""
        return self._calls[changed.step.name].of_change(changed.table, changed.change, None, stream_ms)

    def next_change(self) -> Changed | None:
        """The first change of a table that no join was called for yet."""
        for name, (view, steps) in self._observed.items():
            for change in view.changed:
                self._waiting += [Changed(step, name, change, self._depth + 1) for step in steps]
                for step in steps:
                    if isinstance(calls := self._calls[step.name], TableJoinCalls):
                        calls.note(name, change)
            view.changed.clear()
        if not self._waiting:
            self._forget()
            return None
        found = self._waiting.popleft()
        self._depth = found.depth
        return found

    def _forget(self) -> None:
        """No change waits."""
        self._depth = 0
        for calls in self._of_tables:
            calls.forget()

    def undone(self) -> None:
        """The calls that made the changes never were."""
        self._waiting.clear()
        self._forget()
        for view, _ in self._observed.values():
            view.changed.clear()
