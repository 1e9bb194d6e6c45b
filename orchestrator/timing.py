"""How long a hand-over took, as both sides tell it. One rule: times are published, and decide nothing.

Begun by refine.py when the new owner is recorded; finished by group.py when the new owner tells when it began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator import events as ev
from orchestrator.model import Owner, Started, TaskId
from orchestrator.roster import Member

if TYPE_CHECKING:
    from orchestrator.group import Group


def begin(group: Group, record: Owner) -> None:
    """A new owner is about to be recorded: keep what the one before told of its end."""
    before = group.owners.get(record.task)
    source = before.member if before is not None else ""
    if not source or source == record.member:
        return
    member = group.roster.get(source)
    proof = member.status.released.get(record.task) if member is not None else None
    group.hand_overs[record.task] = (source, record.member, proof, False)


def heard(group: Group, member: Member) -> None:
    """The status of a member may tell when it began with what it was given."""
    if group.hand_overs:
        for task, begun in member.status.started.items():
            if task in group.hand_overs:
                _timed(group, member, task, begun)


def _timed(group: Group, member: Member, task: TaskId, begun: Started) -> None:
    """Both sides of a hand-over have told their times: publish it, and once more when its first record comes."""
    owner = group.owners.get(task)
    if owner is None or owner.member != member.name or owner.epoch != begun.epoch:
        return
    source, target, proof, told = group.hand_overs[task]
    stopped = proof is not None and bool(proof.stopped_ms) and bool(begun.began_ms)
    pause = max(0, begun.began_ms - proof.stopped_ms) if proof is not None and stopped else None
    gap = begun.first_ms - proof.last_ms if proof is not None and proof.last_ms and begun.first_ms else None
    if begun.first_ms or proof is None or not proof.last_ms:
        del group.hand_overs[task]  # nothing more will be known
    elif told:
        return
    else:
        group.hand_overs[task] = (source, target, proof, True)
    group.effects.append(ev.HandedOver(task, begun.epoch, source, target, gap, pause))
