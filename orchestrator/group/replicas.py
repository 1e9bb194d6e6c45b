"""Replicas that no plan asked for: what a member brings with it, and what a worker leaves behind.

One rule: a copy counts once in an instance, whose workers share its folders; whatever breaks that is let go. Used by
step.py when members come and go.
"""

from __future__ import annotations

from orchestrator.group import changes as ch
from orchestrator.group.assignor_view import knows_end
from orchestrator.group.members import Member
from orchestrator.group.state import GroupState
from orchestrator.model import MemberStatus, Role, TaskId


def recover(group: GroupState, member: Member) -> ch.Decisions:
    """A new coordinator learns of learners and standbys from those who hold them; what breaks a rule is let go."""
    restoring = sum(len(group.learners.of(m.name)) for m in group.members.of_instance(member.join_request.instance))
    for task, copy in sorted(member.status.copies.items()):
        if not group.can_run(member, task) or _is_held_in(group, task, member.join_request.instance):
            continue
        owner = group.owners.get(task)
        if owner is not None and owner.writer == member.join_request.writer:
            continue
        known = group.standbys.get(task, ())
        if copy.role is Role.LEARNER and task not in group.learners:
            if copy.ready or restoring < group.settings.max_learners_per_instance:
                yield ch.LearnerSet(task, member.name)
                restoring += 1
        elif copy.role is Role.STANDBY and len(known) < group.settings.standbys + (group.settings.standbys > 0):
            yield ch.StandbysSet(task, (*known, member.name))


def has_caught_up(group: GroupState, member: Member, before: MemberStatus) -> bool:
    """Whether a standby that restores in the place of another one is close now, and was not `before`: that one can go."""
    lag_max = group.settings.acceptable_recovery_lag
    for task in group.spreading & member.status.copies.keys():
        copy, then = member.status.copies[task], before.copies.get(task)
        was = then is not None and knows_end(then) and then.lag <= lag_max
        if not was and knows_end(copy) and copy.lag <= lag_max:
            return True
    return False


def drop_beside_owner(group: GroupState, owner: Member) -> ch.Decisions:
    """An owner is back, and copies of its tasks on its siblings were adopted before: there is one folder for both."""
    siblings = {m.name for m in group.members.of_instance(owner.join_request.instance) if m is not owner}
    for task in group.by_transactional_id.of(owner.join_request.writer) if siblings else ():
        if group.learners.get(task) in siblings:
            yield ch.LearnerSet(task, None)
        if not siblings.isdisjoint(group.standbys.get(task, ())):
            yield ch.StandbysSet(task, tuple(name for name in group.standbys[task] if name not in siblings))


def _is_held_in(group: GroupState, task: TaskId, instance: str) -> bool:
    """Whether a copy of the task is known on this instance already."""
    names = [group.effective_owner(task), group.learners.get(task), *group.standbys.get(task, ())]
    return any(name is not None and group.instance_of(name) == instance for name in names)


def forget_unknown(group: GroupState, member: Member) -> ch.Decisions:
    """Standbys that the member was to have as another version of the app, and cannot have now; nor anybody those of tasks
    that are gone. A new plan would say so, too, but behind a barrier there is none for a while."""
    for task in [t for t in group.standbys.of(member.name) if not group.can_run(member, t)]:
        yield ch.StandbysSet(task, tuple(name for name in group.standbys[task] if name != member.name))
    for task in [t for t in group.learners if t not in group.tasks]:
        yield ch.LearnerSet(task, None)
    for task in [t for t in group.standbys if t not in group.tasks]:
        yield ch.StandbysSet(task, None)
