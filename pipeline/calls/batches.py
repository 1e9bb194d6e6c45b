"""Calls with many records: one that fails is made again one by one, so that the others' effects stay and the culprit is
found. One rule: a batch completes its records when its call has ended well, and not before; what is left of one that cannot be read
counts with it then, too. Used by TaskProcess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pipeline.calls.call import CALL, RUN, in_time, newest, refuse_awaitable
from pipeline.calls.effects import Effects
from pipeline.calls.failed_calls import FailedCalls, Into
from pipeline.calls.steps import Arrived, Item, Step
from pipeline.definitions.error_policy import STOP, WAIT
from pipeline.errors import PipelineError
from pipeline.records import RawRecord


class Batches:
    """Of one task. `unit`: what of its calls counts together; `anew` decodes a record once more."""

    def __init__(
        self, task: str, effects: Effects, on_error: FailedCalls, unit: str, anew: Callable[[Item], Item]
    ) -> None:
        self._task = task
        self._anew = anew
        self._effects = effects
        self._on_error = on_error
        self._unit = unit
        self._unread: dict[tuple[str, int], Exception] = {}  # by topic and offset, until their batch completes them

    def unreadable(
        self, steps: Iterable[Step], topic: str, raw: RawRecord, error: Exception, into: Into | None = None
    ) -> None:
        """A record cannot be read. Raises CallAgain, ProcessorFailed where that ends the run."""
        for step in steps:
            if self._unit == CALL and step.processor.batch and step.policy.of(error) not in (STOP, WAIT):
                self._unread[topic, raw.offset] = error  # those before it in its batch are not completed yet
            else:
                self._on_error.failed(step, topic, raw, error, into, decoding=True)

    async def run(self, step: Step, arrived: Sequence[Arrived], *, has_failed: bool = False) -> None:
        """The calls of a batch step, which complete its records. `has_failed`: one with all of them was made, and did."""
        for part in step.cut(arrived):
            await self._part(step, part, has_failed)

    async def _part(self, step: Step, arrived: Sequence[Arrived], has_failed: bool) -> None:
        items = [item for _, _, item in arrived if item is not None]
        one = len(items) == 1  # is called at its place among those that cannot be read
        whole = not (has_failed or one) and (not items or await self.call(step, items))
        for topic, raw, item in arrived:
            if not whole and item is not None and not await self.call(step, [item if one else self._anew(item)]):
                raise PipelineError(f"task {self._task}: a batch of one is neither done nor failed")
            if item is None and (error := self._unread.pop((topic, raw.offset), None)) is not None:
                self._on_error.failed(step, topic, raw, error, decoding=True)
            if self._unit != RUN:
                self._effects.completed(topic, raw)

    async def call(self, step: Step, items: Sequence[Item]) -> bool:
        """False where a batch of several failed: nothing of it counts."""
        try:
            with step.open(newest(items), items[-1].stream_ms, {item.raw.key for item in items}):
                if step.is_async:
                    await in_time(step, step.batch(items))
                    self._on_error.refuse_undone(step)
                else:
                    result = step.function(step.batch(items), *step.arguments)
                    if result is not None:
                        refuse_awaitable(step.name, result)
        except step.failures as error:
            if error is step.fault:
                raise
            self._on_error.refuse_undone(step, error)
            if len(items) > 1 and step.policy.of(error) != WAIT:
                return False
            self._on_error.failed(step, items[0].topic, items[0].raw, error)
        return True
