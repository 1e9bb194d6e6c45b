"""The judge of what a failure costs: every end of a process, and every task that is given up, is one that docs/failures.md
allows for what befell the life.

One rule: an end needs a reason from outside of the product (a signal, a request, a trouble of a record, a log that was
away), and the reason must allow an end of that kind: a worker's, an instance's, or the fleet's.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from state.errors import PositionOutOfRange, Refused
from state.log.protocol import TaskCommit
from tests.process_simulation.apps import ASYNC, policy
from tests.process_simulation.fates import CRASHES, EXIT_CODE, EXITS, FATES_OF_LIFE, HANGS, RAISES
from tests.process_simulation.process import DEAD, Process
from workers.spec import FAILED_APP, OVERDUE, REPORTED

if TYPE_CHECKING:
    from tests.process_simulation.life import Life

LOG_TIMED_OUT = 6
CALM = ("leave", "join", "grow", "clock", "lose-note", "tear-note", "client-away")  # these cost no call
OVERDUE_MS = 2_000  # what it takes at most to notice a call
BREAK_S = 3.0  # calls that wait between two tries do not notice that the log was there for less
NOTICED_S = 6.0  # a log that was away for so much longer than its timeout has ended the fleet
GIVES_UP_S = 14.0  # an orderly stop ends with a kill after so long, at the earliest
ENDS_OF_A_RECORD = 2  # of a worker that meets it: once unaware, once with a note


class Blast:
    """See the module text."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._away: list[tuple[float, float]] = []  # when the log could not be used, in seconds
        self._may_give_up: set[tuple[str, str]] = set()  # (process, task)
        self._ends: dict[tuple[str, int], int] = {}  # of workers, by (worker, record)
        self.notes_lost = 0
        self.ended_by_the_log: list[float] = []

    # ---- what befell

    def log_is_away(self, seconds: float) -> None:
        now = self._life.loop._now
        self._away.append((now, now + seconds))

    def not_committed(self, process: Process, parts: Sequence[TaskCommit], error: Exception | None) -> None:
        """A commit that cost its tasks, or those that were refused."""
        scopes = error.scopes if isinstance(error, Refused) else {part.scope for part in parts}
        self._may_give_up |= {(process.name, scope) for scope in scopes}

    def cannot_be_read(self, process: Process, error: PositionOutOfRange) -> None:
        number = error.partition[1]
        self._may_give_up |= {(process.name, f"{sub}_{number}") for sub in (0, 1)}

    def was_away_s(self) -> float:
        """For how long the log has been away, up to now or until a moment ago."""
        now, begun, ended = self._life.loop._now, None, 0.0
        for since, until in sorted(self._away):
            if begun is None or since > ended + BREAK_S:
                begun, ended = since, until
            ended = max(ended, until)
        if begun is None or now > ended + BREAK_S:
            return 0.0
        return min(now, ended) - begun + 0.5

    @property
    def _log_gave_out(self) -> bool:
        return self.was_away_s() >= self._life.plan.log_timeout_ms / 1000

    # ---- judging

    def given_up(self, process: Process, task: str) -> None:
        """A worker gives up a task without a release."""
        known = (process.name, task) in self._may_give_up or (process.name, task) in self._life.disk.unwritten
        if not known and not self._log_gave_out:
            self._life.breaks(f"blast: {process.name} gives up {task}, and nothing befell it")

    def ended(self, process: Process) -> None:
        why = self._worker(process) if "." in process.name else self._instance(process)
        if why is not None:
            self._life.breaks(f"blast: {process.name} ended with {process.code}: {why}")

    def _worker(self, process: Process) -> str | None:
        code, parent = process.code, process.parent
        assert code is not None and parent is not None
        if code == REPORTED:
            asked = process.requests or process.signals or self._life.leaves or parent.state == DEAD
            return None if asked else "nobody asked it to"
        if code == 1 and parent.state == DEAD:
            return None
        if code == REPORTED + LOG_TIMED_OUT:
            return None if self._log_gave_out else "the log was not away for --log-timeout"
        if code == REPORTED + FAILED_APP:
            return None if self._stops(process) else "no processor of it has failed"
        if process.is_killed_by_parent:
            return self._killed_by_parent(process, parent)
        if code == -signal.SIGSEGV or code == EXIT_CODE:
            return self._by_a_record(process, EXITS if code == EXIT_CODE else CRASHES)
        if code == REPORTED + OVERDUE:
            return self._by_a_record(process, HANGS)
        return None if code < 0 and -code in process.signals else "no failure allows that"

    def _killed_by_parent(self, process: Process, parent: Process) -> str | None:
        stopped = signal.SIGSTOP in process.signals
        late = parent.asked_at is not None and self._life.loop._now - parent.asked_at >= GIVES_UP_S
        return None if stopped or late or len(parent.signals) > 1 else "its instance killed it"

    def _by_a_record(self, process: Process, fate: str) -> str | None:
        """A record that ends its process is found: it does not go on to do so."""
        met = [one.number for one in FATES_OF_LIFE.met if one.process == process.name and one.fate == fate]
        if not met:
            return "no record of it does that"
        key = (process.name, met[-1])
        self._ends[key] = self._ends.get(key, 0) + 1
        ends = sum(
            s in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM) for p in self._life.processes for s in p.signals
        )
        allowed = ENDS_OF_A_RECORD * (
            1 + self.notes_lost + ends + self._life.restarts
        )  # an instance forgets what it found
        return None if self._ends[key] <= allowed else f"record {met[-1]} has ended it {self._ends[key]} times"

    def _stops(self, process: Process) -> bool:
        """Whether the fleet is to end because of a record that this worker met."""
        life = self._life
        if policy(life.plan.application) != "stop" or life.plan.on_halt != "exit":
            return False
        return any(m.process == process.name and m.fate in (RAISES, HANGS) for m in FATES_OF_LIFE.met)

    def _instance(self, process: Process) -> str | None:
        code = process.code
        assert code is not None
        if code == 0:
            asked = process.requests or process.signals or self._life.leaves or process.parent_is_dead
            return None if asked else "nobody asked it to"
        if code == LOG_TIMED_OUT:
            return None if self._log_gave_out else "the log was not away for --log-timeout"
        if code == FAILED_APP:
            stops = policy(self._life.plan.application) == "stop" and self._life.plan.on_halt == "exit"
            here = any(met.process.partition(".")[0] == process.name for met in FATES_OF_LIFE.met)
            return None if stops and here else "no processor of it has failed"
        return None if code < 0 and (-code in process.signals) else "no failure allows that"

    def at_the_end(self) -> str | None:
        """What a life shows only as a whole."""
        plan = self._life.plan
        if FATES_OF_LIFE.undone and not plan.troubles and all(fault.kind in CALM for fault in plan.faults):
            return f"blast: calls of {FATES_OF_LIFE.undone} were undone, and nothing befell them"
        hung = {t.number for t in plan.troubles if t.fate == HANGS and t.for_ms >= plan.max_call_ms + OVERDUE_MS}
        met = hung & {met.number for met in FATES_OF_LIFE.met}
        ended = any(process.code == REPORTED + OVERDUE for process in self._life.processes)
        if met and not ended and not plan.faults and plan.application not in ASYNC:
            return f"blast: the call of {met} lasted longer than --max-call, and nobody noticed"
        return None

    def look_whether_it_gave_up(self, fleet: Process, lasted_ms: int) -> None:
        """After the log was away: a fleet that was there all the time has ended, if that was for longer than --log-timeout."""
        life = self._life
        if life.broken or life.stopping or lasted_ms / 1000 < life.plan.log_timeout_ms / 1000 + NOTICED_S:
            return
        was_there = life.loop._now - fleet.since > lasted_ms / 1000 + 3.0 and fleet.state != DEAD
        troubled = any(p.signals for p in life.processes)
        if was_there and not troubled:
            life.breaks(f"blast: the log was away for {lasted_ms} ms, and the fleet goes on as if that were nothing")
