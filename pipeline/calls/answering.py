"""Records that are left out without a call, and the processors that answer for them.

One rule: what is left out by one processor's fault costs the others of its record nothing: where it is known whose call is not to be
made, theirs are. The call that is not made goes to `on_error` as one that has failed. Used by TaskProcess; workers ask it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pipeline.calls.call import CALL
from pipeline.calls.effects import Effects
from pipeline.calls.failed_calls import FailedCalls
from pipeline.calls.steps import Arrived, Step
from pipeline.calls.task_sources import Source
from pipeline.records import RawRecord


class Answering:
    """Of one task. `unit`: what of its calls counts together."""

    def __init__(
        self,
        steps: Iterable[Step],
        sources: Mapping[str, Source],
        on_error: FailedCalls,
        effects: Effects,
        unit: str,
    ) -> None:
        self._steps = {step.name: step for step in steps}
        self._sources = sources
        self._on_error = on_error
        self._effects = effects
        self._unit = unit
        self.lost: tuple[str, int, Collection[str], Exception] | None = None  # calls of one record that are not made
        self.under_way: str | None = None  # of several that read a record the one that is called
        self.record: tuple[str, RawRecord] | None = None  # that is called, in a run that may be made in parts
        self.batch: Sequence[Arrived] = ()  # of which the call under way is, where it is of what waited for it
        self.note: Callable[[str], None] | None = None  # is given its name before, while calls are noted

    def processors_of(self, topic: str) -> list[str]:
        """The names of the processors that read a topic."""
        source = self._sources[topic]
        return [step.name for step in (*source.steps, *source.batch_steps)]

    def writers_of(self, names: Sequence[str], topic: str, table: str | None) -> list[str]:
        """Of these processors those whose calls, or what is left of their records, may go to the topic, or where there is a `table`
        to its changelog; all of them where that is known of none."""
        return [name for name in names if self._steps[name].may_write(topic, table)] or list(names)

    def sends_letters_to(self, names: Iterable[str], topic: str, error: Exception) -> bool:
        """Whether a record that one of these processors leaves for `error` goes to the topic."""
        return any(self._steps[name].leaves_to(error) == topic for name in names)

    def skip(self, topic: str, raw: RawRecord) -> None:
        """Complete a record without calling anything."""
        self._effects.skipped_one(topic)
        self._effects.completed(topic, raw)

    def refuse(self, topic: str, raw: RawRecord, error: Exception, completed: RawRecord | None = None) -> None:
        """Complete a record (as if it were `completed`) without calling anything, as if each of its processors had raised
        `error`. Raises ProcessorFailed where one of them stops."""
        steps = self._sources[topic].answering
        self._on_error.leave_all(steps, topic, raw, error, whole=self._unit == CALL)
        self._effects.completed(topic, completed or raw)

    def lose(self, topic: str, raw: RawRecord, names: Collection[str], error: Exception) -> bool:
        """The same where these of its processors are the ones that had; whether the record is completed by that. False: others read
        it as well; give it to the next run, which calls them."""
        if set(names) >= set(self.processors_of(topic)):
            self.refuse(topic, raw, error)
            return True
        self.lost = topic, raw.offset, names, error
        return False

    def calls(self, step: Step, topic: str, raw: RawRecord) -> bool:
        """A step is next, of several that read a record, and it is noted, or some are not called: whether it is. If not, its policy has
        decided. Raises ProcessorFailed."""
        if self.lost is not None and self.lost[:2] == (topic, raw.offset) and step.name in self.lost[2]:
            self._on_error.leave(step, topic, raw, self.lost[3])
            return False
        self.noted(step)
        return True

    def noted(self, step: Step) -> None:
        """A step is called next."""
        if self.note is not None:
            self.note(step.name)

    def run_ended(self) -> None:
        """What is not to be called is for one run."""
        self.under_way = self.record = self.lost = None
        self.batch = ()
