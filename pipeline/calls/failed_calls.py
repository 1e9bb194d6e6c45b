"""What becomes of a record whose call has failed: the call is made again, or `on_error` decides.

One rule: retries come first, then the policy. What is left out is counted, and a dead letter is sent, with what the
record's other calls did. Used by TaskProcess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from pipeline.calls.call_failures import of_cancelled, undone
from pipeline.calls.effects import Effects, LeftOut
from pipeline.calls.lanes import Outputs
from pipeline.calls.retries import Tries
from pipeline.calls.steps import Step, place
from pipeline.definitions.definition import Topic
from pipeline.definitions.error_policy import SKIP, STOP
from pipeline.errors import ProcessorFailed
from pipeline.failures import dead_letter, failed, what_failed, without_our_head
from pipeline.records import RawRecord


class Into(Protocol):
    """What a record's calls did so far: the task's effects, or a lane's."""

    outputs: Outputs
    left_out: list[LeftOut]


class FailedCalls:
    """Of one task. `partitions`: the counts of the topics that dead letters go to."""

    def __init__(self, task: str, partition: int, partitions: Mapping[str, int], effects: Effects) -> None:
        self.tries = Tries()
        self.are_undone = False  # the calls of the run that is being cancelled
        self.partitions = partitions
        self._task = task
        self._partition = partition
        self._effects = effects

    def failed(
        self,
        step: Step,
        topic: str,
        raw: RawRecord,
        error: BaseException,
        into: Into | None = None,
        *,
        decoding: bool = False,
    ) -> None:
        """A call has failed. Raises CallAgain where it is made again, ProcessorFailed where its processor stops, CancelledError where
        the run is undone."""
        self.refuse_undone(step, error)
        error = of_cancelled(step.name, error, awaits=step.is_async)
        count = self.tries.failed(step, topic, self._partition, raw, error, in_call=not decoding)
        self.leave(step, topic, raw, error, into, tries=count, decoding=decoding)

    def refuse_undone(self, step: Step, error: BaseException | None = None) -> None:
        """Raises CancelledError where the calls of the run are undone: what a function, or a client, makes of a cancellation of ours,
        an `error` or an answer, is not the record's, which is read again."""
        if self.are_undone:
            raise undone(step.name) from error

    def leave_all(self, steps: Iterable[Step], topic: str, raw: RawRecord, error: Exception, *, whole: bool) -> None:
        """The policies of all steps of a record decide, together unless each is `whole`. Raises ProcessorFailed where one of
        them stops."""
        effects = self._effects
        if not whole:
            effects.begin()
        try:
            for step in steps:
                self.leave(step, topic, raw, error)
        except ProcessorFailed:
            if not whole:
                effects.undo()
            raise
        if not whole:
            effects.end()

    def leave(
        self,
        step: Step,
        topic: str,
        raw: RawRecord,
        error: BaseException,
        into: Into | None = None,
        *,
        tries: int = 1,
        decoding: bool = False,
    ) -> None:
        """The policy decides. Raises ProcessorFailed where the processor stops."""
        where: dict[str, Any] = {
            "processor": step.name,
            "task": self._task,
            "topic": topic,
            "partition": self._partition,
            "raw": raw,
        }
        chosen = step.policy.of(error)
        if isinstance(chosen, Topic) and chosen.topic == topic and topic in step.topics_as_tables:
            chosen = STOP  # it would come back, and cannot be read again
        into = self._effects if into is None else into
        if chosen == SKIP:
            into.left_out.append(LeftOut(topic, False, what_failed(error, decoding=decoding, tries=tries, **where)))
        elif isinstance(chosen, Topic):
            into.left_out.append(LeftOut(topic, True))
            target = place(raw, chosen.topic, self.partitions, self._partition)
            into.outputs.setdefault(target, []).append(dead_letter(error, **where))
        else:
            stopped = failed(error, decoding=decoding, tries=tries, **where)
            raise stopped from error.with_traceback(without_our_head(error))
