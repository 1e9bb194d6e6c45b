"""A worker's side of the group as a pure machine. `MemberMachine.step(event, now_ms) -> list[Effect]`.

One rule: a task runs only between a grant of the highest term seen and its release or loss; an epoch that was given
up never runs again. The life cycle of a held task is the table below. The shell (workers/) performs the effects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from msgspec.structs import replace

from orchestrator.member.events import (
    Assigned,
    ChangeRole,
    Close,
    DiskSeen,
    Drop,
    Dropped,
    Exit,
    FirstRecord,
    LeaveWanted,
    Measured,
    MemberEffect,
    MemberEvent,
    Noticed,
    Open,
    Progress,
    Reading,
    Rejoin,
    Release,
    ReleaseDone,
    Report,
    SessionOpened,
    Started,
    WriterLost,
)
from orchestrator.member.load_meter import UNITS, RateMeter, weigh
from orchestrator.member.recovery import Recovery
from orchestrator.model import Assignment, Copy, MemberStatus, ProcessingStarted, Released, Role, Settings, TaskId

UNNOTICED_MS = 5  # without an owner, on top of what a hand-over takes anyhow


class Held(StrEnum):
    """Where a held task is in its life."""

    COPYING = "copying"  # learner or standby: restores, then follows the changelog
    STARTING = "starting"  # granted: reads the last records of the changelog
    RUNNING = "running"  # processes
    RELEASING = "releasing"  # finishes its batch and commits


# The life cycle: (state, what happened) -> state; None means no longer held. Drawn in the docs from this table.
LIFE_CYCLE: dict[tuple[Held | None, str], Held | None] = {
    (None, "copy assigned"): Held.COPYING,
    (None, "granted"): Held.STARTING,
    (Held.COPYING, "granted"): Held.STARTING,
    (Held.COPYING, "unassigned"): None,
    (Held.STARTING, "caught up"): Held.RUNNING,
    (Held.STARTING, "revoked"): Held.RELEASING,
    (Held.STARTING, "lost"): None,
    (Held.RUNNING, "revoked"): Held.RELEASING,
    (Held.RUNNING, "lost"): None,
    (Held.RELEASING, "released, copy wanted"): Held.COPYING,
    (Held.RELEASING, "released"): None,
    (Held.RELEASING, "lost"): None,
    (Held.COPYING, "lost"): None,
}


@dataclass(slots=True)
class Holding:
    """A held task: its state, its role, the epoch of its grant (0 for copies), and how far its copy is."""

    state: Held
    role: Role
    epoch: int = 0
    position: int = 0
    end: int = 0
    ready: bool = False
    seen: bool = False
    read: int = 0  # bytes of a snapshot
    recovery: Recovery = field(default_factory=Recovery)

    @property
    def eta_ms(self) -> int | None:
        return self.recovery.eta_ms(self.position, self.end)


class MemberMachine:
    """What one worker holds, and what it reports to the group."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.term = 0
        self.obeyed = 0  # the term of the last assignment taken
        self.generation = 0
        self.held: dict[TaskId, Holding] = {}
        self.released: dict[TaskId, Released] = {}
        self.disk: dict[TaskId, int] = {}
        self.started: dict[TaskId, ProcessingStarted] = {}
        self.facts: dict[TaskId, tuple[int, int, int, int]] = {}
        self._taken: dict[TaskId, int] = {}  # the last epoch in which each was granted
        self.weights: dict[TaskId, int] = {}
        self._meter = RateMeter()
        self.assignment = Assignment(0, 0)
        self.leaving = False
        self.bounce = False
        self.notice = ""
        self.log_away = False
        self.finished = False

    def status(self) -> MemberStatus:
        """Everything the group may know, whole."""
        return MemberStatus(
            generation=self.generation,
            term=self.obeyed,
            active={t: h.epoch for t, h in self.held.items() if h.state is not Held.COPYING},
            copies={
                t: Copy(h.role, h.position, h.end, h.ready, h.eta_ms, h.seen, h.read)
                for t, h in self.held.items()
                if h.state is Held.COPYING
            },
            disk={t: p for t, p in self.disk.items() if t not in self.held},
            released=dict(self.released),
            ends={t: h.end for t, h in self.held.items() if h.end},
            started=dict(self.started),
            facts={t: f for t, f in self.facts.items() if t in self.held},
            weights={t: w for t, w in self.weights.items() if w != 1},
            leaving=self.leaving,
            bounce=self.bounce,
            notice=self.notice,
            log_away=self.log_away,
        )

    def step(self, event: MemberEvent, now_ms: int) -> list[MemberEffect]:
        """Take one event; return what is to be done."""
        match event:
            case Assigned(assignment):
                return self._assigned(assignment)
            case Started():
                return self._started(event)
            case FirstRecord(task, at_ms):
                holding = self.held.get(task)
                begun = self.started.get(task)
                if holding is not None and begun is not None and begun.epoch == holding.epoch:
                    self.started[task] = replace(begun, first_ms=at_ms)
                return [Report()]
            case ReleaseDone():
                return self._release_done(event)
            case Progress():
                return self._progress(event, now_ms)
            case Reading():
                self._reading(event, now_ms)
                return []
            case Measured(facts):
                self.facts = dict(facts)
                self._weigh(now_ms)
                return []
            case Dropped(tasks):
                return self._dropped(tasks)
            case WriterLost():
                return self._writer_lost()
            case DiskSeen(disk):
                changed = disk.keys() != self.disk.keys()
                self.disk = dict(disk)
                return [Report()] if changed else []
            case Noticed(notice, log_away):
                changed = (notice, log_away) != (self.notice, self.log_away)
                self.notice, self.log_away = notice, log_away
                return [Report()] if changed else []
            case SessionOpened(term):
                self.term = max(self.term, term)
                return []
            case LeaveWanted():
                self.leaving = True
                return [Report()]

    def _to(self, task: TaskId, what: str) -> Held | None:
        """Take the step of the life cycle that `what` names; an unknown one is a defect."""
        holding = self.held.get(task)
        state = LIFE_CYCLE[(holding.state if holding else None, what)]
        if state in (None, Held.COPYING):
            self.weights.pop(task, None)
        if state is None:
            self.held.pop(task, None)
            self.started.pop(task, None)
        elif holding is None:
            self.held[task] = Holding(state, Role.STANDBY)
        else:
            holding.state = state
        return state

    def _assigned(self, assignment: Assignment) -> list[MemberEffect]:
        if assignment.term < self.term:
            return []
        self.term = self.obeyed = assignment.term
        self.generation = assignment.generation
        self.assignment = assignment
        effects: list[MemberEffect] = []
        for task in sorted(self.held):
            effects += self._let_go(task, assignment)
        for task in [t for t in self.released if t not in assignment.release and t not in assignment.active]:
            del self.released[task]
        for task, epoch in sorted(assignment.release.items()):
            holding, proof = self.held.get(task), self.released.get(task)
            if (holding is None or holding.state is Held.COPYING) and (proof is None or proof.epoch < epoch):
                self.released[task] = Released(epoch)
        for task, epoch in sorted(assignment.active.items()):
            effects += self._take(task, epoch)
        for role, tasks in ((Role.LEARNER, assignment.learners), (Role.STANDBY, assignment.standbys)):
            for task in tasks:
                effects += self._copy(task, role)
        self._announce_the_others()
        effects.append(Report())
        if assignment.shutdown and not self.held:
            self.finished = True
            effects.append(Exit())
        return effects

    def _let_go(self, task: TaskId, assignment: Assignment) -> list[MemberEffect]:
        """What is no longer assigned: copies are closed, actives revoked (asked for) or lost (no longer ours)."""
        holding = self.held[task]
        if holding.state is Held.COPYING:
            wanted = task in assignment.learners or task in assignment.standbys or task in assignment.active
            if wanted:
                return []
            self._to(task, "unassigned")
            return [Close(task)]
        if assignment.active.get(task) == holding.epoch:
            return []
        if assignment.release.get(task) == holding.epoch:
            if holding.state is Held.RELEASING:
                return []
            self._to(task, "revoked")
            return [Release(task, holding.epoch)]
        self._to(task, "lost")
        return [Drop(task)]

    def _take(self, task: TaskId, epoch: int) -> list[MemberEffect]:
        given_up = self.released.get(task)
        if given_up is not None:
            if epoch <= given_up.epoch:
                return []
            del self.released[task]
        holding = self.held.get(task)
        if holding is not None and holding.state is not Held.COPYING:
            return []
        self._to(task, "granted")
        # An epoch that ran here before may have committed since: where the owner before it ended is over.
        ending = self.assignment.endings.get(task) if self._taken.get(task, 0) < epoch else None
        self._taken[task] = epoch
        effect: MemberEffect = (ChangeRole if holding else Open)(task, Role.ACTIVE, epoch, ending)
        holding = self.held[task]
        holding.role, holding.epoch, holding.ready = Role.ACTIVE, epoch, False
        if self.settings.weights != "given":
            self.weights[task] = self.assignment.weights.get(task, 1)
        return [effect]

    def _copy(self, task: TaskId, role: Role) -> list[MemberEffect]:
        holding = self.held.get(task)
        if holding is None:
            self._to(task, "copy assigned")
            self.held[task].role = role
            return [Open(task, role, 0)]
        if holding.state is Held.COPYING and holding.role is not role:
            holding.role = role
            if role is Role.STANDBY:
                holding.ready = False
                return [ChangeRole(task, role, 0)]
            self._announce(task)
            return [ChangeRole(task, role, 0)]
        return []

    def _started(self, event: Started) -> list[MemberEffect]:
        task = event.task
        holding = self.held.get(task)
        if holding is None or holding.state is not Held.STARTING:
            return []
        self._to(task, "caught up")
        self.started[task] = ProcessingStarted(holding.epoch, event.at_ms, from_ms=event.from_ms, awaited=event.awaited)
        return [Report()]

    def _release_done(self, event: ReleaseDone) -> list[MemberEffect]:
        task = event.task
        holding = self.held.get(task)
        if holding is None or holding.state is not Held.RELEASING:
            return []
        self.released[task] = Released(holding.epoch, event.last_ms, event.stopped_ms, event.ending)
        wanted = task in self.assignment.standbys or task in self.assignment.learners
        if wanted:
            self._to(task, "released, copy wanted")
            role = Role.STANDBY if task in self.assignment.standbys else Role.LEARNER
            holding.role, holding.epoch = role, 0
            holding.position = holding.end = event.position
            self.started.pop(task, None)
            return [ChangeRole(task, role, 0), Report()]
        self._to(task, "released")
        self.disk[task] = event.position
        return [Close(task), Report()]

    def _progress(self, event: Progress, now_ms: int) -> list[MemberEffect]:
        holding = self.held.get(event.task)
        if holding is None:
            return []
        if not holding.seen:
            holding.recovery.forget()
        holding.position, holding.end, holding.seen = event.position, event.end, True
        holding.recovery.note(event.position, event.end, now_ms)
        if holding.role is Role.LEARNER and not holding.ready and self._announce(event.task):
            return [Report()]
        return []

    def _reading(self, event: Reading, now_ms: int) -> None:
        """Reports progress, so that the copy is not given up; it does not count as close before its store is open."""
        holding = self.held.get(event.task)
        if holding is not None and holding.state is Held.COPYING and not holding.seen:
            far = event.end - self.settings.acceptable_recovery_lag - 1
            holding.position, holding.end, holding.read = max(0, min(event.position, far)), event.end, event.read
            holding.recovery.note(holding.position, event.end, now_ms)

    def _weigh(self, now_ms: int) -> None:
        kind = self.settings.weights
        if kind == "given":
            return
        for task, (_, size, records, _) in sorted(self.facts.items()):
            holding = self.held.get(task)
            if holding is None or holding.state is not Held.RUNNING:
                continue
            measured = self._meter.rate(task, holding.epoch, records, now_ms) if kind == "rate" else size
            if measured is not None:
                self.weights[task] = weigh(self.weights.get(task, 1), measured, UNITS[kind])

    def _is_finished(self, holding: Holding) -> bool:
        """Close enough to take over: by lag in positions, and by the time in which the task would have no owner. A restore that
        still gains is waited for: taking over then would cost a pause that a little patience avoids. Where the lag shrinks no
        more because of what is written meanwhile, a longer time is taken. A few positions may be a gigabyte: one that is too
        young for a rate, or is slow, is waited for."""
        lag = holding.end - holding.position
        if not holding.seen or lag <= 0:
            return holding.seen
        is_close = lag <= self.settings.acceptable_recovery_lag
        gap = holding.recovery.gap_ms(holding.position, holding.end)
        if gap is None:
            return is_close and holding.recovery.stands_still
        is_settled = holding.recovery.is_settled(holding.position, holding.end)
        if is_close:
            return gap <= UNNOTICED_MS or is_settled
        return gap <= self.settings.acceptable_recovery_time_ms and is_settled

    def _announce(self, task: TaskId) -> bool:
        """`eager`: each learner as it finishes; `conservative`: all of this worker's when the last has finished."""
        learners = [h for h in self.held.values() if h.state is Held.COPYING and h.role is Role.LEARNER]
        if self.settings.ready == "conservative":
            if not all(self._is_finished(h) for h in learners):
                return False
            for holding in learners:
                holding.ready = True
            return bool(learners)
        holding = self.held[task]
        holding.ready = self._is_finished(holding)
        return holding.ready

    def _announce_the_others(self) -> None:
        """Learners that had finished wait no more, if what they waited for went elsewhere, or the setting changed."""
        for task in sorted(self.held):
            holding = self.held[task]
            if holding.state is Held.COPYING and holding.role is Role.LEARNER and not holding.ready:
                self._announce(task)

    def _dropped(self, tasks: frozenset[TaskId]) -> list[MemberEffect]:
        effects: list[MemberEffect] = []
        for task in sorted(tasks):
            holding = self.held.get(task)
            if holding is None:
                continue
            if holding.epoch:
                self.released[task] = Released(holding.epoch)
            self._to(task, "lost")
            effects.append(Drop(task))
        return [*effects, Report()] if effects else []

    def _writer_lost(self) -> list[MemberEffect]:
        effects: list[MemberEffect] = []
        for task in sorted(self.held):
            self._to(task, "lost")
            effects.append(Drop(task))
        self.released.clear()
        self.started.clear()
        self.assignment = Assignment(0, self.term)
        self.obeyed = 0
        return [*effects, Rejoin()]
