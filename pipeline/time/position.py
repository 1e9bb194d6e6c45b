"""How far a task's time has come, to the call. One rule: it only goes forward, except where a unit is undone.

What is due happens in the order of (time, order, key): its time, the order of declaration of what it belongs to, the
bytes of its key. The position is the last one that has happened; a record of time t lies before everything due at t.
It is stored with every table of the task that keeps time, so that an interrupted task goes on with the very next call; with
each as it stands to that table's own order, since a new version of the app may declare other tables before it.
"""

from __future__ import annotations

from pipeline.tables.expiry import BEFORE_ALL_MS

_TIME_BYTES, _ORDER_BYTES = 8, 4
ORDERS = 3  # of each definition: a join's left side comes before its right one, and both before what is behind them
_ALL = ORDERS - 1  # behind all that a definition has at a time
BEFORE_DUE = -1  # the order of a record: before all that is due at its time

Place = tuple[int, int, bytes]


class Position:
    """Of one task. `reached` is (time in ms, order, key); `settled` the one after the last unit that counts."""

    __slots__ = ("reached", "settled", "target_ms")

    def __init__(self) -> None:
        self.reached: Place = (BEFORE_ALL_MS, BEFORE_DUE, b"")
        self.settled = self.reached
        self.target_ms = BEFORE_ALL_MS  # where time is going: what is due before happens first

    def start(self, stored: bytes | None, order: int) -> None:
        """A table of the task, of this order, has kept this one: the furthest counts."""
        found = read(stored, order)
        if found > self.reached:
            self.reached = self.settled = found
            self.target_ms = self.reached[0]

    def come_to(self, at_ms: int) -> None:
        """Time has come to here, without a record."""
        self.reach((at_ms, BEFORE_DUE, b""))
        self.settle()
        self.target_ms = max(self.target_ms, at_ms)

    @property
    def time_ms(self) -> int:
        return self.reached[0]

    def reach(self, place: Place) -> None:
        if place > self.reached:
            self.reached = place

    def settle(self) -> None:
        """What has happened counts."""
        self.settled = self.reached

    def undo(self) -> None:
        """What has happened since it was settled never was."""
        self.reached = self.settled

    def has_passed(self, at_ms: int, order: int) -> bool:
        """Whether what belongs to this time and order is over, for every key."""
        reached_ms, reached_order, _ = self.reached
        return at_ms < reached_ms or (at_ms == reached_ms and order <= reached_order)


def stored(place: Place, order: int) -> bytes:
    """A position as bytes, for a table of this order; they begin with the time, as those of an expiring table do. What belongs to
    other tables is before all of its own, or behind it."""
    at_ms, reached, key = place
    head, own = at_ms.to_bytes(_TIME_BYTES, "big", signed=True), min(reached - order, _ALL)
    if own < 0:
        return head
    return head + own.to_bytes(_ORDER_BYTES, "big") + (key if own < _ALL else b"")


def read(raw: bytes | None, order: int = 0) -> Place:
    """The position that bytes of a table of this order hold; without any, the one before all."""
    if raw is None:
        return BEFORE_ALL_MS, BEFORE_DUE, b""
    at_ms = int.from_bytes(raw[:_TIME_BYTES], "big", signed=True)
    if len(raw) == _TIME_BYTES:
        return at_ms, BEFORE_DUE, b""
    end = _TIME_BYTES + _ORDER_BYTES
    return at_ms, order + int.from_bytes(raw[_TIME_BYTES:end], "big"), raw[end:]
