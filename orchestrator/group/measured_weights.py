"""The weights of tasks as their owners measured them last. One rule: only the present owner's measure counts."""

from __future__ import annotations

from orchestrator.group import changes as ch
from orchestrator.group.members import Member
from orchestrator.group.state import GroupState
from orchestrator.model import MemberStatus


def note_weights(group: GroupState, member: Member, before: MemberStatus) -> ch.Decisions:
    """A member that reported `before` may have measured its tasks anew."""
    status = member.status
    if (before.weights, before.active) != (status.weights, status.active):
        own = {
            task: status.weights.get(task, 1)
            for task, epoch in status.active.items()
            if (owner := group.owners.get(task)) is not None and owner.epoch == epoch
        }
        if own:
            yield ch.WeightsMeasured(own)
