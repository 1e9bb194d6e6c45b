"""What is judged while a group lives. One rule: judges look at the log, at what members hold, and at what was sent; they
never ask the core whether it did right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.group import events as ev
from orchestrator.group import invariants
from orchestrator.group.members import MEMBER_LIFE, Member, Presence
from orchestrator.group.phases import REBALANCE, turn_of
from orchestrator.group.state import LONG_ASSIGNMENT
from orchestrator.group.step import Group
from orchestrator.group.topology_versions import expand
from orchestrator.member import events as mem
from orchestrator.model import Assignment, Owner, Protocol, TaskId
from orchestrator.simulator.coordinator import Coordinator, Watch
from tests.simulation.simlog import Broken

if TYPE_CHECKING:
    from tests.simulation.nodes import Worker
    from tests.simulation.world import World

SLACK_MS = 3_000
STEPS = {(before, after) for (before, _), after in MEMBER_LIFE.items()}


@dataclass
class Judges(Watch):
    """The judges of one world, and what they remember."""

    world: World
    fenced: set[str] = field(default_factory=set)
    refused: set[tuple[int, str]] = field(default_factory=set)  # by the term that fenced it
    given_up: set[tuple[str, TaskId, int]] = field(default_factory=set)
    heard: dict[tuple[int, str], int] = field(default_factory=dict)  # by term and writer, real time
    ended: set[tuple[int, str]] = field(default_factory=set)  # whose connection the coordinator saw end since
    learning: dict[tuple[TaskId, str, str], tuple[int, int]] = field(default_factory=dict)
    ready_since: dict[tuple[TaskId, str, str], int] = field(default_factory=dict)
    looked_ms: int = 0  # at the latest look, and since when the coordinator of it is one
    started_ms: int = -1
    targets: dict[int, dict[TaskId, str]] = field(default_factory=dict)  # by term: moves agreed on in earlier steps
    warm_then: dict[tuple[int, TaskId], set[str]] = field(default_factory=dict)
    asked_for: set[tuple[int, TaskId, int, str]] = field(
        default_factory=set
    )  # by term, task, epoch and target's writer

    # ---- of members

    def gave_up(self, worker: Worker, event: mem.MemberEvent) -> None:
        """Before the machine hears it: which epochs end with this event."""
        tasks: list[TaskId] = []
        if isinstance(event, mem.ReleaseDone):
            tasks = [event.task]
        elif isinstance(event, mem.Dropped):
            tasks = sorted(event.tasks)
        elif isinstance(event, mem.WriterLost):
            tasks = sorted(worker.machine.held)
        for task in tasks:
            holding = worker.machine.held.get(task)
            if holding is not None and holding.epoch:
                self.given_up.add((worker.join_request.writer, task, holding.epoch))

    def grant(self, worker: Worker, task: TaskId, epoch: int) -> None:
        """Owner record before grant; no epoch twice; nobody else still runs it but a fenced zombie."""
        log = self.world.log
        if log.granted.get((task, epoch)) != worker.join_request.writer:
            raise Broken(f"{worker.name} runs {task} at epoch {epoch} without an owner record")
        if (worker.join_request.writer, task, epoch) in self.given_up:
            raise Broken(f"{worker.name} runs {task} at epoch {epoch} again, which it had given up")
        if worker.join_request.tasks is None or task not in expand(worker.join_request.tasks):
            raise Broken(f"{worker.name} was given {task}, which it never said that it has")
        if log.owners[task].epoch != epoch:
            return  # it is late: the log refuses what it writes
        for other in self.world.workers:
            if other is worker or not other.process.alive or other.gone or other.join_request.writer in self.fenced:
                continue
            holding = other.machine.held.get(task)
            if holding is not None and holding.epoch and task in other.position:
                raise Broken(f"{task} granted to {worker.name} while {other.name} runs it at {holding.epoch}")

    def shutdown(self, worker: Worker, event: mem.Assigned) -> None:
        """Nobody who runs something is told to go."""
        told = event.assignment.shutdown and event.assignment.term >= worker.highest
        if told and worker.position and worker.join_request.writer not in self.fenced:
            raise Broken(f"{worker.name} is told to shut down while it runs {sorted(worker.position)}")

    # ---- of coordinators

    def operation_ended(self, name: str, outcome: str) -> None:
        """A scale-down is done when nobody of it runs anything any more."""
        operation = self.world.log.operations.get(name)
        leavers = operation.instances if operation is not None else ()
        if outcome != "done":
            return
        for worker in self.world.workers:
            there = worker.process.alive and not worker.gone and worker.join_request.writer not in self.fenced
            if worker.instance in leavers and there and worker.position:
                raise Broken(f"the scale-down of {leavers} is called done, and {worker.name} still runs tasks")

    def lives(self, before: dict[str, Presence | None], group: Group) -> None:
        """Every step of every member is one of the table, and it is where its connection and its mark say."""
        after = {m.name: m.presence for m in group.members}
        for m in group.members:
            leads = Presence.LEAVING if m.is_leaving else Presence.RUNNING
            if not m.fenced and m.presence is not (Presence.SILENT if m.session is None else leads):
                raise Broken(f"{m.name} is {m.presence}, with session {m.session}, to leave: {m.is_leaving}")
        for name in sorted(before.keys() | after.keys()):
            step = before.get(name), after.get(name)
            if step[0] is not step[1] and step not in STEPS:
                raise Broken(f"{name} went from {step[0]} to {step[1]}, which is no step of a member's life")

    def phase(self, group: Group) -> None:
        """The phase of the rebalance is what the group's own tables say."""
        turn = turn_of(group, group.last_step_ms)
        if REBALANCE[group.phase, turn] is not group.phase and len(group.members):
            raise Broken(f"the rebalance is {group.phase}, and what there is to say is: {turn}")

    # ---- what the cluster lets them see

    def before(self, coordinator: Coordinator) -> None:
        """What was asked for before a step: a fence in it may call off what another fence of the same step was for."""
        group = coordinator.group
        self.generation = group.generation
        self.presence: dict[str, Presence | None] = {m.name: m.presence for m in group.members}
        self.releases_asked = self._asked(group)

    def stepped(self, coordinator: Coordinator, event: ev.Event) -> None:
        group, world = coordinator.group, self.world
        if group.generation != self.generation:
            # A new coordinator may learn of a later generation from a member: that is one step of its own.
            world.rebalances += min(2, group.generation - self.generation)
            world.note(f"generation {group.generation} after {type(event).__name__}")
        try:
            invariants.check(group)
        except Exception as error:
            raise Broken(str(error)) from error
        self.sent(group)
        self.lives(self.presence, group)
        self.phase(group)

    def effect(self, coordinator: Coordinator, effect: ev.Effect) -> None:
        match effect:
            case ev.Send(session, assignment):
                self.asked(coordinator, session, assignment)
            case ev.RecordOwners(records):
                self.hand_over(coordinator, records)
            case ev.Fence(writer):
                self.fence(coordinator, writer)
            case ev.OperationEnded(name, outcome):
                self.operation_ended(name, outcome)
            case ev.Announced(text):
                self.world.note(text)

    def after(self, coordinator: Coordinator) -> None:
        self.agreed(coordinator.group)

    def lost_lease(self, coordinator: Coordinator) -> None:
        self.world.deposed(coordinator)

    # ---- of what coordinators do

    def _asked(self, group: Group) -> list[tuple[str, int]]:
        """Of whom a release is awaited, and since when; who gave up its part of a move behind a barrier has answered."""
        moves = ((group.owners[t], m) for t, m in group.moves.items() if m.asked)
        return [(move.source, move.since_ms) for owner, move in moves if not self._has_released(group, owner)]

    def heard_from(self, coordinator: Coordinator, writer: str) -> None:
        self.heard[coordinator.term, writer] = self.world.now_ms
        self.ended.discard((coordinator.term, writer))

    def fence(self, coordinator: Coordinator, writer: str) -> None:
        """Nobody is fenced who spoke lately, whatever a clock says; but for a twin, and for a release not given."""
        if (coordinator.term, writer) in self.refused:
            raise Broken(f"{writer} was fenced twice in term {coordinator.term}")
        self.fenced.add(writer)
        self.refused.add((coordinator.term, writer))
        world, group, worker = self.world, coordinator.group, self.world.by_transactional_id[writer]
        settings, local = group.settings, coordinator.clock()
        heard = self.heard.get((coordinator.term, writer))
        if worker.join_request.writer != writer:
            return  # another incarnation of it is there
        if heard is None:
            former = worker.instance == group.former  # its process is gone, for all to see
            grace = settings.disconnect_grace_ms if former else settings.rejoin_grace_ms
            if local - group.started_ms < grace:
                raise Broken(f"{worker.name} was fenced {local - group.started_ms} ms into term {coordinator.term}")
            return
        asked = [*self.releases_asked, *self._asked(group)]
        asked += [
            (group.owners[task].member, since)
            for task, since in group.retiring.items()
            if not self._has_released(group, group.owners[task])
        ]
        if any(name == worker.name and local - since >= settings.release_timeout_ms for name, since in asked):
            return
        ended = (coordinator.term, writer) in self.ended
        least = settings.disconnect_grace_ms if ended else settings.session_timeout_ms
        if not ended and self._goes_on_elsewhere(group, worker.instance, writer):
            least = max(settings.disconnect_grace_ms, 3 * settings.heartbeat_ms)
        if world.now_ms - heard < least - SLACK_MS:
            raise Broken(f"{worker.name} was fenced {world.now_ms - heard} ms after it was heard")

    def _goes_on_elsewhere(self, group: Group, instance: str, writer: str) -> bool:
        """Whether a task of a writer has a close standby on another instance."""
        standbys = [
            (task, group.members.get(name))
            for task, owner in group.owners.items()
            if owner.writer == writer
            for name in group.standbys.get(task, ())
        ]
        return any(
            m is not None and m.join_request.instance != instance and self._is_close(group, m, task)
            for task, m in standbys
        )

    @staticmethod
    def _has_released(group: Group, owner: Owner) -> bool:
        member = group.members.get(owner.member)
        proof = member.status.released.get(owner.task) if member is not None else None
        return proof is not None and proof.epoch == owner.epoch

    def agreed(self, group: Group) -> None:
        """After a step: who could have gone on at once with each task of which it was agreed now where it goes."""
        known = self.targets.get(group.term, {})
        for task, move in group.moves.items():
            if known.get(task) != move.target:
                # What was agreed before the last member left that cannot learn ends as it was agreed: cold.
                learns = group.protocol is Protocol.LEARNER
                self.warm_then[group.term, task] = self._warm(group, task) if learns else set()
        self.targets[group.term] = {task: move.target for task, move in group.moves.items()}

    def hand_over(self, coordinator: Coordinator, records: tuple[Owner, ...]) -> None:
        """No cold hand-over while a copy was there that was close enough, when it was agreed on and still; and nothing
        for a writer that was fenced."""
        group = coordinator.group
        for record in records:
            if (coordinator.term, record.writer) in self.refused:
                raise Broken(f"{record.task} is given to {record.writer}, which was fenced")
        if group.protocol is not Protocol.LEARNER:
            return
        stateful = {task.id for task in self.world.tasks if task.stateful}
        for record in records:
            target = group.members.get(record.member)
            if record.task not in stateful or target is None or not record.writer:
                continue
            before = group.owners.get(record.task)
            former = group.members.get(before.member) if before is not None else None
            if before is not None and before.member == record.member:
                continue  # it comes back to where its disk is
            if former is not None and former.join_request.instance == target.join_request.instance:
                continue
            warm = self._warm(group, record.task)
            if record.task in self.targets.get(group.term, {}):
                warm &= self.warm_then[group.term, record.task]
            if self.world.plan.long_assignment < LONG_ASSIGNMENT:  # it was computed from how far copies were before
                warm &= self._announced(group, record.task)
            beside = group.members.of_instance(target.join_request.instance)
            if warm and not any(self._is_close(group, m, record.task) for m in beside):
                raise Broken(f"{record.task} went cold to {record.member} while {min(warm)} was close enough")

    @staticmethod
    def _announced(group: Group, task: TaskId) -> set[str]:
        """The instances that have said that they are ready for the task."""
        copies = ((m, m.status.copies.get(task)) for m in group.members)
        return {m.join_request.instance for m, copy in copies if copy is not None and copy.ready}

    def _warm(self, group: Group, task: TaskId) -> set[str]:
        """The instances that could have gone on at once, and could be told to."""
        found: set[str] = set()
        for m in group.members:
            if m.session is None or m.fenced or m.is_leaving or m.shut_down or not group.can_run(m, task):
                continue
            if self._is_close(group, m, task):
                found.add(m.join_request.instance)
        return found

    @staticmethod
    def _is_close(group: Group, m: Member, task: TaskId) -> bool:
        """Whether it says that it has the task's state, but for an acceptable lag."""
        copy, at = m.status.copies.get(task), m.status.disk.get(task)
        if copy is not None and copy.ready:
            return True
        end = max(group.end_offsets.of(task, 0), copy.end if copy is not None else 0)
        position = copy.position if copy is not None else at
        return position is not None and end > 0 and end - position <= group.settings.acceptable_recovery_lag

    def asked(self, coordinator: Coordinator, session: int, assignment: Assignment) -> None:
        """Nobody is asked to let go of a task that it runs, for somebody who has yet to restore it."""
        group = coordinator.group
        owner = group.members.of_session(session)
        if owner is None or group.protocol is not Protocol.LEARNER or group.barrier:
            return
        stateful = {task.id for task in self.world.tasks if task.stateful}
        for task, epoch in assignment.release.items():
            move = group.moves.get(task)
            target = group.members.get(move.target) if move is not None else None
            if target is None or task not in stateful or owner.status.active.get(task) != epoch:
                continue
            if owner.join_request.instance == target.join_request.instance:
                continue
            key = coordinator.term, task, epoch, target.join_request.writer
            beside = group.members.of_instance(target.join_request.instance)  # workers of an instance share its disk
            ready = any((copy := m.status.copies.get(task)) is not None and copy.ready for m in beside)
            if key not in self.asked_for and not ready:
                raise Broken(f"{owner.name} was asked to let {task} go, and {target.name} is not ready for it")
            self.asked_for.add(key)

    def sent(self, group: Group) -> None:
        """What members are told to hold: no instance a task twice, no copies beyond the bounds."""
        held: dict[tuple[str, TaskId], str] = {}
        standbys: dict[TaskId, int] = {}
        restoring: dict[str, int] = {}
        for member in group.members:
            if member.sent is None or member.fenced or member.session is None:
                continue  # what a silent one holds is its own
            host = member.join_request.instance
            for task in {*member.sent.active, *member.sent.learners, *member.sent.standbys}:
                other = held.setdefault((host, task), member.name)
                if other != member.name:
                    raise Broken(f"{other} and {member.name} of one instance are both told to hold {task}")
            incoming = group.moves.of(member.name).keys() | group.recording.of(member.name).keys()
            for task in member.sent.standbys:
                if task in incoming:
                    continue  # it stays what it is until it is granted
                standbys[task] = standbys.get(task, 0) + 1
            for task in member.sent.learners:
                copy = member.status.copies.get(task)
                if task not in group.moves and task not in group.recording and not (copy is not None and copy.ready):
                    restoring[host] = restoring.get(host, 0) + 1
        for task, count in sorted(standbys.items()):
            if count > group.settings.standbys + (group.settings.standbys > 0):
                raise Broken(f"{count} members are told to keep a standby of {task}, of {group.settings.standbys}")
        for host, count in sorted(restoring.items()):
            if count > group.settings.max_learners_per_instance:
                raise Broken(f"{host} is told to restore {count} learners")

    def waiting(self, coordinator: Coordinator) -> None:
        """Nobody is waited for longer than the settings say (with some slack for delays), by the coordinator's clock."""
        group, world, now = coordinator.group, self.world, coordinator.clock()
        settings = group.settings
        if now - self.looked_ms > 1_000 or now < self.looked_ms or group.started_ms != self.started_ms:
            self.learning.clear()  # the coordinator stood still, or is another one: it counts from here
            self.ready_since.clear()
        self.looked_ms, self.started_ms = now, group.started_ms
        if not world.log_up() or group.fencing or now - group.started_ms < settings.rejoin_grace_ms + SLACK_MS:
            return
        for task, move in group.moves.items():
            owner = group.owners.get(task)
            free = (owner is None or not owner.writer) and task not in group.recording
            if free and group.barrier and group.protocol is Protocol.COOPERATIVE:
                raise Broken(f"{task} is nobody's, and {move.target} is to wait for what others give up")
            source = group.members.get(move.source)
            waits = move.asked and source is not None and not source.fenced
            waits = waits and not self._has_released(group, group.owners[task])
            # An owner that speaks is in a call, which ends; nobody but a silent one is fenced for it.
            waits = waits and source.silent_for(now) > 3 * settings.heartbeat_ms + SLACK_MS
            if waits and now - move.since_ms > settings.release_timeout_ms + SLACK_MS:
                raise Broken(f"the release of {task} by {move.source} is waited for too long")
        for member in group.members:
            if member.silent_for(now) > settings.session_timeout_ms + SLACK_MS:
                raise Broken(f"{member.name} is silent for too long")
        self._learners(group, now)

    def _learners(self, group: Group, now: int) -> None:
        """A learner that stands still is given up; one that is ready takes over."""
        learning: dict[tuple[TaskId, str, str], tuple[int, int]] = {}
        ready: dict[tuple[TaskId, str, str], int] = {}
        for task, name in group.learners.items():
            holder = group.members.get(name)
            if holder is None or holder.session is None:
                continue
            key, copy = (task, name, holder.join_request.writer), holder.status.copies.get(task)
            at = -1 if copy is None else copy.position
            before, since = self.learning.get(key, (-2, now))
            if at != before or (copy is not None and copy.ready):
                since = now
            learning[key] = (at, since)
            if now - since > group.settings.learner_timeout_ms + SLACK_MS:
                raise Broken(f"{name} learns {task} without progress for too long")
            if (
                copy is not None
                and copy.ready
                and task not in group.moves
                and not group.moves
                and not holder.is_leaving
            ):
                ready[key] = self.ready_since.get(key, now)
                if now - ready[key] > SLACK_MS:
                    raise Broken(f"{name} is ready to take {task} over and is ignored")
        self.learning, self.ready_since = learning, ready

    # ---- of the whole history

    def history(self) -> None:
        """Every input of every task was applied once, in order, under epochs that only grow."""
        at = dict.fromkeys(self.world.plan.history, 0) | dict(self.world.plan.history)
        epochs: dict[TaskId, int] = {}
        for commit in self.world.log.history:
            if commit.start != at[commit.task] or commit.stop <= commit.start:
                raise Broken(f"the history of {commit.task} goes from {at[commit.task]} to {commit.start}")
            if commit.epoch < epochs.get(commit.task, 0):
                raise Broken(f"{commit.task} was written at epoch {commit.epoch} after {epochs[commit.task]}")
            at[commit.task], epochs[commit.task] = commit.stop, commit.epoch
        if any(self.world.log.positions[task] != position for task, position in at.items()):
            raise Broken("the positions are not where the history ends")
