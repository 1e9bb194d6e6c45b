"""The group: which member may run which task, decided safely. `Group.step(event, now_ms) -> list[Effect]`.

One rule: a task is granted only after its owner record is in the log, and an owner record changes only after the
owner before it proved its release or was fenced (safety rules 1 to 4). Everything but the owner records is rebuilt
from what members report. Where tasks belong is placement.py; this module gets the group there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from orchestrator import events as ev
from orchestrator.grants import assignment_of, is_released, lacks, owned_by_writer, same
from orchestrator.model import PROTOCOL_ORDER, Owner, Protocol, Released, Role, Settings, Status, Task, TaskId
from orchestrator.names import natural
from orchestrator.refine import Move, advance, rebalance, retire
from orchestrator.roster import Member, Roster
from orchestrator.silence import excuse, watch
from orchestrator.timing import publish
from orchestrator.versions import can_run, tasks_there


@dataclass(slots=True)
class Operation:
    """A running scale-down; its record in the log survives the coordinator."""

    id: str
    instances: frozenset[str]
    deadline_ms: int | None
    force: bool
    resumed: bool = False


class Group:
    """One application's group under one coordinator term."""

    def __init__(
        self,
        settings: Settings,
        tasks: Iterable[Task] = (),
        owners: Iterable[Owner] = (),
        *,
        term: int = 1,
        now_ms: int = 0,
        generation: int = 0,
    ) -> None:
        self.settings = settings
        self.term = term
        self.generation = self.inherited = generation
        self.declared: dict[TaskId, Task] = {task.id: task for task in tasks}  # of the coordinator's own version
        self.tasks: Mapping[TaskId, Task] = self.declared  # of all versions that are there
        self.owners: dict[TaskId, Owner] = {owner.task: owner for owner in owners}
        self.roster = Roster()
        self.moves: dict[TaskId, Move] = {}
        self.recording: dict[TaskId, Owner] = {}
        self.learners: dict[TaskId, str] = {}
        self.standbys: dict[TaskId, tuple[str, ...]] = {}
        self.fencing: set[str] = set()
        self.given_up: dict[tuple[TaskId, str], int] = {}
        self.ends: dict[TaskId, int] = {}
        self.weights: dict[TaskId, int] = {}  # as their owners measured them last
        self.hand_overs: dict[TaskId, tuple[str, str, Released | None, bool]] = {}
        self.operation: Operation | None = None
        self.dismissed: dict[str, int] = {}  # instances stopped by force, and until when they may not come back
        self.started_ms = now_ms
        self.last_step_ms = now_ms
        self.first_join_ms: int | None = None
        self.barrier = False
        self.paused = False  # an operator's hold: while set, nothing is planned
        self.dirty = False
        self.membership_changed = False
        self.effects: list[ev.Effect] = []

    # ---- the one entrance

    def step(self, event: ev.Event, now_ms: int) -> list[ev.Effect]:
        """Take one event; return what is to be done. Never waits, reads no clock."""
        self.effects = []
        if now_ms - self.last_step_ms > max(2_000, 3 * self.settings.heartbeat_ms):
            excuse(self, now_ms - self.last_step_ms)
        self.last_step_ms = now_ms
        match event:
            case ev.Joined():
                self._joined(event, now_ms)
            case ev.Heartbeat():
                self._heard(event, now_ms)
            case ev.SessionEnded(session):
                self._session_ended(session, now_ms)
            case ev.OwnersRecorded(records):
                self._recorded(records)
            case ev.WriterFenced(writer, tasks):
                self._fenced(writer, tasks)
            case ev.Expired(name):
                self._expire_named(name)
            case ev.Leaving():
                self._leave(event)
            case ev.UndoLeaving():
                self.undo("rolled back")
            case ev.Tick():
                pass
        watch(self, now_ms)
        if self.dirty:
            self.tasks = tasks_there(self.declared, self.roster)
            retire(self)
            rebalance(self, now_ms)
        advance(self)
        self._send()
        self._finish_leavers(now_ms)
        return self.effects

    def next_deadline_ms(self, now_ms: int) -> int:
        """When a Tick is due at the latest."""
        return now_ms + min(self.settings.heartbeat_ms, self.settings.disconnect_grace_ms, 500)

    def accept_as_is(self) -> None:
        """Take the present state as agreed: no rebalance until something changes."""
        self.paused = False
        self.dirty = False
        self.membership_changed = False

    def reconsider(self) -> None:
        """Settings changed: plan again with the next step."""
        self.dirty = True

    # ---- members

    def _joined(self, event: ev.Joined, now_ms: int) -> None:
        hello, status = event.hello, event.status
        if self.first_join_ms is None:
            self.first_join_ms = now_ms
        self.generation = max(self.generation, status.generation)
        if hello.writer in self.fencing or self._refused(hello.writer, hello.member):
            self.effects.append(ev.CloseSession(event.session, fenced=True))
            return
        known = self.roster.get(hello.member)
        if known is not None and known.session is not None and known.session != event.session:
            self.effects.append(ev.CloseSession(known.session, fenced=known.hello.writer != hello.writer))
        if known is not None and known.hello.writer != hello.writer:
            self.fence_writer(known.hello.writer)
            self.effects.append(ev.Said(f"{hello.member} rejoined"))
        for owner in list(self.owners.values()):
            if owner.member == hello.member and owner.writer not in ("", hello.writer):
                self.fence_writer(owner.writer)
        member = Member(hello, None, status, now_ms)
        if known is not None:
            self.roster.remove(known)
            member.leaving = known.leaving and known.hello.writer == hello.writer
        if self.operation is not None and hello.instance in self.operation.instances:
            member.leaving = True
        if now_ms < self.dismissed.get(hello.instance, 0):
            member.leaving = True
        self.roster.bind(member, event.session)
        self.tasks = tasks_there(self.declared, self.roster)
        if known is None:
            self._adopt_copies(member)
        self._take_status(member, now_ms)
        self.dirty = True
        if status.term == 0:
            self.membership_changed = True

    def _refused(self, writer: str, member: str) -> bool:
        """A writer that was fenced as a whole never comes back; a worker that is told so rejoins under a new one."""
        known = self.roster.get(member)
        return known is not None and known.fenced and known.hello.writer == writer

    def _adopt_copies(self, member: Member) -> None:
        """A new coordinator learns of learners and standbys from those who hold them; what breaks a rule is let go."""
        restoring = sum(1 for m in self.learners.values() if self._instance(m) == member.hello.instance)
        for task, copy in sorted(member.status.copies.items()):
            if not self.can_run(member, task) or self._held_in(task, member.hello.instance):
                continue
            owner = self.owners.get(task)
            if owner is not None and owner.writer == member.hello.writer:
                continue
            known = self.standbys.get(task, ())
            if copy.role is Role.LEARNER and task not in self.learners:
                if copy.ready or restoring < self.settings.max_learners_per_instance:
                    self.learners[task] = member.name
                    restoring += 1
            elif copy.role is Role.STANDBY and len(known) < self.settings.standbys:
                self.standbys[task] = (*known, member.name)

    def _instance(self, name: str) -> str | None:
        known = self.roster.get(name)
        return known.hello.instance if known is not None else None

    def _held_in(self, task: TaskId, instance: str) -> bool:
        """Whether a copy of the task is known on this instance already."""
        names = [self.effective_owner(task), self.learners.get(task), *self.standbys.get(task, ())]
        return any(name is not None and self._instance(name) == instance for name in names)

    def _heard(self, event: ev.Heartbeat, now_ms: int) -> None:
        member = self.roster.of_session(event.session)
        if member is None:
            self.effects.append(ev.CloseSession(event.session, fenced=False))
            return
        before = member.status
        member.status = event.status
        member.heard_ms = now_ms
        if member.fenced:
            self.effects.append(ev.CloseSession(event.session, fenced=True))
            return
        self._take_status(member, now_ms)
        if self._matters(before, event.status):
            self.dirty = True
        again = now_ms - member.told_again_ms >= self.settings.heartbeat_ms
        if member.sent is not None and again and lacks(member.sent, event.status):
            member.sent = None  # it has seen the assignment and does not hold what is in it: say it again
            member.told_again_ms = now_ms

    def _take_status(self, member: Member, now_ms: int) -> None:
        self.roster.note_progress(member, now_ms)
        for task, end in member.status.ends.items():
            self.ends[task] = max(end, self.ends.get(task, 0))
        if self.settings.weights != "given":
            for task, epoch in member.status.active.items():
                owner = self.owners.get(task)
                if owner is not None and owner.epoch == epoch:
                    self.weights[task] = member.status.weights.get(task, 1)
        for task, begun in member.status.started.items():
            publish(self, member, task, begun)

    @staticmethod
    def _matters(before: Status, after: Status) -> bool:
        """Whether a status can change a placement; lags alone do not."""
        if before.leaving != after.leaving or before.released != after.released or before.active != after.active:
            return True
        if before.weights != after.weights:
            return True
        ready = {t for t, c in before.copies.items() if c.ready}
        now_ready = {t for t, c in after.copies.items() if c.ready}
        return (
            ready != now_ready or before.copies.keys() != after.copies.keys() or before.disk.keys() != after.disk.keys()
        )

    def _session_ended(self, session: int, now_ms: int) -> None:
        member = self.roster.unbind(session, now_ms)
        if member is None:
            return
        if member.shut_down or (member.is_leaving and not self.owns(member)):
            self._remove(member)
        self.dirty = True

    def owns(self, member: Member) -> bool:
        writer = member.hello.writer
        owned = any(o.writer == writer for o in self.owners.values()) or any(
            o.writer == writer for o in self.recording.values()
        )
        return owned or any(move.target == member.name for move in self.moves.values())

    def _expire_named(self, name: str) -> None:
        member = self.roster.get(name)
        if member is not None:
            self.expire(member)
            return
        self.effects.append(ev.Said(f"{name} fenced"))
        for owner in list(self.owners.values()):
            if owner.member == name:
                self.fence_writer(owner.writer)

    def expire(self, member: Member) -> None:
        """The member is dead: fence its writer and forget it."""
        if member.session is not None:
            self.effects.append(ev.CloseSession(member.session, fenced=True))
        self.fence_writer(member.hello.writer)
        self.effects.append(ev.Said(f"{member.name} fenced"))
        self._remove(member)

    def _remove(self, member: Member) -> None:
        self.roster.remove(member)
        self.learners = {t: m for t, m in self.learners.items() if m != member.name}
        self.standbys = {t: tuple(m for m in ms if m != member.name) for t, ms in self.standbys.items()}
        self.membership_changed = not member.shut_down
        self.dirty = True

    # ---- fencing

    def fence_writer(self, writer: str) -> None:
        """Have the log refuse the writer, if it holds anything; its member is told when it speaks."""
        if not writer or writer in self.fencing:
            return
        member = self.roster.of_writer(writer)
        if member is not None:
            member.fenced = True
        holds = any(o.writer == writer for o in [*self.owners.values(), *self.recording.values()])
        if holds:
            self.fencing.add(writer)
            self.effects.append(ev.Fence(writer))
        self.dirty = True

    def _fenced(self, writer: str, tasks: tuple[TaskId, ...]) -> None:
        self.fencing.discard(writer)
        for task in tasks:
            owner = self.owners.get(task)
            if owner is not None and owner.writer == writer:
                self.owners[task] = Owner(task, owner.epoch + 1, owner.member, "", self.term)
        self.dirty = True

    # ---- who has what

    @property
    def protocol(self) -> Protocol:
        """The best protocol that the setting allows and every member supports."""
        allowed = PROTOCOL_ORDER[: PROTOCOL_ORDER.index(self.settings.protocol) + 1]
        common = [p for p in allowed if all(p in m.hello.protocols for m in self.roster)]
        return common[-1] if common else Protocol.EAGER

    def weighed(self) -> Mapping[TaskId, Task]:
        """The tasks with the weights that count: given, or measured."""
        if self.settings.weights == "given":
            return self.tasks
        return {t: replace(task, weight=self.weight(t)) for t, task in self.tasks.items()}

    def weight(self, task: TaskId) -> int:
        """What the task counts as load."""
        return self.tasks[task].weight if self.settings.weights == "given" else self.weights.get(task, 1)

    def can_run(self, member: Member, task: TaskId) -> bool:
        """Whether the task is one of the group's, and the member's version of the app has it."""
        return task in self.tasks and can_run(member.hello, task, self.declared)

    def effective_owner(self, task: TaskId) -> str | None:
        """Who has the task, or will have once the move under way is over; None where nobody can."""
        move = self.moves.get(task)
        if move is not None:
            target = self.roster.get(move.target)
            if target is not None and not target.fenced and self.can_run(target, task):
                return move.target
        pending = self.recording.get(task)
        owner = pending or self.owners.get(task)
        if owner is None or not owner.writer or owner.writer in self.fencing:
            return None
        member = self.roster.get(owner.member)
        if member is None or member.hello.writer != owner.writer or member.fenced:
            return None
        return None if pending is None and is_released(owner, member) else owner.member

    def _recorded(self, records: tuple[Owner, ...]) -> None:
        for record in records:
            self.recording.pop(record.task, None)
            self.owners[record.task] = record
            member = self.roster.get(record.member)
            if member is None or member.hello.writer != record.writer or member.fenced:
                self.fence_writer(record.writer)
                if member is None or member.hello.writer != record.writer:
                    self.dirty = True

    # ---- assignments

    def _send(self) -> None:
        owned = owned_by_writer(self)
        for member in self.roster:
            if member.session is None or member.fenced:
                continue
            assignment = assignment_of(self, member, owned.get(member.hello.writer, []))
            sent = member.sent
            if sent is None or not same(sent, assignment):
                member.sent = assignment
                self.effects.append(ev.Send(member.session, assignment))

    # ---- leaving

    def _leave(self, event: ev.Leaving) -> None:
        self.operation = Operation(
            event.operation, frozenset(event.instances), event.deadline_ms, event.force, event.resumed
        )
        for member in self.roster:
            member.leaving = member.hello.instance in self.operation.instances
        self.dirty = True

    def undo(self, outcome: str) -> None:
        """Take the marks of the running scale-down back."""
        if self.operation is None:
            return
        for member in self.roster:
            if not member.shut_down:
                member.leaving = False
        self.effects.append(ev.OperationEnded(self.operation.id, outcome))
        self.operation = None
        self.dirty = True

    def force(self, now_ms: int) -> None:
        """The deadline has passed: the leavers are stopped as they are. A fenced worker comes back under a new writer
        id, to be told that it may go."""
        assert self.operation is not None
        until = now_ms + 3 * self.settings.session_timeout_ms
        self.dismissed |= dict.fromkeys(self.operation.instances, until)
        for member in list(self.roster):
            if member.hello.instance in self.operation.instances:
                self.expire(member)
        self.effects.append(ev.OperationEnded(self.operation.id, "forced"))
        self.operation = None

    def _finish_leavers(self, now_ms: int) -> None:
        for member in sorted(self.roster, key=lambda m: natural(m.name)):
            if member.sent is not None and member.sent.shutdown and not member.shut_down:
                member.shut_down = True
                self.effects.append(ev.Said(f"{member.name} shuts down"))
        operation = self.operation
        if operation and operation.resumed and now_ms - self.started_ms < self.settings.rejoin_grace_ms:
            return  # its leavers may still come back to this coordinator
        if operation and not any(m.hello.instance in operation.instances for m in self.roster):
            self.effects.append(ev.OperationEnded(operation.id, "done"))
            self.operation = None
