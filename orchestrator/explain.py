"""Why a task is where it is, and what it waits for, in sentences.

One rule: reads the group, decides nothing; every sentence names who, and by which setting. `explain_task` asks the
questions in the order in which the group answers them: versions, owner, hand-over, copies, balance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator import growing
from orchestrator.durations import show_duration
from orchestrator.group import Group
from orchestrator.model import Owner, TaskId
from orchestrator.names import natural
from orchestrator.roster import Member
from orchestrator.stability import holder_of
from orchestrator.views import restoring


def explain_task(group: Group, task: TaskId, names: Mapping[TaskId, str] | None = None) -> tuple[list[str], list[str]]:
    """(why it is there, what it waits for)."""
    about = _About(group, task, names or {})
    if task in group.coming:
        return [f"{about.name} is new: a topic grew"], [
            "it waits until all members that will have it have said so, and at most "
            f"{show_duration(growing.HEARTBEATS * group.settings.heartbeat_ms)}"
        ]
    if task not in group.tasks:
        return [
            f"{about.name} is in no version of the app that runs here; it comes back with a member whose version has it"
        ], []
    return [*about.owned(), *about.copies(), *about.balance()], [
        *about.handed_over(),
        *about.kept_for_owner(),
        *about.learned(),
        *about.emptied(),
        *about.held_up(),
    ]


@dataclass(frozen=True, slots=True)
class _Host:
    """An instance that stays, with its load and room for learners."""

    name: str
    load: int
    capacity: int
    restoring: int


class _About:
    """The sentences about one task."""

    def __init__(self, group: Group, task: TaskId, names: Mapping[TaskId, str]) -> None:
        self.group = group
        self.task = task
        self.names = names
        self.name = self.called(task)
        self.now_ms = group.last_step_ms
        self.owner = group.owners.get(task)
        self.move = group.moves.get(task)
        self.learner = group.learners.get(task)
        self.hosts = list(self._hosts())

    def called(self, task: TaskId) -> str:
        return self.names.get(task, str(task))

    def _hosts(self) -> Iterator[_Host]:
        group = self.group
        loads: dict[str, int] = {}
        learners = restoring(group)
        for task in group.tasks:
            member = group.roster.get(group.learners.get(task) or group.effective_owner(task) or "")
            if member is not None:
                loads[member.hello.instance] = loads.get(member.hello.instance, 0) + group.weight(task)
        capacity: dict[str, int] = {}
        for member in group.roster:
            if not member.fenced and not member.is_leaving and group.can_run(member, self.task):
                capacity[member.hello.instance] = capacity.get(member.hello.instance, 0) + member.hello.capacity
        for name in sorted(capacity, key=natural):
            yield _Host(name, loads.get(name, 0), capacity[name], learners.get(name, 0))

    # ---- why it is there

    def owned(self) -> Iterator[str]:
        name, owner = self.name, self.owner
        if owner is None:
            yield f"{name} has never had an owner"
        elif not owner.writer and self.gone(owner):
            yield f"{name} has no owner: {owner.member}, its last one, was fenced at epoch {owner.epoch - 1}"
        elif not owner.writer:
            yield f"{name} has no owner: the writer of {owner.member} was fenced at epoch {owner.epoch - 1}"
        else:
            yield f"{name} is active on {owner.member} since epoch {owner.epoch}"

    def gone(self, owner: Owner) -> bool:
        return self.group.roster.get(owner.member) is None

    def copies(self) -> Iterator[str]:
        holder, standbys = holder_of(self.group, self.task), self.group.standbys.get(self.task, ())
        if self.learner is not None:
            leaves = holder is not None and holder.is_leaving
            yield f"{self.learner} is learning {self.name} {'because its owner is leaving' if leaves else 'to balance the load'}"
        for standby in standbys:
            yield f"{standby} keeps a standby of {self.name}"
        wanted = self.group.settings.standbys if self.group.tasks[self.task].stateful else 0
        if len(standbys) < wanted and len(self.hosts) <= wanted:
            others = f"{len(self.hosts)} instance{'s' if len(self.hosts) != 1 else ''}"
            yield f"{wanted} standbys are wanted (standbys), and {others} can hold a copy of {self.name}"

    def balance(self) -> Iterator[str]:
        """A task at rest: why it does not go to a lighter instance."""
        mine, lightest = self._lightest()
        if mine is None or lightest is None or self._worth(mine, lightest):
            return
        if lightest.load < mine.load:
            factor, weight = self.group.settings.balancing_factor, self.group.weight(self.task)
            heavy = f" times its weight of {weight}" if weight != 1 else ""
            yield (
                f"{self.name} stays on {mine.name}, which carries {mine.load}; the lightest instance, {lightest.name}, carries "
                f"{lightest.load}, and a move needs a difference of more than {factor}{heavy} (balancing_factor)"
            )

    def _lightest(self) -> tuple[_Host | None, _Host | None]:
        """The owner's instance and the lightest other one, for a task that neither moves nor is kept or given away."""
        holder = holder_of(self.group, self.task)
        if holder is None or self.move is not None or self.learner is not None or holder.is_leaving:
            return None, None
        mine = next((h for h in self.hosts if h.name == holder.hello.instance), None)
        others = [h for h in self.hosts if h.name != holder.hello.instance]
        return mine, min(others, key=lambda h: (h.load + 1) / h.capacity, default=None)

    def _worth(self, mine: _Host, other: _Host) -> bool:
        least = max(1, self.group.settings.balancing_factor) * self.group.weight(self.task)
        return mine.load * other.capacity > (other.load + least) * mine.capacity

    # ---- what it waits for

    def handed_over(self) -> Iterator[str]:
        group, name, owner = self.group, self.name, self.owner
        if owner is not None and owner.writer in group.fencing and owner.writer:
            yield f"{name} waits for the log to fence {owner.member}; until then nobody else may run it"
        elif self.move is not None:
            source = group.roster.get(self.move.source)
            if source is not None and owner is not None and owner.writer == source.hello.writer:
                left = self._left(self.move.since_ms + group.settings.release_timeout_ms)
                yield f"{name} goes to {self.move.target}, which waits for {self.move.source} to give it up"
                yield f"{self.move.source} is fenced if it has not given {name} up in {left} (release_timeout)"
            else:
                yield f"{name} goes to {self.move.target} as soon as its owner record is written"
        elif self.task in group.recording:
            yield f"{name} goes to {group.recording[self.task].member}; its owner record is being written"

    def kept_for_owner(self) -> Iterator[str]:
        """Its owner is silent, or not yet back with this coordinator."""
        group, owner, name = self.group, self.owner, self.name
        if owner is None or self.move is not None or owner.writer in group.fencing:
            return
        member = group.roster.get(owner.member)
        if member is None:
            if owner.writer:
                left = self._left(group.started_ms + group.settings.rejoin_grace_ms)
                yield (
                    f"{owner.member} has not come back to this coordinator; {name} is kept for it for another {left} "
                    "(rejoin_grace)"
                )
            return
        silent = member.silent_for(self.now_ms)
        left = self._left(self.now_ms - silent + group.settings.session_timeout_ms)
        if not owner.writer and member.fenced:
            yield f"{name} is kept for {owner.member} until its session ends in {left} (session_timeout): its disk may come back"
        elif owner.writer and member.hello.writer == owner.writer and silent > 2 * group.settings.heartbeat_ms:
            why = "it announced a bounce" if member.status.bounce else "it may come back"
            yield (
                f"{name} is kept for {owner.member}, which has been silent for {show_duration(silent)}, for another {left} "
                f"(session_timeout): {why}"
            )

    def _left(self, until_ms: int) -> str:
        return show_duration(max(0, until_ms - self.now_ms))

    def learned(self) -> Iterator[str]:
        """What a learner still has to do."""
        group, name, learner = self.group, self.name, self.learner
        member = group.roster.get(learner) if learner is not None else None
        if learner is None or member is None or self.move is not None:
            return
        copy = member.status.copies.get(self.task)
        others = [t for t, m in group.learners.items() if m == learner and t != self.task]
        late = [t for t in others if (c := member.status.copies.get(t)) is None or c.lag > self._lag_max()]
        if member.silent_for(self.now_ms) > 2 * group.settings.heartbeat_ms:
            yield f"{learner} has been silent for {show_duration(member.silent_for(self.now_ms))}; {name} waits for it"
        if copy is None:
            yield f"{name} moves to {learner} when {learner} has restored its state, which it has not begun"
        elif not copy.ready and copy.lag <= self._lag_max() and late and group.settings.ready == "conservative":
            told = ", ".join(sorted((self.called(t) for t in late), key=natural))
            yield f"{learner} has restored {name} and takes it over when it has restored {told}, too (ready=conservative)"
        else:
            lag = f", {copy.lag} behind" if copy.lag else ""
            eta = f", about {show_duration(copy.eta_ms)} to go" if copy.eta_ms else ""
            yield f"{name} moves to {learner} when {learner} has restored its state{lag}{eta}"

    def _lag_max(self) -> int:
        return self.group.settings.acceptable_recovery_lag

    def emptied(self) -> Iterator[str]:
        """Its owner leaves, or carries too much, and nobody learns it yet."""
        holder, name = holder_of(self.group, self.task), self.name
        if holder is None or self.move is not None or self.learner is not None:
            return
        if holder.is_leaving:
            yield from self._leaving(holder)
            return
        mine, lightest = self._lightest()
        if mine is None or lightest is None or not self._worth(mine, lightest):
            return
        gap = f"{mine.name} carries {mine.load} and {lightest.name} carries {lightest.load}"
        limit = self.group.settings.max_learners_per_instance
        if (self.task, lightest.name) in self.group.given_up:
            yield f"{gap}, but {self._given_up(lightest.name)}"
        elif lightest.restoring >= limit:
            yield f"{gap}; {name} may go there when {lightest.name} restores fewer than {limit} (max_learners_per_instance)"
        else:
            yield f"{gap}; other tasks of {mine.name} go first"

    def _leaving(self, holder: Member) -> Iterator[str]:
        name, limit = self.name, self.group.settings.max_learners_per_instance
        if not self.hosts:
            yield f"{holder.name} is leaving, and so is everybody else; {name} stays until somebody joins"
            return
        tried = [h.name for h in self.hosts if (self.task, h.name) in self.group.given_up]
        full = [h.name for h in self.hosts if h.restoring >= limit and h.name not in tried]
        for host in tried:
            yield f"{holder.name} is leaving, but {self._given_up(host)}"
        if full:
            restore = "restores" if len(full) == 1 else "restore"
            yield (
                f"{holder.name} is leaving; {name} waits until {' or '.join(full)} {restore} fewer than {limit} "
                "(max_learners_per_instance)"
            )

    def _given_up(self, host: str) -> str:
        timeout = self.group.settings.learner_timeout_ms
        since = self.group.given_up[(self.task, host)]
        return (
            f"{host} gave up learning {self.name} after {show_duration(timeout)} without progress (learner_timeout); it is "
            f"tried there again in {self._left(since + 5 * timeout)}"
        )

    def held_up(self) -> Iterator[str]:
        """What holds up the whole group."""
        group = self.group
        if not len(group.roster):
            yield f"nobody is here to run {self.name}"
        elif group.fencing and self.move is None and (self.owner is None or self.owner.writer not in group.fencing):
            members = sorted({o.member for o in group.owners.values() if o.writer in group.fencing}, key=natural)
            yield f"nothing is planned until the log has fenced {', '.join(members)}"
        elif self.owner is None and self.move is None and self.task not in group.recording:
            yield f"{self.name} is placed with the next rebalance"
