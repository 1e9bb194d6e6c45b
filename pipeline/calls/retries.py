"""When a call that raised is made again: `retries=`, `backoff=`, and errors that wait for a client to come back.

One rule: what counts here is nothing but how often each call has failed in this process, until what it counts with is completed: a
call that was left out is not tried as often again because another one of its record is. Waiting is the caller's. TaskProcess ends
its run with CallAgain and keeps what was completed; who runs it waits, and gives it the record again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.calls.steps import CallRecord, Step
from pipeline.definitions.error_policy import STOP, WAIT
from pipeline.definitions.processor import MOST_BACKOFF_S
from pipeline.errors import ProcessorFailed, shown_place, text_of
from pipeline.records import RawRecord

_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task that pauses because of an error that waits. `error` is its class and message."""

    processor: str
    topic: str
    partition: int
    offset: int
    error: str

    @property
    def record(self) -> str:
        return shown_place(self.topic, self.partition, self.offset)


class CallAgain(Exception):
    """A call raised, nothing of it counts, and it is to be made again in `delay_s`. `waiting` where `on_error` says so,
    None for one of the processor's retries."""

    def __init__(self, delay_s: float, waiting: Waiting | None) -> None:
        super().__init__(f"a call is made again in {delay_s:g} s")
        self.delay_s = delay_s
        self.waiting = waiting


_Call = tuple[str, str, int, object]  # processor, topic and offset of a record, and which of the calls for it


class Tries:
    """How often calls have failed."""

    def __init__(self) -> None:
        self._failed: dict[_Call, int] = {}

    def clear(self) -> None:
        if self._failed:
            self._failed.clear()

    def forget(self, topic: str, raw: RawRecord) -> None:
        """A record is completed."""
        self._forget([call for call in self._failed if call[1:3] == (topic, raw.offset)] if self._failed else ())

    def unit_ended(self) -> None:
        """What the calls for pairs, rows and what was due counted with is completed."""
        self._forget([call for call in self._failed if call[3] is not None] if self._failed else ())

    def _forget(self, calls: Iterable[_Call]) -> None:
        for call in calls:
            del self._failed[call]

    def failed(
        self, step: Step, topic: str, partition: int, raw: RawRecord, error: BaseException, *, in_call: bool
    ) -> int:
        """A call has failed; returns how often by now. Raises CallAgain where it is made again. `in_call`: False where
        the record could not be read, which nothing but an error that waits tries again."""
        call = (step.name, topic, raw.offset, _which(raw))
        count = self._failed.get(call, 0) + 1
        is_retry, chosen = in_call and count <= step.retries, step.policy.of(error)
        if not is_retry and chosen == STOP:
            # Others keep what they have counted: batches before it are called once more before the stop counts.
            self._failed.pop(call, None)
            return count
        self._failed[call] = count
        if not is_retry and chosen != WAIT:
            return count
        waiting = None
        if not is_retry:
            shown = f"{type(error).__name__}: {text_of(error)}".rstrip(": ")
            waiting = Waiting(step.name, topic, partition, raw.offset, shown)
        raise CallAgain(_delay_s(step.backoff_s, count), waiting) from None


def _which(raw: RawRecord) -> object:
    """Of several calls for one record, and of those that are for none."""
    if not isinstance(raw, CallRecord):
        return None
    return raw.timestamp_ms, raw.key, raw.nth, tuple(sorted(raw.shown()[1].items()))


def _delay_s(backoff_s: float, count: int) -> float:
    """The pause after so many tries: it doubles up to a minute, or stays at a longer `backoff=`."""
    return float(min(backoff_s * 2 ** min(count - 1, _DOUBLINGS), max(MOST_BACKOFF_S, backoff_s)))


def behind(left: Iterable[tuple[str, RawRecord]], error: ProcessorFailed) -> list[tuple[str, RawRecord]]:
    """Of the records that are left those that are not the one that has failed."""
    return [(topic, raw) for topic, raw in left if (topic, raw.offset) != (error.topic, error.offset)]


def cannot_wait(waiting: Waiting, task: str) -> ProcessorFailed:
    """What a Driver raises where an error waits."""
    return ProcessorFailed(
        f"{waiting.processor} waits at {waiting.record} in task {task}: {waiting.error}; a Driver does not wait: "
        "send again once what it waits for is there",
        processor=waiting.processor,
        task=task,
        topic=waiting.topic,
        partition=waiting.partition,
        offset=waiting.offset,
    )
