"""The group: which member may run which task, decided safely. `Group.step(event, now_ms) -> list[Effect]`.

One rule: a task is granted only after its owner record is in the log, and an owner record changes only after the
owner before it proved its release or was fenced (safety rules 1 to 4). Everything but the owner records is rebuilt
from what members report. Where tasks belong is placement.py; this module gets the group there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from orchestrator import copies, growing, leaving, timing, weights
from orchestrator import events as ev
from orchestrator.ends import Ends
from orchestrator.grants import is_released, lacks, tell
from orchestrator.group_tables import Holders, Index, TaskTable
from orchestrator.model import PROTOCOL_ORDER, Owner, Protocol, Released, Settings, Status, Task, TaskId
from orchestrator.placement_view import View
from orchestrator.refine import Move, advance, call_off, rebalance, retire, target_computed
from orchestrator.roster import Member, Roster
from orchestrator.silence import excuse, watch
from orchestrator.versions import can_run, expand, tasks_there
from orchestrator.views import restoring

LONG_ASSIGNMENT = 5_000  # tasks and members from which on a placement takes longer than an event should (10 ms)


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
        long_assignment: int = LONG_ASSIGNMENT,
        gathering: bool = False,
    ) -> None:
        self.settings = settings
        self.term = term
        self.generation = self.inherited = generation
        self.declared: dict[TaskId, Task] = {task.id: task for task in tasks}  # of the coordinator's own version
        self.tasks: Mapping[TaskId, Task] = self.declared  # of all versions that are there
        self.coming: dict[TaskId, int] = {}  # told of by members that run, and since when they wait for the others
        self.touched: set[str] = set()  # members of whom something changed since the last step; only they are looked at
        self.writers = Holders()
        self.owners = TaskTable(self._touch, Index[Owner](lambda owner: (owner.member,)), self.writers)
        self.recording = TaskTable(self._touch_owner, Index[Owner](lambda owner: (owner.member,)))
        self.moves = TaskTable(self._touch_owner, Index[Move](lambda move: (move.target,)))
        self.learners = TaskTable(self._touch, Index[str](lambda member: (member,)))
        self.standbys = TaskTable(self._touch, Index[tuple[str, ...]](lambda members: members))
        self.retiring: dict[TaskId, int] = {}  # owned, and since when no version that is there has them
        self.freed: set[TaskId] = set()  # moves that could be made, and wait for others behind the barrier
        self.roster = Roster()
        self.fencing: set[str] = set()
        self.fenced: set[str] = set()  # writers that this coordinator had the log refuse
        self.finishing: dict[str, int] = {}  # learners that each instance restored when settings changed
        self.standbys_agreed = settings.standbys  # those of the last plan; the setting may ask for fewer since
        self.given_up: dict[tuple[TaskId, str], int] = {}
        self.left_behind: dict[TaskId, str] = {}  # on which instance's disk a worker that is gone left what it ran
        self.ends = Ends(self.roster, self.owners)
        self.weights: dict[TaskId, int] = {}  # as their owners measured them last
        self.hand_overs: dict[TaskId, tuple[str, str, Released | None, bool]] = {}
        self.operation: leaving.Operation | None = None
        self.dismissed: dict[str, int] = {}  # instances stopped by force, and until when they may not come back
        self.started_ms = self.last_step_ms = now_ms
        self.first_join_ms: int | None = None
        self.barrier = self.dirty = False
        self.paused = False  # an operator's hold: while set, nothing is planned
        self.long_assignment = long_assignment
        self.computing: View | None = None  # what a target is computed from at the moment
        self.targets_asked = self.stale_targets = 0  # all; those of which nothing held, one after the other
        self.membership_changed = False
        self.effects: list[ev.Effect] = []
        self.climate: tuple[object, ...] = ()  # what every assignment depends on
        for owner in owners:
            self.owners[owner.task] = owner
            if owner.writer and owner.task not in self.tasks:
                self.retiring[owner.task] = now_ms
        # Until Gathered: a plan made before those without tasks are back would throw away what they restored.
        self.gathering = gathering and len(self.owners) > 0

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
                leaving.mark(self, event)
            case ev.UndoLeaving():
                leaving.undo(self, "rolled back")
            case ev.TargetComputed(number, plan):
                target_computed(self, number, plan, now_ms)
            case ev.Gathered():
                self.gathering, self.dirty = False, True
            case ev.Tick():
                watch(self, now_ms)
                growing.watch(self, now_ms)
        leaving.check_deadline(self, now_ms)
        if self.dirty:
            self._see_tasks()
            retire(self)
            rebalance(self, now_ms)
        if self.touched:
            advance(self)
            leaving.finish(self, tell(self))
        leaving.end(self, now_ms)
        return self.effects

    def accept_as_is(self) -> None:
        """Take the present state as agreed: no rebalance until something changes."""
        self.paused = False
        self.dirty = False
        self.membership_changed = False

    def reconsider(self) -> None:
        """Settings changed: plan again with the next step. Learners that run are finished, whatever the budget is now."""
        self.finishing = restoring(self)
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
            # What it had restored it has to open and to catch up again: that counts against the budget like any learner.
            for task in list(self.learners.of(hello.member)):
                del self.learners[task]
        for writer in self._writers_of(hello.member):
            if writer != hello.writer:
                self.fence_writer(writer)
        member = Member(hello, None, status, now_ms)
        if known is not None:
            self.roster.remove(known)
            self.ends.keep(known.status)
            if known.hello.writer == hello.writer:
                member.leaving, member.progress = known.leaving, known.progress
                growing.told(self, known.hello, hello, now_ms)
        marked = self.operation is not None and hello.instance in self.operation.instances
        if marked or now_ms < self.dismissed.get(hello.instance, 0):
            member.leaving = True
        self.roster.bind(member, event.session)
        self._see_tasks()
        self.touched.add(member.name)
        if known is None:
            copies.adopt(self, member)
        copies.let_go_beside(self, member)
        if known is not None and known.hello.tasks != hello.tasks:
            copies.forget_unknown(self, member)
        self._take_status(member, Status(), now_ms)
        if known is None or not growing.only_waits(self, known, member) or self._matters(known.status, status):
            self.dirty = True
        if status.term == 0:
            copies.found_again(self, member)
            self.membership_changed = True

    def _refused(self, writer: str, member: str) -> bool:
        """A writer that was fenced as a whole never comes back; a worker that is told so rejoins under a new one."""
        known = self.roster.get(member)
        return writer in self.fenced or (known is not None and known.fenced and known.hello.writer == writer)

    def instance_of(self, name: str) -> str | None:
        known = self.roster.get(name)
        return known.hello.instance if known is not None else None

    def _heard(self, event: ev.Heartbeat, now_ms: int) -> None:
        member = self.roster.of_session(event.session)
        if member is None:
            self.effects.append(ev.CloseSession(event.session, fenced=False))
            return
        before = member.status
        self.roster.report(member, event.status)
        member.heard_ms = now_ms
        if member.fenced:
            self.effects.append(ev.CloseSession(event.session, fenced=True))
            return
        self._take_status(member, before, now_ms)
        if self._matters(before, member.status):
            self.touched.add(member.name)
            self.dirty = True
        again = now_ms - member.told_again_ms >= self.settings.heartbeat_ms
        if again and lacks(member):
            member.sent = None  # it has seen the assignment and does not hold what is in it: say it again
            member.told_again_ms = now_ms
            self.touched.add(member.name)

    def _take_status(self, member: Member, before: Status, now_ms: int) -> None:
        self.roster.note_progress(member, self.learners.of(member.name), now_ms)
        self.ends.replaced(before, member.status)
        if self.settings.weights != "given":
            weights.heard(self, member, before)
        timing.heard(self, member)

    @staticmethod
    def _matters(before: Status, after: Status) -> bool:
        """Whether a status can change a placement; lags alone do not."""
        if before.leaving != after.leaving or before.released != after.released:
            return True
        if before.weights != after.weights:
            return True
        if before.copies == after.copies and before.disk.keys() == after.disk.keys():
            return False
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
        return self._holds(member.hello.writer, member.name) or bool(self.moves.of(member.name))

    def _holds(self, writer: str, name: str) -> bool:
        """Whether an owner record of `writer`, which is that of member `name`, is in the log or on its way."""
        return bool(self.writers.of(writer)) or any(self.recording[t].writer == writer for t in self.recording.of(name))

    def _writers_of(self, name: str) -> list[str]:
        """The writers under which owner records name this member, in the order of their tasks."""
        found = (self.owners[task].writer for task in sorted(self.owners.of(name)))
        return [writer for writer in dict.fromkeys(found) if writer]

    def _expire_named(self, name: str) -> None:
        member = self.roster.get(name)
        if member is not None:
            self.expire(member)
            return
        self.effects.append(ev.Said(f"{name} fenced"))
        for writer in self._writers_of(name):
            self.fence_writer(writer)

    def expire(self, member: Member) -> None:
        """The member is dead: fence its writer and forget it."""
        if member.session is not None:
            self.effects.append(ev.CloseSession(member.session, fenced=True))
        self.fence_writer(member.hello.writer)
        self.effects.append(ev.Said(f"{member.name} fenced"))
        self._remove(member)

    def _remove(self, member: Member) -> None:
        self.roster.remove(member)
        copies.leave_behind(self, member)
        self.ends.keep(member.status)
        self.touched.add(member.name)
        self.touched.update(m.name for m in self.roster.of_instance(member.hello.instance))
        for task in list(self.learners.of(member.name)):
            del self.learners[task]
        for task in list(self.standbys.of(member.name)):
            self.standbys[task] = tuple(m for m in self.standbys[task] if m != member.name)
        self.membership_changed = self.membership_changed or not member.shut_down
        self.dirty = True

    # ---- fencing

    def fence_writer(self, writer: str) -> None:
        """Have the log refuse the writer, if it holds anything; its member is told when it speaks."""
        if not writer or writer in self.fencing:
            return
        member = self.roster.of_writer(writer)
        if member is not None:
            member.fenced = True
            self.ends.keep(member.status)
            self.touched.add(member.name)
            call_off(self, member)
        name = member.name if member is not None else ""
        coming = any(self.recording[t].writer == writer for t in (self.recording.of(name) if name else self.recording))
        if self.writers.of(writer) or coming:
            self.fencing.add(writer)
            self.effects.append(ev.Fence(writer))
        self.dirty = True

    def _fenced(self, writer: str, tasks: tuple[TaskId, ...]) -> None:
        self.fencing.discard(writer)
        self.fenced.add(writer)
        self.touched.update(self.owners[task].member for task in self.writers.of(writer))
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
        common = [p for p in allowed if self.roster.all_speak(p)]
        return common[-1] if common else Protocol.EAGER

    def weighed(self) -> Mapping[TaskId, Task]:
        """The tasks with the weights that count: given, or measured."""
        if self.settings.weights == "given":
            return self.tasks
        return {t: replace(task, weight=self.weight(t)) for t, task in self.tasks.items()}

    def weight(self, task: TaskId) -> int:
        """What the task counts as load."""
        return self.tasks[task].weight if self.settings.weights == "given" else self.weights.get(task, 1)

    def _see_tasks(self) -> None:
        """The tasks are those of the versions that are there; when they change, everybody may have to let one go."""
        before = self.tasks
        tasks = self.tasks = growing.without_coming(self, tasks_there(self.declared, self.roster.versions()))
        if tasks is before or tasks == before:
            return
        self.touched.update(self.roster.members)
        for task in [task for task in self.moves if task not in tasks]:
            del self.moves[task]
        gone = (task for task, owner in self.owners.items() if owner.writer and task not in tasks)
        self.retiring = {task: self.retiring.get(task, self.last_step_ms) for task in gone}

    def knows_all(self, member: Member) -> bool:
        """Whether the member can run every task of the group, as nearly always."""
        return (self.declared if member.hello.tasks is None else expand(member.hello.tasks)) is self.tasks

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
            self.recording.discard(record.task)
            self.owners[record.task] = record
            self.left_behind.pop(record.task, None)
            if record.writer and record.task not in self.tasks:
                self.retiring[record.task] = self.last_step_ms
            member = self.roster.get(record.member)
            if member is None or member.hello.writer != record.writer or member.fenced:
                self.fence_writer(record.writer)
                if member is None or member.hello.writer != record.writer:
                    self.dirty = True
            elif len(self.roster.of_instance(member.hello.instance)) > 1:
                self.dirty = True  # now that it is there, the workers of the instance may share it out

    # ---- assignments

    def _touch(self, task: TaskId, names: Iterable[str]) -> None:
        self.touched.update(names)

    def _touch_owner(self, task: TaskId, names: Iterable[str]) -> None:
        """What a move or a coming record says of a task changes the assignment of its present owner, too."""
        self.touched.update(names)
        owner = self.owners.get(task)
        if owner is not None:
            self.touched.add(owner.member)
