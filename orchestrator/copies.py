"""Copies that nobody was told to make: what a member brings with it, and what a worker leaves behind.

One rule: a copy counts once in an instance, whose workers share its folders; whatever breaks that is let go. Used by
group.py when members come and go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.model import Role, TaskId

if TYPE_CHECKING:
    from orchestrator.group import Group
    from orchestrator.roster import Member


def adopt(group: Group, member: Member) -> None:
    """A new coordinator learns of learners and standbys from those who hold them; what breaks a rule is let go."""
    restoring = sum(len(group.learners.of(m.name)) for m in group.roster.of_instance(member.hello.instance))
    for task, copy in sorted(member.status.copies.items()):
        if not group.can_run(member, task) or _is_held_in(group, task, member.hello.instance):
            continue
        owner = group.owners.get(task)
        if owner is not None and owner.writer == member.hello.writer:
            continue
        known = group.standbys.get(task, ())
        if copy.role is Role.LEARNER and task not in group.learners:
            if copy.ready or restoring < group.settings.max_learners_per_instance:
                group.learners[task] = member.name
                restoring += 1
        elif copy.role is Role.STANDBY and len(known) < group.settings.standbys:
            group.standbys[task] = (*known, member.name)


def let_go_beside(group: Group, owner: Member) -> None:
    """An owner is back, and copies of its tasks on its siblings were adopted before: there is one folder for both."""
    siblings = {m.name for m in group.roster.of_instance(owner.hello.instance) if m is not owner}
    for task in group.writers.of(owner.hello.writer) if siblings else ():
        if group.learners.get(task) in siblings:
            del group.learners[task]
        if not siblings.isdisjoint(group.standbys.get(task, ())):
            group.standbys[task] = tuple(name for name in group.standbys[task] if name not in siblings)


def _is_held_in(group: Group, task: TaskId, instance: str) -> bool:
    """Whether a copy of the task is known on this instance already."""
    names = [group.effective_owner(task), group.learners.get(task), *group.standbys.get(task, ())]
    return any(name is not None and group.instance_of(name) == instance for name in names)


def leave_behind(group: Group, member: Member) -> None:
    """A worker is gone and others of its instance are not: what it ran lies on their disk, whatever they said of it."""
    if group.roster.of_instance(member.hello.instance):
        group.left_behind.update(dict.fromkeys(group.writers.of(member.hello.writer), member.hello.instance))


def found_again(group: Group, member: Member) -> None:
    """A worker that has just started says itself what is on its instance's disk."""
    for task in [task for task, instance in group.left_behind.items() if instance == member.hello.instance]:
        del group.left_behind[task]


def forget_unknown(group: Group, member: Member) -> None:
    """Standbys that the member was to have as another version of the app, and cannot have now; nor anybody those of tasks
    that are gone. A new plan would say so, too, but behind a barrier there is none for a while."""
    for task in [t for t in group.standbys.of(member.name) if not group.can_run(member, t)]:
        group.standbys[task] = tuple(name for name in group.standbys[task] if name != member.name)
    for table in (group.learners, group.standbys):
        for task in [t for t in table if t not in group.tasks]:
            del table[task]
