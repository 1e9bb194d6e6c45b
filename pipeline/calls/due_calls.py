"""Which calls of what comes due are left out, because an operator said so (`orchestrator resume --skip`).

One rule: exactly that call is left out, also where its task begins anew before that is committed; the others that count with it
are made. A call is known by what it is of, and by the record or due thing that its task goes on behind. Kept by `passing`.
"""

from __future__ import annotations

from collections import deque

from pipeline.calls.steps import Step
from pipeline.errors import DueCallId, ProcessorFailed
from pipeline.time.position import Place, Position

_Made = tuple[Step, str, int, bytes | None]


class DueCalls:
    """Of one task: those of the open unit, and those to be left out."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._taken: deque[Place] = deque()  # where time had come with each take that is not settled
        self._committed = position.settled
        self._left_out: set[DueCallId] = set()
        self._made: list[_Made] = []  # in the open unit
        self._record: tuple[str, int, int] | None = None
        self._due: Place | None = None

    def leave_out(self, call: DueCallId) -> None:
        """Not to be made when it comes up. One that was is known by its place, and does not come up again."""
        if call.due is None or call.due > self._position.settled:
            self._left_out.add(call)

    def has_committed(self, call: DueCallId) -> bool:
        """Whether the store has what was done behind the due thing that a call counts with."""
        return call.due is not None and call.due <= self._committed

    # the open unit

    def of_record(self, topic: str, partition: int, offset: int) -> None:
        """The unit is that of a record."""
        if self._record != (topic, partition, offset):
            self._made.clear()
            self._record, self._due = (topic, partition, offset), None

    def of_due(self, place: Place) -> None:
        """The unit is that of something due."""
        self._record, self._due = None, place

    def ended(self) -> None:
        """The unit counts, or never was."""
        if self._made:
            self._made.clear()
        self._record = self._due = None

    def next(self, step: Step, name: str, at_ms: int, key: bytes | None) -> bool:
        """A call is next; whether it is to be made."""
        self._made.append((step, name, at_ms, key))
        return not self._left_out or self._latest() not in self._left_out

    def failed(self, error: ProcessorFailed) -> None:
        """The latest call stops its task."""
        error.due = self._latest()

    def _latest(self) -> DueCallId:
        made = self._made[-1]
        step, name, at_ms, key = made
        return DueCallId(step.name, name, at_ms, key, self._made.count(made), self._due, self._record)

    # commits

    def collected(self) -> None:
        """What has happened so far is taken."""
        self._taken.append(self._position.settled)

    def applied(self) -> None:
        """The stores have the oldest take that was not settled."""
        self._committed = self._taken.popleft()
