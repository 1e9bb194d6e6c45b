"""Numbers in the open windows of a table, at hand while calls follow each other: read and set without an entry's bytes.

One rule: a number at hand is what the running call would read. Whatever reads or writes an entry in another way makes it give way
first: what was set is written, and that number goes. A window that began behind everything that was met before is whole: what
is not at hand is nowhere, and `known` has nothing of it, only the layers do. `window_view` owns one; `window_tables` asks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.tables.expiry import BEFORE_ALL_MS
from pipeline.tables.write_layers import WriteLayers
from pipeline.time.expiring import Expiring

MOST = 30_000  # numbers at hand of one table of a task


class Numbers(dict[bytes, Any]):
    """Of one window, by the bytes of the key. `is_whole`: the window has no others."""

    __slots__ = ("head", "is_whole", "start_ms")

    def __init__(self, start_ms: int, head: bytes, *, is_whole: bool) -> None:
        super().__init__()
        self.start_ms = start_ms
        self.head = head  # of the entries' keys, before that of the user
        self.is_whole = is_whole


class NumbersAtHand:
    """`number` is the type of the values, None where they may change in place; `pack` makes bytes of one."""

    def __init__(
        self, number: type | None, pack: Callable[[Any], bytes], layers: WriteLayers, expiring: Expiring
    ) -> None:
        self.of_calls: type | None = None  # `number` while calls follow each other without a commit
        self.is_used = False  # they have followed each other
        self.windows: dict[int, Numbers] = {}  # by start
        self.noted: list[
            tuple[Numbers, bytes, Any]
        ] = []  # what was set and is no entry yet: where, and what was there before
        self._number, self._pack = number, pack
        self._layers, self._expiring = layers, expiring
        self._ended = 0  # so many of these are of calls that have ended,
        self._ended_ms = BEFORE_ALL_MS  # the last of them at this time

    def gather(self, does: bool) -> None:
        self.of_calls = self._number if does else None
        self.is_used = self.is_used or self.of_calls is not None

    # the running call

    @property
    def is_touched(self) -> bool:
        """Whether the running call has set a number here."""
        return len(self.noted) > self._ended

    def end_call(self, timestamp_ms: int) -> None:
        """What it has set counts."""
        self._ended, self._ended_ms = len(self.noted), timestamp_ms

    def forget_call(self) -> None:
        """It has set nothing."""
        while len(self.noted) > self._ended:
            numbers, data, before = self.noted.pop()
            if before is None:
                del numbers[data]
            else:
                numbers[data] = before

    # giving way

    def spill(self) -> dict[bytes, Any]:
        """What ended calls have set is written. Returns what the running one has set, by entry: it is in other hands now."""
        mine = [(numbers, data, numbers[data]) for numbers, data, _ in self.noted[self._ended :]]
        self.forget_call()
        pack = self._pack
        written = {numbers.head + data: pack(numbers[data]) for numbers, data, _ in self.noted}
        self._layers.put_unknown(written, self._ended_ms)
        if not all(numbers.is_whole for numbers in self.windows.values()):
            others = {numbers.head + data for numbers, data, _ in self.noted if not numbers.is_whole}
            self._layers.known.update((k, written[k]) for k in others)
        self.noted.clear()
        self._ended = 0
        for numbers, data, _ in mine:
            self.let_go(numbers)
            numbers.pop(data, None)
        return {numbers.head + data: value for numbers, data, value in mine}

    def let_go(self, numbers: Numbers) -> None:
        """A window is not whole any more. Of ended calls nothing is noted there."""
        if numbers.is_whole:
            numbers.is_whole = False
            self._expiring.add_all(numbers.start_ms, map(numbers.head.__add__, numbers))

    def let_go_of_all(self) -> None:
        """Many entries are about to be read in another way. Nothing is noted."""
        for numbers in self.windows.values():
            self.let_go(numbers)
        for layer in self._layers.written():
            self._layers.known.update(layer)

    def drop(self, until_ms: int) -> None:
        """No window that begins before a time is at hand any more. Nothing is noted."""
        for start_ms in [start_ms for start_ms in self.windows if start_ms < until_ms]:
            numbers = self.windows.pop(start_ms)
            self.let_go(numbers)
            numbers.clear()  # whoever still has it finds nothing

    def is_too_much(self) -> bool:
        return sum(map(len, self.windows.values())) > MOST
