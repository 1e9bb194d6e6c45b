"""What is wrong with single records: the record's processor raises, ends its process, or hangs, until somebody mends it.

One rule: what a record does follows from its number and the plan. Processors ask here before they do anything; the
operator of a life mends here, as a corrected app would.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tests.process_simulation.process import ProcessGone, current

RAISES, EXITS, CRASHES, HANGS = "raises", "exits", "crashes", "hangs"
FATES = (RAISES, EXITS, CRASHES, HANGS)
EXIT_CODE = 3


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with one record, by its id. `way`: what an operator does about a task that it halted: "mend" the app and
    resume, "skip" it, "skip and kill": the workers are killed soon after, or "again": resume without a change first, then
    mend. `waits`: only once everything else is done."""

    number: int
    fate: str
    way: str = "mend"
    waits: bool = False
    for_ms: int = 0  # how long it hangs


class ClientAway(ConnectionError):
    """What a client raises that is away."""


class RecordFailed(Exception):
    """What a processor raises."""


@dataclass(frozen=True, slots=True)
class Met:
    """A call that came to a record with a trouble."""

    number: int
    fate: str
    process: str
    at: float


class Fates:
    """The troubles of the life that is lived."""

    def __init__(self) -> None:
        self.begin(())

    def begin(self, troubles: Sequence[Trouble]) -> None:
        self.of = {trouble.number: trouble for trouble in troubles}
        self.met: list[Met] = []
        self.away_until = 0.0  # the client of all processors
        self.undone: list[int] = []  # records whose call was undone in a process that nobody had asked to end

    def mend(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self.of.pop(number, None)

    def reach_client(self) -> None:
        """Raises ClientAway."""
        if asyncio.get_running_loop().time() < self.away_until:
            raise ClientAway("nobody answers")

    def undo(self, number: int) -> None:
        process = current()
        if not process.requests:
            self.undone.append(number)

    def meet(self, number: int) -> float:
        """What befalls the call; returns for how many seconds it hangs. Raises RecordFailed, ProcessGone."""
        trouble = self.of.get(number)
        if trouble is None:
            return 0.0
        process, loop = current(), asyncio.get_running_loop()
        self.met.append(Met(number, trouble.fate, process.name, loop.time()))
        process.loop.tell(f"{process.name}: record {number} {trouble.fate}")
        if trouble.fate == RAISES:
            raise RecordFailed(f"record {number}")
        if trouble.fate == HANGS:
            return trouble.for_ms / 1000
        process.end(EXIT_CODE if trouble.fate == EXITS else -signal.SIGSEGV)
        raise ProcessGone(process.name)


FATES_OF_LIFE = Fates()
