"""How long a sync call of user code lasts, seen from beside it.

One rule: the record loop pays for it once a turn. A turn names its records, TaskProcess counts those it has finished, and
a reader that finds the same count twice knows which record is being processed, and since when. Read by the thread
that keeps the connection to the coordinator alive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.names import counted
from pipeline.process import TaskProcess
from pipeline.records import TICK, RawRecord
from workers.calls.blame import TURN_S as TURN_S  # of a turn
from workers.calls.blame import Blame, due_blame

NOTICED_S = 1.0
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Records of a task that are given to its processors one after the other; a batch gets all of them."""

    scope: str
    process: TaskProcess
    records: Sequence[tuple[str, RawRecord]]  # a list, which grows while calls overlap
    is_careful: bool = False


class CallWatch:
    """Looks at the turn under way; `clock` in seconds. `overdue` is called with a call that lasts longer than `max_call_s`.
    The count is read every `look_s` at least while this process runs: of a longer time between two looks no more counts,
    because the process stood still (SIGSTOP, a paused container)."""

    def __init__(
        self,
        clock: Callable[[], float],
        max_call_s: float = math.inf,
        overdue: Callable[[Turn], None] = lambda turn: None,
        look_s: float = math.inf,
    ) -> None:
        self._clock = clock
        self._max_call_s = max_call_s
        self._overdue = overdue
        self._look_s = look_s
        self._seen: tuple[Turn, int] | None = None
        self._looked_at = 0.0
        self._lasts = 0.0

    def look(self, turn: Turn | None) -> str:
        """A sentence on the call that has lasted for more than a second since it was first seen; "" without one."""
        now = self._clock()
        passed, self._looked_at = min(now - self._looked_at, self._look_s), now
        if turn is None:
            self._seen = None
            return ""
        seen = turn, turn.process.finished
        if self._seen is None or self._seen[0] is not seen[0] or self._seen[1] != seen[1]:
            self._seen, self._lasts = seen, 0.0
            return ""
        self._lasts += passed
        if self._lasts > self._max_call_s:
            self._overdue(turn)
        return f"{describe(turn)} has lasted {self._lasts:.0f} s" if self._lasts >= NOTICED_S else ""


def is_of_one_record(turn: Turn) -> bool:
    """Whether the call under way is one record's, or of what came due; one of a batch does not tell which of its records lasts."""
    if turn.process.due_calls is not None and turn.process.due_calls.under_way is not None:
        return True
    waited = len(turn.process.answering.batch)
    return waited == 1 or len(turn.records) == 1 or (not waited and turn.process.finished < len(turn.records))


def blame(turn: Turn, reason: str = "") -> Blame:
    """The record whose call is under way, of a batch its last one; or the call of what came due before it, or from it."""
    process = turn.process
    if process.due_calls is not None and (call := process.due_calls.under_way) is not None:
        return due_blame(turn.scope, process.partition, call, reason)
    topic, record = process.answering.record or turn.records[min(process.finished, len(turn.records) - 1)]
    if batch := process.answering.batch:  # it may be called before all records of the turn are read
        topic, record, _ = batch[-1]
    name = process.answering.under_way
    names = (name,) if name else () if topic == TICK else tuple(process.answering.processors_of(topic))
    return Blame(turn.scope, topic, process.partition, record.offset, names, reason)


def describe(turn: Turn) -> str:
    """Which call is under way: `the call of settle with payments-3@17 in task 0_3`."""
    size, found = _batch_size(turn), blame(turn)
    names = " or ".join(found.processors)
    place = f"{found.shown} in task {turn.scope}"
    if found.due is None and size:
        return f"the call of {names} with a batch of {counted(size, 'record')} up to {place}"
    return f"the call of {names} with {place}"


def _batch_size(turn: Turn) -> int:
    """Of the batch that is being processed; 0 where none is."""
    if waited := len(turn.process.answering.batch):
        return waited
    return len(turn.records) if turn.process.finished >= len(turn.records) else 0


class CallWatches(Generic[K]):
    """A watch for each of several turns of calls that overlap."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._watches: dict[K, CallWatch] = {}

    def look(self, turns: Mapping[K, Turn]) -> list[str]:
        """A line for each call that lasts."""
        for gone in self._watches.keys() - turns.keys():
            del self._watches[gone]
        watches = [(self._watches.setdefault(key, CallWatch(self._clock)), turn) for key, turn in turns.items()]
        return [text for watch, turn in watches if (text := watch.look(turn))]
