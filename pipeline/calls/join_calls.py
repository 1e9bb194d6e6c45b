"""The calls of a task with one join of two streams, one record after the other, without a coroutine for each.

One rule: what counts is what `passing` would count. A record that matches one other at most has one call, which is its unit,
and is kept when that has ended; what has more calls, and all that is rare, is a unit as in any task. Made where
`join_calls` finds that this fits.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from pipeline.calls.call import refuse_awaitable, without_waiting
from pipeline.calls.passing import Passing
from pipeline.calls.plain_calls import Progress
from pipeline.calls.steps import CallRecord, Item, Step, TimedStep
from pipeline.calls.task_sources import Source, is_fixed
from pipeline.records import TICK, RawRecord, Record
from pipeline.tables.view import TableView
from pipeline.time.join_view import LEFT, RIGHT, Entry, JoinView, Pair, pair_facts
from pipeline.time.position import BEFORE_DUE
from pipeline.time.timed_view import TimedView


class JoinCalls:
    """See the module text. `sides` by topic."""

    def __init__(
        self,
        step: TimedStep,
        view: JoinView,
        passing: Passing,
        sources: Mapping[str, Source],
        sides: Mapping[str, int],
        *,
        announces: bool,
    ) -> None:
        self._step = step
        self._view = view
        self._function = step.processor.function
        self._passing = passing
        self._effects = passing.effects
        self._of = {topic: (sources[topic], side) for topic, side in sides.items()}
        self._announces = announces
        self._own = [table for table in step.tables if table.is_by_record_key]
        self._expiring = [table for table in step.tables if table.spec.expire_ms is not None]

    def run(
        self,
        task: Progress,
        records: Sequence[tuple[str, RawRecord]],
        clock: Callable[[], float],
        until: float,
        stream_ms: int,
    ) -> int:
        """See TaskProcess.run; returns the stream time with the last record. `task` knows at any moment how many records are
        completed. Raises what a call that stops raises."""
        passing, position, step = self._passing, self._passing.position, self._step
        take, announces = self._take, self._announces
        done = 0
        step.begin()
        try:
            for topic, raw in records:
                timestamp_ms = raw.timestamp_ms
                if announces and passing.has_due(timestamp_ms):
                    self._effects.end()
                    step.end()
                    if not without_waiting(passing.pass_to(timestamp_ms, lambda: clock() < until)):
                        break
                    step.begin()
                before = position.reached
                if timestamp_ms > before[0]:
                    position.reached = (timestamp_ms, BEFORE_DUE, b"")
                try:
                    take(topic, raw)
                except BaseException:
                    position.reached = before
                    self._effects.end()
                    self._effects.begin()
                    self._effects.undo()  # what views have found at a later time
                    raise
                task.finished = done = done + 1
                if clock() >= until:
                    break
        finally:
            step.end()
            self._effects.end()
        return max(stream_ms, position.time_ms)

    def _take(self, topic: str, raw: RawRecord) -> None:
        """One record. Raises CallAgain, ProcessorFailed, or a store's error, with nothing of it anywhere."""
        (source, side), view, passing = self._of[topic], self._view, self._passing
        key, timestamp_ms = raw.key, raw.timestamp_ms
        try:
            record: Record[Any, Any] = Record(
                None if key is None else source.key_codec.decode(key),
                None if raw.value is None else source.value_codec.decode(raw.value),
                timestamp_ms,
                raw.headers,
                topic,
                passing.partition,
                raw.offset,
            )
        except Exception as error:  # noqa: BLE001 - a codec of the user's may raise anything; on_error decides
            passing.on_error.failed(self._step, topic, raw, error, decoding=True)
            return
        may_be_over = passing.position.reached[0] >= timestamp_ms + view.lives_ms[side]  # mostly not, and not asked
        if key is None or raw.value is None or (may_be_over and view.is_over(side, timestamp_ms)):
            item = Item(record, raw, topic, passing.position.reached[0])
            self._as_a_unit(lambda: _run(passing.call(self._step, item)))
            return
        matches = view.matches(side, key, timestamp_ms)
        if len(matches) > 1:
            self._as_a_unit(lambda: self._match(side, record, raw, matches))
        elif matches:
            self._match(side, record, raw, matches)
        else:
            view.keep(side, raw, record)

    def _as_a_unit(self, calls: Callable[[], None]) -> None:
        """Several calls count together, or none of them; those before do."""
        self._effects.end()
        self._effects.begin()
        try:
            calls()
        except BaseException:
            self._effects.undo()
            raise
        finally:
            self._step.begin()
        self._effects.end()

    def _match(self, side: int, record: Record[Any, Any], raw: RawRecord, matches: Sequence[Entry]) -> None:
        view, key = self._view, raw.key or b""
        for nth, entry in enumerate(matches):
            if nth and not is_fixed(record):
                record = self._of[record.topic][0].record(record.topic, raw, record.partition)
            other = view.record(1 - side, key, entry)
            self._call(record, raw, (record, other) if side == LEFT else (other, record), entry[0])
        view.keep(side, raw, record)
        if self._announces:
            view.mark_matched(side, key, (raw.timestamp_ms, raw.offset))
            for entry in matches:
                view.mark_matched(1 - side, key, entry)

    def _call(self, record: Record[Any, Any], raw: RawRecord, pair: Pair, other_ms: int) -> None:
        """One call with a pair, whose time is the later of the two."""
        step, stream_ms = self._step, self._passing.position.reached[0]
        at_ms = max(raw.timestamp_ms, other_ms)
        for own in self._own:
            own.record_keys = (raw.key,)
        for expiring in self._expiring:
            expiring.stream_ms = stream_ms
        for observed in step.observed:
            observed.at_ms = at_ms
        for sink in step.sinks:
            sink.timestamp_ms = at_ms
        try:
            result = self._function(*pair, *step.arguments)
            if result is not None:
                refuse_awaitable(step.name, result)
            step.keep(stream_ms)
        except step.failures as error:
            step.forget()
            if error is step.fault:
                raise
            failed = CallRecord(raw.offset, at_ms, raw.key, raw.value, raw.headers, lambda: ("", pair_facts(pair)))
            self._passing.on_error.failed(step, record.topic, failed, error)


def _run(calls: Coroutine[Any, Any, None]) -> None:
    """Sync calls never wait."""

    async def finished() -> int:
        await calls
        return 0

    without_waiting(finished())


def join_calls(
    steps: Sequence[Step],
    sources: Mapping[str, Source],
    tables: Mapping[str, TableView[Any, Any]],
    passing: Passing | None,
) -> JoinCalls | None:
    """Returns the calls of a task where one sync step joins two topics, and nothing else keeps time; else None."""
    timed = [table for table in tables.values() if isinstance(table, TimedView)]
    if passing is None or passing.joins_tables or len(steps) != 1 or len(timed) != 1:
        return None
    (step,), (view,) = steps, timed
    join = step.processor.join
    if not isinstance(step, TimedStep) or not isinstance(view, JoinView) or join is None or step.is_async:
        return None
    topics = {topic: source for topic, source in sources.items() if topic != TICK}
    sides = {join.left.topic: LEFT, join.right.topic: RIGHT}
    if len(sides) != 2 or topics.keys() != sides.keys():
        return None
    if any(source.tables or source.batch_steps or source.max_ahead_ms is not None for source in topics.values()):
        return None
    announces = any(side.announced_alone for side in view.sides)
    return JoinCalls(step, view, passing, sources, sides, announces=announces)
