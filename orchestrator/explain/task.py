"""Why a task is where it is, and what it waits for, in sentences.

One rule: reads the group, decides nothing; every sentence is true, names who, and by which setting. `explain_task` asks
the questions in the order in which the group answers them: versions, owner, hand-over, what the owner waits for, copies, balance. What concerns
load is in load.py, what holds up the whole group in planning.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.durations import show_duration
from orchestrator.explain.load import Load
from orchestrator.explain.planning import Barrier, is_given_up, some, time_left
from orchestrator.explain.planning import why_not_planned as why_not_planned
from orchestrator.group import partition_growth
from orchestrator.group.assignments import waits_for_hand_over
from orchestrator.group.convergence import holder_of
from orchestrator.group.members import Member, is_released
from orchestrator.group.phases import absent_transactional_ids
from orchestrator.group.state import GroupState, Move
from orchestrator.group.takeovers import is_known_gone
from orchestrator.group.timeouts import replaceable, replaced_after_ms
from orchestrator.model import TaskId


def explain_task(
    group: GroupState, task: TaskId, names: Mapping[TaskId, str] | None = None
) -> tuple[list[str], list[str]]:
    """(why it is there, what it waits for)."""
    called = names or {}
    if task in group.pending_tasks:
        return _pending(group, task, called.get(task, str(task)))
    if task not in group.tasks:
        return _unknown(group, task, called.get(task, str(task)))
    about = _About(group, task, called)
    return [*about.owned(), *about.copies(), *about.balance()], [
        *about.handed_over(),
        *about.begun(),
        *about.noticed(),
        *about.kept_for_owner(),
        *about.learned(),
        *about.load_waits(),
        *about.held_up(),
    ]


def _pending(group: GroupState, task: TaskId, name: str) -> tuple[list[str], list[str]]:
    left = time_left(
        group.pending_tasks[task] + partition_growth.HEARTBEATS * group.settings.heartbeat_ms, group.last_step_ms
    )
    reason = why_not_planned(group, group.last_step_ms)
    return [f"{name} is new: a topic grew"], [
        f"it waits until all members that will have it have said so, and at most {left}",
        *([reason] if reason else []),
    ]


def _unknown(group: GroupState, task: TaskId, name: str) -> tuple[list[str], list[str]]:
    why = [f"{name} is in no version of the app of those who stay; it comes back with a member whose version has it"]
    owner = group.owners.get(task)
    if task in group.recording:
        return why, [f"the log is being told that nobody has {name} any more"]
    if owner is None or not owner.writer:
        return why, []
    if owner.writer in group.fencing:
        return why, [f"{name} waits for the log to fence {owner.member}"]
    if owner.writer in absent_transactional_ids(group):
        left = time_left(group.started_ms + group.settings.rejoin_grace_ms, group.last_step_ms)
        return why, [f"{owner.member}, its last owner, is fenced if it has not come back in {left} (rejoin_grace)"]
    since_ms = group.retiring.get(task, group.last_step_ms)
    left = time_left(since_ms + group.settings.release_timeout_ms, group.last_step_ms)
    return why, [f"{owner.member} is fenced if it is silent and has not given {name} up in {left} (release_timeout)"]


def is_silent(group: GroupState, member: Member) -> bool:
    """Whether a member's connection has ended, or it has missed heartbeats."""
    return member.session is None or member.silent_for(group.last_step_ms) > 2 * group.settings.heartbeat_ms


class _About:
    """The sentences about one task of the group."""

    def __init__(self, group: GroupState, task: TaskId, names: Mapping[TaskId, str]) -> None:
        self.group = group
        self.task = task
        self.names = names
        self.name = self.called(task)
        self.now_ms = group.last_step_ms
        self.owner = group.owners.get(task)
        self.holder = holder_of(group, task)
        self.move = group.moves.get(task)
        self.learner = group.members.get(group.learners.get(task, ""))
        self.load = Load(group, task, self.name)
        self.fenced = self.owner is not None and self.owner.writer in group.fencing
        self.changes = self.move is not None or task in group.recording or self.fenced

    def called(self, task: TaskId) -> str:
        return self.names.get(task, str(task))

    def _left(self, until_ms: int) -> str:
        return time_left(until_ms, self.now_ms)

    # ---- why it is there

    def owned(self) -> Iterator[str]:
        name, owner, holder = self.name, self.owner, self.holder
        if owner is None:
            yield f"{name} has never had an owner"
        elif not owner.writer:
            yield f"{name} has no owner since epoch {owner.epoch}: {owner.member}, its last one, was fenced or let it go"
        elif holder is None or self.fenced:
            yield f"{name} belongs to {owner.member} since epoch {owner.epoch}, as the log says"
        elif is_released(owner, holder):
            yield f"{name} is active nowhere: {owner.member}, which had it since epoch {owner.epoch}, has given it up"
        else:
            yield f"{name} is active on {owner.member} since epoch {owner.epoch}"

    def copies(self) -> Iterator[str]:
        group, name = self.group, self.name
        if self.learner is not None:
            learner, why = self.learner.name, self.load.why_learned(self._keeper(), self.learner)
            if waits_for_hand_over(group, self.task):
                yield f"{learner} is to learn {name}, and begins when the hand-over under way is done{why}"
            else:
                yield f"{learner} is learning {name}{why}"
        standbys = group.standbys.get(self.task, ())
        for member in filter(None, map(group.members.get, standbys)):
            copy = member.status.copies.get(self.task)
            if copy is None:
                yield f"{member.name} is to keep a standby of {name}"
            else:
                behind = f", {copy.lag} behind" if copy.lag > self._lag_max() else ""
                yield f"{member.name} keeps a standby of {name}{behind}"
        wanted = group.settings.standbys if group.tasks[self.task].stateful else 0
        able = len(self.load.able())
        if self.task in group.spreading and len(standbys) > wanted > 0:
            yield f"one standby of {name} more than wanted: one is let go when the one on the emptier instance has caught up"
        if len(standbys) < wanted and able <= wanted:
            others = f"{able} instance{'s' if able != 1 else ''}"
            yield f"{wanted} standbys are wanted (standbys), and {others} can hold a copy of {name}"

    def _keeper(self) -> Member | None:
        """Returns the member that has the task, and keeps it while nothing is planned."""
        known = self.holder is not None and self.load.view.active.get(self.task) == self.holder.name
        return self.holder if known else None

    def _resting(self) -> Member | None:
        """Returns its owner, if no member is to take the task over."""
        return None if self.changes or self.learner is not None else self._keeper()

    def balance(self) -> Iterator[str]:
        holder = self._resting()
        if holder is not None:
            yield from self.load.at_rest(holder)

    # ---- what it waits for

    def handed_over(self) -> Iterator[str]:
        group, name, record = self.group, self.name, self.group.recording.get(self.task)
        if self.fenced and self.owner is not None:
            yield f"{name} waits for the log to fence {self.owner.member}; until then nobody else may run it"
        elif record is not None and not record.writer:
            yield f"the log is being told that nobody has {name} at the moment"
        elif record is not None and record.writer in group.fencing:
            yield f"{name} waits for the log to fence {record.member}, to which it was about to go"
        elif record is not None:
            yield f"{name} goes to {record.member}; its owner record is being written"
        elif self.move is not None:
            yield from self._moves(self.move)
        elif self.task in group.postponed and self.holder is not None and not is_given_up(group, self.task):
            called = f": {self.holder.status.notice.splitlines()[0]}" if self.holder.status.notice else ""
            yield f"{name} moves when {self.holder.name} has ended its call and let go{called}; the others went on without it"

    def _moves(self, move: Move) -> Iterator[str]:
        group, name, owner = self.group, self.name, self.owner
        if self._is_broken(move):
            yield f"{name} was to go to {move.target}, which cannot take it any more; it is placed with the next rebalance"
            return
        holds = owner if owner is not None and not is_given_up(group, self.task) else None
        barrier = Barrier(group, self.task, holds.member if holds is not None else "", self.called)
        awaited = barrier.awaited()
        if holds is not None:
            if holds.member == move.target:
                yield f"{name} goes back to {holds.member} once that has given up what it had, like everybody"
            else:
                yield f"{name} goes to {move.target}, which waits for {holds.member} to give it up"
            if move.asked:
                left = self._left(move.since_ms + group.settings.release_timeout_ms)
                yield f"{holds.member} is fenced if it is silent and has not given {name} up in {left} (release_timeout)"
            if awaited:
                yield f"{name} waits for {some(awaited, ' and ')}, too: all that moves now changes hands at once"
        elif awaited:
            yield (
                f"{name} goes to {move.target}, which waits for {some(awaited, ' and ')}: all that moves now changes hands at once"
            )
        else:
            yield f"{name} goes to {move.target} as soon as its owner record is written"
        yield from barrier.deadlines(self.now_ms)

    def _is_broken(self, move: Move) -> bool:
        target = self.group.members.get(move.target)
        return target is None or target.fenced or not self.group.can_run(target, self.task)

    def begun(self) -> Iterator[str]:
        """Its owner was given it lately, and may still have to catch up."""
        taken = self.group.hand_overs.get(self.task)
        holder, owner = self._keeper(), self.owner
        if taken is None or holder is None or owner is None or self.changes or taken[1] != holder.name:
            return
        started = holder.status.started.get(self.task)
        if started is None or started.epoch != owner.epoch:
            yield f"{holder.name} has not said yet that it processes {self.name}"

    def noticed(self) -> Iterator[str]:
        """What its owner says that it waits for itself, such as the log, or a call; what concerns other tasks alone is left out."""
        holder, learner = self._keeper(), self.learner
        if holder is not None and self.task not in self.group.postponed:
            others = tuple(f"{task} " for task in holder.status.active if task != self.task)
            halted = f"{self.task} is halted at "  # the log has that, and how it goes on
            for line in holder.status.notice.splitlines():
                if not line.startswith((*others, halted)):
                    yield f"{holder.name}: {line}"
        if learner is not None and learner.status.log_away:
            yield from (f"{learner.name}: {line}" for line in learner.status.notice.splitlines()[:1])

    def kept_for_owner(self) -> Iterator[str]:
        """Its owner is silent, or not yet back with this coordinator."""
        group, owner, name = self.group, self.owner, self.name
        if owner is None or self.changes:
            return
        member = group.members.get(owner.member)
        if owner.writer and owner.writer in absent_transactional_ids(group):
            gone = is_known_gone(group, owner.writer, owner.member)
            grace_ms = group.settings.disconnect_grace_ms if gone else group.settings.rejoin_grace_ms
            yield (
                f"{owner.member} has not come back to this coordinator; {name} is kept for it for another "
                f"{self._left(group.started_ms + grace_ms)} ({'disconnect_grace' if gone else 'rejoin_grace'})"
            )
        elif member is not None and self.task in self.load.view.reserved:
            left = self._left(self._silent_since(member) + group.settings.session_timeout_ms)
            yield f"{name} is kept for {owner.member} until its session ends in {left} (session_timeout): its disk may come back"
        elif self.holder is not None and is_silent(group, self.holder) and not is_released(owner, self.holder):
            yield self._waited_for(self.holder)

    def _waited_for(self, holder: Member) -> str:
        settings, silent = self.group.settings, show_duration(holder.silent_for(self.now_ms))
        patience, setting, why = settings.session_timeout_ms, "session_timeout", "it may come back"
        grace = replaced_after_ms(self.group, holder)
        if holder.comes_back:
            why = "it announced a bounce"
        elif grace < patience and replaceable(self.group, holder):
            patience = grace
            setting = "disconnect_grace" if grace == settings.disconnect_grace_ms else "three heartbeats"
        left = self._left(self._silent_since(holder) + patience)
        return f"{self.name} is kept for {holder.name}, which has been silent for {silent}, for another {left} ({setting}): {why}"

    def _silent_since(self, member: Member) -> int:
        return self.now_ms - member.silent_for(self.now_ms)

    def learned(self) -> Iterator[str]:
        """What a learner still has to do."""
        group, name, learner = self.group, self.name, self.learner
        if learner is None or self.changes:
            return
        copy = learner.status.copies.get(self.task)
        late = [task for task in group.learners.of(learner.name) if task != self.task and self._is_late(learner, task)]
        if is_silent(group, learner):
            left = self._left(self._silent_since(learner) + group.settings.session_timeout_ms)
            silent = show_duration(learner.silent_for(self.now_ms))
            yield f"{learner.name} has been silent for {silent}; {name} waits for it for another {left} (session_timeout)"
        if copy is None:
            yield f"{name} moves to {learner.name} when {learner.name} has restored its state, which it has not begun"
        elif copy.ready:
            yield f"{learner.name} has restored {name} and takes it over with the next rebalance"
        elif copy.lag <= self._lag_max() and late and group.settings.ready == "conservative":
            names = some(map(self.called, late))
            yield f"{learner.name} has restored {name} and takes it over when it has restored {names}, too (ready=conservative)"
        else:
            lag = f", {copy.lag} behind" if copy.lag else ""
            eta = f", about {show_duration(copy.eta_ms)} to go" if copy.eta_ms else ""
            yield f"{name} moves to {learner.name} when {learner.name} has restored its state{lag}{eta}"

    def _is_late(self, learner: Member, task: TaskId) -> bool:
        copy = learner.status.copies.get(task)
        return copy is None or copy.lag > self._lag_max()

    def _lag_max(self) -> int:
        return self.group.settings.acceptable_recovery_lag

    def load_waits(self) -> Iterator[str]:
        holder = self._resting()
        if holder is not None:
            yield from self.load.waits(holder)

    def held_up(self) -> Iterator[str]:
        """What holds up the whole group, and with it whatever does not change hands already."""
        group, name, view = self.group, self.name, self.load.view
        if not view.members:
            yield f"nobody is here to run {name}"
            return
        if self.fenced or self.task in group.recording or (self.move is not None and not self._is_broken(self.move)):
            return
        reason = why_not_planned(group, self.now_ms, self.called)
        if reason is not None:
            # Its own owner is one of those that the group waits for: that is said already.
            if self.owner is None or self.owner.writer not in absent_transactional_ids(group):
                yield reason
                yield from Barrier(group, called=self.called).deadlines(self.now_ms)
        elif self.task not in view.active and self.task not in view.reserved and self.move is None:
            if any(self.load.builder.able(host, self.task) for host in self.load.builder.hosts):
                yield f"{name} is placed with the next rebalance"
            else:
                yield f"nobody that is here has a version of the app with {name}; it waits until one joins"
