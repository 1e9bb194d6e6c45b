"""What each change does to a group's state: the one place that changes it.

One rule: nothing is decided here; the same changes lead from the same state to the same state. Called by step.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from orchestrator.group import changes as ch
from orchestrator.group.members import NONE_YET, Member, Progress
from orchestrator.group.phases import REBALANCE
from orchestrator.group.state import GroupState
from orchestrator.model import MemberStatus

LEAVERS_KEPT = 10_000  # instances

RULES: dict[type[ch.Change], Callable[[Any, GroupState], None]] = {}
C = TypeVar("C", bound=ch.Change)


def apply(change: ch.Change, group: GroupState) -> None:
    """Change the group's state. Raises KeyError for a change that has no rule here."""
    RULES[type(change)](change, group)


def _rule(kind: type[C]) -> Callable[[Callable[[C, GroupState], None]], None]:
    """Declares what a kind of change does."""

    def declare(rule: Callable[[C, GroupState], None]) -> None:
        assert kind not in RULES, kind
        RULES[kind] = rule

    return declare


# ---- members


@_rule(ch.JoinReceived)
def _(change: ch.JoinReceived, group: GroupState) -> None:
    if group.first_join_ms is None:
        group.first_join_ms = change.now_ms
    group.generation = max(group.generation, change.generation)


@_rule(ch.MemberBound)
def _(change: ch.MemberBound, group: GroupState) -> None:
    known = group.members.get(change.member.name)
    if known is not None:
        group.members.remove(known)
        group.end_offsets.keep(known.status)
        change.member.presence = known.presence
    group.members.bind(change.member, change.session)
    if change.member.leaving:
        group.leavers[change.member.join_request.instance] = change.member.join_request.instance_incarnation
    group.touched.add(change.member.name)


@_rule(ch.SessionLost)
def _(change: ch.SessionLost, group: GroupState) -> None:
    group.members.unbind(change.session, change.now_ms)


@_rule(ch.StatusReceived)
def _(change: ch.StatusReceived, group: GroupState) -> None:
    member, before = change.member, change.member.status
    group.members.report(member, change.status)
    member.last_report_ms = change.now_ms
    if not member.fenced:
        group.members.note_progress(member, group.learners.of(member.name), change.now_ms)
        group.end_offsets.replaced(before, member.status)


@_rule(ch.LogAwaited)
def _(change: ch.LogAwaited, group: GroupState) -> None:
    member, waited_ms = change.member, change.waited_ms
    member.wait_longer(waited_ms)
    for task in group.by_transactional_id.of(member.join_request.writer):
        if task in group.moves:
            group.moves[task].since_ms += waited_ms
        if task in group.retiring:
            group.retiring[task] += waited_ms


@_rule(ch.ReportsKept)
def _(change: ch.ReportsKept, group: GroupState) -> None:
    group.members.note_progress(change.member, group.learners.of(change.member.name), change.now_ms)
    group.end_offsets.replaced(MemberStatus(), change.member.status)


@_rule(ch.WeightsMeasured)
def _(change: ch.WeightsMeasured, group: GroupState) -> None:
    group.weights.update(change.weights)


@_rule(ch.LeavingMarked)
def _(change: ch.LeavingMarked, group: GroupState) -> None:
    change.member.mark(change.leaving)


@_rule(ch.MemberFenced)
def _(change: ch.MemberFenced, group: GroupState) -> None:
    change.member.live("fenced")
    group.end_offsets.keep(change.member.status)
    group.touched.add(change.member.name)


@_rule(ch.MemberShutDown)
def _(change: ch.MemberShutDown, group: GroupState) -> None:
    change.member.shut_down = True


@_rule(ch.MemberRemoved)
def _(change: ch.MemberRemoved, group: GroupState) -> None:
    member, instance = change.member, change.member.join_request.instance
    group.members.remove(member)
    member.live("gone")
    siblings = group.members.of_instance(instance)
    if siblings:  # what it ran lies on their disk, whatever they reported of it
        group.orphaned_state.update(dict.fromkeys(group.by_transactional_id.of(member.join_request.writer), instance))
    group.end_offsets.keep(member.status)
    group.touched.update((member.name, *(sibling.name for sibling in siblings)))
    for task in list(group.learners.of(member.name)):
        del group.learners[task]
    for task in list(group.standbys.of(member.name)):
        group.standbys[task] = tuple(m for m in group.standbys[task] if m != member.name)
    group.membership_changed = group.membership_changed or not member.shut_down
    group.dirty = True


@_rule(ch.AssignmentSent)
def _(change: ch.AssignmentSent, group: GroupState) -> None:
    change.member.record_sent(change.assignment)


@_rule(ch.AssignmentMissing)
def _(change: ch.AssignmentMissing, group: GroupState) -> None:
    change.member.sent = None
    change.member.resent_ms = change.now_ms
    group.touched.add(change.member.name)


@_rule(ch.LearnerAwaited)
def _(change: ch.LearnerAwaited, group: GroupState) -> None:
    for task in change.tasks:
        change.member.progress.setdefault(task, Progress(*NONE_YET, change.now_ms))


@_rule(ch.Touched)
def _(change: ch.Touched, group: GroupState) -> None:
    group.touched.update(change.names)


@_rule(ch.AssignmentsDone)
def _(change: ch.AssignmentsDone, group: GroupState) -> None:
    group.broadcast_inputs = change.broadcast_inputs
    group.touched.clear()


# ---- tasks and their owners


@_rule(ch.TasksSeen)
def _(change: ch.TasksSeen, group: GroupState) -> None:
    before, group.tasks, group.pending_tasks = group.tasks, change.tasks, dict(change.pending)
    if change.tasks is before or change.tasks == before:
        return
    group.touched.update(group.members.by_name)
    for task in [task for task in group.moves if task not in group.tasks]:
        del group.moves[task]
    gone = (task for task, owner in group.owners.items() if owner.writer and task not in group.tasks)
    group.retiring = {task: group.retiring.get(task, group.last_step_ms) for task in gone}


@_rule(ch.TasksPending)
def _(change: ch.TasksPending, group: GroupState) -> None:
    for task in change.tasks:
        group.pending_tasks.setdefault(task, change.now_ms)


@_rule(ch.FenceRequested)
def _(change: ch.FenceRequested, group: GroupState) -> None:
    group.fencing.add(change.transactional_id)


@_rule(ch.FenceConfirmed)
def _(change: ch.FenceConfirmed, group: GroupState) -> None:
    held = group.by_transactional_id.of(change.transactional_id)
    group.fencing.discard(change.transactional_id)
    group.fenced.add(change.transactional_id)
    group.touched.update(group.owners[task].member for task in held)
    for task in change.tasks:
        owner = group.owners.get(task)
        if owner is not None and owner.writer == change.transactional_id:
            group.postponed.pop(task, None)
            group.retiring.pop(task, None)
            group.owners[task] = owner.without_writer(group.term)
    group.dirty = True


@_rule(ch.OwnerRecorded)
def _(change: ch.OwnerRecorded, group: GroupState) -> None:
    record = change.record
    group.recording.discard(record.task)
    group.postponed.pop(record.task, None)
    group.owners[record.task] = record
    group.orphaned_state.pop(record.task, None)
    if record.writer and record.task not in group.tasks:
        group.retiring[record.task] = group.last_step_ms


@_rule(ch.MovesBegun)
def _(change: ch.MovesBegun, group: GroupState) -> None:
    group.generation = change.generation
    group.barrier = change.barrier
    # Behind a barrier that stays, what others have released stays counted: a release is reported once.
    group.releasable = group.releasable - {record.task for record in change.records} if change.barrier else set()
    group.hand_overs.update(change.hand_overs)
    for record in change.records:
        group.recording[record.task] = record
        del group.moves[record.task]


@_rule(ch.RetirementsBegun)
def _(change: ch.RetirementsBegun, group: GroupState) -> None:
    for record in change.records:
        group.recording[record.task] = record
        del group.retiring[record.task]


@_rule(ch.MoveDropped)
def _(change: ch.MoveDropped, group: GroupState) -> None:
    del group.moves[change.task]


@_rule(ch.MovePostponed)
def _(change: ch.MovePostponed, group: GroupState) -> None:
    del group.moves[change.task]
    group.postponed[change.task] = change.now_ms
    group.barrier = group.barrier and bool(group.moves)
    group.dirty = True


@_rule(ch.MovesReleasable)
def _(change: ch.MovesReleasable, group: GroupState) -> None:
    if change.instead:
        group.releasable.clear()
    group.releasable.update(change.tasks)


@_rule(ch.HandOverTimed)
def _(change: ch.HandOverTimed, group: GroupState) -> None:
    if change.hand_over is None:
        del group.hand_overs[change.task]
    else:
        group.hand_overs[change.task] = change.hand_over


# ---- replicas


@_rule(ch.LearnerSet)
def _(change: ch.LearnerSet, group: GroupState) -> None:
    if change.member is None:
        del group.learners[change.task]
    else:
        group.learners[change.task] = change.member


@_rule(ch.StandbysSet)
def _(change: ch.StandbysSet, group: GroupState) -> None:
    if change.members is None:
        del group.standbys[change.task]
    else:
        group.standbys[change.task] = change.members
    more = change.members is not None and len(change.members) > max(1, group.settings.standbys)
    if more != (change.task in group.spreading):
        group.spreading ^= {change.task}


@_rule(ch.LearnerGivenUp)
def _(change: ch.LearnerGivenUp, group: GroupState) -> None:
    group.given_up[(change.task, change.member.join_request.instance)] = change.now_ms
    del group.learners[change.task]
    change.member.progress.pop(change.task, None)
    group.dirty = True


@_rule(ch.GivenUpForgotten)
def _(change: ch.GivenUpForgotten, group: GroupState) -> None:
    del group.given_up[(change.task, change.instance)]
    group.dirty = True


@_rule(ch.StateReclaimed)
def _(change: ch.StateReclaimed, group: GroupState) -> None:
    for task in [task for task, instance in group.orphaned_state.items() if instance == change.instance]:
        del group.orphaned_state[task]


# ---- the target assignment


@_rule(ch.Turned)
def _(change: ch.Turned, group: GroupState) -> None:
    group.phase = REBALANCE[group.phase, change.turn]


@_rule(ch.TargetOutdated)
def _(change: ch.TargetOutdated, group: GroupState) -> None:
    group.dirty = True
    group.membership_changed = group.membership_changed or change.membership


@_rule(ch.TargetRequested)
def _(change: ch.TargetRequested, group: GroupState) -> None:
    group.dirty = False
    group.computing = change.view
    group.targets_asked += change.view is not None


@_rule(ch.TargetReceived)
def _(change: ch.TargetReceived, group: GroupState) -> None:
    group.computing = None
    group.dirty = group.dirty or change.outdated
    group.stale_targets += change.stale


@_rule(ch.TargetUsed)
def _(change: ch.TargetUsed, group: GroupState) -> None:
    group.stale_targets = 0
    if change.standbys is not None:
        group.standbys_agreed = change.standbys


@_rule(ch.TargetAgreed)
def _(change: ch.TargetAgreed, group: GroupState) -> None:
    group.membership_changed = False
    group.generation += 1
    group.learners.become(change.learners)
    group.standbys.become(change.standbys)
    wanted = max(1, group.settings.standbys)
    group.spreading = frozenset(task for task, names in change.standbys.items() if len(names) > wanted)
    for task, move in change.moves.items():
        group.moves[task] = move
    group.barrier = change.barrier


@_rule(ch.AcceptedAsIs)
def _(change: ch.AcceptedAsIs, group: GroupState) -> None:
    group.paused = group.dirty = group.membership_changed = False


@_rule(ch.Reconfigured)
def _(change: ch.Reconfigured, group: GroupState) -> None:
    group.finishing = dict(change.finishing)
    group.settings = change.settings or group.settings
    if change.declared is not None:
        group.declared = dict(change.declared)
    group.dirty = True


@_rule(ch.HoldSet)
def _(change: ch.HoldSet, group: GroupState) -> None:
    group.paused = change.on


@_rule(ch.Gathered)
def _(change: ch.Gathered, group: GroupState) -> None:
    group.gathering, group.dirty = False, True


# ---- operations and time


@_rule(ch.OperationBegun)
def _(change: ch.OperationBegun, group: GroupState) -> None:
    group.operations[change.operation.id] = change.operation
    group.leavers.update(change.incarnations)
    while len(group.leavers) > LEAVERS_KEPT:
        del group.leavers[next(iter(group.leavers))]
    group.touched.update(group.members.by_name)
    group.dirty = True


@_rule(ch.OperationOver)
def _(change: ch.OperationOver, group: GroupState) -> None:
    del group.operations[change.operation]
    group.dismissed.update(change.dismissed)
    for instance in change.taken_back:
        group.leavers.pop(instance, None)


@_rule(ch.Stepped)
def _(change: ch.Stepped, group: GroupState) -> None:
    group.last_step_ms = change.now_ms
    if not change.pause_ms:
        return
    group.started_ms += change.pause_ms
    if group.first_join_ms is not None:
        group.first_join_ms += change.pause_ms
    for member in group.members:
        _discount(member, change.pause_ms)
    for move in group.moves.values():
        move.since_ms += change.pause_ms
    group.retiring = {task: since_ms + change.pause_ms for task, since_ms in group.retiring.items()}
    group.pending_tasks = {task: since_ms + change.pause_ms for task, since_ms in group.pending_tasks.items()}


def _discount(member: Member, pause_ms: int) -> None:
    member.last_report_ms += pause_ms
    if member.silent_ms is not None:
        member.silent_ms += pause_ms
    member.wait_longer(pause_ms)
