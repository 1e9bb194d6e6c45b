"""Members that go, and transactional ids that the log has to refuse.

One rule: a member that held a task is fenced before another gets it; moves to the fenced member are called off.
Used by step.py, membership.py, timeouts.py and scale_down.py.
"""

from __future__ import annotations

from orchestrator.group import changes as ch
from orchestrator.group import events as ev
from orchestrator.group.members import Member
from orchestrator.group.reconcile import call_off
from orchestrator.group.state import GroupState
from orchestrator.model import Owner


def fence(group: GroupState, transactional_id: str) -> ch.Decisions:
    """Have the log refuse the transactional id, if it holds anything; its member learns of it with its next message."""
    if not transactional_id or transactional_id in group.fencing:
        return
    member = group.members.of_transactional_id(transactional_id)
    if member is not None and not member.fenced:
        yield ch.MemberFenced(member)
        yield from call_off(group, member)
    name = member.name if member is not None else ""
    in_flight = any(
        group.recording[t].writer == transactional_id for t in (group.recording.of(name) if name else group.recording)
    )
    if group.by_transactional_id.of(transactional_id) or in_flight:
        yield ch.FenceRequested(transactional_id)
        yield ev.Fence(transactional_id)
    yield ch.TargetOutdated()


def recorded(group: GroupState, records: tuple[Owner, ...]) -> ch.Decisions:
    """Owner records are in the log; a member that was given a task and is gone meanwhile is fenced."""
    for record in records:
        yield ch.OwnerRecorded(record)
        member = group.members.get(record.member)
        if member is None or member.join_request.writer != record.writer or member.fenced:
            yield from fence(group, record.writer)
            if member is None or member.join_request.writer != record.writer:
                yield ch.TargetOutdated()
        elif len(group.members.of_instance(member.join_request.instance)) > 1:
            yield ch.TargetOutdated()  # now that it is there, the workers of the instance may share it out


def expire(group: GroupState, member: Member) -> ch.Decisions:
    """The member is dead: fence its transactional id, unless that is done, and forget it."""
    if member.session is not None:
        yield ev.CloseSession(member.session, fenced=True)
    if not member.fenced:
        yield ev.Announced(f"{member.name} fenced")
    yield from fence(group, member.join_request.writer)
    yield ch.MemberRemoved(member)


def expire_named(group: GroupState, name: str) -> ch.Decisions:
    """The member is reported dead; it may not have come back to this coordinator at all."""
    member = group.members.get(name)
    if member is not None:
        yield from expire(group, member)
        return
    yield ev.Announced(f"{name} fenced")
    for transactional_id in group.transactional_ids_of(name):
        yield from fence(group, transactional_id)
