"""Which calls of what comes due are left out, because an operator said so (`orchestrator resume --skip`), or because they ended
their process.

One rule: exactly that call is left out, also where its task begins anew before that is committed; the others that count with it
are made. A call is known by what it is of, and by the record or due thing that its task goes on behind. Kept by `passing`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pipeline.calls.steps import Step
from pipeline.errors import CallLost, DueCallId, ProcessorFailed
from pipeline.time.position import Place, Position

_Made = tuple[Step, str, int, bytes | None]


class DueCalls:
    """Of one task: those of the open unit, and those to be left out. `note` is called before each of them, and when it has
    ended: whether one is under way."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._taken: deque[tuple[Place, tuple[DueCallId, ...]]] = (
            deque()
        )  # where time had come with each take that is not settled, and the calls in it that are kept
        self.are_kept = False  # the calls of each take, one unit in each: one of them writes what the log does not take
        self._kept: list[DueCallId] = []
        self._committed = position.settled
        self._left_out: set[DueCallId] = set()
        self._lost: dict[DueCallId, CallLost] = {}
        self.note: Callable[[bool], None] | None = None
        self._is_under_way = False
        self._made: dict[_Made, int] = {}  # in the open unit, and how often
        self._last: _Made | None = None
        self._record: tuple[str, int, int] | None = None
        self._due: Place | None = None

    def leave_out(self, call: DueCallId) -> None:
        """Not to be made when it comes up. One that was is known by its place, and does not come up again."""
        if call.due is None or call.due > self._position.settled:
            self._left_out.add(call)

    def lose(self, call: DueCallId, why: CallLost) -> None:
        """It ended its process, or lasted too long: not to be made again; its policy decides."""
        self._lost[call] = why

    def lost(self) -> CallLost | None:
        """Why the next call, which is to be made, is not: None where it is."""
        return self._lost.get(self._latest()) if self._lost else None

    def has_committed(self, call: DueCallId) -> bool:
        """Whether the store has what was done behind the due thing that a call counts with."""
        return call.due is not None and call.due <= self._committed

    # the open unit

    def of_record(self, topic: str, partition: int, offset: int) -> None:
        """The unit is that of a record."""
        self._none_under_way()
        if self._record != (topic, partition, offset):
            self._made.clear()
            self._record, self._due = (topic, partition, offset), None

    def of_due(self, place: Place) -> None:
        """The unit is that of something due."""
        self._record, self._due = None, place

    def ended(self) -> None:
        """The unit counts, or never was."""
        if self._made:
            self._none_under_way()
            self._made.clear()
        self._record = self._due = None

    def next(self, step: Step, name: str, at_ms: int, key: bytes | None) -> bool:
        """A call is next; whether it is to be made."""
        self._last = made = (step, name, at_ms, key)
        self._made[made] = self._made.get(made, 0) + 1
        if self._left_out and self._latest() in self._left_out:
            return False
        self._is_under_way = True
        if self.are_kept:
            self._kept.append(self._latest())
        if self.note is not None:
            self.note(True)
        return True

    @property
    def nth(self) -> int:
        """Which of the calls of the open unit that are known by the same the latest is."""
        return 1 if self._last is None else self._made.get(self._last, 1)

    @property
    def under_way(self) -> DueCallId | None:
        """The call that is under way; None where it is one of a record, or none."""
        return self._latest() if self._is_under_way else None

    def _none_under_way(self) -> None:
        if self._is_under_way:
            self._is_under_way = False
            if self.note is not None:
                self.note(False)

    def failed(self, error: ProcessorFailed) -> None:
        """The latest call stops its task."""
        error.due = self._latest()

    def _latest(self) -> DueCallId:
        assert self._last is not None
        step, name, at_ms, key = self._last
        return DueCallId(step.name, name, at_ms, key, self.nth, self._due, self._record)

    # commits

    def collected(self) -> None:
        """What has happened so far is taken."""
        self._taken.append((self._position.settled, tuple(self._kept)))
        self._kept.clear()

    def of_first_take(self) -> tuple[DueCallId, ...]:
        """The calls in the oldest take that is not settled, where they are kept."""
        return self._taken[0][1] if self._taken else ()

    def applied(self) -> None:
        """The stores have the oldest take that was not settled."""
        self._committed, _ = self._taken.popleft()
