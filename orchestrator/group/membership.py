"""What follows from what members send: joins, heartbeats, and connections that end.

One rule: a member's status counts whole, and only what can change the target assignment makes the group assign anew.
Used by step.py.
"""

from __future__ import annotations

from orchestrator.group import changes as ch
from orchestrator.group import events as ev
from orchestrator.group import fencing, hand_overs, measured_weights, partition_growth, replicas
from orchestrator.group.members import Member
from orchestrator.group.phases import are_all_back
from orchestrator.group.state import GroupState
from orchestrator.model import MemberStatus


def joined(group: GroupState, event: ev.Joined, now_ms: int) -> ch.Decisions:
    """A worker opened a session: for the first time, again, or as another incarnation."""
    join_request, status = event.join_request, event.status
    yield ch.JoinReceived(now_ms, status.generation)
    if join_request.writer in group.fencing or refused(group, join_request.writer, join_request.member):
        yield ev.CloseSession(event.session, fenced=True)
        return
    known = group.members.get(join_request.member)
    yield from _end_former(group, event, known)
    same = known is not None and known.join_request.writer == join_request.writer
    marked = any(join_request.instance in operation.instances for operation in group.operations.values())
    member = Member(
        join_request,
        None,
        status,
        now_ms,
        leaving=(same and known is not None and known.leaving)
        or marked
        or (
            join_request.instance_incarnation
            and join_request.instance_incarnation == group.leavers.get(join_request.instance)
        )
        or now_ms < group.dismissed.get(join_request.instance, 0),
        progress=known.progress if same and known is not None else {},
    )
    if same and known is not None:
        yield from partition_growth.add_pending(group, known.join_request, join_request, now_ms)
    yield ch.MemberBound(member, event.session)
    yield from partition_growth.see_tasks(group)
    yield from _copies_of(group, member, known)
    yield ch.ReportsKept(member, now_ms)
    yield from _measured(group, member, MemberStatus())
    if known is None or not partition_growth.only_adds_pending(group, known, member) or matters(known.status, status):
        yield ch.TargetOutdated()
    if are_all_back(group):
        yield ch.Gathered()
    if status.term == 0:
        yield ch.StateReclaimed(join_request.instance)
        yield ch.TargetOutdated(membership=True)


def _end_former(group: GroupState, event: ev.Joined, known: Member | None) -> ch.Decisions:
    """What the member was before ends: its connection, other incarnations, and what those restored."""
    join_request = event.join_request
    if known is not None and known.session is not None and known.session != event.session:
        yield ev.CloseSession(known.session, fenced=known.join_request.writer != join_request.writer)
    if known is not None and known.join_request.writer != join_request.writer:
        yield from fencing.fence(group, known.join_request.writer)
        yield ev.Announced(f"{join_request.member} rejoined")
        # What it had restored it has to open and to catch up again: that counts against the budget like any learner.
        for task in list(group.learners.of(join_request.member)):
            yield ch.LearnerSet(task, None)
    for transactional_id in group.transactional_ids_of(join_request.member):
        if transactional_id != join_request.writer:
            yield from fencing.fence(group, transactional_id)


def _copies_of(group: GroupState, member: Member, known: Member | None) -> ch.Decisions:
    """The replicas that a member brings with it, those beside it that are too many, and those it cannot have now."""
    if known is None:
        yield from replicas.recover(group, member)
    yield from replicas.drop_beside_owner(group, member)
    if known is not None and known.join_request.tasks != member.join_request.tasks:
        yield from replicas.forget_unknown(group, member)


def refused(group: GroupState, transactional_id: str, member: str) -> bool:
    """A transactional id that was fenced as a whole never comes back; a worker that learns of it rejoins under a new one."""
    known = group.members.get(member)
    return transactional_id in group.fenced or (
        known is not None and known.fenced and known.join_request.writer == transactional_id
    )


def heartbeat(group: GroupState, event: ev.Heartbeat, now_ms: int) -> ch.Decisions:
    """A member reported its whole status."""
    member = group.members.of_session(event.session)
    if member is None:
        yield ev.CloseSession(event.session, fenced=False)
        return
    before = member.status
    if before.log_away:  # neither its releases nor its copies get on meanwhile
        yield ch.LogAwaited(member, now_ms - member.last_report_ms)
    yield ch.StatusReceived(member, event.status, now_ms)
    if member.fenced:
        yield ev.CloseSession(event.session, fenced=True)
        return
    if group.hand_overs or group.settings.weights != "given":
        yield from _measured(group, member, before)
    if matters(before, member.status) or (group.spreading and replicas.has_caught_up(group, member, before)):
        yield ch.Touched({member.name})
        yield ch.TargetOutdated()
    if now_ms - member.resent_ms >= group.settings.heartbeat_ms and member.lacks_assigned():
        yield ch.AssignmentMissing(member, now_ms)  # it has seen the assignment and does not hold what is in it


def _measured(group: GroupState, member: Member, before: MemberStatus) -> ch.Decisions:
    """What the member measured: weights of its tasks, and the times of hand-overs; `before` is its status before this one."""
    if group.settings.weights != "given":
        yield from measured_weights.note_weights(group, member, before)
    yield from hand_overs.note_start(group, member)


def matters(before: MemberStatus, after: MemberStatus) -> bool:
    """Whether a status can change the target assignment; lags alone do not."""
    if before.leaving != after.leaving or before.released != after.released:
        return True
    if before.weights != after.weights:
        return True
    if before.copies == after.copies and before.disk.keys() == after.disk.keys():
        return False
    ready = {t for t, c in before.copies.items() if c.ready}
    now_ready = {t for t, c in after.copies.items() if c.ready}
    return ready != now_ready or before.copies.keys() != after.copies.keys() or before.disk.keys() != after.disk.keys()


def session_ended(group: GroupState, event: ev.SessionEnded, now_ms: int) -> ch.Decisions:
    """A connection is gone: its member is silent, or gone too if it was to leave and has nothing left."""
    member = group.members.of_session(event.session)
    if member is None:
        return
    yield ch.SessionLost(event.session, now_ms)
    if member.shut_down or (member.is_leaving and not group.owns(member)):
        yield ch.MemberRemoved(member)
    yield ch.TargetOutdated()
