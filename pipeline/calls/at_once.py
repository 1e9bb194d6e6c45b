"""The calls of a task that overlap, as TaskProcess has them: its lanes, and what a record that counts adds to its effects.

One rule: TaskProcess calls and judges each record (`Host`); `pipeline.calls.overlap` says when; this module joins the two. Lanes
are kept from run to run; where a call could not be undone in time they are given up with all that it may still write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from pipeline.calls.answering import Answering
from pipeline.calls.call import RECORD, RUN
from pipeline.calls.effects import Effects
from pipeline.calls.lanes import Ahead, Draft, Lane, LaneTable, Outputs, count
from pipeline.calls.overlap import More, Overlap
from pipeline.calls.retries import Tries, Waiting
from pipeline.calls.steps import Item, Step
from pipeline.calls.task_tables import Routed
from pipeline.records import RawRecord
from pipeline.tables.view import TableView

Alone = Callable[[str, RawRecord], Awaitable[None]]


class Host(Protocol):
    """TaskProcess, as far as it is needed here."""

    finished: int
    waiting: Waiting | None

    @property
    def answering(self) -> Answering: ...
    def reached(self, raw: RawRecord) -> int: ...
    def arrive(self, topic: str, raw: RawRecord, into: Effects | Lane | None) -> Item | None: ...
    def anew(self, item: Item) -> Item: ...
    def call(self, step: Step, item: Item, into: Effects | Lane | None = None) -> None: ...
    async def wait_for(self, step: Step, item: Item, into: Effects | Lane | None = None) -> None: ...


class AtOnce:
    """See the module text. `topics`: who reads each, in order; `keys`: whose keys each table has; `make` gives the steps of
    a lane, with its tables."""

    def __init__(
        self,
        host: Host,
        effects: Effects,
        tries: Tries,
        unit: str,
        topics: Mapping[str, Sequence[str]],
        steps: Sequence[Step],
        keys: Mapping[str, Routed],
        make: Callable[[Mapping[str, TableView[Any, Any]], Outputs], dict[str, Step]],
        *,
        rests: bool,
    ) -> None:
        self._host = host
        self._effects = effects
        self._tries = tries
        self._unit = unit
        self._topics = topics
        self._keys = keys
        self._make = make
        self._rests = rests
        self._tables = {table.spec.name: table for step in steps for table in step.tables}
        self._limits: dict[str, dict[str, int]] = {}
        for processor in (step.processor for step in steps if step.processor.concurrency > 1):
            for topic in processor.sources:
                self._limits.setdefault(topic.topic, {})[processor.name] = processor.concurrency
        self._ahead: list[Ahead] = []
        self.lanes: list[Lane] = []
        self._overlap: Overlap | None = None
        self._alone: Alone | None = None

    def nudge(self) -> None:
        """There may be more records, or calls may not go on."""
        if self._overlap is not None:
            self._overlap.nudge()

    async def run(
        self, records: Sequence[tuple[str, RawRecord]], goes_on: Callable[[], bool], more: More, alone: Alone
    ) -> None:
        """`alone` calls a record that no other may be called beside."""
        if not self.lanes:
            self._open_lanes()
        self._alone = alone
        overlap = self._overlap = Overlap(self, self.lanes, goes_on, more, rests=self._rests)
        try:
            await overlap.run(records)
        finally:
            self._overlap = None
            if overlap.is_idle:
                for ahead in self._ahead:
                    ahead.clear()
            else:
                self.lanes = []

    def _open_lanes(self) -> None:
        limits = {name: limit for limits in self._limits.values() for name, limit in limits.items()}
        aheads: dict[str, Ahead] = {name: {} for name in self._tables}
        self._ahead = list(aheads.values())
        shown = ", ".join(f"concurrency={limit} of {name}" for name, limit in sorted(limits.items()))
        for _ in range(sum(limits.values())):
            tables = {
                name: LaneTable(table, self._keys[name], aheads[name], shown) for name, table in self._tables.items()
            }
            self.lanes.append(Lane(tables, self._make))

    # ---- what Overlap asks for

    def at_once(self, topic: str) -> Mapping[str, int]:
        return self._limits.get(topic, {})

    def reached(self, raw: RawRecord) -> int:
        return self._host.reached(raw)

    async def call(self, lane: Lane, topic: str, raw: RawRecord, stream_ms: int) -> None:
        item = self._host.arrive(topic, raw, lane)
        if item is None:
            return
        item = msgspec.structs.replace(item, stream_ms=stream_ms)
        for nth, name in enumerate(self._topics[topic]):
            step = lane.steps[name]
            item = self._host.anew(item) if nth else item
            self._host.answering.noted(step)
            if step.is_async:
                await self._host.wait_for(step, item, lane)
            else:
                self._host.call(step, item, lane)

    async def alone(self, topic: str, raw: RawRecord) -> None:
        assert self._alone is not None
        await self._alone(topic, raw)
        self._host.finished += 1

    def counts(self, topic: str, raw: RawRecord, index: int, draft: Draft) -> None:
        effects = self._effects
        if self._unit == RECORD:
            effects.begin()
        count(draft, index)
        for place, outputs in draft.outputs.items():
            effects.outputs.setdefault(place, []).extend(outputs)
        effects.left_out += draft.left_out
        if self._unit == RECORD:
            effects.end()
        if self._unit != RUN:
            effects.completed(topic, raw)
        self._tries.forget(topic, raw)
        self._host.finished += 1

    def waits(self, waiting: Waiting | None) -> None:
        self._host.waiting = waiting
