"""How time passes in a task: what is due happens in order, each in a call of its own, before the record that passed it.

One rule: nothing here depends on how records come in batches. The next thing due is the smallest place (`position`) of
all views of the task; what a call makes due in the past happens right after that call. TaskProcess calls functions and
judges their errors (`Host`); this module says which call is next, and what of it counts together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.calls.due_calls import DueCalls
from pipeline.calls.effects import Effects, LeftOut
from pipeline.calls.failed_calls import FailedCalls
from pipeline.calls.joined_tables import Changed, TableJoins
from pipeline.calls.retries import CallAgain
from pipeline.calls.steps import CallRecord, Item, Step, TimedStep, place
from pipeline.calls.table_joins import JoinFailed, raw_of
from pipeline.definitions.join import JoinDef
from pipeline.errors import PipelineError, ProcessorFailed
from pipeline.records import OutputRecord, RawRecord
from pipeline.tables.view import TableView
from pipeline.time.join_view import LEFT, RIGHT, JoinView, Pair, pair_facts
from pipeline.time.position import BEFORE_DUE, Position
from pipeline.time.tables import DueCall
from pipeline.time.timed_view import TimedView

MOST_DUE = 10_000  # calls that calls of one stream time may make due, before it is taken for a loop

MOST_CHAINED = 1_000  # changes of joined tables each of which made the next one, before that is taken for a loop


class Host(Protocol):
    """TaskProcess, as far as it is needed here. `finished`: how many records of the latest run are completed."""

    finished: int

    async def run_some(self, records: Sequence[tuple[str, RawRecord]], goes_on: Callable[[], bool]) -> None:
        """The calls of records, the first of which has nothing due before it."""

    async def make(self, step: Step, item: Item) -> None:
        """A call, sync or async. Raises CallAgain, ProcessorFailed."""

    def anew(self, item: Item) -> Item:
        """Returns a record of a topic for a further call, without what an earlier one has changed in place."""


class TooManyDue(PipelineError):
    """The calls of one stream time make calls due for ever."""


@dataclass(slots=True)
class _Under:
    """A due timer, window or join record whose calls are under way."""

    view: TimedView[Any, Any]
    due: DueCall
    steps: Iterator[Step]
    is_chained: bool
    calls: int = 0  # with the one under way


class Passing:
    """See the module text. `views` in order of declaration; `all_steps` of the task."""

    def __init__(
        self,
        host: Host,
        effects: Effects,
        on_error: FailedCalls,
        position: Position,
        views: Sequence[TimedView[Any, Any]],
        joins: TableJoins,
        all_steps: Sequence[Step],
        task_partition: int,
    ) -> None:
        self._host = host
        self.effects = effects
        self.on_error = on_error
        self.position = position
        self.due_calls = DueCalls(position)
        self._views = views
        self._joins = joins
        self._steps: dict[str, list[Step]] = {}
        for step in all_steps:
            timed = step.processor.due or step.processor.join
            if timed is not None:
                self._steps.setdefault(timed.name, []).append(step)
        self.partition = task_partition
        self._made_due = self._made_settled = 0  # so far, and with the last unit that counts
        self._again: tuple[str, int] | None = None  # the latest record of which a call was to be made again
        self._has_batches = any(step.processor.batch for step in all_steps)
        batches = [step for step in all_steps if isinstance(step, TimedStep) and step.processor.batch]
        self._cut_by = {view.spec.name: view for step in batches for view in step.timed}.values()
        effects.passing = self
        for view in views:
            if isinstance(view, JoinView):
                view.partition = task_partition

    # between records

    async def pass_to(self, timestamp_ms: int, goes_on: Callable[[], bool]) -> bool:
        """Everything due before a time happens, each thing in a unit of its own, for as long as `goes_on`; whether all of
        it has. Raises CallAgain, ProcessorFailed, with what ended well before kept."""
        if timestamp_ms > self.position.target_ms:
            self.position.target_ms = timestamp_ms
            self._made_due = self._made_settled = 0
        while (view := self._next(timestamp_ms)) is not None:
            self.effects.begin()
            try:
                under = self._begin(view)
                self.due_calls.of_due(under.due.place)
                await self._happen([under])
            except BaseException:
                self.effects.undo()
                raise
            self.effects.end()
            self.on_error.tries.unit_ended()
            self.effects.time_passed(self.position.time_ms)
            if not goes_on():
                return not self.due_calls.are_kept and self._next(timestamp_ms) is None
        return True

    def has_due(self, timestamp_ms: int) -> bool:
        """Whether something is due before a time."""
        return self._next(timestamp_ms) is not None

    @property
    def joins_tables(self) -> bool:
        return bool(self._joins)

    async def has_come(self, raw: RawRecord, goes_on: Callable[[], bool]) -> bool:
        """Whether a record is next. Where records wait for their batch, what is due before it waits, too. Raises CallAgain,
        ProcessorFailed."""
        if not self._has_batches:
            return await self.pass_to(raw.timestamp_ms, goes_on)
        return not self._host.finished or not self.separates(raw.timestamp_ms)

    async def run_parts(self, records: Sequence[tuple[str, RawRecord]], goes_on: Callable[[], bool]) -> None:
        """Records of batches, cut wherever a timer, a close or an expiry lies between them. Raises CallAgain,
        ProcessorFailed."""
        done = 0
        try:
            while done < len(records):
                self._host.finished = 0
                if not await self.pass_to(records[done][1].timestamp_ms, goes_on):
                    break
                await self._host.run_some(records[done:], goes_on)
                done += self._host.finished
                if not goes_on():
                    break
        finally:
            self._host.finished = done

    def stand_at(self, timestamp_ms: int) -> None:
        """Time has come to here, without a record."""
        self.position.come_to(timestamp_ms)

    def separates(self, timestamp_ms: int) -> bool:
        """Whether a timer, a close or an expiry of a table of a batch lies before a time: the batch ends there."""
        return self._next(timestamp_ms) is not None or any(view.changes_before(timestamp_ms) for view in self._cut_by)

    def settle(self) -> None:
        """A unit has ended well."""
        self.position.settle()
        self._made_settled = self._made_due
        self.due_calls.ended()

    def undone(self) -> None:
        """A unit was undone."""
        self.position.undo()
        self._made_due = self._made_settled
        self.due_calls.ended()
        self._joins.undone()
        for view in self._views:
            view.undone()

    def collected(self) -> None:
        self.due_calls.collected()

    def applied(self) -> None:
        self.due_calls.applied()

    # one record, in the unit of its caller

    def reach(self, raw: RawRecord) -> int:
        """The record is next; returns the stream time with it."""
        self.position.reach((raw.timestamp_ms, BEFORE_DUE, b""))
        return self.position.time_ms

    async def call(self, step: Step, item: Item) -> None:
        """The calls of one step for a record, and what they make due in the past."""
        # With batches nothing is completed before all of a run is, which begins again at its first record.
        if self._again is not None and not self._has_batches and self._again != (item.topic, item.raw.offset):
            self.on_error.tries.unit_ended()
            self._again = None
        try:
            await self._call(step, item)
        except CallAgain:
            self._again = item.topic, item.raw.offset
            raise

    async def _call(self, step: Step, item: Item) -> None:
        assert isinstance(step, TimedStep)
        self.due_calls.of_record(item.topic, self.partition, item.raw.offset)
        if step.processor.join is not None:
            await self._join(step, step.processor.join, item)
        elif step.processor.joins_tables:
            await self._row(step, item)
        elif not self.is_late(step, item):
            step.belongs_to(item.record.key)
            await self._host.make(step, item)
            await self._happen([])

    def is_late(self, step: Step, item: Item) -> bool:
        """Whether the step is not called, because nothing is open for the record; it goes where late ones go."""
        assert isinstance(step, TimedStep)
        late = [view for view in step.timed if view.is_late(item.record.key, item.raw.timestamp_ms)]
        for view in late:
            self.effects.late_one(view.spec.name)
        for topic in dict.fromkeys(topic for view in late if (topic := step.late_topics[view.spec.name])):
            self._leave(topic, item.raw)
        return bool(late)

    def _leave(self, topic: str, raw: RawRecord) -> None:
        target = place(raw, topic, self.effects.partitions, self.partition)
        output = OutputRecord(raw.key, raw.value, raw.timestamp_ms, raw.headers)
        self.effects.outputs.setdefault(target, []).append(output)

    # what is due

    def _next(self, before_ms: int) -> TimedView[Any, Any] | None:
        """Whose turn it is, of what is due before a time."""
        best: tuple[tuple[int, int, bytes], TimedView[Any, Any]] | None = None
        for view in self._views:
            from_ms = view.due_from_ms()
            if from_ms is None or from_ms >= before_ms:
                continue
            found = view.next_place()
            if found is not None and found[0] < before_ms and (best is None or found < best[0]):
                best = (found, view)
        return None if best is None else best[1]

    def _begin(self, view: TimedView[Any, Any]) -> _Under:
        due = view.next_due()
        is_chained = view.is_chained(due)
        self._made_due += is_chained
        self.position.reach(due.place)
        view.begin(due)
        return _Under(view, due, iter(self._steps.get(view.spec.name, ())), is_chained)

    async def _happen(self, under: list[_Under]) -> None:
        """The calls of what is due, the last first, and after each of them those of the joins whose tables it changed, and
        of what it made due in the past: of several functions of one due thing, before its own time."""
        while True:
            changed = self._joins.next_change()
            if changed is not None:
                await self._call_joined(changed)
                continue
            view = self._next(under[-1].due.place[0] if under else self.position.time_ms)
            if view is not None:
                under.append(self._begin(view))
            elif not under:
                return
            one = under[-1]
            step = next(one.steps, None)
            if step is None:
                under.pop()
            else:
                one.calls += 1
                await self._call_due(one, step)

    async def _call_due(self, one: _Under, step: Step) -> None:
        view, due = one.view, one.due
        raw = CallRecord(
            -1, due.timestamp_ms, due.key, due.value, (), lambda: (view.shown_due(due), view.due_facts(due))
        )
        item = Item(
            due.argument if one.calls == 1 else view.argument_anew(due), raw, view.spec.name, self.position.time_ms
        )
        assert isinstance(step, TimedStep)
        step.belongs_to(None if isinstance(due.argument, tuple) else due.argument.key)
        view.call_of(due)
        try:
            if not self.due_calls.next(step, item.topic, due.place[0], due.place[2]):
                self.effects.left_out.append(LeftOut(item.topic, False))
            elif (lost := self.due_calls.lost()) is not None:
                self.on_error.leave(step, item.topic, raw, lost)
            elif one.is_chained and self._made_due > MOST_DUE:
                problem = (
                    f"more than {MOST_DUE:,} calls were made due by calls at stream time {self.position.target_ms}"
                )
                self.on_error.failed(
                    step, item.topic, raw, TooManyDue(f"{problem}; set a timer to a time that is yet to come")
                )
            else:
                await self._host.make(step, item.of_call(self.due_calls.nth))
        except ProcessorFailed as error:
            self.due_calls.failed(error)
            raise
        finally:
            view.call_of(None)

    # joins of tables

    async def _row(self, step: TimedStep, item: Item) -> None:
        """The call for a record that has changed a table of a topic."""
        if item.raw.key is None:
            return
        try:
            made = self._joins.of_record(step, item)
        except JoinFailed as error:
            self.on_error.failed(step, item.topic, item.raw, error.__cause__ or error)
            return
        if made is not None:
            step.belongs_to(item.record.key)
            await self._host.make(step, made)
            await self._happen([])

    async def _call_joined(self, changed: Changed) -> None:
        """The call of a join for a change that a call has made."""
        step, change = changed.step, changed.change
        if not self.due_calls.next(step, changed.table, change.timestamp_ms, change.key):
            self.effects.left_out.append(LeftOut(changed.table, False))
            return
        try:
            if (lost := self.due_calls.lost()) is not None:
                self.on_error.leave(step, changed.table, raw_of(*changed[1:3], None), lost)
            else:
                await self._make_joined(step, changed)
        except ProcessorFailed as error:
            self.due_calls.failed(error)
            raise

    async def _make_joined(self, step: Step, changed: Changed) -> None:
        try:
            made = self._joins.of_change(changed, self.position.time_ms)
        except JoinFailed as error:
            self.on_error.failed(step, changed.table, raw_of(*changed[1:3], None), error.__cause__ or error)
            return
        if made is None:
            return
        if changed.depth > MOST_CHAINED:
            problem = f"more than {MOST_CHAINED:,} changes of tables each made the next one"
            self.on_error.failed(
                step, made.topic, made.raw, TooManyDue(f"{problem}; let no join change what it is called for")
            )
        else:
            await self._host.make(step, made.of_call(self.due_calls.nth))

    # joins of streams

    async def _join(self, step: TimedStep, join: JoinDef, item: Item) -> None:
        """The matches of a record, by the other's time, then arrival."""
        raw, view = item.raw, step.join_view
        assert view is not None
        sides = join.sides_of(item.topic)
        if raw.value is None:
            return
        if raw.key is None:
            for side in sides:
                if join.announces_alone(side):
                    await self._match(step, item, _pair(side, item.record, None))
            return
        open_sides = [side for side in sides if not view.is_over(side, raw.timestamp_ms)]
        if not open_sides:
            self.effects.late_one(view.spec.name)
            topic = step.late_topics[view.spec.name]
            if topic is not None:
                self._leave(topic, raw)
            return
        own = (raw.timestamp_ms, raw.offset)
        for side in open_sides:
            view.keep(side, raw, item.record)
        matches = [(side, entry) for side in open_sides for entry in view.matches(side, raw.key, raw.timestamp_ms)]
        if len(open_sides) == 2:  # a self join: the roles of one other follow each other
            matches.sort(key=lambda match: (match[1][:2], match[0]))
        for nth, (side, entry) in enumerate(matches):
            item = self._host.anew(item) if nth else item
            is_itself = len(sides) == 2 and entry[:2] == own
            if is_itself and side == RIGHT:
                continue  # it has matched itself, as the left one
            other = item.record if is_itself else view.record(1 - side, raw.key, entry)
            view.mark_matched(side, raw.key, own)
            view.mark_matched(1 - side, raw.key, entry)
            await self._match(step, item, _pair(side, item.record, other))

    async def _match(self, step: Step, item: Item, pair: Pair) -> None:
        """One call with a pair, whose time is the later of the two."""
        at_ms = max(record.timestamp_ms for record in pair if record is not None)
        came = item.raw
        raw = CallRecord(came.offset, at_ms, came.key, came.value, came.headers, lambda: ("", pair_facts(pair)))
        await self._host.make(step, Item(pair, raw, item.topic, item.stream_ms))
        await self._happen([])


def passing_of(
    host: Host,
    effects: Effects,
    on_error: FailedCalls,
    position: Position,
    tables: Mapping[str, TableView[Any, Any]],
    steps: Sequence[Step],
    task_partition: int,
) -> Passing | None:
    """How time passes in a task that has timed tables or joins."""
    views = [table for table in tables.values() if isinstance(table, TimedView)]
    views.sort(key=lambda view: view.order)
    joins = TableJoins(steps, tables, effects, task_partition)
    if not views and not joins:
        return None
    return Passing(host, effects, on_error, position, views, joins, steps, task_partition)


def _pair(side: int, record: Any, other: Any) -> Pair:
    return (record, other) if side == LEFT else (other, record)
