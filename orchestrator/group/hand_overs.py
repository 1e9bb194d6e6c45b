"""What one owner leaves to the next, and how long a hand-over took, as both sides and the log report it. One rule: times are
published, and decide nothing; only the owner of the very next epoch receives where an owner ended.

The gap runs from the last commit of the old owner to the first of the new, by their own wall clocks: instances on several
machines are taken to agree about the time. The log keeps the first of the two, so it survives the old owner, and the
coordinator. The pause counts only while records waited: it begins with the release, or where the old owner had
nothing to read at its last report, with that; it ends when the new owner begins, where there was nothing to read yet.
Begun by reconcile.py when the new owner is recorded; finished by step.py when the new owner reports when it began.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.group import changes as ch
from orchestrator.group import events as ev
from orchestrator.group.members import Member
from orchestrator.group.state import GroupState, HandOver
from orchestrator.model import Ending, Owner, ProcessingStarted, TaskId


def begun(group: GroupState, records: Iterable[Owner]) -> dict[TaskId, HandOver]:
    """New owners are about to be recorded: what those before reported of their end, by task."""
    found: dict[TaskId, HandOver] = {}
    for record in records:
        before = group.owners.get(record.task)
        source = before.member if before is not None else ""
        if source and source != record.member:
            member = group.members.get(source)
            proof = member.status.released.get(record.task) if member is not None else None
            idle_ms = _idle_since(member, record.task) if member is not None else None
            found[record.task] = HandOver(source, record.member, proof, False, idle_ms)
    return found


def ending(group: GroupState, task: TaskId, epoch: int) -> Ending | None:
    """Where the owner of a task ended from which the one in this epoch takes it; None where it did not say so, or was fenced."""
    hand_over = group.hand_overs.get(task)
    proof = hand_over.proof if hand_over is not None else None
    return proof.ending if proof is not None and proof.epoch == epoch - 1 else None


def _idle_since(member: Member, task: TaskId) -> int | None:
    facts = member.status.facts_of(task)
    return member.last_report_ms if facts is not None and facts.input_lag == 0 else None


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
    last_ms = started.from_ms or (proof.last_ms if proof is not None else 0)
    gap = max(0, started.first_ms - last_ms) if last_ms and started.first_ms else None
    if started.first_ms or not last_ms:
        yield ch.HandOverTimed(task, None)  # nothing more will be known
    elif hand_over.published:
        return
    else:
        yield ch.HandOverTimed(task, hand_over._replace(published=True))
    pause = _pause_ms(hand_over, started, group.last_step_ms)
    yield ev.HandedOver(task, started.epoch, hand_over.source, hand_over.target, gap, pause)


def _pause_ms(hand_over: HandOver, started: ProcessingStarted, now_ms: int) -> int | None:
    """See the module text. What is published before the first commit is the least that it will be."""
    end_ms = (started.awaited and started.first_ms) or started.began_ms
    if not end_ms:
        return None
    if hand_over.proof is not None and hand_over.proof.stopped_ms:  # it ran the task until then
        return max(0, end_ms - hand_over.proof.stopped_ms)
    if not started.from_ms or (hand_over.idle_ms is None and not started.awaited):
        return None
    pause = max(0, end_ms - started.from_ms)
    return pause if hand_over.idle_ms is None else min(pause, now_ms - hand_over.idle_ms)
