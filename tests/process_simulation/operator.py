"""Who looks after a fleet from outside: starts it again when it has ended, mends the app, resumes tasks that are halted.

One rule: an operator sees what `status`, exit codes and the log show, and acts as the trouble's plan says.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from state.log.protocol import Partition
from tests.process_simulation.apps import policy
from tests.process_simulation.fates import FATES_OF_LIFE, HANGS, RAISES
from tests.process_simulation.judges import payment_id, records_of
from tests.process_simulation.process import DEAD
from workers.tasks import halts
from workers.tasks.halts import Halt

if TYPE_CHECKING:
    from tests.process_simulation.life import Life

LATER_S = 1.5  # what an operator takes to act
GONE = -1  # the number of a record that is not in the log any more
WAITS_S = 40.0  # how long the other tasks may take


class Operator:
    """See the module text."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._processed, self._moved = 0, 0.0  # how far the inputs were last, and since when
        self._seen: dict[tuple[str, str, str], float] = {}
        self._resumed: set[int] = set()  # records that were tried again as they are

    def mends_what_ended_the_fleet(self) -> bool:
        """The fleet has ended with 1: whether a record is to blame whose processor stops; it is mended."""
        life = self._life
        if policy(life.plan.application) != "stop" or life.plan.on_halt != "exit":
            return False
        numbers = {met.number for met in FATES_OF_LIFE.met} & FATES_OF_LIFE.of.keys()
        FATES_OF_LIFE.mend(numbers)
        return bool(numbers)

    async def look(self) -> bool:
        """Acts on the halts in the log; returns whether there are any."""
        found = await halts.read_all(self._life.log, self._life.plan.application)
        for task, halt in found.items():
            wrong = await self._look_at(task, halt)
            if wrong is not None:
                self._life.breaks(f"halt: {task} at {halt.record}: {wrong}")
        return bool(found)

    async def _look_at(self, task: str, halt: Halt) -> str | None:
        """Acts on one halt; returns what is wrong with it."""
        life, now = self._life, self._life.loop.time()
        key = task, halt.record, f"{halt.at_ms} {halt.skip}"
        number = self._record(halt)
        if key not in self._seen:
            self._seen[key] = now
            life.loop.tell(f"halted: {task} at {halt.record} (record {number})")
            if life.plan.on_halt != "continue" or policy(life.plan.application) != "stop":
                return "no task is to be halted here"
            if halt.skip and number == GONE:
                return None  # the skip was committed, and what nobody needs any more was removed
            if number not in {met.number for met in FATES_OF_LIFE.met}:
                return f"nothing is wrong with record {number}"
            if number in life.left_out and not halt.skip:
                return f"record {number} was to be skipped, and was called again"
            before = life.receipts.missing_before(halt.topic, halt.partition, halt.offset)
            trouble = FATES_OF_LIFE.of.get(number)
            if before and trouble is not None and trouble.fate == RAISES:
                return f"{before} before it are not committed"
        if halt.skip:
            return None
        life.until = max(life.until, now + 3.0)
        trouble = FATES_OF_LIFE.of.get(number)
        if now - self._seen[key] < LATER_S:
            return None
        if trouble is not None and trouble.waits and await self._others_wait(task):
            if (processed := await life.processed()) > self._processed:
                self._processed, self._moved = processed, now
            still = now - max(self._seen[key], life.quiet, self._moved) > WAITS_S
            return "the other tasks do not go on" if still else None
        await self._act(task, halt, number)
        return None

    async def _act(self, task: str, halt: Halt, number: int) -> None:
        life, application = self._life, self._life.plan.application
        trouble = FATES_OF_LIFE.of.get(number)
        if trouble is not None and trouble.way.startswith("skip"):
            if trouble.way == "skip and kill":
                for process in life.processes:
                    if "." in process.name and process.state != DEAD:
                        life.loop.call_later_always(life.chance.random(), process.signal, signal.SIGKILL)
                life.until = max(life.until, life.loop.time() + 5.0)
            life.loop.tell(f"resume {task} --skip: record {number}")
            life.receipts.may_be_left_out.add(number)
            life.left_out.add(number)
            await halts.take_back(life.log, application, task, halts.encode(halt), skip=True)
            return
        if trouble is not None and (trouble.way != "again" or number in self._resumed or trouble.fate != RAISES):
            FATES_OF_LIFE.mend({number})
        self._resumed.add(number)
        life.loop.tell(f"resume {task}: record {number}")
        await halts.take_back(life.log, application, task, halts.encode(halt), skip=False)

    def _record(self, halt: Halt) -> int:
        for record in records_of(self._life.log, Partition(halt.topic, halt.partition)):
            if record.offset == halt.offset:
                return payment_id(record.value)
        return GONE

    async def _others_wait(self, task: str) -> bool:
        """Whether inputs of other tasks are not processed yet; those of halted tasks are not looked at."""
        halted = await halts.read_all(self._life.log, self._life.plan.application)
        numbers = {int(one.partition("_")[2]) for one in (task, *halted)}
        ends = await self._life.inputs()
        positions = await self._life.log.positions(self._life.plan.application, list(ends))
        return any(positions.get(p, 0) < end for p, end in ends.items() if p.number not in numbers)


def left_out_by_policy(life: Life) -> set[int]:
    """Records that the policy of their processor may leave out of the outputs."""
    if policy(life.plan.application) == "stop":
        return set()
    short = life.plan.max_call_ms < 100_000
    return {t.number for t in life.plan.troubles if t.fate != HANGS or short}
