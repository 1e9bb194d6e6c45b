"""How long a hand-over took, as both sides report it. One rule: times are published, and decide nothing.

Begun by reconcile.py when the new owner is recorded; finished by step.py when the new owner reports when it began.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.group import changes as ch
from orchestrator.group import events as ev
from orchestrator.group.members import Member
from orchestrator.group.state import GroupState, HandOver
from orchestrator.model import Owner, ProcessingStarted, TaskId


def begun(group: GroupState, records: Iterable[Owner]) -> dict[TaskId, HandOver]:
    """New owners are about to be recorded: what those before reported of their end, by task."""
    found: dict[TaskId, HandOver] = {}
    for record in records:
        before = group.owners.get(record.task)
        source = before.member if before is not None else ""
        if source and source != record.member:
            member = group.members.get(source)
            proof = member.status.released.get(record.task) if member is not None else None
            found[record.task] = HandOver(source, record.member, proof, False)
    return found


def note_start(group: GroupState, member: Member) -> ch.Decisions:
    """The status of a member may report when it began with what it was given."""
    if group.hand_overs:
        for task, started in member.status.started.items():
            if task in group.hand_overs:
                yield from _timed(group, member, task, started)


def _timed(group: GroupState, member: Member, task: TaskId, started: ProcessingStarted) -> ch.Decisions:
    """Both sides of a hand-over have reported their times: publish it, and once more when its first record comes."""
    owner = group.owners.get(task)
    if owner is None or owner.member != member.name or owner.epoch != started.epoch:
        return
    hand_over = group.hand_overs[task]
    proof = hand_over.proof
    stopped = proof is not None and bool(proof.stopped_ms) and bool(started.began_ms)
    pause = max(0, started.began_ms - proof.stopped_ms) if proof is not None and stopped else None
    gap = started.first_ms - proof.last_ms if proof is not None and proof.last_ms and started.first_ms else None
    if started.first_ms or proof is None or not proof.last_ms:
        yield ch.HandOverTimed(task, None)  # nothing more will be known
    elif hand_over.published:
        return
    else:
        yield ch.HandOverTimed(task, hand_over._replace(published=True))
    yield ev.HandedOver(task, started.epoch, hand_over.source, hand_over.target, gap, pause)
